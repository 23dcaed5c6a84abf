"""Figures of a captured run: times from the manifest, work and tokens from the trace."""

from __future__ import annotations

from collections.abc import Iterable

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_rows
from molprof.analysis.figures.drift import read_disagreement, read_drift
from molprof.analysis.figures.model import TraceFigures
from molprof.analysis.figures.run_model import Marks, RepeatFigures, Run, SequenceFigures, Setup, Spread
from molprof.analysis.figures.step_times import step_times
from molprof.analysis.figures.window import phase_figures, read_window
from molprof.common.errors import TraceError
from molprof.common.manifest import MARKS_PER_STEP, PHASES, Manifest, MoleculeRun, Repeat
from molprof.common.values import per

_SEQUENCES = Query(
    "drift",
    "SELECT sequence, tokens, free, copy, junk, filler, blocks, junk_blocks FROM molprof_sequence_drift"
    " ORDER BY sequence",
)


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
    window, phases = read_window(engine, manifest, trace.gpu_recorded)
    sequences = _read_sequences(engine, manifest)
    middle = middle_repeats(manifest.timings.repeats)
    phase_walls = {name: _mean([repeat.phases_ns.get(name) for repeat in middle]) for name in PHASES}
    wall_ns = _mean([repeat.wall_ns for repeat in middle])
    molecules = manifest.molecules
    generated = sum(len(molecule.token_ids) for molecule in molecules)
    row_steps = _row_steps(manifest)
    blocks = sum(sequence.blocks for sequence in sequences)
    launches_per_step = per(window.launches, window.steps)
    steps = sum(manifest.steps_per_batch)
    return Run(
        setup=_setup(manifest),
        wall_ns=_spread(manifest.timings.repeats, wall_ns),
        first_pass_extra_ns=_first_pass_extra(manifest.timings.warmup_ns, wall_ns),
        profiled_ratio=per(manifest.timings.profiled_steps_ns, manifest.timings.unprofiled_steps_ns),
        marks=Marks(
            mark_ns=manifest.timings.mark_ns,
            per_step=MARKS_PER_STEP,
            time_ratio=per(manifest.timings.mark_ns * MARKS_PER_STEP * steps, wall_ns),
            unmarked_wall_ns=manifest.timings.unmarked_wall_ns,
            signature_ns=manifest.timings.signature_ns,
        ),
        molecules=len(molecules),
        valid_molecules=_sum_of_known(molecule.valid for molecule in molecules),
        skipped=len(manifest.skipped),
        batches=batches,
        steps=steps,
        decode_steps=steps - batches,
        generated_tokens=generated,
        row_steps=row_steps,
        idle_row_steps=row_steps - sum(molecule.busy_steps for molecule in molecules),
        launches_per_token=per(window.launches, window.tokens),
        launches_per_step=launches_per_step,
        launches_per_molecule=(
            None if launches_per_step is None or not molecules else launches_per_step * steps / len(molecules)
        ),
        leaf_operators_per_token=per(window.leaf_operators, window.tokens),
        leaf_operators_per_step=per(window.leaf_operators, window.steps),
        masked_logits=_sum_of_known(molecule.masked_logits for molecule in molecules),
        blocks=blocks,
        free_positions_per_block=_free_positions(molecules),
        coordinate_tokens_per_block=per(sum(sequence.free for sequence in sequences), blocks),
        junk_tokens=sum(sequence.junk for sequence in sequences),
        filler_tokens=sum(sequence.filler for sequence in sequences),
        junk_blocks=sum(sequence.junk_blocks for sequence in sequences),
        malformed_blocks=sum(molecule.malformed_blocks for molecule in molecules),
        cut_blocks=_cut(molecules),
        phases={name: phase_figures(phase_walls[name], phases.get(name)) for name in PHASES},
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


def middle_repeats(repeats: list[Repeat]) -> list[Repeat]:
    """The timed pass with the median wall time, or the middle two.

    Phases of one pass add up to its wall time. Medians by phase would not.
    """
    ordered = sorted(repeats, key=lambda repeat: repeat.wall_ns)
    return ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]


def label(manifest: Manifest) -> str:
    """A short name for a run, such as `qwen lp:generic` or `qwen 0.6b random no lp`."""
    model = manifest.model.name.rstrip("/").rsplit("/", 1)[-1]
    if (size := manifest.model.size) is not None:
        # Sizes given by numbers are long: the parameters say as much.
        model += f" {size}" if "=" not in size else f" {manifest.model.parameters / 1e6:.0f}m"
    if manifest.model.weights == "random":
        model += " random"
    processor = manifest.generation.processor
    return f"{model} lp:{processor}" if processor else f"{model} no lp"


def _read_sequences(engine: Engine, manifest: Manifest) -> tuple[SequenceFigures, ...]:
    columns, rows = query_rows(engine, _SEQUENCES)
    molecules = {molecule.sequence: molecule for molecule in manifest.molecules}
    found = []
    for row in rows:
        figures = dict(zip(columns, row, strict=True))
        # A track without its molecule shows as the broken sum of tokens.
        if (molecule := molecules.get(figures["sequence"])) is not None:
            found.append(
                SequenceFigures(
                    **figures,
                    smiles=molecule.smiles,
                    malformed_blocks=molecule.malformed_blocks,
                    cut_blocks=molecule.cut_blocks,
                    masked_logits=molecule.masked_logits,
                    valid=molecule.valid,
                    problem=molecule.problem,
                )
            )
    return tuple(found)


def _setup(manifest: Manifest) -> Setup:
    model, generation, environment = manifest.model, manifest.generation, manifest.environment
    return Setup(
        label=label(manifest),
        model=model.name,
        family=model.family,
        parameters=model.parameters,
        tokenizer=model.tokenizer,
        vocabulary=model.vocabulary,
        logits_width=model.logits_width,
        processor=generation.processor,
        placeholder=generation.placeholder,
        sampling=generation.sampling,
        sampling_parameters=dict(generation.sampling_parameters),
        cache=generation.cache,
        attention=model.attention,
        dtype=model.dtype,
        device=model.device,
        gpu=environment.gpu,
        batch_size=generation.batch_size,
        max_new_tokens=generation.max_new_tokens,
        seed=generation.seed,
        sorted=generation.sorted,
        forced_runs=generation.forced_runs,
        drop_finished=generation.drop_finished,
        compile=generation.compile,
        size=model.size,
        weights=model.weights,
        torch=environment.torch,
        transformers=environment.transformers,
    )


def _row_steps(manifest: Manifest) -> int:
    """Computed rows, summed over steps."""
    if manifest.rows_per_step is None:
        return sum(manifest.steps_per_batch[molecule.batch] for molecule in manifest.molecules)
    if [len(rows) for rows in manifest.rows_per_step] != manifest.steps_per_batch:
        raise TraceError("manifest: rows_per_step and steps_per_batch have different numbers of steps")
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


def _residual(wall_ns: int | None, phase_walls: dict[str, int | None]) -> float | None:
    if not wall_ns:
        return None
    return (wall_ns - sum(value or 0 for value in phase_walls.values())) / wall_ns


def _sum_of_known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _cut(molecules: list[MoleculeRun]) -> int | None:
    counts = [molecule.cut_blocks for molecule in molecules if molecule.cut_blocks is not None]
    return sum(counts) if len(counts) == len(molecules) else None


def _free_positions(molecules: list[MoleculeRun]) -> float | None:
    templates = [molecule.template for molecule in molecules if molecule.template is not None]
    return per(
        sum(sum(template.free_per_block) for template in templates),
        sum(len(template.free_per_block) for template in templates),
    )
