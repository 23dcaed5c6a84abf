"""The figures that a comparison shows side by side: one entry each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from molprof.analysis.compare.figures import (
    class_count,
    device_ratio,
    elementwise_to_attention,
    launches_per,
    of_gpu,
    of_run,
    per,
    per_molecule,
    phase_ns,
    phase_of_repeat,
    setup_ns,
    setup_of_repeat,
    window_phase,
)
from molprof.analysis.compare.model import ComparedRow, Noise, Unit
from molprof.analysis.compare.statistics import median_interval, ratio_interval, significant
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import RepeatFigures, Run
from molprof.common.values import Cell

COPY_CLASSES = ("copy", "cat")


@dataclass(frozen=True)
class Row:
    """A figure: where it stands, its unit, and how to get it from a report (None: not recorded).

    Attributes:
        repeated: the same figure of one unprofiled pass; None for a figure that is not of those.
        once: measured in the recorded steps alone, so that it varies and nobody knows how much. A figure that is
            neither is a count, the same in every pass.
    """

    id: str
    group: str
    label: str
    unit: Unit
    value: Callable[[Report], Cell]
    repeated: Callable[[Run, RepeatFigures], float | None] | None = None
    once: bool = False

    @property
    def noise(self) -> Noise:
        """What the figure's variation is known from."""
        return "repeats" if self.repeated is not None else "once" if self.once else "exact"

    def samples(self, report: Report) -> list[float]:
        """The figure of each unprofiled pass; empty where one does not have it."""
        if self.repeated is None or report.run is None:
            return []
        values = [self.repeated(report.run, repeat) for repeat in report.run.repeats]
        known = [value for value in values if value is not None]
        return known if len(known) == len(values) else []


