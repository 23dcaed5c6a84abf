"""A report as a document, the most important first; sections of reports, for comparisons too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from molprof.analysis.documents.answers import FIRST_ANSWERS, REMOVED, answers_section, failures, of_forbidden
from molprof.analysis.documents.figures import (
    Reports,
    certificate_sections,
    figure_values,
    is_spread,
    main_figures,
    report_figures,
    reports_of,
    settings_section,
)
from molprof.analysis.documents.findings import best_findings, findings_section, next_commands, warnings_found
from molprof.analysis.documents.headline import overview, report_verdict
from molprof.analysis.documents.plots import PLOTS, plot_section
from molprof.analysis.documents.program import (
    processors_section,
    program_notes,
    program_times,
    unrecorded_sections,
)
from molprof.analysis.documents.questions import not_answered
from molprof.analysis.documents.stood import stood_section
from molprof.analysis.figures import Report
from molprof.analysis.figures.catalog import shown_tables
from molprof.analysis.figures.certificate.file import PASSES
from molprof.analysis.figures.model import IDLE_CAUSES, STACK_CATEGORY, FigureTable
from molprof.analysis.figures.run_model import PhaseFigures, Run, RunTotal, SequenceFigures
from molprof.analysis.reader import path_text
from molprof.common.document import Document, Field, Row, Section
from molprof.common.values import count_text, counted, number_text, per, percent_text, time_text, unit_of

_TITLES = {"gpu_ns": "GPU time", "own_ns": "self time", "mean_gpu_ns": "mean GPU time"}
# Tables whose rows are told apart by two columns.
_TWO_KEYS = ("steps", "step_latency", "idle_causes", "host_syncs", "graph_positions")
# In captions of plots.
_BAND = "; the band holds the middle 80 %"
_GPU = "phases and calls on the host, below them the GPU work that they started. Gaps in a GPU's row are idle time"
_NO_GPU = "phases and operators on the host. No GPU work is recorded"
_OF_STEPS = ('unprofiled; each step as its median over the timed passes; "-": too few steps for it',)
_JUNK_NOTES = ("most frequent first; in the text, bars enclose junk and filler; blocks: number with the same junk",)
_MEANINGS = (
    "p: probability that the model gave to the token that was written, before any token was forbidden; "
    "rank 0: the model's first choice",
    "first choice: the written token was the model's own; forbidden: the model's first choice was not allowed",
    "copy: one token was allowed; free: some were; open: all were; surprisal: mean of -log2 p, in bits",
)
_AGREEMENT: tuple[Field, ...] = (
    ("tokens", "count", "agreement.tokens"), ("mean p", "probability", "agreement.mean_probability"),
    ("median p", "probability", "agreement.median_probability"),
    ("first choice", "ratio", "agreement.first_choice_ratio"), ("forbidden", "ratio", "agreement.forbidden_ratio"),
    ("surprisal", "number", "agreement.mean_surprisal_bits"),
)  # fmt: skip


def report_document(report: Report, graphs: Sequence[Section] = (), **data: Any) -> Document:
    """Return the document. graphs: what graphs that the trace replays hold, the first in short.

    Data: of them, for JSON.
    """
    reports = reports_of(report)
    return Document(
        f"molprof report: {path_text(report.trace.path)}",
        (
            *_known(overview(report)),
            *certificate_sections(report),
            *unrecorded_sections(reports),
            plots_section(reports),
            findings_section(reports),
            *graphs,
            report_figures(reports),
            settings_section(reports),
            *report_sections(reports),
        ),
        lambda: {
            **report.to_json(),
            "figures": figure_values(report),
            "not_answered": not_answered(report),
            **data,
        },
        warnings=warnings(reports),
        summary=report_verdict(report),
        screen=(
            *_known(overview(report)),
            best_findings(report),
            *graphs[:1],
            main_figures(report),
            *(() if report.run is None or report.run.of_molecules else (answers_section(reports, FIRST_ANSWERS),)),
            next_commands(report),
        ),
    )


def _known(section: Section) -> tuple[Section, ...]:
    return (section,) if section.table is not None and section.table.rows else ()


def plots_section(reports: Reports) -> Section:
    """Return every plot, in the order in which they explain the summary; the waterfall only of two runs."""
    has_gpu = any(report.trace.gpu_recorded for report in reports.reports)
    band = _BAND if any(is_spread(points) for _, points in reports.step_times()) else ""
    left_out = {"waterfall": len(reports.reports) < 2, "drift": not reports.of_molecules}
    kinds = [kind for kind in PLOTS if not left_out.get(kind)]
    return plot_section(kinds, reports, band=band, shown=_GPU if has_gpu else _NO_GPU)


def warnings(reports: Reports) -> tuple[str, ...]:
    """Return warnings that a reader needs before trusting a figure."""
    return (*reports.notes(_warnings), *reports.notes(warnings_found))


def _warnings(report: Report) -> Iterator[str]:
    if not report.trace.complete:
        yield f"the trace is damaged, only its whole part was read: {report.trace.problem}"
    if not report.trace.whole_steps:
        lost = "parts of steps were left out, so figures of steps and phases are not recorded"
        yield f"the trace was {report.trace.trimmed}; {lost}"
    if report.run and report.run.machine and (doubts := report.run.machine.doubts()):
        when = "while the program ran," if program_times(report.run) else "during the timed passes"
        yield f"times are not reliable: {when} {'; '.join(doubts)}"
    certified = () if report.certificate is None else report.certificate.doubts
    if problems := [doubt.reason for doubt in certified if doubt.check == PASSES]:
        yield f"the passes of the capture contradict each other: {'; '.join(problems)}"
    if not report.trace.events_by_category:
        yield "the trace holds no events with a duration, so nothing was recorded"
    if broken := [check.text for check in report.checks if not check.holds]:
        yield f"checks that do not hold: {'; '.join(broken)}"


def report_sections(reports: Reports) -> list[Section]:
    """Return the tables of every report but its figures, without empty ones."""
    sections = (
        *_run_sections(reports),
        reports.section(
            "Memory operations", lambda report: report.counts.memory_operations.items(),
            ("operation", "text", "0"), ("count", "count", "1.count"), ("time", "ns", "1.time_ns"),
            ("bytes", "bytes", lambda item: item[1].bytes or None),  # the trace does not hold the size of a memset
        ),
        reports.section(
            "Devices", lambda report: report.devices.items(),
            ("device", "text", "0"), ("span", "ns", "1.span_ns"), ("busy", "ns", "1.busy_ns"),
            ("idle", "ns", "1.idle_ns"), ("busy share", "ratio", lambda item: per(item[1].busy_ns, item[1].span_ns)),
        ),
        _checks(reports),
        reports.section(
            "Events", lambda report: report.trace.events_by_category.items(),
            ("category", "text", "0"), ("events", "count", "1"), notes=reports.notes(_event_notes), detail=True,
        ),
        *_metrics(reports),
    )  # fmt: skip
    return [item for item in sections if item.notes or (item.table is not None and item.table.rows)]


def _event_notes(report: Report) -> Iterator[str]:
    left_out = report.trace.events_by_category.get(STACK_CATEGORY, 0)
    if left_out and not report.trace.stacks:
        yield f"{count_text(left_out)} Python stack events left out: no figure needs them"
    for category, read in report.trace.read_as.items():
        yield f"{category} is read as {', '.join(f'{name} ({count_text(count)})' for name, count in read.items())}"
    if report.trace.lanes:
        yield f"{counted(report.trace.lanes, 'event')} on sub-tracks: they partly overlap others of their track"


def _metrics(reports: Reports) -> Iterator[Section]:
    """Yield every table that has rows; of reports whose columns differ, those like the first."""
    firsts: dict[str, FigureTable] = {}
    for report in reports.reports:
        for table in shown_tables(report):
            firsts.setdefault(table.name, table)
    for first in firsts.values():
        rows = partial(_rows, first)
        cells = [cell for report in reports.reports for row in rows(report) for cell in enumerate(row)]
        texts = {index for index, value in cells if isinstance(value, str)}
        fields = [_field(name, index, index in texts) for index, name in enumerate(first.columns)]
        shown = reports.table(rows, *fields, missing="")
        yield Section(
            first.title, table=replace(shown, keys=shown.keys + (first.name in _TWO_KEYS)), detail=True, name=first.name
        )


def _rows(first: FigureTable, report: Report) -> Sequence[Row]:
    """Return the rows of the report's table like the first.

    Causes of idle time in words, not as SQL and JSON name them.
    """
    table = report.table(first.name)
    if table.columns != first.columns:
        return ()
    if "cause" not in table.columns:
        return table.rows
    index = table.columns.index("cause")
    return [(*row[:index], IDLE_CAUSES.get(str(row[index]), row[index]), *row[index + 1 :]) for row in table.rows]


def _field(name: str, index: int, text: bool) -> Field:
    """Return a column without the unit in its heading, such as `mean delay` for `mean_delay_ns`: cells have units."""
    title = name.removesuffix("_ns").removesuffix("_bytes").replace("_ratio", " share").replace("_", " ")
    return _TITLES.get(name, title), "name" if text else unit_of(name), str(index)


def _checks(reports: Reports) -> Section:
    table = reports.table(
        lambda report: report.checks,
        ("what must hold", "text", "text"), ("left", "count"), ("right", "count"),
        ("tolerance", "ratio", lambda check: check.tolerance_ratio or "none"),
        ("result", "text", lambda check: "holds" if check.holds else "FAILS"),
    )  # fmt: skip
    broken = frozenset(index for index, row in enumerate(table.rows) if row[-1] == "FAILS")
    note = f"{len(broken)} of {len(table.rows)} fail" if broken else f"all {len(table.rows)} hold"
    return Section("Checks", (note,), replace(table, marked=broken))


def _run_sections(reports: Reports) -> Iterator[Section]:
    """Yield phases, drift, molecules, junk by counting rule with examples, and disagreement."""
    yield _phases(reports)
    yield reports.of_runs(
        "Phases step by step", lambda run: run.step_phases or (),
        ("phase", "text"), ("steps", "count"), ("p50", "ns", "p50_ns"), ("p90", "ns", "p90_ns"),
        ("p99", "ns", "p99_ns"), ("longest", "ns", "longest_ns"), notes=_OF_STEPS,
    )  # fmt: skip
    yield processors_section(reports)
    yield _totals(reports)
    yield Section("Drift", reports.notes(_drift))
    of_molecules = reports.of_molecules
    yield reports.of_runs(
        f"{'Molecules' if of_molecules else 'Answers'} that are not valid",
        lambda run: (item for item in run.sequences if item.valid is False),
        ("#", "index", "sequence"), ("molecule", "text", "smiles") if of_molecules else ("prompt", "text"),
        ("why", "text", lambda item: item.problem or "unknown"), notes=reports.notes(failures), detail=True,
    )  # fmt: skip
    if not of_molecules:
        yield answers_section(reports)
        yield reports.of_runs(
            "Prompts", lambda run: run.sequences,
            ("#", "index", "sequence"), ("prompt", "text"), ("tokens", "count"), ("masked logits", "count"),
            detail=True,
        )  # fmt: skip
    else:
        yield reports.of_runs(
            "Molecules", lambda run: sorted(run.sequences, key=_by_drift),
            ("#", "index", "sequence"), ("molecule", "text", "smiles"), ("tokens", "count"), ("free", "count"),
            ("copy", "count"), ("junk", "count"), ("filler", "count"), ("blocks", "count"), ("junk blocks", "count"),
            ("malformed blocks", "count"), ("masked logits", "count"), detail=True,
        )  # fmt: skip
    yield stood_section(reports)
    yield reports.of_runs(
        "Junk blocks by counting rule", _trained("drift", "junk_rules"),
        ("rule", "text"), ("blocks", "count"), ("share", "ratio", "block_ratio"), ("molecules", "count"),
        ("share", "ratio", "molecule_ratio"), ("counts", "text", "meaning"),
    )  # fmt: skip
    yield reports.of_runs(
        "Junk in coordinate blocks", _trained("drift", "junk_examples"),
        ("#", "index", "sequence"), ("block", "index"), ("token", "count", "position"), ("blocks", "index"),
        ("junk", "text", "surplus"), ("text", "text"), notes=_JUNK_NOTES,
    )  # fmt: skip
    removed = of_forbidden(reports)
    yield reports.of_runs(
        "Disagreement between model and constraint", _groups,
        ("choice", "text"), ("text", "text"), *_AGREEMENT, *removed, notes=(*_MEANINGS, *[REMOVED][: len(removed)]),
    )  # fmt: skip
    yield reports.of_runs(
        "Disagreement along the sequence", _trained("disagreement", "bins"),
        ("from", "ratio", "from_ratio"), ("to", "ratio", "to_ratio"), *_AGREEMENT, *removed,
    )  # fmt: skip
    yield reports.of_runs(
        "Largest disagreement", _trained("disagreement", "worst"),
        ("#", "index", "sequence"), ("token", "count", "position"), ("choice", "text"),
        ("p", "probability", "probability"), ("rank", "count"), ("forbidden", "text"),
        ("text", "text", lambda item: f"{item.before}|{item.text}|{item.after}"), notes=("bars enclose the token",),
    )  # fmt: skip


def _by_drift(item: SequenceFigures) -> tuple[int, ...]:
    """Return the sort key that puts molecules with the most drift first."""
    return -item.junk, -item.filler, -item.malformed_blocks, item.sequence


def _trained(kind: str, name: str) -> Callable[[Run], Iterable[Any]]:
    """Return the rows of a run's drift or disagreement; none of random weights, where they say nothing."""
    return lambda run: () if run.setup.random else getattr(getattr(run, kind), name, ())


