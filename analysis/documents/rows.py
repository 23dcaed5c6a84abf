"""Tables of one report or several: of several, the first column names the run of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from molprof.analysis.figures import Report
from molprof.common.document import Column, Row, Table


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
        run = [Column("run")] if len(self.reports) > 1 else []
        found: list[Row] = []
        stand_out: list[bool] = []
        for label, report in zip(self.labels, self.reports, strict=True):
            found += [(label, *row) if run else row for row in rows(report)]
            stand_out += [] if marked is None else marked(report)
        places = frozenset(place for place, stands_out in enumerate(stand_out) if stands_out)
        return Table((*run, *columns), found, places, keys=1 + len(run), missing=missing)

    def notes(self, lines: Callable[[Report], Iterable[str]]) -> tuple[str, ...]:
        """The lines of every report, of several each after its label."""
        return tuple(
            f"{label}: {line}" if len(self.reports) > 1 else line
            for label, report in zip(self.labels, self.reports, strict=True)
            for line in lines(report)
        )
