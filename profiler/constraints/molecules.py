"""Constraints of molecules: `grammar` and `truncate` as token tables, `xgrammar` and `llguidance` as grammars.

An answer is a molecule's fixed texts with a coordinate between each two, as long as the model writes it: three numbers,
each an optional minus, one to three digits, a point, one to four digits. Allowed tokens keep the model's probabilities,
renormalized.
"""

from __future__ import annotations

import itertools
import json
import re
from abc import abstractmethod
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING

from molprof.common.errors import UsageError
from molprof.profiler.constraints.engines import EngineProcessor, LLGuidance, XGrammar
from molprof.profiler.constraints.table import Path, Row, TableProcessor, TokenTable, any_cut, spelled
from molprof.profiler.models.target import ProcessorTarget
from molprof.profiler.molecules.smiles import COORDINATE_DECIMALS
from molprof.profiler.molecules.template import PLACEHOLDER, Template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WHOLE_DIGITS = 3
_DIGITS = b"0123456789"


class FreeLength(TableProcessor):
    """A row of tables per molecule: its fixed texts, with the same coordinate table between each two."""

    name: str
    needs_templates = True
    fixed_length = False

    def __init__(self, target: ProcessorTarget) -> None:
        form = target.form
        # What a digit may stand beside. A token that joins them would be cut differently by each number.
        marks = form.block_open[-1] + form.block_close[0] + form.separator + ".-"
        beside = f"[{re.escape(marks)}]".encode()
        joined = re.compile(b"[0-9]" + beside + b"|" + beside + b"[0-9]")
        for token in target.table.containing(_DIGITS):
            piece = target.table.of(token)
            if token not in target.table.special and joined.search(piece):
                raise UsageError(
                    f"the processor {self.name!r} needs a tokenizer that cuts numbers off marks; its token {piece!r} "
                    "joins them",
                    hint="--processor generic works with any tokenizer",
                )
        super().__init__(self.name, target, lambda rows: [self.row(template) for template in rows.templates])
        self.placeholder = form.numbers(PLACEHOLDER)
        self._coordinate = self.coordinate()
        self.parameters = {
            "whole_digits": WHOLE_DIGITS,
            "decimals": COORDINATE_DECIMALS,
            "coordinate_states": len(self._coordinate.edges),
            **self.parameters,
        }

    @abstractmethod
    def coordinate(self) -> TokenTable:
        """Return the table of one coordinate, for the target's vocabulary."""

    @abstractmethod
    def gaps(self, template: Template) -> Sequence[TokenTable]:
        """Return the tables of the fixed texts before, between and after a molecule's coordinates."""

    def row(self, template: Template) -> Row:
        """Return the tables of a template, in order."""
        first, *others = self.gaps(template)
        return [first, *(table for gap in others for table in (self._coordinate, gap))]

    def longest(self, template: Template) -> int:
        """Return the longest answer to a template, tokens."""
        return sum(table.longest or 0 for table in self.row(template)) + 1


class Grammar(FreeLength):
    """Accepts every conformer text of a molecule in the tokenizer's tokens, merged ones such as `,-` and `>[` too.

    No token joins a digit with a mark (checked once per vocabulary), so every text is cut between them. What lies
    between two digits is then cut the same way whatever the numbers are: the tokenizer cuts gaps, separators and runs
    of digits each by themselves.
    """

    name = "grammar"

    def __init__(self, target: ProcessorTarget) -> None:
        super().__init__(target)
        self._gap = cache(self._table)

    def gaps(self, template: Template) -> Sequence[TokenTable]:
        """Return the fixed texts; before a coordinate, one path without and one with its first minus."""
        first, *between, last = self._target.form.gaps(template.text)
        return self._gap("", first, "0"), *(self._gap("0", text, "0") for text in between), self._gap("0", last, "")

    def _table(self, before: str, text: str, after: str) -> TokenTable:
        signs = ("", "-") if after else ("",)
        return spelled(_cut(self._target.tokenizer, [(before, text + sign, after) for sign in signs]))

    def coordinate(self) -> TokenTable:
        """Return the table of: number, comma, number, comma, number."""
        tokenizer, separator = self._target.tokenizer, self._target.form.separator
        whole, fraction = (_digit_paths(tokenizer, most) for most in (WHOLE_DIGITS, COORDINATE_DECIMALS))
        point = _cut(tokenizer, [("0", ".", "0")])
        comma = _cut(tokenizer, [("0", separator, "0"), ("0", f"{separator}-", "0")])
        number = (whole, point, fraction)
        return spelled(*number, comma, *number, comma, *number)