def _groups(run: Run) -> Iterator[dict[str, Any]]:
    if run.disagreement is not None and not run.setup.random:
        yield {"choice": "all", "text": "all", "agreement": run.disagreement.all}
        for item in run.disagreement.groups:
            yield {"choice": item.choice, "text": item.text or "all", "agreement": item.agreement}


def _phases(reports: Reports) -> Section:
    def idle_ns(phase: PhaseFigures) -> int | None:
        return None if phase.bound is None else phase.bound.sync_idle_ns + phase.bound.launch_ns

    def items(run: Run) -> Iterator[tuple[str, PhaseFigures, Run]]:
        phases = ((name, phase) for name, phase in run.phases.items() if (phase.wall_ns, phase.host_ns) != (None, None))
        return ((name, phase, run) for name, phase in phases)

    fields: list[Field] = [
        ("phase", "text", "0"), ("time", "ns", "1.wall_ns"),
        ("share", "ratio", lambda item: per(item[1].wall_ns, item[2].wall_ns.median)), ("profiled", "ns", "1.host_ns"),
    ]  # fmt: skip
    if any(report.trace.gpu_recorded for report in reports.reports):
        fields += [
            ("GPU idle", "ratio", lambda item: per(idle_ns(item[1]), item[1].host_ns)), ("GPU time", "ns", "1.gpu_ns"),
            ("kernels", "count", "1.kernels"), ("launches", "count", "1.launches"),
            ("graphs", "count", "1.graph_launches"), ("syncs", "count", "1.syncs"), ("sync time", "ns", "1.sync_ns"),
        ]  # fmt: skip
    else:
        fields.append(("leaf operators", "count", "1.leaf_operators"))
    notes = ('time and share: whole run, unprofiled; other columns: recorded steps, profiled; "-": not recorded',)
    section = reports.of_runs("Phases", items, *fields, notes=notes)
    return replace(section, notes=(*section.notes, *reports.notes(_outside)))


