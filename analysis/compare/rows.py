"""The figures that a comparison shows side by side: one entry each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from molprof.analysis.compare.difference import SETUP_PHASES
from molprof.analysis.compare.model import ComparedRow, Noise, Unit
from molprof.analysis.compare.statistics import median_interval, ratio_interval, significant
from molprof.analysis.metrics import Report
from molprof.analysis.metrics.model import Cell
from molprof.analysis.metrics.run_model import PhaseFigures, RepeatFigures, Run

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


def _run(value: Callable[[Run], Cell]) -> Callable[[Report], Cell]:
    """A figure of the run; not recorded in a trace of other origin."""
    return lambda report: None if report.run is None else value(report.run)


def _per(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _per_molecule(value: Callable[[Run], float | None]) -> Callable[[Report], Cell]:
    return _run(lambda run: _per(value(run), run.molecules))


def _steps_of(run: Run, phase: str) -> int:
    """Steps that have the phase."""
    return {"prefill": run.batches, "forward": run.decode_steps}.get(phase, run.steps)


def _phase_ns(name: str) -> Callable[[Report], Cell]:
    """Unprofiled time of a phase per step that has it."""
    return _run(lambda run: _per(run.phases[name].wall_ns, _steps_of(run, name)))


def _phase_of_repeat(name: str) -> Callable[[Run, RepeatFigures], float | None]:
    return lambda run, repeat: _per(repeat.phases_ns.get(name), _steps_of(run, name))


def _setup_of_repeat(run: Run, repeat: RepeatFigures) -> float | None:
    known = [repeat.phases_ns[name] for name in SETUP_PHASES if name in repeat.phases_ns]
    return sum(known) if known else None


def _window_phase(name: str, figure: Callable[[PhaseFigures], float | None]) -> Callable[[Report], Cell]:
    """A figure of a phase per recorded step."""
    return _run(lambda run: _per(figure(run.phases[name]), run.window.steps))


def class_count(run: Run, *names: str) -> int | None:
    """Kernels of these classes in the recorded steps; None where no GPU work is recorded."""
    classes = run.window.classes
    return None if classes is None else sum(classes[name].count for name in names if name in classes)


def elementwise_to_attention(run: Run) -> float | None:
    """Kernels of class elementwise per kernel of class attention, in the recorded steps."""
    return _per(class_count(run, "elementwise"), class_count(run, "attention"))


def _setup_ns(run: Run) -> int | None:
    parts = [run.phases[name].wall_ns for name in SETUP_PHASES]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _device_ratio(report: Report) -> float | None:
    span_ns = sum(device.span_ns for device in report.devices.values())
    return _per(sum(device.busy_ns for device in report.devices.values()), span_ns)


def _gpu(value: Callable[[Report], Cell]) -> Callable[[Report], Cell]:
    """A figure of the trace's GPU calls or work; not recorded where the trace has neither."""
    return lambda report: value(report) if report.trace.gpu_recorded else None


def _launches_per(figure: Callable[[Run], float | None], column: str) -> Callable[[Report], Cell]:
    """Launches by steps or tokens: of the run, else of the steps that the engine of a trace marked, all together."""

    def value(report: Report) -> Cell:
        if report.run is not None:
            return figure(report.run)
        marked = [row for row in report.table("steps").to_json() if row["steps"]]
        if len({row["source"] for row in marked}) > 1:
            return None  # marks of two programs may lie in each other
        launches, parts = _column(marked, "launches"), _column(marked, column)
        return None if launches is None else _per(launches, parts)

    return value


def _column(rows: Sequence[dict[str, Cell]], column: str) -> int | None:
    """The sum; None where a row does not know its own."""
    values = [value for row in rows if isinstance(value := row[column], int)]
    return sum(values) if len(values) == len(rows) else None


