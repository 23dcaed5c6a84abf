"""Tables of captured runs: phases, tokens and molecules."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.documents.rows import Reports, Row
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import SequenceFigures
from molprof.common.document import Column, Section, Table
from molprof.common.values import count_text, counted, number_text, per, percent_text, time_text


def run_sections(reports: Reports) -> Iterator[Section]:
    """Phases, signed drift, and the molecules."""
    yield Section("Phases", (*_phase_notes(reports), *reports.notes(_outside)), _phases(reports))
    yield Section("Drift", reports.notes(_drift))
    yield Section("Molecules", table=_molecules(reports), detail=True)


def _phases(reports: Reports) -> Table:
    counts = ("launches", "kernels", "syncs", "leaf operators")
    columns = (
        Column("phase"), Column("time", "ns"), Column("share", "ratio"), Column("profiled", "ns"),
        Column("GPU time", "ns"), *(Column(title, "count") for title in counts), Column("sync time", "ns"),
    )  # fmt: skip

    def rows(report: Report) -> Iterator[Row]:
        run = report.run
        for name, phase in run.phases.items() if run is not None else ():
            share = None if run is None else per(phase.wall_ns, run.wall_ns.median)
            yield (
                name, phase.wall_ns, share, phase.host_ns, phase.gpu_ns, phase.launches, phase.kernels, phase.syncs,
                phase.leaf_operators, phase.sync_ns,
            )  # fmt: skip

    return reports.table(columns, rows)


def _phase_notes(reports: Reports) -> tuple[str, ...]:
    if all(report.run is None for report in reports.reports):
        return ()
    return ("time and share: whole run, unprofiled; other columns: recorded steps, profiled; -: not recorded",)


def _outside(report: Report) -> Iterator[str]:
    if report.run is None:
        yield "not recorded: molprof did not capture this trace, so it holds no unprofiled times and no token texts"
        return
    run, outside_ns = report.run, report.run.window.unattributed_gpu_ns
    gpu = "" if outside_ns is None else f", {time_text(outside_ns)} of GPU time"
    yield f"outside any phase: {percent_text(run.residual_ratio)} of the time{gpu}"
    marks = run.marks
    cost = f"{time_text(marks.mark_ns)} each, {marks.per_step} per step, {percent_text(marks.time_ratio)} of the time"
    without = (
        "" if marks.unmarked_wall_ns is None else f"; a pass without any takes {time_text(marks.unmarked_wall_ns)}"
    )
    yield f"phase timestamps: {cost}{without}"


def _drift(report: Report) -> Iterator[str]:
    run = report.run
    if run is None:
        return
    drift = run.drift
    if run.setup.random:
        yield "drift: not meaningful, the weights are random"
    elif not run.blocks:
        yield "no coordinate blocks"
    elif drift is not None and drift.known_blocks:
        yield (
            f"drift (FREE positions minus tokens needed): mean {number_text(drift.mean_drift_tokens)}; "
            f"{counted(drift.too_short_blocks, 'block')} too short, {count_text(drift.exact_blocks)} exact, "
            f"{count_text(drift.too_long_blocks)} too long"
        )


def _molecules(reports: Reports) -> Table:
    """Those that are not valid or that drift stand first."""
    counts = (
        "tokens", "free", "copy", "junk", "filler", "blocks", "junk_blocks", "malformed_blocks", "masked_logits",
    )  # fmt: skip
    columns = (
        Column("#", "index"), Column("molecule"), *(Column(name.replace("_", " "), "count") for name in counts),
        Column("valid"),
    )  # fmt: skip

    def order(item: SequenceFigures) -> tuple[int, ...]:
        return item.valid is not False, -item.junk, -item.filler, -item.malformed_blocks, item.sequence

    def rows(report: Report) -> Iterator[Row]:
        for item in sorted(report.run.sequences, key=order) if report.run is not None else ():
            valid = f"no: {item.problem or 'unknown'}" if item.valid is False else item.valid
            yield item.sequence, item.smiles, *(getattr(item, name) for name in counts), valid

    return reports.table(columns, rows)
