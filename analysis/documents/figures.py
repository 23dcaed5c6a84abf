"""Figures, settings and certificates of one report, of several side by side, or of many in one table."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby, product
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from molprof.analysis.figures import Report
from molprof.analysis.figures.catalog import FIGURES
from molprof.analysis.figures.figure import MEDIAN_PASS, Figure, evidence_of
from molprof.analysis.figures.labels import run_labels
from molprof.analysis.figures.model import Bound, Certified
from molprof.analysis.figures.requests import of_served
from molprof.analysis.figures.run_model import Run, StepTime
from molprof.analysis.figures.settings import SETTINGS
from molprof.common.document import (
    Cell,
    Column,
    Document,
    Field,
    Row,
    Section,
    Table,
    columns,
    objects,
    pairs,
    records,
    table_of,
    values,
)
from molprof.common.values import Unit, Value, by_unit, counted

if TYPE_CHECKING:
    from molprof.analysis.compare import Comparison
    from molprof.analysis.compare.difference import Difference
    from molprof.analysis.compare.recorded import TraceDifference

T = TypeVar("T")
Items = Callable[[Report], Iterable[Any]]
# Figures that a table of many traces shows to people, where any trace has them. CSV and JSON have all.
_SHOWN = (
    "wall_ns", "tokens_per_s", "generated_tokens", "launches", "launches_per_token", "kernels", "busy_ratio",
    "leaf_operators_per_step", "processor_ns_per_step",
)  # fmt: skip
# Figures of the first screen: of each line the first one that is recorded and not 0, and so many in all.
_FIRST = (
    ("wall_ns",), ("tokens_per_s",), ("forward_ns",), ("processor_ns",), ("valid_ratio", "valid_molecules"),
    ("first_token_p50_ns",), ("between_tokens_p50_ns",),
    ("drift_block_ratio",),
    ("busy_ratio",), ("gpu_ns_per_token", "gpu_ns_per_step", "kernel_time_ns"),
    ("kernels_per_token", "kernels_per_step", "kernels"), ("launches_per_token", "launches_per_step", "launches"),
    ("graph_launches_per_step", "graph_launches"), ("syncs_per_step",),
    ("leaf_operators_per_token", "leaf_operators_per_step"),
    ("junk_tokens",), ("runaway_tokens",), ("tokens_per_useful_character",), ("removed_ratio",),
    ("masking_operators",), ("peak_memory_bytes",),
)  # fmt: skip
_MOST_FIRST = 10
# Sums over streams: more than the time in which the GPU was busy where these overlap by so much.
_GPU_TIMES, _LEAST_OVERLAP = ("gpu_ns_per_token", "gpu_ns_per_step", "kernel_time_ns"), 1.01
_HEADINGS = {"Unprofiled time": "Time", "Requests": "Requests", "Tokens": "Tokens", "Settings of the run": "Tokens"}
_BY_ID = {figure.id: figure for figure in FIGURES}
WORDS = {"exact": "exact", "bounded": "bounded", "not_to_be_had": "not to be had"}
# Bounds that a line names; JSON has all.
_BOUNDS = 2


class Reports(Struct, frozen=True):
    """One report or several, and the difference of each from the first."""

    labels: tuple[str, ...]
    reports: tuple[Report, ...]
    differences: tuple[Difference | None, ...] = ()  # None: no unprofiled times
    trace_differences: tuple[TraceDifference | None, ...] = ()  # of recorded device time, without unprofiled times

    @property
    def of_molecules(self) -> bool:
        """True if any report is of a run of molecules, or the user says so of a foreign trace."""
        return any(it.given.molecules if it.run is None else it.run.of_molecules for it in self.reports)

    def of_each(self, value: Callable[[Report], T | None]) -> list[tuple[str, T]]:
        """Label and value of each report that has one, neither None nor empty."""
        pairs = [(label, value(report)) for label, report in zip(self.labels, self.reports, strict=True)]
        return [(label, item) for label, item in pairs if item]

    def step_times(self) -> list[tuple[str, tuple[StepTime, ...]]]:
        """Return the unprofiled times of decode steps, for each run that has any."""
        return self.of_each(lambda report: None if report.run is None else report.run.step_times[1:])  # no prefill

    def table(self, items: Items, *fields: Field, missing: str = "-") -> Table:
        """Return a row for each item of each report, of several each after its label."""
        several = len(self.reports) > 1
        rows = [
            (label, *row) if several else row
            for label, of_report in self.of_each(lambda report: list(items(report)))
            for row in values(of_report, *fields)
        ]
        heads = columns(*((("run", "text"),) if several else ()), *fields)
        return Table(heads, rows, keys=1 + several, missing=missing)

    def section(
        self, title: str, items: Items, *fields: Field, notes: tuple[str, ...] = (), detail: bool = False
    ) -> Section:
        """Return the table; without rows nothing needs a note."""
        table = self.table(items, *fields)
        return Section(title, notes if table.rows else (), table, detail=detail)

    def of_runs(self, title: str, items: Callable[[Run], Iterable[Any] | None], *fields: Field, **how: Any) -> Section:
        """Return a table with a row for each item of each run. how: as for `section`."""
        return self.section(title, lambda report: (report.run and items(report.run)) or (), *fields, **how)

    def notes(self, lines: Callable[[Report], Iterable[str]]) -> tuple[str, ...]:
        """Return the lines of every report, of several each after its label."""
        named = self.of_each(lambda report: list(lines(report)))
        return tuple(f"{label}: {line}" if len(self.reports) > 1 else line for label, lines in named for line in lines)


def is_spread(points: Sequence[StepTime]) -> bool:
    """Return True if steps were timed more than once, which gives a band."""
    return any(point.high_ns > point.low_ns for point in points)


def reports_of(item: Report | Comparison | Sequence[Report], anyway: bool = False) -> Reports:
    """Return the reports to show together. Raises NotComparableError for runs of unlike work, unless `anyway`."""
    if isinstance(item, Report):
        return Reports(run_labels([item]), (item,))
    from molprof.analysis.compare import Comparison, compare  # a report needs none

    if isinstance(item, Comparison):
        return Reports(item.labels, item.timed, item.differences, item.trace_differences)
    return reports_of(item[0] if len(item) == 1 else compare(item, anyway=anyway))


def _worded(rows: Iterable[tuple[Figure, T]], reports: Reports) -> list[tuple[Figure, T]]:
    """Return the rows; without molecules, leave out their figures and their words in labels."""
    if reports.of_molecules:
        return list(rows)
    of_prompts = any(report.run is not None or report.served for report in reports.reports)
    return [
        (replace(figure, label=figure.label.replace("molecule", "prompt")), of_figure)
        for figure, of_figure in rows
        if not figure.of_molecules and (of_prompts or "molecule" not in figure.label)
    ]


def report_figures(reports: Reports) -> Section:
    """Return the figures of one report; those that are 0 have no row."""
    columns = (Column("figure"), Column(reports.labels[0], "number"))
    values = [(figure, figure.value(reports.reports[0])) for figure in FIGURES]
    rows = ((figure, [Cell(value, figure.unit)]) for figure, value in values if value is None or value)
    notes = ("recorded figures without a row are 0",) if any(value == 0 for _, value in values) else ()
    run = reports.reports[0].run
    estimate = f"of the {MEDIAN_PASS}" if run is not None and run.wall_ns.repeats > 1 else ""
    if run is not None and run.session is not None and estimate:
        estimate += "; a comparison with runs of the same capture has means of their rounds"
    return _section(columns, _worded(rows, reports), notes, estimate)


def _is_had(figure: Figure, report: Report) -> bool:
    """Return True if the figure has a value other than 0, and no check rules it out."""
    return bool(figure.value(report)) and evidence_of(figure, report).verdict != "not_to_be_had"


def main_figures(report: Report) -> Section:
    """Return the figures of the first screen, under few headings, and how exact they are."""
    figures = (next((figure for id_ in ids if _is_had(figure := _BY_ID[id_], report)), None) for ids in _FIRST)
    shown = _worded(((figure, None) for figure in figures if figure is not None), reports_of(report))[:_MOST_FIRST]
    texts: dict[str, list[str]] = {}
    for figure, _ in shown:
        texts.setdefault(_HEADINGS.get(figure.group, "Work"), []).append(
            f"{figure.label}{_summed(figure, report)} {by_unit(figure.unit, figure.value(report))}"
        )
    rows: list[Row] = [(group, ", ".join(items)) for group, items in texts.items()]
    if (certificate := report.certificate) is not None:
        names = [item.title for item in certificate.uncertain]
        groups = f"not exact: {', '.join(names[:3])}{' and others' if names[3:] else ''}" if names else ""
        reason, *others = dict.fromkeys(doubt.reason for doubt in certificate.doubts) or [""]
        more = f", and {counted(len(others), 'other reason')}" if others else ""
        rows.append(("Certificate", f"{groups} ({reason}{more})" if groups else _exact(report)))
    # The screen has room for findings first; how exact all is goes last.
    work = [number for number, (name, _) in enumerate(rows) if name == "Work"]
    certified = [number for number, (name, _) in enumerate(rows) if name == "Certificate"]
    return Section("Figures", table=replace(pairs(rows), later=((tuple(work),), (), (tuple(certified),))))


def _summed(figure: Figure, report: Report) -> str:
    """Return the remark that a figure of GPU time is summed over streams; empty for others, and without overlap."""
    if figure.id not in _GPU_TIMES:
        return ""
    memory_ns = sum(item.time_ns for item in report.counts.memory_operations.values())
    busy_ns = sum(device.busy_ns for device in report.devices.values())
    is_summed = report.counts.kernel_time_ns + memory_ns > _LEAST_OVERLAP * busy_ns
    return " (streams summed)" if is_summed else ""


def is_disturbed(report: Report) -> bool:
    """Return True if other programs ran during the timed passes, so that these times are not reliable."""
    run = report.run
    return run is not None and run.machine is not None and bool(run.wall_ns.median) and bool(run.machine.doubts())


def _exact(report: Report) -> str:
    """Return the sentence that all figures are exact; empty where hardly anything is recorded."""
    if is_disturbed(report):
        return "every recorded figure is exact but for the unprofiled times, which are not reliable"
    if report.run is not None or report.trace.gpu_recorded or report.table("step_latency").rows:
        return "every recorded figure is exact"
    return "what is recorded is exact, but neither GPU work nor steps are recorded"


def figure_values(report: Report) -> dict[str, Value]:
    """Return each figure's value by its id; None: not recorded."""
    return {figure.id: figure.value(report) for figure in FIGURES}


