"""Many reports as one document: a row for each trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from molprof.analysis.documents.figures import figure_values
from molprof.analysis.figures import Report
from molprof.analysis.figures.catalog import FIGURES
from molprof.common.document import Cell, Column, Document, Row, Section, Table
from molprof.common.values import Value, counted

# Figures that a table for people shows, where any trace has them. CSV and JSON have all.
_SHOWN = (
    "wall_ns", "tokens_per_s", "generated_tokens", "launches", "launches_per_token", "kernels", "busy_ratio",
    "leaf_operators_per_step", "processor_ns_per_step",
)  # fmt: skip


@dataclass(frozen=True)
class TraceRow:
    """What one table keeps of a trace."""

    file: str
    figures: dict[str, Value]  # by id; empty where it could not be read
    problem: str | None = None  # why it could not be read

    @property
    def reason(self) -> str:
        """The problem without the file's name before it: beside the name it would stand twice."""
        return (self.problem or "").removeprefix(f"{self.file}: ").removeprefix(f"{self.file} ")


def trace_row(file: str, found: Report | Exception) -> TraceRow:
    return TraceRow(file, {}, str(found)) if isinstance(found, Exception) else TraceRow(file, figure_values(found))


def reports_document(rows: Sequence[TraceRow]) -> Document:
    """The document; its CSV has a column for each figure."""
    bad = [(row.file, row.reason) for row in rows if row.problem is not None]
    good = [row for row in rows if row.problem is None]
    shown = [
        figure
        for figure in FIGURES
        if figure.id in _SHOWN and any(row.figures[figure.id] is not None for row in good)
    ]  # fmt: skip
    columns = (Column("trace"), *(Column(figure.label.strip(), figure.unit) for figure in shown))
    cells: list[Row] = [(row.file, *(Cell(row.figures[figure.id], figure.unit) for figure in shown)) for row in good]
    return Document(
        f"molprof report: {counted(len(rows), 'trace')}",
        (
            *((Section("Traces", table=Table(columns, cells, missing="-")),) if good else ()),
            *((Section("Not read", table=Table((Column("trace"), Column("problem")), bad)),) if bad else ()),
        ),
        data=lambda: [{"file": row.file, "problem": row.problem, "figures": row.figures} for row in rows],
        records=lambda: _records(rows),
        warnings=(f"{counted(len(bad), 'trace')} could not be read",) if bad else (),
    )


def _records(rows: Sequence[TraceRow]) -> Table:
    names = [figure.id for figure in FIGURES]
    columns = tuple(map(Column, ("file", "problem", *names)))
    return Table(columns, [(row.file, row.problem, *map(row.figures.get, names)) for row in rows])
