"""Tables of captured runs: phases, molecules, drift and disagreement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from molprof.analysis.documents.figures import Reports
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import PhaseFigures, Run, SequenceFigures
from molprof.common.document import Field, Section, Table
from molprof.common.values import count_text, counted, number_text, per, percent_text, time_text


def run_sections(reports: Reports) -> Iterator[Section]:
    """Phases, drift, molecules, junk by counting rule with examples, and disagreement."""
    yield _phases(reports)
    yield _totals(reports)
    yield Section("Drift", reports.notes(_drift))
    yield Section("Molecules that are not valid", table=reports.of_runs(_invalid, *_INVALID), detail=True)
    yield _molecules(reports)
    yield Section("Junk blocks by counting rule", table=reports.of_runs(_trained("drift.junk_rules"), *_RULE))
    yield _noted("Junk in coordinate blocks", reports.of_runs(_trained("drift.junk_examples"), *_EXAMPLE), _JUNK_NOTE)
    yield _noted(
        "Disagreement between model and constraint", reports.of_runs(_groups, *_CHOICE, *_AGREEMENT), *_MEANINGS
    )
    bins = reports.of_runs(_trained("disagreement.bins"), *_BIN, *_AGREEMENT)
    yield Section("Disagreement along the sequence", table=bins)
    worst = reports.of_runs(_trained("disagreement.worst"), *_WORST)
    yield _noted("Largest disagreement", worst, "bars enclose the token")


def _noted(title: str, table: Table, *notes: str) -> Section:
    """The section; without rows nothing needs an explanation."""
    return Section(title, notes if table.rows else (), table)


_PHASE: tuple[Field, ...] = (
    ("phase", "text", "name"), ("time", "ns", "phase.wall_ns"),
    ("share", "ratio", lambda item: per(item["phase"].wall_ns, item["run"].wall_ns.median)),
    ("profiled", "ns", "phase.host_ns"),
)  # fmt: skip
_OPERATORS: tuple[Field, ...] = (("leaf operators", "count", "phase.leaf_operators"),)
# What a phase shows of a GPU, in place of its leaf operators.
_OF_GPU: tuple[Field, ...] = (
    ("GPU idle", "ratio", lambda item: per(_idle_ns(item["phase"]), item["phase"].host_ns)),
    ("GPU time", "ns", "phase.gpu_ns"), ("kernels", "count", "phase.kernels"), ("launches", "count", "phase.launches"),
    ("graphs", "count", "phase.graph_launches"), ("syncs", "count", "phase.syncs"),
    ("sync time", "ns", "phase.sync_ns"),
)  # fmt: skip


def _phases(reports: Reports) -> Section:
    def items(run: Run) -> Iterator[dict[str, Any]]:
        return ({"name": name, "phase": phase, "run": run} for name, phase in run.phases.items())

    of_gpu = any(report.trace.gpu_recorded for report in reports.reports)
    table = reports.of_runs(items, *_PHASE, *(_OF_GPU if of_gpu else _OPERATORS))
    notes = ('time and share: whole run, unprofiled; other columns: recorded steps, profiled; "-": not recorded',)
    return Section("Phases", (*(notes if table.rows else ()), *reports.notes(_outside)), table)


def _idle_ns(phase: PhaseFigures) -> int | None:
    return None if phase.bound is None else phase.bound.sync_idle_ns + phase.bound.launch_ns


def _outside(report: Report) -> Iterator[str]:
    if report.run is None:
        yield "not recorded: molprof did not capture this trace, so it holds no unprofiled times and no token texts"
        return
    run, outside_ns = report.run, report.run.window.unattributed_gpu_ns
    gpu = "" if outside_ns is None else f", {time_text(outside_ns)} of GPU time"
    yield f"outside any phase: {percent_text(run.residual_ratio)} of the time{gpu}"
    marks = run.marks
    cost = f"{time_text(marks.mark_ns)} each, {marks.per_step} per step, {percent_text(marks.time_ratio)} of the time"
    unmarked_ns = marks.unmarked_wall_ns
    without = "" if unmarked_ns is None else f"; a pass without any takes {time_text(unmarked_ns)}"
    yield f"phase timestamps: {cost}{without}"


def _totals(reports: Reports) -> Section:
    def items(run: Run) -> Iterator[dict[str, Any]]:
        for name, total in (run.totals or {}).items():
            part = f"{count_text(total.recorded_steps)} of {counted(total.steps, 'step')} recorded"
            how = "exact: all steps recorded" if total.exact else f"estimate: {part}"
            yield {"name": name.replace("_", " "), "total": total, "how": how}

    table = reports.of_runs(
        items,
        ("total of all steps", "text", "name"), ("count", "count", "total.value"), ("low", "count", "total.low"),
        ("high", "count", "total.high"), ("how", "text"),
    )  # fmt: skip
    note = "an estimate gives the other steps the mean of the recorded ones; low and high: their least and most"
    runs = [report.run for report in reports.reports if report.run is not None]
    estimated = any(not item.exact for run in runs for item in (run.totals or {}).values())
    return Section("Totals of the run", (note,) if estimated else (), table)


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


_INVALID: tuple[Field, ...] = (
    ("#", "index", "sequence"), ("molecule", "text", "smiles"), ("why", "text", lambda item: item.problem or "unknown"),
)  # fmt: skip
_MOLECULE: tuple[Field, ...] = (
    ("#", "index", "sequence"), ("molecule", "text", "smiles"), ("tokens", "count"), ("free", "count"),
    ("copy", "count"), ("junk", "count"), ("filler", "count"), ("blocks", "count"), ("junk blocks", "count"),
    ("malformed blocks", "count"), ("masked logits", "count"),
)  # fmt: skip
_PROMPT: tuple[Field, ...] = (
    ("#", "index", "sequence"), ("prompt", "text"), ("tokens", "count"), ("masked logits", "count"),
)  # fmt: skip


def _invalid(run: Run) -> Iterator[SequenceFigures]:
    return (item for item in run.sequences if item.valid is False)


def _molecules(reports: Reports) -> Section:
    """Those that drift most stand first."""

    def order(item: SequenceFigures) -> tuple[int, ...]:
        return -item.junk, -item.filler, -item.malformed_blocks, item.sequence

    if reports.of_prompts:
        return Section("Prompts", table=reports.of_runs(lambda run: run.sequences, *_PROMPT), detail=True)
    table = reports.of_runs(lambda run: sorted(run.sequences, key=order), *_MOLECULE)
    return Section("Molecules", table=table, detail=True)


_RULE: tuple[Field, ...] = (
    ("rule", "text"), ("blocks", "count"), ("share", "ratio", "block_ratio"), ("molecules", "count"),
    ("share", "ratio", "molecule_ratio"), ("counts", "text", "meaning"),
)  # fmt: skip
_EXAMPLE: tuple[Field, ...] = (
    ("#", "index", "sequence"), ("block", "index"), ("token", "index", "position"), ("blocks", "index"),
    ("junk", "text", "surplus"), ("text", "text"),
)  # fmt: skip
_JUNK_NOTE = "most frequent first; in the text, bars enclose junk and filler; blocks: number with the same junk"


def _trained(rows: str) -> Callable[[Run], Iterable[Any]]:
    """Rows of the drift or disagreement of a run; those of random weights say nothing."""
    kind, _, name = rows.partition(".")
    return lambda run: () if run.setup.random else getattr(getattr(run, kind), name, ())


_AGREEMENT: tuple[Field, ...] = (
    ("tokens", "count", "agreement.tokens"), ("mean p", "probability", "agreement.mean_probability"),
    ("median p", "probability", "agreement.median_probability"),
    ("first choice", "ratio", "agreement.first_choice_ratio"), ("forbidden", "ratio", "agreement.forbidden_ratio"),
    ("surprisal", "number", "agreement.mean_surprisal_bits"),
)  # fmt: skip
_CHOICE: tuple[Field, ...] = (("choice", "text", "choice"), ("text", "text", "text"))
_BIN: tuple[Field, ...] = (("from", "ratio", "from_ratio"), ("to", "ratio", "to_ratio"))
_WORST: tuple[Field, ...] = (
    ("#", "index", "sequence"), ("token", "index", "position"), ("choice", "text"), ("p", "probability", "probability"),
    ("rank", "count"), ("forbidden", "text"), ("text", "text", lambda item: f"{item.before}|{item.text}|{item.after}"),
)  # fmt: skip
_MEANINGS = (
    "p: probability that the model gave to the token that was written, before any token was forbidden",
    "first choice: the written token was the model's own; forbidden: the model's first choice was not allowed",
    "copy: one token was allowed; free: some were; open: all were; surprisal: mean of -log2 p, in bits",
)


def _groups(run: Run) -> Iterator[dict[str, Any]]:
    if run.disagreement is not None and not run.setup.random:
        yield {"choice": "all", "text": "all", "agreement": run.disagreement.all}
        for item in run.disagreement.groups:
            yield {"choice": item.choice, "text": item.text or "all", "agreement": item.agreement}