def compared_figures(comparison: Comparison) -> Section:
    """Return the figures of every run, with ratios to the first.

    One that is 0 in every run, or not recorded, has no row.
    """
    columns, rows = _compared(comparison)
    values = [{cell.value for cell in cells} - {"", None} for _, cells in rows]
    names_molecules = any(report.molecules for report in comparison.runs)
    shown = [
        (figure, cells)
        for (figure, cells), distinct in zip(rows, values, strict=True)
        if distinct != {0} and (distinct or names_molecules or "molecule" not in figure.label)
    ]
    timed = [run.wall_ns.repeats for report in comparison.timed if (run := report.run) is not None]
    estimate = f"of each the {comparison.wall.estimate}" if max(timed, default=0) > 1 else ""
    if comparison.wall.paired and estimate:
        estimate += f", where its report has the {MEDIAN_PASS}"
    return _section(columns, _worded(shown, reports_of(comparison)), ('"-": not recorded',), estimate)


def figures_table(comparison: Comparison, chosen: Container[str]) -> Table:
    """Return a table of the figures with these ids alone."""
    columns, rows = _compared(comparison)
    worded = _worded(((figure, cells) for figure, cells in rows if figure.id in chosen), reports_of(comparison))
    return Table(columns, [(figure.label, *cells) for figure, cells in worded], keys=2, missing="-")