ROWS = (
    Row("device", "Setup", "device", "text", _run(lambda run: run.setup.gpu or run.setup.device)),
    Row("sampling", "Setup", "sampling", "text", _run(lambda run: run.setup.sampling)),
    Row("loop", "Setup", "decoding", "text", _run(lambda run: run.setup.loop)),
    Row("batch_size", "Setup", "batch size", "count", _run(lambda run: run.setup.batch_size)),
    Row("molecules", "Setup", "molecules", "count", _run(lambda run: run.molecules)),
    Row("valid_molecules", "Setup", "valid molecules", "count", _run(lambda run: run.valid_molecules)),
    Row(
        "wall_ns",
        "Time, not profiled",
        "total time (median)",
        "ns",
        _run(lambda run: run.wall_ns.median),
        repeated=lambda run, repeat: repeat.wall_ns,
    ),
    Row("wall_low_ns", "Time, not profiled", "  lowest", "ns", _run(lambda run: run.wall_ns.low), once=True),
    Row("wall_high_ns", "Time, not profiled", "  highest", "ns", _run(lambda run: run.wall_ns.high), once=True),
    Row(
        "ns_per_molecule",
        "Time, not profiled",
        "per molecule",
        "ns",
        _per_molecule(lambda run: run.wall_ns.median),
        repeated=lambda run, repeat: _per(repeat.wall_ns, run.molecules),
    ),
    Row(
        "ns_per_token",
        "Time, not profiled",
        "per generated token",
        "ns",
        _run(lambda run: _per(run.wall_ns.median, run.generated_tokens)),
        repeated=lambda run, repeat: _per(repeat.wall_ns, run.generated_tokens),
    ),
    Row("setup_ns", "Time, not profiled", "set-up, total", "ns", _run(_setup_ns), repeated=_setup_of_repeat),
    Row(
        "prefill_ns",
        "Time, not profiled",
        "prefill per batch",
        "ns",
        _phase_ns("prefill"),
        repeated=_phase_of_repeat("prefill"),
    ),
    Row(
        "forward_ns",
        "Time, not profiled",
        "forward per decode step",
        "ns",
        _phase_ns("forward"),
        repeated=_phase_of_repeat("forward"),
    ),
    Row(
        "processor_ns",
        "Time, not profiled",
        "processor per step",
        "ns",
        _phase_ns("processor"),
        repeated=_phase_of_repeat("processor"),
    ),
    Row(
        "sampling_ns",
        "Time, not profiled",
        "sampling per step",
        "ns",
        _phase_ns("sampling"),
        repeated=_phase_of_repeat("sampling"),
    ),
    Row(
        "bookkeeping_ns",
        "Time, not profiled",
        "bookkeeping per step",
        "ns",
        _phase_ns("bookkeeping"),
        repeated=_phase_of_repeat("bookkeeping"),
    ),
    Row(
        "profiled_ratio",
        "Time, not profiled",
        "profiled over unprofiled",
        "number",
        _run(lambda run: run.profiled_ratio),
        once=True,
    ),
    Row(
        "tokens_per_molecule",
        "Tokens",
        "tokens per molecule",
        "number",
        _per_molecule(lambda run: run.generated_tokens),
    ),
    Row("decode_steps", "Tokens", "decode steps", "count", _run(lambda run: run.decode_steps)),
    Row(
        "idle_row_steps",
        "Tokens",
        "idle row-steps (row finished)",
        "count",
        _run(lambda run: run.idle_row_steps),
    ),
    Row("blocks", "Tokens", "coordinate blocks", "count", _run(lambda run: run.blocks)),
    Row(
        "free_positions_per_block",
        "Tokens",
        "FREE positions per coordinate",
        "number",
        _run(lambda run: run.free_positions_per_block),
    ),
    Row(
        "coordinate_tokens_per_block",
        "Tokens",
        "tokens that a coordinate took",
        "number",
        _run(lambda run: run.coordinate_tokens_per_block),
    ),
    Row("junk_tokens", "Tokens", "junk tokens", "count", _run(lambda run: run.junk_tokens)),
    Row("junk_blocks", "Tokens", "junk coordinates", "count", _run(lambda run: run.junk_blocks)),
    Row("filler_tokens", "Tokens", "filler tokens", "count", _run(lambda run: run.filler_tokens)),
    Row("malformed_blocks", "Tokens", "malformed coordinates", "count", _run(lambda run: run.malformed_blocks)),
    Row("launches", "Launches", "in the trace", "count", _gpu(lambda report: report.counts.launches)),
    Row(
        "launches_per_token",
        "Launches",
        "per token",
        "number",
        _launches_per(lambda run: run.launches_per_token, "tokens"),
    ),
    Row(
        "launches_per_step", "Launches", "per step", "number", _launches_per(lambda run: run.launches_per_step, "steps")
    ),
    Row(
        "launches_per_molecule",
        "Launches",
        "per molecule",
        "number",
        _run(lambda run: run.launches_per_molecule),
    ),
    Row(
        "graph_launches",
        "Launches",
        "graph launches in the trace",
        "count",
        _gpu(lambda report: report.counts.graph_launches),
    ),
    Row(
        "leaf_operators_per_token",
        "Launches",
        "leaf CPU operators per token",
        "number",
        _run(lambda run: run.leaf_operators_per_token),
    ),
    Row(
        "leaf_operators_per_step",
        "Launches",
        "leaf CPU operators per step",
        "number",
        _run(lambda run: run.leaf_operators_per_step),
    ),
    Row("kernels", "Kernels", "in the trace", "count", _gpu(lambda report: report.counts.kernels)),
    Row(
        "kernel_time_ns",
        "Kernels",
        "time in the trace",
        "ns",
        _gpu(lambda report: report.counts.kernel_time_ns),
        once=True,
    ),
    Row("busy_ratio", "Kernels", "device busy", "ratio", _gpu(_device_ratio), once=True),
    Row(
        "gpu_ns_per_step",
        "Kernels",
        "GPU time per step",
        "ns",
        _run(lambda run: _per(run.window.gpu_ns, run.window.steps)),
        once=True,
    ),
    Row(
        "copy_kernels_per_step",
        "Kernels",
        "elementwise copies per step",
        "number",
        _run(lambda run: _per(class_count(run, *COPY_CLASSES), run.window.steps)),
    ),
    Row(
        "attention_kernels_per_step",
        "Kernels",
        "attention kernels per step",
        "number",
        _run(lambda run: _per(class_count(run, "attention"), run.window.steps)),
    ),
    Row(
        "elementwise_to_attention",
        "Kernels",
        "elementwise per attention kernel",
        "number",
        _run(elementwise_to_attention),
    ),
    Row(
        "masked_logits_per_molecule",
        "Masking",
        "masking writes per molecule",
        "number",
        _per_molecule(lambda run: run.masked_logits),
    ),
    Row(
        "masking_launches",
        "Masking",
        "processor launches per step",
        "number",
        _window_phase("processor", lambda phase: phase.launches),
    ),
    Row(
        "masking_gpu_ns",
        "Masking",
        "processor GPU time per step",
        "ns",
        _window_phase("processor", lambda phase: phase.gpu_ns),
        once=True,
    ),
    Row(
        "masking_operators",
        "Masking",
        "processor leaf operators per step",
        "number",
        _window_phase("processor", lambda phase: phase.leaf_operators),
    ),
    Row(
        "masking_syncs",
        "Masking",
        "processor GPU waits per step",
        "number",
        _window_phase("processor", lambda phase: phase.syncs),
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
    return _per(value, first)
