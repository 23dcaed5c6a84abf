"""A report as a document: what a reader wants to know first stands first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from molprof.analysis.compare import run_labels
from molprof.analysis.documents.certificate import certificate_sections
from molprof.analysis.documents.figures import Reports, figure_values, report_figures, settings_section
from molprof.analysis.documents.plots import subject_of
from molprof.analysis.documents.plots.sections import plot_sections
from molprof.analysis.documents.run import run_sections
from molprof.analysis.documents.verdict import report_verdict
from molprof.analysis.figures import Report
from molprof.analysis.figures.catalog import shown_tables
from molprof.analysis.figures.model import IDLE_CAUSES, STACK_CATEGORY, Finding, Table
from molprof.analysis.reader.info import path_text
from molprof.common.document import Cell, Column, Document, Row, Section, pairs
from molprof.common.values import count_text, counted, per, unit_of

_TITLES = {"gpu_ns": "GPU time", "own_ns": "self time", "mean_gpu_ns": "mean GPU time"}
# Tables whose rows are told apart by two columns.
_TWO_KEYS = ("steps", "step_latency", "idle_causes", "host_syncs", "graph_positions")


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
    sections = (
        *run_sections(reports),
        _memory_operations(reports),
        _devices(reports),
        _checks(reports),
        _events(reports),
        *_metrics(reports),
    )
    return [item for item in sections if item.notes or (item.table is not None and item.table.rows)]


def findings_section(reports: Reports) -> Section:
    """All findings in a table, the largest possible gain first, then each with evidence, fix and query."""
    columns = (Column("#", "index"), Column("finding"), Column("gain at most", "ratio"), Column("id"))

    def rows(report: Report) -> Iterator[Row]:
        for number, item in enumerate(report.findings, 1):
            yield number, item.title, item.gain_ratio, item.id

    table = reports.table(columns, rows)
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


def _memory_operations(reports: Reports) -> Section:
    columns = (Column("operation"), Column("count", "count"), Column("time", "ns"), Column("bytes", "bytes"))

    def rows(report: Report) -> Iterator[Row]:
        for name, item in report.counts.memory_operations.items():
            yield name, item.count, item.time_ns, item.bytes or None  # the trace does not hold the size of a memset

    return Section("Memory operations", table=reports.table(columns, rows))


def _devices(reports: Reports) -> Section:
    columns = (
        Column("device"), *(Column(title, "ns") for title in ("span", "busy", "idle")), Column("busy share", "ratio"),
    )  # fmt: skip

    def rows(report: Report) -> Iterator[Row]:
        for name, item in report.devices.items():
            yield name, item.span_ns, item.busy_ns, item.idle_ns, per(item.busy_ns, item.span_ns)

    return Section("Devices", table=reports.table(columns, rows))


def _events(reports: Reports) -> Section:
    def rows(report: Report) -> Iterator[Row]:
        yield from report.trace.events_by_category.items()

    def notes(report: Report) -> Iterator[str]:
        left_out = report.trace.events_by_category.get(STACK_CATEGORY, 0)
        if left_out and not report.trace.stacks:
            yield f"{count_text(left_out)} Python stack events left out: no figure needs them"
        if report.trace.lanes:
            yield f"{counted(report.trace.lanes, 'event')} in lanes, for partial overlaps with others of their track"

    columns = (Column("category"), Column("events", "count"))
    return Section("Events", reports.notes(notes), reports.table(columns, rows), detail=True)


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
        columns = [
            _column(name, any(isinstance(row[place], str) for rows in alike.values() for row in rows))
            for place, name in enumerate(first.columns)
        ]
        table = reports.table(columns, partial(_rows, alike), missing="")
        table = replace(table, keys=table.keys + (name in _TWO_KEYS))
        yield Section(first.title, table=table, detail=True)


def _rows(alike: Mapping[int, Sequence[Row]], report: Report) -> Sequence[Row]:
    return alike.get(id(report), ())


def _worded(table: Table) -> Sequence[Row]:
    """The rows; causes of idle time in words, not as SQL and JSON name them."""
    if "cause" not in table.columns:
        return table.rows
    place = table.columns.index("cause")
    return [(*row[:place], IDLE_CAUSES.get(str(row[place]), row[place]), *row[place + 1 :]) for row in table.rows]


def _column(name: str, text: bool) -> Column:
    """`mean_delay_ns` as `mean delay`: units stand in the cells."""
    title = name.removesuffix("_ns").removesuffix("_bytes").replace("_ratio", " share").replace("_", " ")
    return Column(_TITLES.get(name, title), "name" if text else unit_of(name))


def _checks(reports: Reports) -> Section:
    columns = (
        Column("what must hold"), Column("left", "count"), Column("right", "count"), Column("tolerance", "ratio"),
        Column("result"),
    )  # fmt: skip

    def rows(report: Report) -> Iterator[Row]:
        for check in report.checks:
            tolerance = Cell(check.tolerance_ratio, "ratio") if check.tolerance_ratio else "none"
            result = "holds" if check.holds else "FAILS"
            yield check.text, check.left, check.right, tolerance, result

    table = reports.table(columns, rows, marked=lambda report: [not check.holds for check in report.checks])
    broken = len(table.marked)
    return Section(
        "Checks", (f"{broken} of {len(table.rows)} fail" if broken else f"all {len(table.rows)} hold",), table
    )
