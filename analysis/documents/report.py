"""A report, or many, as a document: what a reader wants to know first stands first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from molprof.analysis.compare import run_labels
from molprof.analysis.documents.certificate import certificate_sections
from molprof.analysis.documents.figures import Reports, figure_values, report_figures, settings_section
from molprof.analysis.documents.plots.subject import plot_sections, subject_of
from molprof.analysis.documents.run import run_sections
from molprof.analysis.documents.verdict import report_verdict
from molprof.analysis.figures import Report
from molprof.analysis.figures.catalog import FIGURES, shown_tables
from molprof.analysis.figures.model import IDLE_CAUSES, STACK_CATEGORY, Finding, Table
from molprof.analysis.reader import path_text
from molprof.common.document import Document, Field, Row, Section, pairs, records, table_of
from molprof.common.values import Value, count_text, counted, per, unit_of

_TITLES = {"gpu_ns": "GPU time", "own_ns": "self time", "mean_gpu_ns": "mean GPU time"}
# Tables whose rows are told apart by two columns.
_TWO_KEYS = ("steps", "step_latency", "idle_causes", "host_syncs", "graph_positions")
# Figures that a table of many traces shows to people, where any trace has them. CSV and JSON have all.
_SHOWN = (
    "wall_ns", "tokens_per_s", "generated_tokens", "launches", "launches_per_token", "kernels", "busy_ratio",
    "leaf_operators_per_step", "processor_ns_per_step",
)  # fmt: skip


def report_document(report: Report) -> Document:
    reports = Reports(run_labels([report]), (report,))
    return Document(
        f"molprof report: {path_text(report.trace.path)}",
        (
            *certificate_sections(report),
            plot_sections(subject_of(report)),
            findings_section(reports),
            report_figures(reports.labels[0], report),
            settings_section(reports),
            *report_sections(reports),
        ),
        lambda: {**report.to_json(), "figures": figure_values(report)},
        warnings=warnings(reports),
        summary=report_verdict(report),
    )


def warnings(reports: Reports) -> tuple[str, ...]:
    """What a reader must know before believing a figure."""
    return reports.notes(_warnings)


def _warnings(report: Report) -> Iterator[str]:
    if not report.trace.complete:
        yield f"the trace is damaged, only its whole part was read: {report.trace.problem}"
    if not report.trace.whole_steps:
        lost = "parts of steps were left out, so figures of steps and phases are not recorded"
        yield f"the trace was {report.trace.trimmed}; {lost}"
    machine = None if report.run is None else report.run.machine
    if machine is not None and (doubts := machine.doubts()):
        yield f"times are not reliable: during the timed passes {'; '.join(doubts)}"
    if not report.trace.events_by_category:
        yield "the trace holds no events with a duration, so nothing was recorded"
    if broken := [check.text for check in report.checks if not check.holds]:
        yield f"checks that do not hold: {'; '.join(broken)}"


def report_sections(reports: Reports) -> list[Section]:
    """Tables of every report but its figures; those that hold nothing are left out."""
    memory = reports.table(
        lambda report: report.counts.memory_operations.items(),
        ("operation", "text", "0"), ("count", "count", "1.count"), ("time", "ns", "1.time_ns"),
        ("bytes", "bytes", lambda item: item[1].bytes or None),  # the trace does not hold the size of a memset
    )  # fmt: skip
    devices = reports.table(
        lambda report: report.devices.items(),
        ("device", "text", "0"), ("span", "ns", "1.span_ns"), ("busy", "ns", "1.busy_ns"), ("idle", "ns", "1.idle_ns"),
        ("busy share", "ratio", lambda item: per(item[1].busy_ns, item[1].span_ns)),
    )  # fmt: skip
    events = reports.table(
        lambda report: report.trace.events_by_category.items(), ("category", "text", "0"), ("events", "count", "1")
    )
    sections = (
        *run_sections(reports),
        Section("Memory operations", table=memory),
        Section("Devices", table=devices),
        _checks(reports),
        Section("Events", reports.notes(_event_notes), events, detail=True),
        *_metrics(reports),
    )
    return [item for item in sections if item.notes or (item.table is not None and item.table.rows)]


def findings_section(reports: Reports) -> Section:
    """All findings in a table, the largest possible gain first, then each with evidence, fix and query."""
    table = reports.table(
        lambda report: enumerate(report.findings, 1),
        ("#", "index", "0"), ("finding", "text", "1.title"), ("gain at most", "ratio", "1.gain_ratio"),
        ("id", "text", "1.id"),
    )  # fmt: skip
    if not table.rows:
        return Section("Findings", ("none: no rule found evidence",))
    details = [
        _detail(f"{label}: {number}" if len(reports.labels) > 1 else str(number), item)
        for label, report in zip(reports.labels, reports.reports, strict=True)
        for number, item in enumerate(report.findings, 1)
    ]
    notes = ("largest possible gain first; gains overlap and do not add up",)
    return Section("Findings", notes, table, parts=tuple(details))


def _detail(number: str, item: Finding) -> Section:
    query = f'"{item.query}"' if " " in item.query else item.query
    rows = (
        ("evidence", item.evidence),
        *((("uncertain", item.uncertain),) if item.uncertain else ()),
        ("why", item.explanation),
        ("fix", item.fix),
        ("query", f"molprof query {query} TRACE"),
    )
    return Section(f"{number}. {item.title}", table=pairs(rows))


def _event_notes(report: Report) -> Iterator[str]:
    left_out = report.trace.events_by_category.get(STACK_CATEGORY, 0)
    if left_out and not report.trace.stacks:
        yield f"{count_text(left_out)} Python stack events left out: no figure needs them"
    if report.trace.lanes:
        yield f"{counted(report.trace.lanes, 'event')} in lanes, for partial overlaps with others of their track"


def _metrics(reports: Reports) -> Iterator[Section]:
    """Every table that has rows; of reports whose columns differ, those like the first."""
    tables = [{table.name: table for table in shown_tables(report)} for report in reports.reports]
    for name in dict.fromkeys(name for found in tables for name in found):
        first = next(found[name] for found in tables if name in found)
        alike = {
            id(report): _worded(found[name])
            for report, found in zip(reports.reports, tables, strict=True)
            if name in found and found[name].columns == first.columns
        }
        fields = [
            _field(title, place, any(isinstance(row[place], str) for rows in alike.values() for row in rows))
            for place, title in enumerate(first.columns)
        ]
        table = reports.table(_rows_of(alike), *fields, missing="")
        yield Section(first.title, table=replace(table, keys=table.keys + (name in _TWO_KEYS)), detail=True)


def _rows_of(rows: dict[int, Sequence[Row]]) -> Callable[[Report], Iterable[Row]]:
    return lambda report: rows.get(id(report), ())


def _worded(table: Table) -> Sequence[Row]:
    """The rows; causes of idle time in words, not as SQL and JSON name them."""
    if "cause" not in table.columns:
        return table.rows
    place = table.columns.index("cause")
    return [(*row[:place], IDLE_CAUSES.get(str(row[place]), row[place]), *row[place + 1 :]) for row in table.rows]


def _field(name: str, place: int, text: bool) -> Field:
    """`mean_delay_ns` as `mean delay`: units stand in the cells."""
    title = name.removesuffix("_ns").removesuffix("_bytes").replace("_ratio", " share").replace("_", " ")
    return _TITLES.get(name, title), "name" if text else unit_of(name), str(place)


def _checks(reports: Reports) -> Section:
    table = reports.table(
        lambda report: report.checks,
        ("what must hold", "text", "text"), ("left", "count"), ("right", "count"),
        ("tolerance", "ratio", lambda check: check.tolerance_ratio or "none"),
        ("result", "text", lambda check: "holds" if check.holds else "FAILS"),
        marked=lambda check: not check.holds,
    )  # fmt: skip
    broken = len(table.marked)
    note = f"{broken} of {len(table.rows)} fail" if broken else f"all {len(table.rows)} hold"
    return Section("Checks", (note,), table)


@dataclass(frozen=True)
class TraceRow:
    """What one table of many traces keeps of each."""

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
    """A row for each trace; CSV has a column for each figure."""
    bad = [row for row in rows if row.problem is not None]
    good = [row for row in rows if row.problem is None]
    shown: list[Field] = [
        (figure.label.strip(), figure.unit, f"figures.{figure.id}")
        for figure in FIGURES
        if figure.id in _SHOWN and any(row.figures[figure.id] is not None for row in good)
    ]
    traces = table_of(good, ("trace", "text", "file"), *shown, missing="-")
    not_read = table_of(bad, ("trace", "text", "file"), ("problem", "text", "reason"))
    named = {figure.id: None for figure in FIGURES}
    csv: list[dict[str, Any]] = [{"file": row.file, "problem": row.problem, **named, **row.figures} for row in rows]
    return Document(
        f"molprof report: {counted(len(rows), 'trace')}",
        (
            *((Section("Traces", table=traces),) if good else ()),
            *((Section("Not read", table=not_read),) if bad else ()),
        ),
        data=lambda: [{"file": row.file, "problem": row.problem, "figures": row.figures} for row in rows],
        records=lambda: records(csv),
        warnings=(f"{counted(len(bad), 'trace')} could not be read",) if bad else (),
    )
