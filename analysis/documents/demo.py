"""The runs of a demo as a document: first what every machine finds, then times with their intervals."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from molprof.analysis.compare import Comparison
from molprof.common.document import Cell, Column, Document, Row, Section, Table, table_of
from molprof.common.values import signed_percent_text

# Figures that the speed of the machine does not change.
_REPRODUCIBLE = (
    "molecules", "valid_molecules", "tokens_per_molecule", "junk_tokens", "filler_tokens", "decode_steps",
    "launches_per_step", "leaf_operators_per_step",
)  # fmt: skip


def demo_document(comparison: Comparison, pairs: Sequence[Comparison], paths: Mapping[str, str]) -> Document:
    """Return the document. pairs: of each model the run without a logits processor and that with one; paths: by run."""
    rows = {row.figure.id: row for row in comparison.rows}
    cells: list[Row] = [
        (rows[name].figure.label, *(Cell(value, rows[name].figure.unit) for value in rows[name].values))
        for name in _REPRODUCIBLE
        if set(rows[name].values) != {None}
    ]
    heads = (Column("figure"), *(Column(name, "number") for name in paths))
    first, last = map(shlex.quote, list(paths.values())[-2:])
    return Document(
        f"molprof demo: {len(paths)} runs, each model with and without a logits processor (LP)",
        (
            Section("The same on every machine", table=Table(heads, cells, missing="-")),
            Section("Time on this machine, and how sure it is", table=_times(pairs)),
            Section("Next", (f"molprof compare {first} {last}", f"molprof report {last}", f"molprof open {last}")),
        ),
        comparison.to_json,
    )


def _times(pairs: Sequence[Comparison]) -> Table:
    def change(pair: Comparison) -> str:
        interval = pair.wall.ratio_intervals[1]
        if interval is None:
            return "too few passes to tell"
        return signed_percent_text((interval.low - 1, interval.high - 1))

    return table_of(
        pairs,
        ("mean of paired passes", "text", "runs.0.run.setup.model"), ("without LP", "ns", "wall.values.0"),
        ("with LP", "ns", "wall.values.1"),
        ("ratio", "factor", lambda pair: Cell(pair.wall.ratios[1], "factor", pair.wall.within_noise(1))),
        ("change, at 95 % confidence", "text", change),
        missing="-",
    )  # fmt: skip