def _compared(comparison: Comparison) -> tuple[tuple[Column, ...], list[tuple[Figure, list[Cell]]]]:
    columns = [Column("figure"), Column(comparison.labels[0], "number")]
    for label in comparison.labels[1:]:
        columns += [Column(label, "number"), Column("ratio", "factor", joined=True)]
    rows = []
    for row in comparison.rows:
        cells = [Cell(row.values[0], row.figure.unit)]
        for index, (value, ratio) in enumerate(zip(row.values[1:], row.ratios[1:], strict=True), 1):
            cells.append(Cell(value, row.figure.unit))
            cells.append(Cell("" if ratio is None else ratio, "factor", noise=row.within_noise(index)))
        rows.append((row.figure, cells))
    return tuple(columns), rows


def _section(
    columns: tuple[Column, ...],
    rows: Iterable[tuple[Figure, Sequence[Cell]]],
    notes: tuple[str, ...],
    estimate: str,
) -> Section:
    """Return a table for each group but the settings, and one line on what no trace records.

    estimate: which of several timed passes the times are of; may be empty.
    """
    settings = {figure.id for figure in SETTINGS}
    rows = [(figure, cells) for figure, cells in rows if figure.id not in settings]
    recorded = [(figure, cells) for figure, cells in rows if any(cell.value not in (None, "") for cell in cells)]
    missing = _missing([figure for figure, _ in rows], [figure for figure, _ in recorded])
    sections = [
        Section(
            group,
            (estimate,) if estimate and group == "Unprofiled time" else (),
            Table(columns, [(figure.label, *cells) for figure, cells in of_group], keys=2, missing="-"),
        )
        for group, of_group in groupby(recorded, key=lambda row: row[0].group)
    ]
    return Section("Figures", (*notes, *missing), parts=tuple(sections))


