"""Tables of captured runs: phases, molecules, drift and disagreement."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.documents.figures import Reports
from molprof.analysis.figures import Report
from molprof.analysis.figures.drift.model import Agreement, Disagreement, Drift
from molprof.analysis.figures.run_model import PhaseFigures, SequenceFigures
from molprof.common.document import Column, Row, Section
from molprof.common.values import count_text, counted, number_text, per, percent_text, time_text

_AGREEMENT = (
    Column("tokens", "count"), Column("mean p", "probability"), Column("median p", "probability"),
    Column("first choice", "ratio"), Column("forbidden", "ratio"), Column("surprisal", "number"),
)  # fmt: skip

# What a phase shows of a GPU, in place of its leaf operators.
_OF_GPU = (
    Column("GPU idle", "ratio"), Column("GPU time", "ns"), Column("kernels", "count"), Column("launches", "count"),
    Column("graphs", "count"), Column("syncs", "count"), Column("sync time", "ns"),
)  # fmt: skip


def run_sections(reports: Reports) -> Iterator[Section]:
    """Phases, drift, molecules, junk by counting rule with examples, and disagreement."""
    yield _phases(reports)
    yield _totals(reports)
    yield Section("Drift", reports.notes(_drift))
    yield _invalid(reports)
    yield _molecules(reports)
    yield _rules(reports)
    yield _examples(reports)
    yield _groups(reports)
    yield _bins(reports)
    yield _worst(reports)


def _totals(reports: Reports) -> Section:
    columns = (
        Column("total of all steps"), Column("count", "count"), Column("low", "count"), Column("high", "count"),
        Column("how"),
    )  # fmt: skip

    def rows(report: Report) -> Iterator[Row]:
        for name, total in () if report.run is None else (report.run.totals or {}).items():
            part = f"{count_text(total.recorded_steps)} of {counted(total.steps, 'step')} recorded"
            how = "exact: all steps recorded" if total.exact else f"estimate: {part}"
            yield name.replace("_", " "), total.value, total.low, total.high, how

    table = reports.table(columns, rows)
    notes = "an estimate gives the other steps the mean of the recorded ones; low and high: their least and most"
    estimated = any(
        not item.exact for report in reports.reports if report.run for item in (report.run.totals or {}).values()
    )
    return Section("Totals of the run", (notes,) if estimated else (), table)


def _phases(reports: Reports) -> Section:
    of_gpu = any(report.trace.gpu_recorded for report in reports.reports)
    columns = (
        Column("phase"), Column("time", "ns"), Column("share", "ratio"), Column("profiled", "ns"),
        *(_OF_GPU if of_gpu else (Column("leaf operators", "count"),)),
    )  # fmt: skip

    def rows(report: Report) -> Iterator[Row]:
        if (run := report.run) is None:
            return
        for name, phase in run.phases.items():
            times = (name, phase.wall_ns, per(phase.wall_ns, run.wall_ns.median), phase.host_ns)
            yield (*times, *_gpu_cells(phase)) if of_gpu else (*times, phase.leaf_operators)

    table = reports.table(columns, rows)
    notes = ('time and share: whole run, unprofiled; other columns: recorded steps, profiled; "-": not recorded',)
    return Section("Phases", (*(notes if table.rows else ()), *reports.notes(_outside)), table)


def _gpu_cells(phase: PhaseFigures) -> Row:
    bound = phase.bound
    idle_ns = None if bound is None else bound.sync_idle_ns + bound.launch_ns
    return (
        per(idle_ns, phase.host_ns), phase.gpu_ns, phase.kernels, phase.launches, phase.graph_launches, phase.syncs,
        phase.sync_ns,
    )  # fmt: skip


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


def _invalid(reports: Reports) -> Section:
    def rows(report: Report) -> Iterator[Row]:
        for item in report.run.sequences if report.run is not None else ():
            if item.valid is False:
                yield item.sequence, item.smiles, item.problem or "unknown"

    columns = (Column("#", "index"), Column("molecule"), Column("why"))
    return Section("Molecules that are not valid", table=reports.table(columns, rows), detail=True)


def _molecules(reports: Reports) -> Section:
    """Those that drift most stand first."""
    counts = (
        "tokens", "free", "copy", "junk", "filler", "blocks", "junk_blocks", "malformed_blocks", "masked_logits",
    )  # fmt: skip
    columns = (
        Column("#", "index"), Column("molecule"), *(Column(name.replace("_", " "), "count") for name in counts),
    )  # fmt: skip

    def order(item: SequenceFigures) -> tuple[int, ...]:
        return -item.junk, -item.filler, -item.malformed_blocks, item.sequence

    def rows(report: Report) -> Iterator[Row]:
        for item in sorted(report.run.sequences, key=order) if report.run is not None else ():
            yield item.sequence, item.smiles, *(getattr(item, name) for name in counts)

    def of_prompts(report: Report) -> Iterator[Row]:
        for item in report.run.sequences if report.run is not None else ():
            yield item.sequence, item.prompt, item.tokens, item.masked_logits

    if reports.of_prompts:
        titles = (Column("#", "index"), Column("prompt"), Column("tokens", "count"), Column("masked logits", "count"))
        return Section("Prompts", table=reports.table(titles, of_prompts), detail=True)
    return Section("Molecules", table=reports.table(columns, rows), detail=True)


def _known_drift(report: Report) -> Drift | None:
    return run.drift if (run := report.run) is not None and not run.setup.random else None


def _disagreement(report: Report) -> Disagreement | None:
    return run.disagreement if (run := report.run) is not None and not run.setup.random else None


def _rules(reports: Reports) -> Section:
    columns = (
        Column("rule"), Column("blocks", "count"), Column("share", "ratio"), Column("molecules", "count"),
        Column("share", "ratio"), Column("counts"),
    )  # fmt: skip

    def rows(report: Report) -> Iterator[Row]:
        for rule in drift.junk_rules if (drift := _known_drift(report)) is not None else ():
            yield rule.rule, rule.blocks, rule.block_ratio, rule.molecules, rule.molecule_ratio, rule.meaning

    return Section("Junk blocks by counting rule", table=reports.table(columns, rows))


def _examples(reports: Reports) -> Section:
    titles = ("#", "block", "token", "blocks")
    columns = (*(Column(title, "index") for title in titles), Column("junk"), Column("text"))

    def rows(report: Report) -> Iterator[Row]:
        for item in drift.junk_examples if (drift := _known_drift(report)) is not None else ():
            yield item.sequence, item.block, item.position, item.blocks, item.surplus, item.text

    notes = ("most frequent first; in the text, bars enclose junk and filler; blocks: number with the same junk",)
    table = reports.table(columns, rows)
    return Section("Junk in coordinate blocks", notes if table.rows else (), table)


def _groups(reports: Reports) -> Section:
    def rows(report: Report) -> Iterator[Row]:
        if (found := _disagreement(report)) is not None:
            yield "all", "all", *_agreement(found.all)
            for item in found.groups:
                yield item.choice, item.text or "all", *_agreement(item.agreement)

    table = reports.table((Column("choice"), Column("text"), *_AGREEMENT), rows)
    notes = (
        "p: probability that the model gave to the token that was written, before any token was forbidden",
        "first choice: the written token was the model's own; forbidden: the model's first choice was not allowed",
        "copy: one token was allowed; free: some were; open: all were; surprisal: mean of -log2 p, in bits",
    )
    return Section("Disagreement between model and constraint", notes if table.rows else (), table)


def _bins(reports: Reports) -> Section:
    columns = (Column("from", "ratio"), Column("to", "ratio"), *_AGREEMENT)

    def rows(report: Report) -> Iterator[Row]:
        for item in found.bins if (found := _disagreement(report)) is not None else ():
            yield item.from_ratio, item.to_ratio, *_agreement(item.agreement)

    return Section("Disagreement along the sequence", table=reports.table(columns, rows))


def _worst(reports: Reports) -> Section:
    columns = (
        Column("#", "index"), Column("token", "index"), Column("choice"), Column("p", "probability"),
        Column("rank", "count"), Column("forbidden"), Column("text"),
    )  # fmt: skip

    def rows(report: Report) -> Iterator[Row]:
        for item in found.worst if (found := _disagreement(report)) is not None else ():
            text = f"{item.before}|{item.text}|{item.after}"
            yield item.sequence, item.position, item.choice, item.probability, item.rank, item.forbidden, text

    table = reports.table(columns, rows)
    return Section("Largest disagreement", ("bars enclose the token",) if table.rows else (), table)


def _agreement(item: Agreement) -> Row:
    return (
        item.tokens, item.mean_probability, item.median_probability, item.first_choice_ratio, item.forbidden_ratio,
        item.mean_surprisal_bits,
    )  # fmt: skip
