"""Figures of a captured run: times from the manifest, work and tokens from the trace."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import convert
from msgspec.structs import asdict, replace

from molprof.analysis.figures.drift.blocks import Block, drift_figures
from molprof.analysis.figures.drift.disagreement import Token, disagreement_figures
from molprof.analysis.figures.drift.model import Drift
from molprof.analysis.figures.model import TraceFigures
from molprof.analysis.figures.run_model import (
    ASKED,
    BatchShapes,
    Marks,
    PhaseFigures,
    RepeatFigures,
    Run,
    SequenceFigures,
    Setup,
    Spread,
    filled,
)
from molprof.analysis.figures.step_times import step_times
from molprof.analysis.figures.window import read_window
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_dicts, query_rows
from molprof.common.errors import TraceError
from molprof.common.manifest import PHASES, STEP_PHASES, Manifest, MaskedLogits, MoleculeRun, Repeat
from molprof.common.settings import RANDOM
from molprof.common.text_format import DEFAULT, TextFormat
from molprof.common.values import per

_SEQUENCES = Query(
    "drift",
    "SELECT sequence, tokens, free, copy, junk, filler, blocks, junk_blocks FROM molprof_sequence_drift"
    " ORDER BY sequence",
)
# Settings that older traces do not have.
_LATER = ("forced_runs", "drop_finished", "compile")
# Columns in the order of Block's and Token's fields.
_BLOCKS = Query(
    "drift",
    "SELECT sequence, block, text, junk, filler, needed, drift, junk_position, marked_text, surplus_text"
    " FROM molprof_block ORDER BY sequence, block",
)
_TOKENS = Query(
    "disagreement",
    "SELECT sequence, position, text, kind, choice, probability, rank, forbidden"
    " FROM molprof_token_disagreement ORDER BY sequence, position",
)


def read_run(engine: TraceProcessor, manifest: Manifest, trace: TraceFigures) -> Run:
    """All figures of the run that `manifest` describes. Raises TraceError if it contradicts itself."""
    batches = len(manifest.steps_per_batch)
    for molecule in manifest.molecules:
        name = f"manifest: sequence {molecule.sequence}"
        if not 0 <= molecule.batch < batches:
            raise TraceError(f"{name} ran in batch {molecule.batch}, of {batches} batches")
        got, most = len(molecule.step_tokens or ()), manifest.steps_per_batch[molecule.batch]
        if got > most:
            raise TraceError(f"{name} got tokens in {got} steps, of {most} steps of its batch")
    window, phases, totals = read_window(engine, manifest, trace)
    sequences = _read_sequences(engine, manifest)
    timings, molecules = manifest.timings, manifest.molecules
    middle = _middle_repeats(timings.repeats)
    phase_walls = {name: _mean([repeat.phases_ns.get(name) for repeat in middle]) for name in PHASES}
    wall_ns = _mean([repeat.wall_ns for repeat in middle])
    walls_ns = [repeat.wall_ns for repeat in timings.repeats]
    free = [count for item in molecules if item.template is not None for count in item.template.free_per_block]
    masked = [molecule.masked_logits for molecule in molecules if molecule.masked_logits is not None]
    row_steps = _row_steps(manifest)
    blocks = sum(sequence.blocks for sequence in sequences)
    launches_per_step = window.per_step("launches")
    steps = sum(manifest.steps_per_batch)
    return Run(
        setup=_setup(manifest),
        wall_ns=Spread(wall_ns, min(walls_ns, default=None), max(walls_ns, default=None), len(walls_ns)),
        first_pass_extra_ns=timings.warmup_ns[0] - wall_ns if timings.warmup_ns and wall_ns is not None else None,
        profiled_ratio=per(timings.profiled_steps_ns, timings.unprofiled_steps_ns),
        marks=Marks(
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
        idle_row_steps=row_steps - sum(molecule.busy_steps for molecule in molecules),
        launches_per_token=window.per_token("launches"),
        launches_per_step=launches_per_step,
        launches_per_molecule=per(None if launches_per_step is None else launches_per_step * steps, len(molecules)),
        leaf_operators_per_token=window.per_token("leaf_operators"),
        leaf_operators_per_step=window.per_step("leaf_operators"),
        masked_logits=sum(masked) if masked else None,
        blocks=blocks,
        free_positions_per_block=per(sum(free), len(free)),
        coordinate_tokens_per_block=per(sum(sequence.free for sequence in sequences), blocks),
        junk_tokens=sum(sequence.junk for sequence in sequences),
        filler_tokens=sum(sequence.filler for sequence in sequences),
        junk_blocks=sum(sequence.junk_blocks for sequence in sequences),
        malformed_blocks=sum(molecule.malformed_blocks for molecule in molecules),
        cut_blocks=_sum_if_all_known([molecule.cut_blocks for molecule in molecules]),
        phases={name: replace(phases.get(name, PhaseFigures()), wall_ns=phase_walls[name]) for name in PHASES},
        residual_ratio=per(wall_ns and wall_ns - sum(value or 0 for value in phase_walls.values()), wall_ns),
        window=window,
        sequences=sequences,
        drift=read_drift(engine, molecules, manifest.settings.text_format),
        disagreement=disagreement_figures(
            [Token(*row) for row in query_rows(engine, _TOKENS)[1]], manifest.settings.text_format
        ),
        step_times=step_times(timings.repeats),
        peak_memory_bytes=timings.peak_memory_bytes,
        peak_memory_of=timings.peak_memory_of,
        totals=totals,
        masked=_masked([molecule.masked for molecule in molecules]),
        session=manifest.session,
        shapes=_shapes(manifest),
        machine=manifest.machine,
        repeats=convert(timings.repeats, tuple[RepeatFigures, ...], from_attributes=True),
    )


def read_drift(engine: TraceProcessor, molecules: Sequence[MoleculeRun], form: TextFormat = DEFAULT) -> Drift:
    blocks = [Block(*row) for row in query_rows(engine, _BLOCKS)[1]]
    last = {block.sequence: block.block for block in blocks}
    # A block is open at the end of an answer without an end token.
    cut = {
        (molecule.sequence, last.get(molecule.sequence))
        for molecule in molecules
        if not molecule.kinds.endswith("e")
        and molecule.text.rfind(form.block_open) > molecule.text.rfind(form.block_close)
    }
    return drift_figures([replace(block, cut=(block.sequence, block.block) in cut) for block in blocks], form)


def _masked(counts: Sequence[MaskedLogits | None]) -> MaskedLogits | None:
    """Sums over molecules; None where one was not counted."""
    known = [count for count in counts if count is not None]
    if not known or len(known) < len(counts):
        return None
    sums = {name: _sum_if_all_known([getattr(count, name) for count in known]) for name in known[0].__struct_fields__}
    return MaskedLogits(**sums)  # type: ignore[arg-type]


def _middle_repeats(repeats: list[Repeat]) -> list[Repeat]:
    """The timed pass with the median wall time, or the middle two: medians by phase would not add up to wall time."""
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


def _read_sequences(engine: TraceProcessor, manifest: Manifest) -> tuple[SequenceFigures, ...]:
    molecules = {molecule.sequence: molecule for molecule in manifest.molecules}
    # A track without its molecule shows as the broken sum of tokens.
    return tuple(
        convert({**asdict(molecules[row["sequence"]]), **row}, SequenceFigures)
        for row in query_dicts(engine, _SEQUENCES)
        if row["sequence"] in molecules
    )


def _setup(manifest: Manifest) -> Setup:
    settings = manifest.settings
    return filled(
        Setup,
        manifest.resolved,
        settings,
        manifest.environment,
        label=label(manifest),
        tokenizer=settings.tokenizer or settings.model,
        sampling="greedy" if settings.sampling == "greedy" else "sample",
        cache=settings.kv_cache,
        threads=manifest.environment.threads,
        **{name: manifest.setting(name) for name in _LATER},
        **{key: manifest.setting(row.name) for key, row in ASKED.items()},
    )


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


def _row_steps(manifest: Manifest) -> int:
    """Computed rows, summed over steps."""
    if manifest.rows_per_step is None:
        return sum(manifest.steps_per_batch[molecule.batch] for molecule in manifest.molecules)
    if [len(rows) for rows in manifest.rows_per_step] != manifest.steps_per_batch:
        raise TraceError("manifest: rows_per_step and steps_per_batch have different numbers of steps")
    return sum(map(sum, manifest.rows_per_step))


def _mean(values: list[int | None]) -> int | None:
    """Mean of one or two values, rounded down; None where one is missing."""
    total = _sum_if_all_known(values)
    return total // len(values) if values and total is not None else None


def _sum_if_all_known(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
