"""Figures of a captured run: times from the manifest, work and tokens from the trace."""

from __future__ import annotations

from dataclasses import replace

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import query_row, query_rows
from molprof.analysis.figures.drift import read_disagreement, read_drift
from molprof.analysis.figures.model import TraceFigures
from molprof.analysis.figures.run_model import (
    ClassFigures,
    Marks,
    PhaseBound,
    PhaseFigures,
    RepeatFigures,
    Run,
    SequenceFigures,
    Setup,
    Spread,
    WindowFigures,
)
from molprof.analysis.figures.step_times import step_times
from molprof.common.errors import TraceError
from molprof.common.manifest import Manifest, Repeat
from molprof.common.molecule_records import MoleculeRun
from molprof.common.phases import PHASES, STEP_PHASES
from molprof.common.settings import RANDOM

# Columns of molprof_phase_summary, in the order that _read_phases takes them.
_PHASE_SQL = """
SELECT phase, host_ns, gpu_ns, launches, kernels, syncs, sync_ns, leaf_operators
FROM molprof_phase_summary
ORDER BY phase IS NULL, phase
"""

_BOUND_SQL = """
SELECT phase, count, gpu_busy_ns, sync_idle_ns, launch_ns
FROM molprof_phase_bound_summary
WHERE gpu_busy_ns IS NOT NULL
ORDER BY phase
"""

_STEP_SQL = """
SELECT
  (SELECT COUNT() FROM molprof_step) AS steps,
  IFNULL(SUM(launches), 0) AS launches,
  IFNULL(SUM(kernels), 0) AS kernels,
  IFNULL(SUM(gpu_ns), 0) AS gpu_ns,
  IFNULL(SUM(leaf_operators), 0) AS leaf_operators
FROM molprof_phase_work
WHERE step IS NOT NULL
"""


def read_run(engine: Engine, manifest: Manifest, trace: TraceFigures) -> Run:
    """All figures of the run that `manifest` describes.

    Raises:
        TraceError: the manifest contradicts itself.
    """
    batches = len(manifest.steps_per_batch)
    for molecule in manifest.molecules:
        if not 0 <= molecule.batch < batches:
            raise TraceError(
                f"manifest: sequence {molecule.sequence} ran in batch {molecule.batch}, of {batches} batches"
            )
        if molecule.step_tokens is not None and len(molecule.step_tokens) > manifest.steps_per_batch[molecule.batch]:
            raise TraceError(
                f"manifest: sequence {molecule.sequence} got tokens in {len(molecule.step_tokens)} steps,"
                f" of {manifest.steps_per_batch[molecule.batch]} steps of its batch"
            )
    window, phases = _read_window(engine, manifest, trace.gpu_recorded)
    sequences = _read_sequences(engine, manifest)
    middle = middle_repeats(manifest.timings.repeats)
    phase_walls = {name: _mean([repeat.phases_ns.get(name) for repeat in middle]) for name in PHASES}
    wall_ns = _mean([repeat.wall_ns for repeat in middle])
    molecules = manifest.molecules
    generated = sum(len(molecule.token_ids) for molecule in molecules)
    row_steps = _row_steps(manifest)
    blocks = sum(sequence.blocks for sequence in sequences)
    launches_per_step = _ratio(window.launches, window.steps)
    steps = sum(manifest.steps_per_batch)
    return Run(
        setup=_setup(manifest),
        wall_ns=_spread(manifest.timings.repeats, wall_ns),
        first_pass_extra_ns=_first_pass_extra(manifest.timings.warmup_ns, wall_ns),
        profiled_ratio=_ratio(manifest.timings.profiled_steps_ns, manifest.timings.unprofiled_steps_ns),
        marks=Marks(
            mark_ns=manifest.timings.mark_ns,
            per_step=len(STEP_PHASES),
            time_ratio=_ratio(manifest.timings.mark_ns * len(STEP_PHASES) * steps, wall_ns),
            unmarked_wall_ns=manifest.timings.unmarked_wall_ns,
            signature_ns=manifest.timings.signature_ns,
        ),
        molecules=len(molecules),
        valid_molecules=_valid(molecules),
        skipped=len(manifest.skipped),
        batches=batches,
        steps=steps,
        decode_steps=steps - batches,
        generated_tokens=generated,
        row_steps=row_steps,
        idle_row_steps=row_steps - sum(molecule.busy_steps for molecule in molecules),
        launches_per_token=_ratio(window.launches, window.tokens),
        launches_per_step=launches_per_step,
        launches_per_molecule=(
            None if launches_per_step is None or not molecules else launches_per_step * steps / len(molecules)
        ),
        leaf_operators_per_token=_ratio(window.leaf_operators, window.tokens),
        leaf_operators_per_step=_ratio(window.leaf_operators, window.steps),
        masked_logits=_masked(molecules),
        blocks=blocks,
        free_positions_per_block=_free_positions(molecules),
        coordinate_tokens_per_block=_ratio(sum(sequence.free for sequence in sequences), blocks),
        junk_tokens=sum(sequence.junk for sequence in sequences),
        filler_tokens=sum(sequence.filler for sequence in sequences),
        junk_blocks=sum(sequence.junk_blocks for sequence in sequences),
        malformed_blocks=sum(molecule.malformed_blocks for molecule in molecules),
        cut_blocks=_cut(molecules),
        phases={name: _phase(phase_walls[name], phases.get(name)) for name in PHASES},
        residual_ratio=_residual(wall_ns, phase_walls),
        window=window,
        sequences=sequences,
        drift=read_drift(engine),
        disagreement=read_disagreement(engine),
        step_times=step_times(manifest.timings.repeats),
        repeats=tuple(
            RepeatFigures(repeat.wall_ns, dict(repeat.phases_ns), repeat.compiles, repeat.compile_ns)
            for repeat in manifest.timings.repeats
        ),
    )


