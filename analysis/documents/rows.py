"""Tables of one report or several: of several, the first column names the run of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from molprof.analysis.figures import Report
from molprof.common.document import Cell, Column, Section, Table
from molprof.common.values import Range, Value

Row = Sequence[Value | Range | Cell]


@dataclass(frozen=True)
class Reports:
    """Reports, each with its label."""

    labels: tuple[str, ...]
    reports: tuple[Report, ...]

    def table(
        self,
        columns: Iterable[Column],
        rows: Callable[[Report], Iterable[Row]],
        missing: str = "-",
        marked: Callable[[Report], Iterable[bool]] | None = None,
    ) -> Table:
        """The rows of every report in one table."""
        several = len(self.reports) > 1
        found: list[Row] = []
        stand_out: list[bool] = []
        for label, report in zip(self.labels, self.reports, strict=True):
            found += [(label, *row) if several else row for row in rows(report)]
            stand_out += [] if marked is None else marked(report)
        return Table(
            (*([Column("run")] if several else []), *columns),
            found,
            frozenset(place for place, stands_out in enumerate(stand_out) if stands_out),
            keys=1 + several,
            missing=missing,
        )

    def notes(self, lines: Callable[[Report], Iterable[str]]) -> tuple[str, ...]:
        """The lines of every report, of several each after its label."""
        return tuple(
            f"{label}: {line}" if len(self.reports) > 1 else line
            for label, report in zip(self.labels, self.reports, strict=True)
            for line in lines(report)
        )


def filled(*sections: Section) -> list[Section]:
    """The sections that hold anything."""
    return [item for item in sections if item.notes or item.parts or (item.table is not None and item.table.shown)]
