"""A report as a document: what a reader wants to know first stands first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from molprof.analysis.documents.findings import findings_sections
from molprof.analysis.documents.run import run_sections
from molprof.analysis.documents.verdict import report_verdict
from molprof.analysis.figures import Report
from molprof.analysis.figures.catalog import shown_tables
from molprof.analysis.figures.model import STACK_CATEGORY, Check, Table
from molprof.common.document import PAIR, Column, Document, Section
from molprof.common.values import (
    NOT_RECORDED,
    Cell,
    by_column,
    bytes_text,
    column_title,
    count_text,
    counted,
    per,
    percent_text,
    time_text,
)

_SHOWN_ROWS = 12
_PER_LINE = 4
_NONE = "none: the trace holds no events with a duration, so nothing was recorded"


def report_document(report: Report) -> Document:
    """The document of one report; tables without rows are left out."""
    sections = [
        Section("", notes=report_verdict(report)),
        _trace(report),
        *_run_sections(report),
        *findings_sections(report.findings),
        _counts(report),
    ]
    sections.extend(_memory_and_devices(report))
    sections.extend(_table(table) for table in shown_tables(report))
    sections.append(_checks(report.checks))
    return Document(f"molprof report: {report.trace.path}", tuple(sections))


def _trace(report: Report) -> Section:
    trace = report.trace
    left_out = 0 if trace.stacks else trace.events_by_category.get(STACK_CATEGORY, 0)
    events = sum(trace.events_by_category.values()) - left_out
    rows = [
        ("size", bytes_text(trace.bytes)),
        ("devices", _devices(trace.device_names)),
        ("events", _kept(events, trace.lost_events) if trace.events_by_category else _NONE),
    ]
    if left_out:
        rows.append(("", f"{count_text(left_out)} Python stack events left out: no figure needs them"))
    rows.extend(("", line) for line in _categories(trace.events_by_category))
    if trace.lanes is not None:
        rows.append(("own lanes", f"{counted(trace.lanes, 'event')} partly overlapping another of their track"))
    if not trace.complete:
        rows.append(("DAMAGED", f"only the whole part was read: {trace.problem}"))
    return Section("Trace", PAIR, tuple(rows))


def _devices(names: Sequence[str]) -> str:
    """Each name once, in order of its first device, with how many devices have it."""
    named = (name if count == 1 else f"{count} x {name}" for name, count in Counter(names).items())
    return ", ".join(named) or NOT_RECORDED


def _kept(events: int, lost: int | None) -> str:
    """How many events the file holds, and how many of them the engine does."""
    if lost is None:
        return f"{count_text(events)} slices in the engine; events in a Perfetto trace: {NOT_RECORDED}"
    return f"{count_text(events)} read, {count_text(events - lost)} slices in the engine: {count_text(lost)} lost"


def _categories(counts: dict[str, int]) -> list[str]:
    """Events by category, a few on each line."""
    items = [f"{name} {count_text(count)}" for name, count in counts.items()]
    return [", ".join(items[start : start + _PER_LINE]) for start in range(0, len(items), _PER_LINE)]


def _run_sections(report: Report) -> list[Section]:
    run = report.run
    if run is None:
        steps = "; steps that its engine marked follow below" if report.table("steps").rows else ""
        note = f"{NOT_RECORDED}: not captured by molprof, so token texts and unprofiled times are unknown{steps}"
        return [Section("Run", notes=(note,))]
    return run_sections(run)


def _counts(report: Report) -> Section:
    columns = (PAIR[0], Column(""), Column("", "left"))
    if not report.trace.gpu_recorded:
        return Section("Counts", notes=(f"launches and kernels: {NOT_RECORDED}, the trace holds no GPU calls or work",))
    counts = report.counts
    rows = (
        (
            "launches",
            count_text(counts.launches),
            f"{count_text(counts.launches_without_gpu_work)} without GPU work",
        ),
        ("graph launches", count_text(counts.graph_launches), ""),
        (
            "kernels",
            count_text(counts.kernels),
            f"{count_text(counts.kernels_without_call)} without a recorded call",
        ),
        (
            "kernel time",
            time_text(counts.kernel_time_ns),
            counted(counts.kernel_names, "different kernel"),
        ),
    )
    return Section("Counts", columns, rows)


def _memory_and_devices(report: Report) -> list[Section]:
    operations = tuple(
        # A copy of nothing is not made: its size is not in the trace.
        (name, count_text(item.count), time_text(item.time_ns), bytes_text(item.bytes or None))
        for name, item in report.counts.memory_operations.items()
    )
    devices = tuple(
        (
            name,
            time_text(item.span_ns),
            time_text(item.busy_ns),
            time_text(item.idle_ns),
            percent_text(per(item.busy_ns, item.span_ns)),
        )
        for name, item in report.devices.items()
    )
    sections = []
    if operations:
        columns = (Column("operation", "left"), *map(Column, ("count", "time", "bytes")))
        sections.append(Section("Memory operations", columns, operations))
    if devices:
        columns = (Column("device", "left"), *map(Column, ("span", "busy", "idle", "busy share")))
        sections.append(Section("Devices", columns, devices))
    return sections


def _table(table: Table) -> Section:
    columns = tuple(
        Column(column_title(column), "left" if _is_text(row[index] for row in table.rows) else "right")
        for index, column in enumerate(table.columns)
    )
    rows = tuple(
        tuple(by_column(column, value) for column, value in zip(table.columns, row, strict=True))
        for row in table.rows[:_SHOWN_ROWS]
    )
    more = len(table.rows) - _SHOWN_ROWS
    notes = (f"the first {_SHOWN_ROWS}; the JSON format has {more} more",) if more > 0 else ()
    return Section(table.title, columns, rows, notes, detail=True)


def _is_text(cells: Iterable[Cell]) -> bool:
    return any(isinstance(cell, str) for cell in cells)


def _checks(checks: Sequence[Check]) -> Section:
    broken = [check for check in checks if not check.holds]
    if not broken:
        return Section("Sums", notes=(f"all {len(checks)} hold: {', '.join(check.id for check in checks)}",))
    rows = tuple((check.id, check.text, count_text(check.left), count_text(check.right)) for check in broken)
    columns = (Column("sum", "left"), Column("what must hold", "left"), Column("left"), Column("right"))
    return Section("SUMS THAT DO NOT HOLD", columns, rows)