def _cut(tokenizer: PreTrainedTokenizerFast, texts: Sequence[tuple[str, str, str]]) -> tuple[Path, ...]:
    """Return the tokens of each middle text between digits: (digits or nothing, text, digits or nothing)."""
    encoded = tokenizer(["".join(parts) for parts in texts], add_special_tokens=False, return_offsets_mapping=True)
    paths = []
    for (before, text, _), ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        begin, end = len(before), len(before) + len(text)
        kept = [(token, span) for token, span in zip(ids, offsets, strict=True) if begin <= span[0] < end]
        if not kept or kept[0][1][0] != begin or kept[-1][1][1] != end:
            raise UsageError(
                f"the processor 'grammar' needs a tokenizer that cuts {text!r} off the digits around it",
                hint="--processor generic works with any tokenizer",
            )
        paths.append(tuple(token for token, _ in kept))
    return tuple(paths)


@lru_cache(maxsize=4)
def _digit_paths(tokenizer: PreTrainedTokenizerFast, most: int) -> tuple[Path, ...]:
    """Return every run of one to `most` digits, in the tokenizer's tokens after a mark."""
    runs = [f"{value:0{size}}" for size in range(1, most + 1) for value in range(10**size)]
    return _cut(tokenizer, [(".", run, ".") for run in runs])


class Truncate(FreeLength):
    """Forces the template's COPY runs, always those before numbers without a minus.

    Unlike with `Grammar`, a text may be cut in ways that the tokenizer would not choose (`,` and `-` for `,-`).
    """

    name = "truncate"

    def coordinate(self) -> TokenTable:
        """Return the table of three decimal numbers, in any split into the vocabulary's tokens."""
        table, separator = self._target.table, self._target.form.separator.encode()
        whole, fraction = (
            [digits for size in range(1, most + 1) for digits in itertools.product(_DIGITS, repeat=size)]
            for most in (WHOLE_DIGITS, COORDINATE_DECIMALS)
        )
        number = ((b"-", b""), whole, (b".",), fraction)
        pieces = {token: table.of(token) for token in table.made_of(_DIGITS + b".-" + separator)}
        tokens = {token: piece for token, piece in pieces.items() if token not in table.special}
        return any_cut(spelled(*number, (separator,), *number, (separator,), *number), tokens)

    def gaps(self, template: Template) -> Sequence[TokenTable]:
        """Return the template's COPY runs."""
        pairs = zip(template.ids.tolist(), template.free.tolist(), strict=True)
        runs = [tuple(token for token, _ in run) for free, run in itertools.groupby(pairs, itemgetter(1)) if not free]
        return [_run(run) for run in runs]


@lru_cache(maxsize=4096)
def _run(tokens: Path) -> TokenTable:
    return spelled([tokens])


def grammar_text(texts: Sequence[str], separator: str, notation: str) -> str:
    """Return the grammar of a molecule's answer, in GBNF (`ebnf`) or in Lark (`lark`).

    Args:
        texts: what stands before, between and after the coordinates.
    """
    sequence, between = " c ".join(map(json.dumps, texts)), json.dumps(separator)
    whole, fraction = f"[0-9]{{1,{WHOLE_DIGITS}}}", f"[0-9]{{1,{COORDINATE_DECIMALS}}}"
    if notation == "ebnf":
        return f'root ::= {sequence}\nc ::= n {between} n {between} n\nn ::= "-"? {whole} "." {fraction}\n'
    return f"start: {sequence}\nc: N {between} N {between} N\nN: /-?{whole}\\.{fraction}/\n"


def of_molecules(engine: type[EngineProcessor], target: ProcessorTarget) -> EngineProcessor:
    """Return an engine with the grammar of each row's molecule.

    For an engine, special tokens are no text: tags that are single tokens are its opening and closing token.
    """
    form, vocabulary = target.form, target.vocabulary
    special = all(vocabulary.get(tag) in target.table.special for tag in (form.opening, form.closing))

    def texts(template: Template) -> list[str]:
        gaps = form.gaps(template.text)
        if special:
            gaps[0], gaps[-1] = gaps[0].removeprefix(form.opening), gaps[-1].removesuffix(form.closing)
        return gaps

    def longest(template: Template) -> int:
        """Return the most tokens of an answer: one per character, in the worst case."""
        number = 1 + WHOLE_DIGITS + 1 + COORDINATE_DECIMALS
        gaps = texts(template)
        return sum(map(len, gaps)) + (len(gaps) - 1) * (3 * number + 2 * len(form.separator)) + 3

    processor = engine(
        target,
        lambda rows: [grammar_text(texts(template), form.separator, engine.notation) for template in rows.templates],
        opening=vocabulary[form.opening] if special else None,
        closing=vocabulary[form.closing] if special else None,
    )
    processor.needs_templates, processor.longest, processor.placeholder = True, longest, form.numbers(PLACEHOLDER)
    return processor


xgrammar = partial(of_molecules, XGrammar)
llguidance = partial(of_molecules, LLGuidance)
for _made in (xgrammar, llguidance):
    _made.needs_templates, _made.fixed_length = True, False  # type: ignore[attr-defined]