def without_steps(run: Run) -> Run:
    """The run without the figures that its trace gives of steps and phases, parts of which were left out."""
    unknown = {
        "launches": None, "kernels": None, "gpu_ns": None, "leaf_operators": None, "classes": None,
        "unattributed_gpu_ns": None,
    }  # fmt: skip
    return replace(
        run,
        launches_per_token=None,
        launches_per_step=None,
        launches_per_molecule=None,
        leaf_operators_per_token=None,
        leaf_operators_per_step=None,
        phases={name: _phase(phase.wall_ns, None) for name, phase in run.phases.items()},
        window=replace(run.window, **unknown),  # type: ignore[arg-type]
    )


def middle_repeats(repeats: list[Repeat]) -> list[Repeat]:
    """The repeat with the median wall time; the middle two of an even number; none of none.

    Phases of one repeat add up to its wall time; medians taken phase by phase would not.
    """
    ordered = sorted(repeats, key=lambda repeat: repeat.wall_ns)
    return ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]


def label(manifest: Manifest) -> str:
    """A short name for a run, such as `qwen lp:generic` or `qwen 0.6b random no lp`."""
    settings, resolved = manifest.settings, manifest.resolved
    model = settings.model.rstrip("/").rsplit("/", 1)[-1]
    if settings.size is not None:
        # Sizes given by numbers are long: the parameters say as much.
        model += f" {settings.size}" if "=" not in settings.size else f" {resolved.parameters / 1e6:.0f}m"
    if resolved.weights == RANDOM:
        model += " random"
    return f"{model} lp:{resolved.processor}" if resolved.processor else f"{model} no lp"


def _read_window(engine: Engine, manifest: Manifest, gpu: bool) -> tuple[WindowFigures, dict[str | None, PhaseFigures]]:
    """The recorded steps, and each recorded phase by name (None: outside any phase)."""
    step = query_row(engine, "phase_work", _STEP_SQL)
    tokens = query_row(engine, "tokens", "SELECT COUNT(slice_id) AS tokens FROM molprof_token")["tokens"]
    _, classes = query_rows(
        engine,
        "step_work",
        "SELECT class, count, time_ns FROM molprof_step_class ORDER BY time_ns DESC, class",
    )
    phases = _read_phases(engine, gpu)
    outside = phases.get(None)
    window = WindowFigures(
        full=manifest.window.full,
        batch=manifest.window.batch,
        first_step=manifest.window.first_step,
        last_step=manifest.window.last_step,
        steps=step["steps"],
        tokens=tokens,
        gpu_recorded=gpu,
        launches=step["launches"] if gpu else None,
        kernels=step["kernels"] if gpu else None,
        gpu_ns=step["gpu_ns"] if gpu else None,
        leaf_operators=step["leaf_operators"],
        classes={name: ClassFigures(count, time_ns) for name, count, time_ns in classes} if gpu else None,
        unattributed_gpu_ns=None if not gpu else (outside.gpu_ns if outside else 0),
    )
    return window, phases


def _read_phases(engine: Engine, gpu: bool) -> dict[str | None, PhaseFigures]:
    _, bounds = query_rows(engine, "phase_bound", _BOUND_SQL)
    bound = {phase: PhaseBound(*figures) for phase, *figures in bounds}
    _, rows = query_rows(engine, "phase_work", _PHASE_SQL)
    found = {}
    for phase, host_ns, gpu_ns, launches, kernels, syncs, sync_ns, leaf_operators in rows:
        found[phase] = PhaseFigures(
            wall_ns=None,
            host_ns=host_ns,
            gpu_ns=gpu_ns if gpu else None,
            launches=launches if gpu else None,
            kernels=kernels if gpu else None,
            syncs=syncs if gpu else None,
            sync_ns=sync_ns if gpu else None,
            leaf_operators=leaf_operators,
            bound=bound.get(phase),
        )
    return found


