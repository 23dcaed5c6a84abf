"""Comparing reports: side by side, where the time difference lies, and what was predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from molprof.analysis.compare.difference import difference
from molprof.analysis.compare.model import SCHEMA, Comparison
from molprof.analysis.compare.predictions import predictions
from molprof.analysis.compare.rows import compared_rows
from molprof.analysis.compare.trace_difference import trace_difference
from molprof.analysis.metrics import Report
from molprof.errors import UsageError

__all__ = ["Comparison", "compare"]


def compare(reports: Sequence[Report]) -> Comparison:
    """Each report against the first.

    Raises:
        UsageError: fewer than two reports.
    """
    if len(reports) < 2:
        raise UsageError(f"a comparison needs two traces or more, got {len(reports)}")
    runs = [report.run for report in reports]
    labels = run_labels(reports)
    differences = tuple(difference(runs[0], run) for run in runs[1:])
    return Comparison(
        schema=SCHEMA,
        labels=labels,
        runs=tuple(reports),
        rows=compared_rows(tuple(reports)),
        differences=differences,
        trace_differences=tuple(
            trace_difference(reports[0], report) if found is None else None
            for found, report in zip(differences, reports[1:], strict=True)
        ),
        predictions=predictions(labels, runs),
    )


def run_labels(reports: Sequence[Report]) -> tuple[str, ...]:
    """Short names, unlike each other: the run's own, or the file's for a trace of other origin."""
    names = [report_label(report) for report in reports]
    count = Counter(names)
    seen: Counter[str] = Counter()
    labels = []
    for name in names:
        seen[name] += 1
        labels.append(f"{name} #{seen[name]}" if count[name] > 1 else name)
    return tuple(labels)


def report_label(report: Report) -> str:
    """A short name for one report."""
    if report.run is not None:
        return report.run.setup.label
    return PurePath(report.trace.path).name.removesuffix(".gz").removesuffix(".json")