def _outside(report: Report) -> Iterator[str]:
    if report.run is None:
        yield "unprofiled times and token texts are not recorded: molprof did not capture this trace"
        return
    run, outside_ns = report.run, report.run.window.unattributed_gpu_ns
    gpu = "" if outside_ns is None else f", {time_text(outside_ns)} of GPU time"
    yield f"outside any phase: {percent_text(run.residual_ratio)} of the time{gpu}"
    if not run.has_processor:
        yield "no logits processor ran: the phase processor holds molprof's marks and empty calls alone"
    marks = run.marks
    cost = f"{time_text(marks.mark_ns)} each, {marks.per_step} per step, {percent_text(marks.time_ratio)} of the time"
    unmarked_ns = marks.unmarked_wall_ns
    without = "" if unmarked_ns is None else f"; a pass without any takes {time_text(unmarked_ns)}"
    yield f"phase timestamps: {cost}{without}"
    if run.processor_once_ns is not None:
        yield f"not in the whole run: making the processor, once, took {time_text(run.processor_once_ns)}"
    yield from program_notes(run)


def _totals(reports: Reports) -> Section:
    def how(total: RunTotal) -> str:
        recorded = f"{count_text(total.recorded_steps)} of {counted(total.steps, 'step')} recorded"
        return "exact: all steps recorded" if total.exact else f"estimate: {recorded}"

    note = "an estimate gives the other steps the mean of the recorded ones; low and high: their least and most"
    runs = [report.run for report in reports.reports if report.run is not None]
    estimated = any(not item.exact for run in runs for item in (run.totals or {}).values())
    return reports.of_runs(
        "Totals of the run", lambda run: (run.totals or {}).items(),
        ("total of all steps", "text", lambda item: item[0].replace("_", " ")), ("count", "count", "1.value"),
        ("low", "count", "1.low"), ("high", "count", "1.high"), ("how", "text", lambda item: how(item[1])),
        notes=(note,) if estimated else (),
    )  # fmt: skip


def _drift(report: Report) -> Iterator[str]:
    run = report.run
    if run is None or not run.of_molecules:
        return
    drift = run.drift
    if run.setup.random:
        yield "drift: not meaningful, the weights are random"
    elif not run.blocks:
        yield "no coordinate blocks"
    elif drift is not None and drift.states is not None:
        parts = ", ".join(f"{count_text(count)} {state}" for state, count in drift.states.items())
        share = percent_text(per(drift.drift_blocks, run.blocks))
        yield f"{count_text(drift.drift_blocks)} of {counted(run.blocks, 'block')} with drift ({share}): {parts}"
    if drift is not None and drift.known_blocks and run.blocks and not run.setup.random:
        yield (
            f"drift (FREE positions minus tokens needed): mean {number_text(drift.mean_drift_tokens)}; "
            f"{counted(drift.too_short_blocks, 'block')} too short, {count_text(drift.exact_blocks)} exact, "
            f"{count_text(drift.too_long_blocks)} too long"
        )
