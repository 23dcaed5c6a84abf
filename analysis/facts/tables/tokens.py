"""Tables about consecutive tokens: texts of coordinate blocks, runs of junk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.tables.table import Column, FactTable, transposed
from molprof.analysis.facts.tokens import TokenText, block_texts, junk_runs

_TOKENS = """
SELECT sequence, block_open, block_close, position, block, kind, IFNULL(text, '') AS text
FROM molprof_token
JOIN molprof_sequence USING (sequence)
ORDER BY sequence, position
"""


def _sequences(facts: Facts) -> Iterator[tuple[int, tuple[str, str], list[TokenText]]]:
    """Yield the number of each sequence with tokens, its blocks' opening and closing texts, and its tokens in order."""
    for (sequence, *brackets), rows in groupby(facts.rows(_TOKENS, "tokens"), lambda row: row[:3]):
        yield sequence, (brackets[0], brackets[1]), [TokenText(*row[3:]) for row in rows]


def _block_texts(facts: Facts) -> Sequence[Column]:
    rows = [
        (sequence, block, *texts)
        for sequence, brackets, tokens in _sequences(facts)
        for block, texts in block_texts(tokens, *brackets).items()
    ]
    return transposed(rows, 5)


def _junk_runs(facts: Facts) -> Sequence[Column]:
    rows = [
        (sequence, run[0].position, len(run), "".join(token.text for token in run))
        for sequence, _, tokens in _sequences(facts)
        for run in junk_runs(tokens)
    ]
    return transposed(rows, 4)


TABLES = {
    "block_text": FactTable(
        ("sequence LONG", "block LONG", "text STRING", "marked_text STRING", "surplus_text STRING"), _block_texts
    ),
    "junk_run": FactTable(("sequence LONG", "position LONG", "tokens LONG", "text STRING"), _junk_runs),
}
