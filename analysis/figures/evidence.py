"""What a figure rests on: the SQL that gives it, and whether the trace makes it exact, bounded or not to be had."""

from __future__ import annotations

from dataclasses import dataclass

from molprof.analysis.figures.certificate.model import Verdict, worst
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report


@dataclass(frozen=True)
class Evidence:
    """The SQL that gives a figure, and its certainty; bounds in the figure's unit."""

    sql: str | None  # None: the file or its manifest gives it
    verdict: Verdict
    reason: str | None = None  # None: exact
    low: float | None = None
    high: float | None = None  # None with a verdict of bounded: no limit is known


def evidence_of(figure: Figure, report: Report) -> Evidence:
    sql = figure.sql(report) if callable(figure.sql) else figure.sql
    if figure.value(report) is None:
        return Evidence(sql, "not_to_be_had", "not recorded")
    if samples := figure.samples(report):
        reason = f"lowest and highest of {len(samples)} timed passes"
        return Evidence(sql, "bounded", reason, min(samples), max(samples))
    total = None if figure.total is None else figure.total(report)
    if total is not None and not total.exact:
        reason = f"estimated from {total.recorded_steps} of {total.steps} steps"
        return Evidence(sql, "bounded", reason, total.low, total.high)
    doubted = report.doubts_on(figure.rests_on)
    if not doubted:
        return Evidence(sql, "exact")
    verdict = worst(item.verdict for item in doubted)
    reason = "; ".join(f"{item.title}: {item.reason}" for item in doubted)
    paths = (f"counts.{figure.id}", f"steps.{figure.id}")
    found = [bound for item in doubted for bound in item.bounds if bound.figure in paths and verdict == "bounded"]
    return Evidence(sql, verdict, reason, *((found[0].low, found[0].high) if found else ()))
