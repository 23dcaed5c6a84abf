"""What the page's tables hold: text to read and, beside it, the value to sort by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from molprof.analysis.compare import Comparison
from molprof.analysis.compare.model import ComparedRow, Difference
from molprof.analysis.compare.parts import GROUPS, group_of, in_order, part_label
from molprof.analysis.documents.difference import factors_text
from molprof.analysis.drift.model import JunkExample
from molprof.analysis.figures import Report
from molprof.analysis.figures.catalog import shown_tables
from molprof.analysis.figures.model import Check, Table
from molprof.common.values import (
    NOT_RECORDED,
    Cell,
    bool_text,
    by_column,
    by_unit,
    column_title,
    count_text,
    ratio_text,
    short_name,
    signed_percent_text,
    signed_time_text,
)

# A page of more rows is slow to open, and nobody reads them; JSON and SQL have all.
MAX_ROWS = 500
_SEQUENCE_COLUMNS = (
    "sequence", "smiles", "tokens", "free", "copy", "junk", "filler", "blocks", "junk_blocks", "malformed_blocks",
    "masked_logits", "valid", "problem",
)  # fmt: skip
_PHASE_COLUMNS = ("wall_ns", "host_ns", "gpu_ns", "launches", "kernels", "syncs", "sync_ns", "leaf_operators")


@dataclass(frozen=True)
class PageCell:
    """A cell: what is read, what it is sorted by (None: always last), and the whole name of a shortened one."""

    text: str
    value: Cell = None
    whole: str | None = None


@dataclass(frozen=True)
class PageTable:
    """A table of the page.

    Attributes:
        columns: heading, and whether the column holds numbers.
        marked: numbers of the rows that stand out.
    """

    title: str
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[PageCell, ...], ...]
    notes: tuple[str, ...] = ()
    marked: frozenset[int] = frozenset()


def figures_table(labels: Sequence[str], rows: Iterable[ComparedRow]) -> PageTable:
    """Every figure that a run has, with ratios to the first."""
    others = labels[1:]
    columns = [("group", False), ("figure", False), *((label, True) for label in labels)]
    columns += [(f"{label}: ratio", True) for label in others]
    lines = []
    missing = 0
    for row in rows:
        if all(value is None for value in row.values):
            missing += 1
            continue
        values = [PageCell(by_unit(row.figure.unit, value), value) for value in row.values]
        ratios = [
            PageCell("~" if row.within_noise(index) else ratio_text(ratio), ratio)
            for index, ratio in enumerate(row.ratios[1:], 1)
        ]
        lines.append((_text(row.figure.group), _text(row.figure.label.strip()), *values, *ratios))
    notes = (f"{missing} figures are not recorded here and left out",) if missing else ()
    return _limited("Figures side by side" if others else "Figures", columns, lines, notes)


def difference_table(comparison: Comparison) -> PageTable:
    """The parts of the unprofiled differences, those that are 0 everywhere left out; no rows without any."""
    known = [
        (label, item)
        for label, item in zip(comparison.labels[1:], comparison.differences, strict=True)
        if item is not None
    ]
    columns = [("group", False), ("part", False)]
    columns += [column for label, _ in known for column in ((label, True), (f"{label}: share", True))]
    lines = []
    for part in in_order(name for _, item in known for name in item.parts):
        values = [item.parts.get(part) for _, item in known]
        if any(values):
            lines.append((_text(GROUPS[group_of(part)]), _text(part_label(part)), *_part_cells(values, known)))
    if known:
        lines.append((_text("in no part"), _text(""), *_part_cells([item.residual_ns for _, item in known], known)))
    notes = tuple(f"{label}: {factors_text(item)}" for label, item in known if item.factors)
    return _limited(f"Difference in unprofiled time from {comparison.labels[0]}", columns, lines, notes)


def _part_cells(values: Sequence[int | None], known: Sequence[tuple[str, Difference]]) -> list[PageCell]:
    """Time and share of one part in every difference."""
    cells = []
    for ns, (_, item) in zip(values, known, strict=True):
        ratio = None if ns is None or not item.wall_ns else ns / item.wall_ns
        cells.append(PageCell("" if ns is None else signed_time_text(ns), ns))
        cells.append(PageCell("" if ratio is None else signed_percent_text(ratio), ratio))
    return cells


def metric_tables(labels: Sequence[str], reports: Sequence[Report]) -> list[PageTable]:
    """Every metric that has rows; of several reports in one table, whose row it is in the first column."""
    tables = []
    shown = {table.name for report in reports for table in shown_tables(report)}
    for name in dict.fromkeys(table.name for report in reports for table in report.tables if table.name in shown):
        found = [
            (label, table) for label, report in zip(labels, reports, strict=True) if (table := report.table(name)).rows
        ]
        # Reports of one program have the same columns.
        tables.extend(_metric(found[:1]) if len({table.columns for _, table in found}) > 1 else _metric(found))
    return tables


def _metric(found: list[tuple[str, Table]]) -> list[PageTable]:
    if not found:
        return []
    table = found[0][1]
    rows = [(label, row) for label, item in found for row in item.rows]
    columns = [
        (column_title(column), all(not isinstance(row[index], str) for _, row in rows))
        for index, column in enumerate(table.columns)
    ]
    lines = [
        (_text(label), *(_cell(column, value) for column, value in zip(table.columns, row, strict=True)))
        for label, row in rows
    ]
    return [_limited(table.title, [("run", False), *columns], lines)]


def run_tables(labels: Sequence[str], reports: Sequence[Report]) -> list[PageTable]:
    """Phases and molecules of the captured runs, memory operations and devices of all."""
    runs = [(label, report.run) for label, report in zip(labels, reports, strict=True) if report.run is not None]
    phases = [
        (_text(label), _text(name), *(_cell(column, getattr(phase, column)) for column in _PHASE_COLUMNS))
        for label, run in runs
        for name, phase in run.phases.items()
    ]
    molecules = [
        (_text(label), *(_cell(column, getattr(item, column)) for column in _SEQUENCE_COLUMNS))
        for label, run in runs
        for item in run.sequences
    ]
    operations = [
        (_text(label), _cell("name", name), _cell("count", item.count), _cell("time_ns", item.time_ns),
         _cell("bytes", item.bytes or None))
        for label, report in zip(labels, reports, strict=True)
        for name, item in report.counts.memory_operations.items()
    ]  # fmt: skip
    devices = [
        (_text(label), _text(name), *(_cell(column, getattr(item, column)) for column in _DEVICE_COLUMNS))
        for label, report in zip(labels, reports, strict=True)
        for name, item in report.devices.items()
    ]
    note = "time: whole run, unprofiled; all other columns: the recorded steps, profiled"
    return [
        _limited("Phases", [_RUN, ("phase", False), *_numbers(_PHASE_COLUMNS, wall_ns="time")], phases, (note,)),
        _limited("Molecules", [_RUN, *_molecule_columns()], molecules),
        _limited("Memory operations", [_RUN, ("operation", False), *_numbers(("count", "time", "bytes"))], operations),
        _limited("Devices", [_RUN, ("device", False), *_numbers(_DEVICE_COLUMNS)], devices),
    ]


_RUN = ("run", False)
_DEVICE_COLUMNS = ("span_ns", "busy_ns", "idle_ns")


def _junk_examples(report: Report) -> tuple[JunkExample, ...]:
    if report.run is None or report.run.drift is None or report.run.setup.random:
        return ()
    return report.run.drift.junk_examples


def junk_table(labels: Sequence[str], reports: Sequence[Report]) -> PageTable:
    """Examples of junk in coordinate blocks, the most frequent of each run first; no rows where there are none."""
    lines = [
        (
            _text(label),
            *(_cell(column, value) for column, value in (("text", item.text), ("junk", item.surplus))),
            *(_cell(column, getattr(item, column)) for column in ("blocks", "sequence", "block", "position")),
        )
        for label, report in zip(labels, reports, strict=True)
        for item in _junk_examples(report)
    ]
    columns = [_RUN, ("block's text, junk between bars", False), ("junk", False)]
    columns += [("blocks with it", True), ("sequence", True), ("block", True), ("token", True)]
    return _limited("Junk in coordinates", columns, lines)


def checks_table(labels: Sequence[str], reports: Sequence[Report]) -> PageTable:
    """Sums that must hold; those that do not stand out."""
    checks: list[tuple[str, Check]] = [
        (label, check) for label, report in zip(labels, reports, strict=True) for check in report.checks
    ]
    lines = [
        (
            _text(label),
            _text(check.text),
            PageCell(count_text(check.left), check.left),
            PageCell(count_text(check.right), check.right),
            PageCell(f"{100 * check.tolerance_ratio:g} %" if check.tolerance_ratio else "none", check.tolerance_ratio),
            _text("holds" if check.holds else "DOES NOT HOLD"),
        )
        for label, check in checks
    ]
    broken = frozenset(row for row, (_, check) in enumerate(checks) if not check.holds)
    columns = [_RUN, ("what must hold", False), ("left", True), ("right", True), ("tolerance", True), ("result", False)]
    return PageTable("Sums that must hold", tuple(columns), tuple(lines), (), broken)


def predictions_table(comparison: Comparison) -> PageTable:
    """What was expected, the figures, and the verdict."""
    lines = []
    for item in comparison.predictions:
        figures = "; ".join(f"{label} {by_unit(item.unit, value)}" for label, value in item.figures.items())
        lines.append((_text(item.text), _text(item.verdict), _text(figures or NOT_RECORDED)))
    columns = [("expected of the first", False), ("verdict", False), ("figures", False)]
    return _limited("Predictions", columns, lines)


def _numbers(columns: Iterable[str], **titles: str) -> list[tuple[str, bool]]:
    return [(titles.get(column, column_title(column)), True) for column in columns]


def _molecule_columns() -> list[tuple[str, bool]]:
    texts = ("smiles", "valid", "problem")
    return [(column_title(column), column not in texts) for column in _SEQUENCE_COLUMNS]


def _text(value: str) -> PageCell:
    return PageCell(value, value)


def _cell(column: str, value: Cell) -> PageCell:
    if isinstance(value, bool):
        return PageCell(bool_text(value), bool_text(value))
    shown = by_column(column, value) if value is not None else ""
    whole = value if isinstance(value, str) and value != short_name(value) else None
    return PageCell(shown, value, whole)


def _limited(
    title: str,
    columns: Sequence[tuple[str, bool]],
    rows: Sequence[tuple[PageCell, ...]],
    notes: tuple[str, ...] = (),
) -> PageTable:
    more = len(rows) - MAX_ROWS
    extra = (f"the first {MAX_ROWS:,}; the JSON format has {more:,} more",) if more > 0 else ()
    return PageTable(title, tuple(columns), tuple(rows[:MAX_ROWS]), (*notes, *extra))


def without_run(table: PageTable) -> PageTable:
    """The table of a single report: the column that says whose row it is left out."""
    if not table.columns or table.columns[0] != _RUN:
        return table
    return PageTable(table.title, table.columns[1:], tuple(row[1:] for row in table.rows), table.notes, table.marked)
