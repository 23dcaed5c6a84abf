"""Comparing reports: side by side, where the time difference lies, and what was predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from molprof.analysis.compare.comparable import check_comparable
from molprof.analysis.compare.difference import difference, trace_difference
from molprof.analysis.compare.model import SCHEMA, Comparison, Difference
from molprof.analysis.compare.rows import compared_rows, paired_rounds
from molprof.analysis.compare.statistics import ENOUGH_REPEATS, LEAST_REPEATS, LEVEL, best_level
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Setup
from molprof.analysis.reader import path_text
from molprof.common.errors import UsageError
from molprof.common.values import counted

if TYPE_CHECKING:
    from molprof.analysis.compare.predictions import Expectation

__all__ = ["Comparison", "compare"]

# What tells runs of one model and processor apart, in a word or two; empty for what is usual.
_DISTINGUISHING: tuple[Callable[[Setup], str], ...] = (
    lambda setup: f"{setup.cache} cache",
    lambda setup: "forced runs" if setup.forced_runs else "",
    lambda setup: "finished dropped" if setup.drop_finished else "",
    lambda setup: setup.attention,
    lambda setup: f"batch {setup.batch_size}",
)


def compare(reports: Sequence[Report], *, anyway: bool = False, expectations: Sequence[Expectation] = ()) -> Comparison:
    """Each report against the first. Raises NotComparableError for runs of other work, unless `anyway`: then a note."""
    from molprof.analysis.compare.predictions import predictions  # a report needs none

    if len(reports) < 2:
        raise UsageError(f"compare needs at least two traces, got {len(reports)}")
    labels = run_labels(reports)
    notes = check_comparable(labels, reports, anyway)
    rows = compared_rows(reports)
    wall = next(row for row in rows if row.figure.id == "wall_ns")
    differences = tuple(
        difference(reports[0].run, report.run, wall, place) for place, report in enumerate(reports[1:], start=1)
    )
    return Comparison(
        schema=SCHEMA,
        labels=labels,
        runs=tuple(reports),
        rows=rows,
        differences=differences,
        trace_differences=tuple(
            trace_difference(reports[0], report) if found is None else None
            for found, report in zip(differences, reports[1:], strict=True)
        ),
        predictions=predictions(labels, reports, rows, expectations),
        notes=(*notes, *pairing_notes(labels, reports, differences), *repeat_notes(labels, reports)),
    )


def pairing_notes(
    labels: Sequence[str], reports: Sequence[Report], differences: Sequence[Difference | None]
) -> tuple[str, ...]:
    """Which runs were compared round by round, and which were captured apart, and what that means."""
    notes = []
    known = [(label, item) for label, item in zip(labels[1:], differences, strict=True) if item is not None]
    if paired := [f"{label} ({counted(item.rounds, 'round')})" for label, item in known if item.paired]:
        notes.append(
            f"paired with {labels[0]}, compared round by round: {', '.join(paired)}; ratios and differences are means "
            "of the rounds, not those of the medians; intervals of ratios by Student's t"
        )
    if few := [label for label, item in known if item.paired and item.rounds < LEAST_REPEATS]:
        notes.append(f"no intervals with fewer than {LEAST_REPEATS} rounds: {', '.join(few)}")
    if apart := [label for label, item in known if not item.paired]:
        notes.append(
            f"not paired with {labels[0]}: {', '.join(apart)}. The machine may have changed its speed between the "
            "captures, which their intervals do not show. molprof capture with several models or processors pairs runs"
        )
    return tuple(notes)


def repeat_notes(labels: Sequence[str], reports: Sequence[Report]) -> tuple[str, ...]:
    """A line on runs with too few timed passes to tell times apart, and one if intervals stay below LEVEL."""
    runs = [(label, report.run) for label, report in zip(labels, reports, strict=True)]
    counts = [(label, len(run.repeats)) for label, run in runs if run is not None]
    if len(counts) < 2:
        return ()
    notes = []
    if few := [f"{label} ({count})" for label, count in counts if count < LEAST_REPEATS]:
        notes.append(
            f"too few timed passes to tell differences in time from noise: {', '.join(few)}. Capture at least "
            f"{LEAST_REPEATS} of each run, {ENOUGH_REPEATS} for intervals of {100 * LEVEL:.0f} % (--repeats)"
        )
    if all(paired_rounds(reports[0].run, report.run) is not None for report in reports[1:]):
        return tuple(notes)  # Student's intervals always reach it
    least = min((count for _, count in counts if count >= LEAST_REPEATS), default=ENOUGH_REPEATS)
    if (level := best_level(least, least)) < LEVEL:
        notes.append(
            f"{least} timed passes: intervals of ratios reach {100 * level:.0f} %, not {100 * LEVEL:.0f} %. "
            f"{ENOUGH_REPEATS} of each run reach it"
        )
    return tuple(notes)


def run_labels(reports: Sequence[Report]) -> tuple[str, ...]:
    """Unique short names: of the run, or of the file for a foreign trace; runs of one name tell what differs."""
    names = _told_apart([report_label(report) for report in reports], reports)
    return tuple(
        f"{name} #{names[: place + 1].count(name)}" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    )


def _told_apart(names: Sequence[str], reports: Sequence[Report]) -> list[str]:
    """The names, of runs that share one with the settings in which they differ, such as `qwen no lp static cache`."""
    told = []
    for name, report in zip(names, reports, strict=True):
        alike = [other.run.setup for label, other in zip(names, reports, strict=True) if label == name and other.run]
        differing = [tell for tell in _DISTINGUISHING if len({tell(setup) for setup in alike}) > 1]
        words = [tell(report.run.setup) for tell in differing] if report.run is not None else []
        told.append(" ".join(filter(None, (name, *words))))
    return told


def report_label(report: Report) -> str:
    if report.run is not None:
        return report.run.setup.label
    return PurePath(path_text(report.trace.path)).name.removesuffix(".gz").removesuffix(".json")
