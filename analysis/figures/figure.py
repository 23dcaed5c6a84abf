"""A figure of a report, declared once: reports, comparisons, thresholds, predictions and pages read it from here.

And the table that it is read from, and what it rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from molprof.analysis.figures.model import FigureTable, Group, Report, ServedTimes, Verdict, worst
from molprof.analysis.figures.run_model import RepeatFigures, Run, RunTotal
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.values import Unit, Value

Noise = Literal["repeats", "once", "exact"]
Role = Literal["measure", "subject", "setting", "work"]
# The time of several passes that stands for a run in its report: of the middle two their mean.
MEDIAN_PASS = "timed pass of median total time"
# The number of recorded steps, in figures' own SQL.
STEPS_SQL = "(SELECT SUM(steps) FROM molprof_step_launch_summary WHERE steps > 0)"


def any_masks(engine_phases: FigureTable) -> bool:
    """Return True if an engine had masks or grammars, by its phases; SGLang marks the filling without any too."""
    phases = {(row["program"], str(row["phase"])) for row in engine_phases.to_json() if row["count"]}
    return any(phase.startswith(("mask_", "grammar_")) for _, phase in phases - {("sglang", "mask_fill")})


class TableQuery(Struct, frozen=True):
    """A table of the report; its columns' suffixes are their units."""

    name: str  # key in the JSON's `tables`
    title: str  # heading of the rendered table; none: people do not see it, a figure is read from it
    sql: str
    module: str | None = None  # that the SQL uses, if not called as the table
    needs_run: bool | None = False  # only for a run that molprof captured; None: only for other traces
    optional: bool = False  # left out where it has no rows
    of_masks: bool = False  # only for traces in which `any_masks` finds them
    more: Query | None = None  # whose rows follow
    convert: Callable[[FigureTable], FigureTable] | None = None  # what becomes of the rows

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries that the table reads."""
        return (Query(self.module or self.name, self.sql), *([self.more] if self.more else []))

    def is_for(self, has_run: bool) -> bool:
        """Return True if the table has rows for a captured run, or for another trace."""
        return not has_run if self.needs_run is None else has_run or not self.needs_run

    def read(self, engine: TraceProcessor, has_run: bool, before: Mapping[str, FigureTable]) -> FigureTable:
        """Return the table, from those read before; without rows if it needs a run and there is none."""
        has_rows = self.is_for(has_run) and (not self.of_masks or any_masks(before["engine_phases"]))
        queries = self.queries if has_rows else ()
        answers = [query_rows(engine, query) for query in queries]
        columns = answers[0][0] if answers else ()
        table = FigureTable(self.name, self.title, columns, tuple(row for _, rows in answers for row in rows))
        return table if self.convert is None else self.convert(table)


class CountedEvents(Struct, frozen=True):
    """The events that a figure counts, or whose time it sums."""

    # launches, graph_launches, syncs, leaf_operators, kernels, work (of the GPU), cpu_or_gpu (operators where no GPU is
    # recorded), or a kind of work as of molprof_work_kind.
    what: str
    in_steps: bool = False  # those of recorded steps alone, where there are steps
    phase: str | None = None  # those of this phase alone


class Figure(Struct, frozen=True):
    """One figure.

    A `setting` is a difference that `compare` names, a `subject` what runs are compared for, such as the model. Runs
    that differ in their `work` are not comparable. Pages mark what differs, except measures.
    """

    id: str  # name in JSON, CSV, `--fail-if` and predictions; never changes
    group: str  # heading that the figure stands under
    label: str
    unit: Unit
    value: Callable[[Report], Value]  # reads it from a report; None: not recorded
    # The query whose result it is, or that it is worked out from; None: the file or its manifest gives it.
    sql: str | Callable[[Report], str] | None = None
    rests_on: tuple[Group, ...] = ()  # groups of the certificate; none: on the file and its manifest alone
    repeat: Callable[[Run, RepeatFigures], float | None] | None = None  # of one timed pass, where they measure it
    once: bool = False  # measured in the recorded steps only, so its variation is unknown
    role: Role = "measure"
    tables: tuple[TableQuery, ...] = ()  # read for this figure; a stored report may lack them
    total: Callable[[Report], RunTotal | None] | None = None  # the estimate that it is the value of
    compared: bool = True  # in comparisons, --fail-if and predictions
    of_molecules: bool = False  # not shown of runs of plain-text prompts, where it means nothing
    usual: Value = None  # a setting's default: one that all runs have is not shown
    counted: CountedEvents | None = None  # what `origin` looks for; None: no recorded events, such as tokens
    stands_in: bool = False  # for a figure that a trace lacks (`without_gpu`, `--tokens`), so that it is not missed

    @property
    def noise(self) -> Noise:
        """The source of its noise: timed passes, unknown, or none because counts do not vary."""
        return "repeats" if self.repeat is not None else "once" if self.once else "exact"

    def samples(self, report: Report) -> list[float]:
        """Return the figure of each timed pass; empty where one lacks it."""
        if self.repeat is None:
            return []
        if isinstance(report.served, ServedTimes):
            figures = [item.figures.get(self.id) for item in report.served.passes]
            return [] if None in figures else [value for value in figures if value is not None]
        if report.run is None:
            return []
        values = [self.repeat(report.run, repeat) for repeat in report.run.repeats]
        recorded = [value for value in values if value is not None]
        return recorded if len(recorded) == len(values) else []


def of_run(value: Callable[[Run], Value]) -> Callable[[Report], Value]:
    """Return a figure of the run; None (not recorded) in a foreign trace."""
    return lambda report: None if report.run is None else value(report.run)


def of_gpu(value: Callable[[Report], Value]) -> Callable[[Report], Value]:
    """Return a figure of the trace's GPU calls or work; None (not recorded) where the trace has neither."""
    return lambda report: value(report) if report.trace.gpu_recorded else None


def without_gpu(value: Callable[[Report], Value]) -> Callable[[Report], Value]:
    """Return a figure that replaces one of the GPU; None where the trace has GPU calls or work."""
    return lambda report: None if report.trace.gpu_recorded else value(report)


def gpu_figure(
    id_: str, group: str, label: str, unit: Unit, sql: str, module: str, rests_on: tuple[Group, ...], **fields: Any
) -> Figure:
    """Return a figure of GPU calls or work that is the single value of a query.

    The value is None where the query gives NULL or no row, and where a stored report lacks it.
    """
    table = TableQuery(id_, "", sql, module)

    def value(report: Report) -> Value:
        rows = report.table(id_).rows
        return rows[0][0] if rows else None

    return Figure(id_, group, label, unit, of_gpu(value), sql, rests_on, tables=(table,), **fields)


@dataclass(frozen=True)
class Evidence:
    """The SQL that gives a figure, and its certainty; bounds in the figure's unit."""

    sql: str | None  # None: the file or its manifest gives it
    verdict: Verdict
    reason: str | None = None  # None: exact
    low: float | None = None
    high: float | None = None  # None with a verdict of bounded: no limit is known


def evidence_of(figure: Figure, report: Report) -> Evidence:
    """Return the evidence of a figure: its SQL and how certain it is."""
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
    bounds = [bound for item in doubted for bound in item.bounds if bound.figure in paths and verdict == "bounded"]
    return Evidence(sql, verdict, reason, *((bounds[0].low, bounds[0].high) if bounds else ()))