def _missing(figures: Sequence[Figure], recorded: Sequence[Figure]) -> tuple[str, ...]:
    """Return the unknown figures by group; a group without any known figure by its name alone."""
    texts = []
    for group, items in groupby(figures, key=lambda figure: figure.group):
        listed = [figure for figure in items if figure in recorded or not figure.stands_in]
        names = [figure.label.strip() for figure in listed if figure not in recorded]
        if names:
            texts.append(group if len(names) == len(listed) else f"{group} ({', '.join(names)})")
    return (f"not recorded: {'; '.join(texts)}",) if texts else ()


def settings_section(reports: Reports) -> Section:
    """Return a row for each setting of any report, a column for each report; differences are marked."""
    figures = map(of_served, SETTINGS)
    rows = _worded(((figure, [figure.value(report) for report in reports.reports]) for figure in figures), reports)
    recorded = [figure for figure, values in rows if set(values) != {None}]
    shown = [(figure, values) for figure, values in rows if set(values) - {None, figure.usual}]
    marked = frozenset(
        index
        for index, (figure, values) in enumerate(shown)
        if figure.role != "measure" and len(set(values) - {None}) > 1
    )
    columns = (Column("setting"), *map(Column, reports.labels))
    cells: list[Row] = [(figure.label, *(Cell(value, figure.unit) for value in values)) for figure, values in shown]
    notes = (
        *(("rows that differ are marked",) if marked else ()),
        *_missing([figure for figure, _ in rows if not figure.stands_in], recorded),
    )
    return Section("Settings", notes, Table(columns, cells, marked))


@dataclass(frozen=True)
class TraceRow:
    """One trace in a table of many traces."""

    file: str
    figures: dict[str, Value]  # by id; empty where it could not be read
    problem: str | None = None  # why it could not be read

    @property
    def reason(self) -> str:
        """The problem without the file's name, which the row already shows."""
        return (self.problem or "").removeprefix(f"{self.file}: ").removeprefix(f"{self.file} ")


def trace_row(file: str, report: Report | Exception) -> TraceRow:
    """Return the row of a trace, or of a trace that cannot be read."""
    return TraceRow(file, {}, str(report)) if isinstance(report, Exception) else TraceRow(file, figure_values(report))


