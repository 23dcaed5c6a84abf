"""Figures and settings of one report or several, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

from molprof.analysis.compare.model import ComparedRow
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import Run
from molprof.common.document import Cell, Column, Section, Table
from molprof.common.values import Range, Unit, Value


def figure_sections(labels: Sequence[str], rows: Sequence[ComparedRow]) -> list[Section]:
    """A table for each group of figures, with ratios to the first; what no trace records, in a line."""
    columns = [Column("figure"), Column(labels[0], "number")]
    for label in labels[1:]:
        columns += [Column(label, "number"), Column("ratio", "factor", joined=True)]
    sections, missing = [], []
    for group, items in groupby(rows, key=lambda row: row.group):
        found = list(items)
        known = [row for row in found if any(value is not None for value in row.values)]
        if known:
            sections.append(
                Section(group, table=Table(tuple(columns), [_cells(row) for row in known], keys=2, missing="-"))
            )
            names = [row.label.strip() for row in found if row not in known]
            missing += [f"{group} ({', '.join(names)})"] if names else []
        else:
            missing.append(group)
    notes = ("-: not recorded",) if len(labels) > 1 else ()
    notes += (f"not recorded: {'; '.join(missing)}",) if missing else ()
    return [Section("Figures", notes, parts=tuple(sections))]


def _cells(row: ComparedRow) -> list[Value | Range | Cell]:
    cells: list[Value | Range | Cell] = [row.label, Cell(row.values[0], row.unit)]
    for place, (value, ratio) in enumerate(zip(row.values[1:], row.ratios[1:], strict=True), 1):
        shown = "" if ratio is None else ratio
        cells += [Cell(value, row.unit), Cell(shown, "factor", noise=row.within_noise(place))]
    return cells


Setting = tuple[str, Unit, Callable[[Run], Value]]
_RUN_ROWS: tuple[Setting, ...] = (
    ("model", "text", lambda run: f"{run.setup.model} ({run.setup.family})"),
    ("model size", "text", lambda run: run.setup.size or "its own"),
    ("weights", "text", lambda run: run.setup.weights),
    ("parameters", "count", lambda run: run.setup.parameters),
    ("dtype", "text", lambda run: run.setup.dtype),
    ("tokenizer", "text", lambda run: run.setup.tokenizer),
    ("vocabulary", "count", lambda run: run.setup.vocabulary),
    ("width of the logits", "count", lambda run: run.setup.logits_width),
    ("logits processor", "text", lambda run: run.setup.processor or "none"),
    ("placeholder", "text", lambda run: run.setup.placeholder or "none"),
    ("sampling", "text", lambda run: run.setup.sampling),
    ("decoding", "text", lambda run: run.setup.loop),
    ("KV cache", "text", lambda run: run.setup.cache),
    ("attention", "text", lambda run: run.setup.attention),
    ("device", "text", lambda run: run.setup.gpu or run.setup.device),
    ("molecules", "count", lambda run: run.molecules),
    ("batch size", "count", lambda run: run.setup.batch_size),
    ("most new tokens", "count", lambda run: run.setup.max_new_tokens),
    ("seed", "index", lambda run: run.setup.seed),
    ("torch", "text", lambda run: run.setup.torch),
    ("transformers", "text", lambda run: run.setup.transformers),
    ("timed passes", "count", lambda run: run.wall_ns.repeats),
    ("recorded steps", "text", lambda run: _recorded(run)),
)
_TRACE_ROWS: tuple[tuple[str, Unit, Callable[[Report], Value]], ...] = (
    ("trace", "text", lambda report: report.trace.path),
    ("size", "bytes", lambda report: report.trace.bytes),
    ("devices in the trace", "text", lambda report: _devices(report.trace.device_names)),
    ("events", "count", lambda report: sum(report.trace.events_by_category.values())),
    ("events lost in reading", "count", lambda report: report.trace.lost_events),
    ("events in lanes", "count", lambda report: report.trace.lanes),
    ("complete", "text", lambda report: "yes" if report.trace.complete else f"no: {report.trace.problem}"),
)
# Marking these would say nothing: they differ between any two runs.
_UNMARKED = ("trace", "size", "events")


def settings_section(labels: Sequence[str], reports: Sequence[Report]) -> Section:
    """One row for each setting, one column for each report; what differs is marked."""
    rows: list[tuple[str, Unit, list[Value]]] = []
    if any(report.run is not None for report in reports):
        rows += [
            (name, unit, [None if report.run is None else value(report.run) for report in reports])
            for name, unit, value in _RUN_ROWS
        ]
    rows += [(name, unit, [value(report) for report in reports]) for name, unit, value in _TRACE_ROWS]
    marked = frozenset(
        place for place, (name, _, values) in enumerate(rows) if len(set(values)) > 1 and name not in _UNMARKED
    )
    notes = ("rows that differ are marked",) if marked else ()
    columns = (Column("setting"), *map(Column, labels))
    cells = [(name, *(Cell(value, unit) for value in values)) for name, unit, values in rows]
    return Section("Settings", notes, Table(columns, cells, marked))


def _recorded(run: Run) -> str:
    window = run.window
    return "all" if window.full else f"{window.first_step} to {window.last_step} of batch {window.batch}"


def _devices(names: Sequence[str]) -> str | None:
    """Each name once, in order of its first device, with the number of devices."""
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in Counter(names).items()) or None
