"""Figures of a captured run: times from the manifest, work and tokens from the trace."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, TypeVar

from msgspec import UNSET, convert
from msgspec.structs import asdict, replace

from molprof.analysis.figures.drift import read_disagreement, read_drift
from molprof.analysis.figures.model import TraceFigures
from molprof.analysis.figures.requests import latency, mean_latency
from molprof.analysis.figures.run_model import (
    ASKED,
    BatchShapes,
    ClassFigures,
    MarkCost,
    PassTimes,
    PhaseBound,
    PhaseFigures,
    RepeatFigures,
    Run,
    RunTotal,
    SequenceFigures,
    Setup,
    StepPhase,
    StepTime,
    WindowFigures,
)
from molprof.analysis.figures.stood import forced_of_run
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_dicts, query_row, query_rows
from molprof.common.drafts import Drafts
from molprof.common.errors import TraceError
from molprof.common.manifest import BETWEEN, PHASES, STEP_PHASES, Manifest, MaskedLogits, ProgramTotals, Repeat
from molprof.common.settings import RANDOM
from molprof.common.typed_json import read_typed
from molprof.common.values import per, percentile

_Counts = TypeVar("_Counts", Drafts, MaskedLogits)
# Positions of steps are grouped so that there are no more points.
MAX_POINTS = 240
# Settings that older traces, or those of programs of one's own, do not have.
_LATER = (
    *("engine", "arrivals", "assistant", "speculative", "free_drafts", "forced_runs", "drop_finished", "compile"),
    "seed",
)
_COLUMNS = ("launches", "graph_launches", "kernels", "gpu_ns", "syncs", "leaf_operators")
# Columns that mean nothing where the trace holds no GPU work.
_OF_GPU = ("gpu_ns", "launches", "graph_launches", "kernels", "syncs", "sync_ns")
_SEQUENCES = Query(
    "drift",
    "SELECT sequence, tokens, free, copy, junk, filler, blocks, junk_blocks FROM molprof_sequence_drift"
    " ORDER BY sequence",
)
_PHASES = Query(
    "phase_work",
    "SELECT phase, host_ns, gpu_ns, launches, graph_launches, kernels, syncs, sync_ns, leaf_operators"
    " FROM molprof_phase_summary ORDER BY phase IS NULL, phase",
)
_BOUNDS = Query(
    "phase_bound",
    "SELECT phase, count, gpu_busy_ns, sync_idle_ns, launch_ns"
    " FROM molprof_phase_bound_summary WHERE gpu_busy_ns IS NOT NULL ORDER BY phase",
)
_SIZES = Query(
    "tokens",
    "INCLUDE PERFETTO MODULE molprof.phases;\n"
    "SELECT (SELECT COUNT() FROM molprof_step) AS steps, (SELECT COUNT(slice_id) FROM molprof_token) AS tokens",
)
_OF_STEP = ", ".join(f"IFNULL(SUM({name}), 0) AS {name}" for name in _COLUMNS)
_OF_STEPS = ", ".join(
    f"SUM({name}) AS {name}, MIN({name}) AS least_{name}, MAX({name}) AS most_{name}" for name in _COLUMNS
)
# Prefill steps, then decode steps.
_STEPS = Query(
    "phase_work",
    f"SELECT is_prefill, COUNT() AS steps, {_OF_STEPS}"
    f" FROM (SELECT step = 0 AS is_prefill, {_OF_STEP} FROM molprof_phase_work WHERE step IS NOT NULL"
    " GROUP BY batch, step) GROUP BY is_prefill ORDER BY is_prefill DESC",
)
_CLASSES = Query("step_work", "SELECT class, count, time_ns FROM molprof_step_class ORDER BY time_ns DESC, class")


def read_run(engine: TraceProcessor, manifest: Manifest, trace: TraceFigures) -> Run:
    """Return all figures of the run that `manifest` describes. Raises TraceError if it contradicts itself."""
    _refuse_contradictions(manifest)
    window, phases, totals = _read_window(engine, manifest, trace)
    sequences = _read_sequences(engine, manifest)
    timings, molecules, text_format = manifest.timings, manifest.molecules, manifest.settings.text_format
    walls_ns = sorted(repeat.wall_ns for repeat in timings.repeats)
    # The timed pass of median wall time, or the middle two: medians by phase would not add up to wall time.
    middle = slice((len(walls_ns) - 1) // 2, len(walls_ns) // 2 + 1)
    passes = sorted(timings.repeats, key=lambda repeat: repeat.wall_ns)[middle]
    wall_ns = _mean(walls_ns[middle])
    names = [*PHASES, *([BETWEEN] if isinstance(manifest.program, ProgramTotals) else [])]
    phase_walls = {name: _mean([repeat.phases_ns.get(name) for repeat in passes]) for name in names}
    free = [count for item in molecules if item.template is not None for count in item.template.free_per_block]
    masked = [molecule.masked_logits for molecule in molecules if molecule.masked_logits is not None]
    plain = bool(sequences) and all(sequence.smiles is None for sequence in sequences)
    if manifest.rows_per_step is None:
        row_steps = sum(manifest.steps_per_batch[molecule.batch] for molecule in molecules)
    else:
        row_steps = sum(map(sum, manifest.rows_per_step))
    blocks = sum(sequence.blocks for sequence in sequences)
    batches, steps = len(manifest.steps_per_batch), sum(manifest.steps_per_batch)
    launches_per_step = per(window.launches, window.steps)
    return Run(
        setup=_setup(manifest),
        wall_ns=PassTimes(wall_ns, min(walls_ns, default=None), max(walls_ns, default=None), len(walls_ns)),
        first_pass_extra_ns=timings.warmup_ns[0] - wall_ns if timings.warmup_ns and wall_ns is not None else None,
        profiled_ratio=per(timings.profiled_steps_ns, timings.unprofiled_steps_ns),
        marks=MarkCost(
            timings.mark_ns,
            len(STEP_PHASES),
            per(timings.mark_ns * len(STEP_PHASES) * steps, wall_ns),
            timings.unmarked_wall_ns,
            timings.signature_ns,
        ),
        molecules=len(molecules),
        valid_molecules=_sum_if_all_known([molecule.valid for molecule in molecules]),
        skipped=len(manifest.skipped),
        batches=batches,
        steps=steps,
        decode_steps=steps - batches,
        generated_tokens=sum(len(molecule.token_ids) for molecule in molecules),
        row_steps=row_steps,
        idle_row_steps=row_steps - sum(molecule.busy_steps for molecule in molecules) if molecules else 0,
        launches_per_token=per(window.launches, window.tokens),
        launches_per_step=launches_per_step,
        launches_per_molecule=per(None if launches_per_step is None else launches_per_step * steps, len(molecules)),
        leaf_operators_per_token=per(window.leaf_operators, window.tokens),
        leaf_operators_per_step=per(window.leaf_operators, window.steps),
        masked_logits=sum(masked) if masked else None,
        blocks=blocks,
        free_positions_per_block=per(sum(free), len(free)),
        coordinate_tokens_per_block=per(sum(sequence.free for sequence in sequences), blocks),
        junk_tokens=sum(sequence.junk for sequence in sequences),
        filler_tokens=sum(sequence.filler for sequence in sequences),
        junk_blocks=sum(sequence.junk_blocks for sequence in sequences),
        malformed_blocks=sum(molecule.malformed_blocks for molecule in molecules),
        cut_blocks=_sum_if_all_known([molecule.cut_blocks for molecule in molecules]),
        phases={name: replace(phases.get(name, PhaseFigures()), wall_ns=phase_walls[name]) for name in names},
        residual_ratio=per(wall_ns and wall_ns - sum(value or 0 for value in phase_walls.values()), wall_ns),
        window=window,
        sequences=sequences,
        drift=read_drift(engine, molecules, text_format),
        disagreement=read_disagreement(engine, None if plain else text_format),
        # Those of a program's profiled steps are no measurements.
        step_times=() if manifest.program and manifest.program.estimated_steps else step_times(timings.repeats),
        step_phases=_step_phases(timings.repeats) or UNSET,
        needed_tokens=_sum_if_all_known([molecule.needed_tokens for molecule in molecules]) if molecules else None,
        processor_once_ns=timings.processor_once_ns,
        peak_memory_bytes=timings.peak_memory_bytes,
        peak_memory_of=timings.peak_memory_of,
        totals=totals,
        masked=_summed([molecule.masked for molecule in molecules], MaskedLogits),
        forced=forced_of_run(manifest) or UNSET,
        drafts=_summed([molecule.drafts for molecule in molecules], Drafts),
        session=manifest.session,
        shapes=_shapes(manifest),
        machine=manifest.machine,
        program=manifest.program,
        functions=manifest.functions,
        repeats=tuple(_repeat(manifest, repeat) for repeat in timings.repeats),
        latency=mean_latency([_repeat(manifest, repeat) for repeat in passes]) or UNSET,
        constraint_ns=_constraint_ns(passes, steps) or UNSET,
        processor_parts_ns=timings.processor_parts_ns or UNSET,
    )


def _constraint_ns(passes: Sequence[Repeat], steps: int) -> dict[str, float]:
    names = dict.fromkeys(name for repeat in passes for name in repeat.constraint_ns)
    return {name: sum(repeat.constraint_ns.get(name, 0) for repeat in passes) / len(passes) / steps for name in names}


def _repeat(manifest: Manifest, repeat: Repeat) -> RepeatFigures:
    figures = convert(repeat, RepeatFigures, from_attributes=True)
    # Of fills that are not recorded `convert` makes some of 0.
    return replace(figures, mask_fills=repeat.mask_fills, latency=latency(manifest, repeat) or UNSET)


def _refuse_contradictions(manifest: Manifest) -> None:
    steps = manifest.steps_per_batch
    for molecule in manifest.molecules:
        name = f"manifest: sequence {molecule.sequence}"
        if not 0 <= molecule.batch < len(steps):
            raise TraceError(f"{name} ran in batch {molecule.batch}, of {len(steps)} batches")
        if (got := len(molecule.step_tokens or ())) > (most := steps[molecule.batch]):
            raise TraceError(f"{name} got tokens in {got} steps, of {most} steps of its batch")
        if molecule.joined is not None and not 0 <= molecule.joined < most:
            raise TraceError(f"{name} joined in step {molecule.joined}, of {most} steps of its batch")
        if molecule.arrived is not None and not 0 <= molecule.arrived <= (molecule.joined or 0):
            raise TraceError(f"{name} arrived before step {molecule.arrived}, and joined in step {molecule.joined}")
    if manifest.rows_per_step is not None and [len(rows) for rows in manifest.rows_per_step] != steps:
        raise TraceError("manifest: rows_per_step and steps_per_batch have different numbers of steps")


def _setup(manifest: Manifest) -> Setup:
    settings, resolved = manifest.settings, manifest.resolved
    # A short name for the run, such as `qwen lp:generic` or `qwen 0.6b random no lp`; of answers to prompts
    # `qwen xgrammar` or `qwen unconstrained`.
    label = settings.model.rstrip("/").rsplit("/", 1)[-1]
    if settings.size is not None:
        # Sizes given by numbers are long: the parameters say as much.
        label += f" {settings.size}" if "=" not in settings.size else f" {(resolved.parameters or 0) / 1e6:.0f}m"
    if resolved.weights == RANDOM:
        label += " random"
    if not manifest.molecules or any(item.smiles is not None for item in manifest.molecules):
        label += f" lp:{resolved.processor}" if resolved.processor else " no lp"
    else:
        label += f" {resolved.processor or 'unconstrained'}"
    fields = {
        **asdict(manifest.environment),
        **vars(settings),
        **asdict(resolved),
        **{name: manifest.setting(name) for name in _LATER},
        **{key: manifest.setting(row.name) for key, row in ASKED.items()},
        "label": label,
        "tokenizer": settings.tokenizer or settings.model,
        "sampling": "sample" if settings.samples else "greedy",
        "sampling_parameters": settings.sampling_parameters,
        "cache": settings.kv_cache,
        "threads": manifest.environment.threads,
    }
    return read_typed(fields, Setup, "manifest")


def _read_window(
    engine: TraceProcessor, manifest: Manifest, trace: TraceFigures
) -> tuple[WindowFigures, dict[str | None, PhaseFigures], dict[str, RunTotal] | None]:
    """Return the recorded steps, each recorded phase by name (None: outside any phase), and totals of all steps.

    A trace that lacks parts of steps has no figures of them.
    """
    gpu, whole = trace.gpu_recorded, trace.whole_steps
    kinds = query_dicts(engine, _STEPS) if whole else []
    recorded = [name for name in _COLUMNS if whole and (gpu or name not in _OF_GPU)]
    sums: dict[str, Any] = {name: sum(kind[name] for kind in kinds) if name in recorded else None for name in _COLUMNS}
    classes = {name: ClassFigures(*figures) for name, *figures in query_rows(engine, _CLASSES)[1]}
    bounds = {phase: PhaseBound(*figures) for phase, *figures in query_rows(engine, _BOUNDS)[1]}
    phases = {}
    for row in query_dicts(engine, _PHASES) if whole else ():
        phase = row.pop("phase")
        phases[phase] = PhaseFigures(**{**row, **({} if gpu else dict.fromkeys(_OF_GPU))}, bound=bounds.get(phase))
    window = WindowFigures(
        **asdict(manifest.window),
        **query_row(engine, _SIZES),
        **sums,
        gpu_recorded=gpu,
        classes=classes if gpu and whole else None,
        unattributed_gpu_ns=None if not gpu or not whole else phases[None].gpu_ns if None in phases else 0,
    )
    return window, phases, _totals(kinds, manifest, gpu) if whole else None


def _totals(kinds: Sequence[dict[str, Any]], manifest: Manifest, gpu: bool) -> dict[str, RunTotal]:
    """Return launches and kernels, or leaf operators without a GPU; empty without recorded steps.

    Kinds: rows of _STEPS.
    """
    prefills, steps = len(manifest.steps_per_batch), sum(manifest.steps_per_batch)
    # Steps of a kind that was not recorded count as those of the other.
    of_kind = {1: prefills, 0: steps - prefills} if len(kinds) > 1 else {1: steps, 0: steps}
    others = [max(of_kind[kind["is_prefill"]] - kind["steps"], 0) for kind in kinds]
    recorded = sum(kind["steps"] for kind in kinds)

    def total(name: str) -> RunTotal:
        pairs = list(zip(kinds, others, strict=True))
        value = sum(kind[name] + more * kind[name] / kind["steps"] for kind, more in pairs)
        low, high = (
            sum(kind[name] + more * kind[f"{end}_{name}"] for kind, more in pairs) for end in ("least", "most")
        )
        return RunTotal(round(value), low, high, recorded >= steps, min(recorded, steps), steps)

    return {name: total(name) for name in (("launches", "kernels") if gpu else ("leaf_operators",)) if kinds}


def _read_sequences(engine: TraceProcessor, manifest: Manifest) -> tuple[SequenceFigures, ...]:
    molecules = {molecule.sequence: molecule for molecule in manifest.molecules}
    unknown = {"prompt": None, "text": None} if manifest.resolved.vocabulary is None else {}
    # A track without its molecule shows as the broken sum of tokens.
    return tuple(
        convert({**asdict(molecule), **({"text": None} if molecule.smiles else unknown), **row}, SequenceFigures)
        for row in query_dicts(engine, _SEQUENCES)
        if (molecule := molecules.get(row["sequence"])) is not None
    )


def step_times(repeats: Sequence[Repeat]) -> tuple[StepTime, ...]:
    """Return step times by position; empty without timed passes, or if their numbers of steps differ."""
    if len({tuple(map(len, repeat.steps_ns)) for repeat in repeats}) != 1:
        return ()
    batches = [
        [round(median(times)) for times in zip(*batch, strict=True)]
        for batch in zip(*(repeat.steps_ns for repeat in repeats), strict=True)
    ]
    longest = max(map(len, batches), default=0)
    size = -(-(longest - 1) // MAX_POINTS) or 1
    bins = [(0, 0), *((first, min(first + size, longest) - 1) for first in range(1, longest, size))]
    points = []
    for first, last in bins if longest else ():
        times = sorted(time for steps in batches for time in steps[first : last + 1])
        tail = int(0.1 * len(times))
        points.append(StepTime(first, last, len(times), round(median(times)), times[tail], times[-1 - tail]))
    return tuple(points)


def _step_phases(repeats: Sequence[Repeat]) -> tuple[StepPhase, ...]:
    """Return phases step by step; empty without timed passes, or if their numbers of steps differ."""
    phases = []
    for name in PHASES:
        passes = [[time for batch in repeat.step_phases_ns.get(name, ()) for time in batch] for repeat in repeats]
        if not passes or len(set(map(len, passes))) != 1 or not passes[0]:
            continue
        times = sorted(round(median(step)) for step in zip(*passes, strict=True))
        count = len(times)
        p50_ns, p90_ns, p99_ns = (percentile(times, percent) for percent in (50, 90, 99))
        phases.append(StepPhase(name, count, p50_ns or 0, p90_ns, p99_ns, times[-1]))
    return tuple(phases)


def _summed(counts: Sequence[_Counts | None], kind: type[_Counts]) -> _Counts | None:
    """Return the sum over molecules; None where one was not counted."""
    recorded = [count for count in counts if count is not None]
    if not recorded or len(recorded) < len(counts):
        return None
    names = kind.__struct_fields__
    sums: dict[str, Any] = {name: _sum_if_all_known([getattr(count, name) for count in recorded]) for name in names}
    return kind(**sums)


def _shapes(manifest: Manifest) -> BatchShapes:
    batches = range(len(manifest.steps_per_batch))
    prompts = [[item.prompt_tokens for item in manifest.molecules if item.batch == batch] for batch in batches]
    multiple = manifest.settings.padding_multiple
    rows = manifest.rows_per_step
    return BatchShapes(
        rows=tuple(len(prompts[batch]) if rows is None or not rows[batch] else rows[batch][0] for batch in batches),
        prompt_widths=tuple(-(-max(widths, default=0) // multiple) * multiple for widths in prompts),
        steps=tuple(manifest.steps_per_batch),
    )


def _mean(values: Sequence[int | None]) -> int | None:
    """Return the mean of one or two values, rounded down; None where one is missing."""
    total = _sum_if_all_known(values)
    return total // len(values) if values and total is not None else None


def _sum_if_all_known(values: Sequence[int | None]) -> int | None:
    recorded = [value for value in values if value is not None]
    return sum(recorded) if len(recorded) == len(values) else None