def reports_document(rows: Sequence[TraceRow]) -> Document:
    """Return a row for each trace; CSV has a column for each figure."""
    bad = [row for row in rows if row.problem is not None]
    good = [row for row in rows if row.problem is None]
    shown: list[Field] = [
        (figure.label.strip(), figure.unit, f"figures.{figure.id}")
        for figure in FIGURES
        if figure.id in _SHOWN and any(row.figures[figure.id] is not None for row in good)
    ]
    traces = table_of(good, ("trace", "text", "file"), *shown, missing="-")
    not_read = table_of(bad, ("trace", "text", "file"), ("problem", "text", "reason"))
    sections = Section("Traces", table=traces), Section("Not read", table=not_read)
    named = dict.fromkeys(figure.id for figure in FIGURES)
    return Document(
        f"molprof report: {counted(len(rows), 'trace')}",
        tuple(section for section, of_section in zip(sections, (good, bad), strict=True) if of_section),
        data=lambda: objects(rows, "file", "problem", "figures"),
        records=lambda: records({"file": row.file, "problem": row.problem, **named, **row.figures} for row in rows),
        warnings=(f"{counted(len(bad), 'trace')} could not be read",) if bad else (),
    )


def certificate_sections(report: Report) -> tuple[Section, ...]:
    """Return the sections of the certificate; none for a stored report without one."""
    certificate = report.certificate
    if certificate is None:
        return ()
    if certificate.verdict == "exact":
        return (Section("Certificate", (_exact(report),)),)
    letters = _lettered([report])
    rows: list[Row] = []
    for item in certificate.uncertain:
        shown = "; ".join(map(bound_text, item.bounds[:_BOUNDS]))
        rows.append((item.title, f"{WORDS[item.verdict]}{': ' if shown else ''}{shown} ({_because(item, letters)})"))
    exact = [item.title for item in certificate.groups if item.verdict == "exact"]
    rows.append(("exact", ", ".join(exact) or "nothing"))
    if is_disturbed(report):
        rows.append(("not reliable", "unprofiled times"))
    return (Section("Certificate", table=pairs([*rows, *_reasons(letters)], narrow=True)),)


def compared_certificates(reports: Reports) -> tuple[Section, ...]:
    """Return the groups of figures that are not exact, run by run; nothing if all are."""
    letters = _lettered(reports.reports)
    if not letters:
        return ()
    rows: list[Row] = []
    for label, report in zip(reports.labels, reports.reports, strict=True):
        uncertain = () if report.certificate is None else report.certificate.uncertain
        texts = [f"{item.title} {WORDS[item.verdict]} ({_because(item, letters)})" for item in uncertain]
        rows.append((label, "; ".join(texts) or ("not recorded" if report.certificate is None else "exact")))
    return (Section("Certificate", table=pairs([*rows, *_reasons(letters)], narrow=True)),)


def _lettered(reports: Iterable[Report]) -> dict[tuple[str, str], str]:
    """Return a letter for each reason and query."""
    doubts = [doubt for report in reports if report.certificate is not None for doubt in report.certificate.doubts]
    return dict(zip(dict.fromkeys((doubt.reason, doubt.query) for doubt in doubts), _letters(), strict=False))


def _because(item: Certified, letters: Mapping[tuple[str, str], str]) -> str:
    return ", ".join(dict.fromkeys(letters[doubt.reason, doubt.query] for doubt in item.doubts))


def _reasons(letters: Mapping[tuple[str, str], str]) -> Iterator[Row]:
    return ((f"({letter})", f"{reason}; molprof query {query} TRACE") for (reason, query), letter in letters.items())


def _letters() -> Iterator[str]:
    """Yield a to z, then aa and so on."""
    return ("".join(letters) for length in count(1) for letters in product(ascii_lowercase, repeat=length))


def bound_text(bound: Bound) -> str:
    """Return the figure and its bounds as text: `kernels 12 to 17`, `device 0 busy 3 ms to 4 ms`."""
    unit: Unit = "ns" if bound.figure.endswith("_ns") else "number"
    prefix, _, name = bound.figure.rpartition(".")
    name = name.removesuffix("_ns").replace("_", " ")
    if prefix.startswith(("devices.", "streams.")):
        name = f"{prefix.replace('s.', ' ', 1)} {name}"
    if bound.low is None:
        return f"{name} up to {by_unit(unit, bound.high)}"
    if bound.high is None:
        return f"{name} {by_unit(unit, bound.low)} or more"
    low, high = by_unit(unit, bound.low), by_unit(unit, bound.high)
    return (
        f"{name} {low} to {high}" if low != high else f"{name} {high} (within {by_unit(unit, bound.high - bound.low)})"
    )