ROWS = (
    Row("device", "Setup", "device", "text", of_run(lambda run: run.setup.gpu or run.setup.device)),
    Row("sampling", "Setup", "sampling", "text", of_run(lambda run: run.setup.sampling)),
    Row("loop", "Setup", "decoding", "text", of_run(lambda run: run.setup.loop)),
    Row("batch_size", "Setup", "batch size", "count", of_run(lambda run: run.setup.batch_size)),
    Row("molecules", "Setup", "molecules", "count", of_run(lambda run: run.molecules)),
    Row("valid_molecules", "Setup", "valid molecules", "count", of_run(lambda run: run.valid_molecules)),
    Row(
        "wall_ns",
        "Time, not profiled",
        "total time (median)",
        "ns",
        of_run(lambda run: run.wall_ns.median),
        repeated=lambda run, repeat: repeat.wall_ns,
    ),
    Row("wall_low_ns", "Time, not profiled", "  lowest", "ns", of_run(lambda run: run.wall_ns.low), once=True),
    Row("wall_high_ns", "Time, not profiled", "  highest", "ns", of_run(lambda run: run.wall_ns.high), once=True),
    Row(
        "ns_per_molecule",
        "Time, not profiled",
        "per molecule",
        "ns",
        per_molecule(lambda run: run.wall_ns.median),
        repeated=lambda run, repeat: per(repeat.wall_ns, run.molecules),
    ),
    Row(
        "ns_per_token",
        "Time, not profiled",
        "per generated token",
        "ns",
        of_run(lambda run: per(run.wall_ns.median, run.generated_tokens)),
        repeated=lambda run, repeat: per(repeat.wall_ns, run.generated_tokens),
    ),
    Row("setup_ns", "Time, not profiled", "set-up, total", "ns", of_run(setup_ns), repeated=setup_of_repeat),
    Row(
        "prefill_ns",
        "Time, not profiled",
        "prefill per batch",
        "ns",
        phase_ns("prefill"),
        repeated=phase_of_repeat("prefill"),
    ),
    Row(
        "forward_ns",
        "Time, not profiled",
        "forward per decode step",
        "ns",
        phase_ns("forward"),
        repeated=phase_of_repeat("forward"),
    ),
    Row(
        "processor_ns",
        "Time, not profiled",
        "processor per step",
        "ns",
        phase_ns("processor"),
        repeated=phase_of_repeat("processor"),
    ),
    Row(
        "sampling_ns",
        "Time, not profiled",
        "sampling per step",
        "ns",
        phase_ns("sampling"),
        repeated=phase_of_repeat("sampling"),
    ),
    Row(
        "bookkeeping_ns",
        "Time, not profiled",
        "bookkeeping per step",
        "ns",
        phase_ns("bookkeeping"),
        repeated=phase_of_repeat("bookkeeping"),
    ),
    Row(
        "profiled_ratio",
        "Time, not profiled",
        "profiled over unprofiled",
        "number",
        of_run(lambda run: run.profiled_ratio),
        once=True,
    ),
    Row(
        "tokens_per_molecule",
        "Tokens",
        "tokens per molecule",
        "number",
        per_molecule(lambda run: run.generated_tokens),
    ),
    Row("decode_steps", "Tokens", "decode steps", "count", of_run(lambda run: run.decode_steps)),
    Row(
        "idle_row_steps",
        "Tokens",
        "idle row-steps (row finished)",
        "count",
        of_run(lambda run: run.idle_row_steps),
    ),
    Row("blocks", "Tokens", "coordinate blocks", "count", of_run(lambda run: run.blocks)),
    Row(
        "free_positions_per_block",
        "Tokens",
        "FREE positions per coordinate",
        "number",
        of_run(lambda run: run.free_positions_per_block),
    ),
    Row(
        "coordinate_tokens_per_block",
        "Tokens",
        "tokens that a coordinate took",
        "number",
        of_run(lambda run: run.coordinate_tokens_per_block),
    ),
    Row("junk_tokens", "Tokens", "junk tokens", "count", of_run(lambda run: run.junk_tokens)),
    Row("junk_blocks", "Tokens", "junk coordinates", "count", of_run(lambda run: run.junk_blocks)),
    Row("filler_tokens", "Tokens", "filler tokens", "count", of_run(lambda run: run.filler_tokens)),
    Row("malformed_blocks", "Tokens", "malformed coordinates", "count", of_run(lambda run: run.malformed_blocks)),
    Row("launches", "Launches", "in the trace", "count", of_gpu(lambda report: report.counts.launches)),
    Row(
        "launches_per_token",
        "Launches",
        "per token",
        "number",
        launches_per(lambda run: run.launches_per_token, "tokens"),
    ),
    Row(
        "launches_per_step", "Launches", "per step", "number", launches_per(lambda run: run.launches_per_step, "steps")
    ),
    Row(
        "launches_per_molecule",
        "Launches",
        "per molecule",
        "number",
        of_run(lambda run: run.launches_per_molecule),
    ),
    Row(
        "graph_launches",
        "Launches",
        "graph launches in the trace",
        "count",
        of_gpu(lambda report: report.counts.graph_launches),
    ),
    Row(
        "leaf_operators_per_token",
        "Launches",
        "leaf CPU operators per token",
        "number",
        of_run(lambda run: run.leaf_operators_per_token),
    ),
    Row(
        "leaf_operators_per_step",
        "Launches",
        "leaf CPU operators per step",
        "number",
        of_run(lambda run: run.leaf_operators_per_step),
    ),
    Row("kernels", "Kernels", "in the trace", "count", of_gpu(lambda report: report.counts.kernels)),
    Row(
        "kernel_time_ns",
        "Kernels",
        "time in the trace",
        "ns",
        of_gpu(lambda report: report.counts.kernel_time_ns),
        once=True,
    ),
    Row("busy_ratio", "Kernels", "device busy", "ratio", of_gpu(device_ratio), once=True),
    Row(
        "gpu_ns_per_step",
        "Kernels",
        "GPU time per step",
        "ns",
        of_run(lambda run: per(run.window.gpu_ns, run.window.steps)),
        once=True,
    ),
    Row(
        "copy_kernels_per_step",
        "Kernels",
        "elementwise copies per step",
        "number",
        of_run(lambda run: per(class_count(run, *COPY_CLASSES), run.window.steps)),
    ),
    Row(
        "attention_kernels_per_step",
        "Kernels",
        "attention kernels per step",
        "number",
        of_run(lambda run: per(class_count(run, "attention"), run.window.steps)),
    ),
    Row(
        "elementwise_to_attention",
        "Kernels",
        "elementwise per attention kernel",
        "number",
        of_run(elementwise_to_attention),
    ),
    Row(
        "masked_logits_per_molecule",
        "Masking",
        "masking writes per molecule",
        "number",
        per_molecule(lambda run: run.masked_logits),
    ),
    Row(
        "masking_launches",
        "Masking",
        "processor launches per step",
        "number",
        window_phase("processor", lambda phase: phase.launches),
    ),
    Row(
        "masking_gpu_ns",
        "Masking",
        "processor GPU time per step",
        "ns",
        window_phase("processor", lambda phase: phase.gpu_ns),
        once=True,
    ),
    Row(
        "masking_operators",
        "Masking",
        "processor leaf operators per step",
        "number",
        window_phase("processor", lambda phase: phase.leaf_operators),
    ),
    Row(
        "masking_syncs",
        "Masking",
        "processor GPU waits per step",
        "number",
        window_phase("processor", lambda phase: phase.syncs),
    ),
)


ROW_OF = {row.id: row for row in ROWS}


def compared_rows(reports: Sequence[Report]) -> tuple[ComparedRow, ...]:
    """Every row of `ROWS` for every report, with ratios to the first."""
    return tuple(_compared(row, reports) for row in ROWS)


def _compared(row: Row, reports: Sequence[Report]) -> ComparedRow:
    values = [row.value(report) for report in reports]
    samples = [row.samples(report) for report in reports]
    intervals = [None, *(ratio_interval(mine, samples[0]) for mine in samples[1:])]
    if row.noise == "exact":
        differs = [None, *(_differs(value, values[0]) for value in values[1:])]
    else:
        differs = [significant(interval) for interval in intervals]
    return ComparedRow(
        id=row.id,
        group=row.group,
        label=row.label,
        unit=row.unit,
        values=tuple(values),
        ratios=tuple(_number_ratio(value, values[0]) for value in values),
        noise=row.noise,
        intervals=tuple(median_interval(mine) for mine in samples),
        ratio_intervals=tuple(intervals),
        significant=tuple(differs),
    )


def _differs(value: Cell, first: Cell) -> bool | None:
    if value is None or first is None or isinstance(value, str) or isinstance(first, str):
        return None
    return value != first


def _number_ratio(value: Cell, first: Cell) -> float | None:
    if isinstance(value, str) or isinstance(first, str):
        return None
    return per(value, first)