def _phase(wall_ns: int | None, recorded: PhaseFigures | None) -> PhaseFigures:
    if recorded is None:
        return PhaseFigures(wall_ns, None, None, None, None, None, None, None)
    return PhaseFigures(**{**vars(recorded), "wall_ns": wall_ns})


def _read_sequences(engine: Engine, manifest: Manifest) -> tuple[SequenceFigures, ...]:
    _, rows = query_rows(
        engine,
        "drift",
        "SELECT sequence, tokens, free, copy, junk, filler, blocks, junk_blocks FROM molprof_sequence_drift"
        " ORDER BY sequence",
    )
    molecules = {molecule.sequence: molecule for molecule in manifest.molecules}
    return tuple(
        SequenceFigures(
            sequence=sequence,
            smiles=molecule.smiles,
            tokens=tokens,
            free=free,
            copy=copy,
            junk=junk,
            filler=filler,
            blocks=blocks,
            junk_blocks=junk_blocks,
            malformed_blocks=molecule.malformed_blocks,
            cut_blocks=molecule.cut_blocks,
            masked_logits=molecule.masked_logits,
            valid=molecule.valid,
            problem=molecule.problem,
        )
        for sequence, tokens, free, copy, junk, filler, blocks, junk_blocks in rows
        # A track without its molecule shows as the broken sum of tokens.
        if (molecule := molecules.get(sequence)) is not None
    )


def _setup(manifest: Manifest) -> Setup:
    settings, resolved, environment = manifest.settings, manifest.resolved, manifest.environment
    return Setup(
        label=label(manifest),
        model=settings.model,
        family=resolved.family,
        parameters=resolved.parameters,
        tokenizer=settings.tokenizer or settings.model,
        vocabulary=resolved.vocabulary,
        logits_width=resolved.logits_width,
        processor=resolved.processor,
        placeholder=resolved.placeholder,
        sampling="greedy" if settings.sampling == "greedy" else "sample",
        sampling_parameters=settings.sampling_parameters,
        cache=settings.kv_cache,
        attention=settings.attention,
        dtype=resolved.dtype,
        device=resolved.device,
        gpu=environment.gpu,
        batch_size=settings.batch_size,
        max_new_tokens=resolved.max_new_tokens,
        seed=settings.seed,
        sorted=resolved.sorted,
        forced_runs=manifest.setting("forced_runs"),
        drop_finished=manifest.setting("drop_finished"),
        compile=manifest.setting("compile"),
        size=settings.size,
        weights=resolved.weights,
        torch=environment.torch,
        transformers=environment.transformers,
    )


def _row_steps(manifest: Manifest) -> int:
    """Rows that were computed, summed over steps."""
    if manifest.rows_per_step is None:
        return sum(manifest.steps_per_batch[molecule.batch] for molecule in manifest.molecules)
    if [len(rows) for rows in manifest.rows_per_step] != manifest.steps_per_batch:
        raise TraceError("manifest: rows_per_step and steps_per_batch tell unlike numbers of steps")
    return sum(map(sum, manifest.rows_per_step))


def _spread(repeats: list[Repeat], median_ns: int | None) -> Spread:
    walls = [repeat.wall_ns for repeat in repeats]
    return Spread(median_ns, min(walls, default=None), max(walls, default=None), len(walls))


def _first_pass_extra(warmup_ns: list[int], wall_ns: int | None) -> int | None:
    return warmup_ns[0] - wall_ns if warmup_ns and wall_ns is not None else None


def _mean(values: list[int | None]) -> int | None:
    """Mean of one or two values, rounded down; None where one is missing."""
    known = [value for value in values if value is not None]
    return sum(known) // len(known) if known and len(known) == len(values) else None


def _ratio(part: float | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def _residual(wall_ns: int | None, phase_walls: dict[str, int | None]) -> float | None:
    if not wall_ns:
        return None
    return (wall_ns - sum(value or 0 for value in phase_walls.values())) / wall_ns


def _valid(molecules: list[MoleculeRun]) -> int | None:
    checked = [molecule.valid for molecule in molecules if molecule.valid is not None]
    return sum(checked) if checked else None


def _masked(molecules: list[MoleculeRun]) -> int | None:
    counts = [molecule.masked_logits for molecule in molecules if molecule.masked_logits is not None]
    return sum(counts) if counts else None


def _cut(molecules: list[MoleculeRun]) -> int | None:
    counts = [molecule.cut_blocks for molecule in molecules if molecule.cut_blocks is not None]
    return sum(counts) if len(counts) == len(molecules) else None


def _free_positions(molecules: list[MoleculeRun]) -> float | None:
    templates = [molecule.template for molecule in molecules if molecule.template is not None]
    return _ratio(
        sum(sum(template.free_per_block) for template in templates),
        sum(len(template.free_per_block) for template in templates),
    )
