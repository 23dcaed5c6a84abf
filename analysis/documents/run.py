"""The sections of a captured run: what ran, its phases, its tokens and how they drifted."""

from __future__ import annotations

from molprof.analysis.documents.drift import drift_note, drift_sections
from molprof.analysis.figures.run_model import Marks, Run, SequenceFigures
from molprof.common.document import PAIR, Column, Section
from molprof.common.values import (
    NOT_RECORDED,
    count_text,
    counted,
    number_text,
    per,
    percent_text,
    text,
    time_text,
)

_SHOWN_MOLECULES = 20

_PARTS_LEFT_OUT = f"{NOT_RECORDED}: parts of the steps were left out"


def run_sections(run: Run) -> list[Section]:
    """What ran, its phases, its tokens."""
    if run.setup.random:
        meaningless = "drift: not meaningful, the weights are random"
        return [_run(run), _phases(run), Section("Tokens and drift", PAIR, (), (meaningless,))]
    return [_run(run), _phases(run), *_molecules(run), *drift_sections(run)]


def _run(run: Run) -> Section:
    setup, window = run.setup, run.window
    processor = "none" if setup.processor is None else f"{setup.processor}, placeholder {text(setup.placeholder)}"
    wall = run.wall_ns
    recorded = (
        "all steps" if window.full else f"steps {window.first_step} to {window.last_step} of batch {window.batch}"
    )
    rows = (
        (
            "model",
            f"{setup.model} ({setup.family}, {number_text(setup.parameters / 1e6)} M parameters, {setup.dtype})",
        ),
        *((("size", setup.size),) if setup.size is not None else ()),
        *((("weights", "random: tokens and drift are not meaningful"),) if setup.random else ()),
        (
            "tokenizer",
            f"{setup.tokenizer}, {count_text(setup.vocabulary)} tokens, {count_text(setup.logits_width)} logits",
        ),
        ("processor", processor),
        ("device", f"{setup.gpu or setup.device}, attention {setup.attention}, cache {setup.cache}"),
        ("generation", f"{setup.sampling}, batches of {setup.batch_size}, seed {setup.seed}"),
        ("decoding", text(setup.loop)),
        (
            "time",
            f"{time_text(wall.median)} (low {time_text(wall.low)}, high {time_text(wall.high)}, "
            f"{wall.repeats} unprofiled repeat{'s' if wall.repeats != 1 else ''})",
        ),
        ("recorded", f"{recorded}: {counted(window.steps, 'step')}, {counted(window.tokens, 'token')}"),
        ("profiler", f"recorded steps take {number_text(run.profiled_ratio)} times their unprofiled time"),
        ("marks", _marks(run.marks)),
        ("molecules", _molecule_counts(run)),
        (
            "tokens",
            f"{count_text(run.generated_tokens)} in {count_text(run.decode_steps)} decode steps, "
            f"{number_text(per(run.generated_tokens, run.molecules))} per molecule, "
            f"{counted(run.idle_row_steps, 'idle row-step')}",
        ),
        ("launches", _launches(run)),
        ("operators", _operators(run)),
        (
            "masked",
            "none" if setup.processor is None else f"{count_text(run.masked_logits)} logits set to -inf",
        ),
    )
    return Section("Run", PAIR, rows)


def _launches(run: Run) -> str:
    if run.window.leaf_operators is None:
        return _PARTS_LEFT_OUT
    if not run.window.gpu_recorded:
        return f"{NOT_RECORDED}: the trace holds no GPU calls"
    return f"{number_text(run.launches_per_token)} per token, {number_text(run.launches_per_step)} per step"


def _operators(run: Run) -> str:
    if run.window.leaf_operators is None:
        return _PARTS_LEFT_OUT
    per_token, per_step = number_text(run.leaf_operators_per_token), number_text(run.leaf_operators_per_step)
    return f"{per_token} leaf CPU operators per token, {per_step} per step"


def _marks(marks: Marks) -> str:
    line = f"{time_text(marks.mark_ns)} each, {marks.per_step} per step: {percent_text(marks.time_ratio)} of the time"
    if marks.unmarked_wall_ns is not None:
        line += f"; a pass without any: {time_text(marks.unmarked_wall_ns)}"
    return line


def _molecule_counts(run: Run) -> str:
    parts = [count_text(run.molecules)]
    if run.valid_molecules is not None:
        parts.append(f"{count_text(run.valid_molecules)} valid")
    if run.skipped:
        parts.append(f"{count_text(run.skipped)} input lines skipped")
    return ", ".join(parts)


def _phases(run: Run) -> Section:
    numbers = ("time", "share", "profiled", "GPU time", "launches", "kernels", "syncs", "leaf ops")
    columns = (Column("phase", "left"), *map(Column, numbers))
    rows = tuple(
        (
            name,
            time_text(phase.wall_ns),
            percent_text(per(phase.wall_ns, run.wall_ns.median)),
            _brief(time_text(phase.host_ns)),
            _brief(time_text(phase.gpu_ns)),
            _brief(count_text(phase.launches)),
            _brief(count_text(phase.kernels)),
            _brief(count_text(phase.syncs)),
            _brief(count_text(phase.leaf_operators)),
        )
        for name, phase in run.phases.items()
    )
    outside_ns = run.window.unattributed_gpu_ns
    notes = (
        "time: whole run, unprofiled. All other columns: the recorded steps, profiled. -: not recorded.",
        f"outside any phase: {percent_text(run.residual_ratio)} of the time"
        + ("" if outside_ns is None else f", {time_text(outside_ns)} of GPU time"),
    )
    return Section("Phases", columns, rows, notes)


def _molecules(run: Run) -> list[Section]:
    drifting = [item for item in run.sequences if item.junk or item.filler or item.malformed_blocks]
    drifting.sort(key=lambda item: (-item.junk, -item.filler, -item.malformed_blocks, item.sequence))
    numbers = ("tokens", "blocks", "junk", "filler", "malformed")
    columns = (Column("#"), Column("molecule", "left"), *map(Column, numbers))
    rows = tuple(_molecule(item) for item in drifting[:_SHOWN_MOLECULES])
    notes = (*_block_notes(run), *_shown(len(drifting), "with junk, filler or malformed blocks"))
    return [Section("Tokens and drift", columns, rows, notes), *_invalid(run)]


def _block_notes(run: Run) -> list[str]:
    if not run.blocks:
        return ["no coordinate blocks"]
    cut = f" ({count_text(run.cut_blocks)} cut)" if run.cut_blocks else ""
    free = "" if run.setup.processor is None else f"; FREE positions {number_text(run.free_positions_per_block)}"
    return [
        f"{counted(run.blocks, 'coordinate block')}{free}; "
        f"tokens that coordinates took {number_text(run.coordinate_tokens_per_block)} (means per block)",
        f"{counted(run.junk_tokens, 'junk token')} in {counted(run.junk_blocks, 'block')}, "
        f"{counted(run.filler_tokens, 'filler token')}, {counted(run.malformed_blocks, 'malformed block')}{cut}",
        *drift_note(run.drift),
    ]


def _molecule(item: SequenceFigures) -> tuple[str, ...]:
    counts = (item.tokens, item.blocks, item.junk, item.filler, item.malformed_blocks)
    return (str(item.sequence), text(item.smiles), *(count_text(count) for count in counts))


def _invalid(run: Run) -> list[Section]:
    invalid = [item for item in run.sequences if item.valid is False]
    if not invalid:
        return []
    columns = (Column("#"), Column("molecule", "left"), Column("why", "left"))
    rows = tuple(
        (str(item.sequence), text(item.smiles), item.problem or "unknown") for item in invalid[:_SHOWN_MOLECULES]
    )
    return [Section("Molecules that are not valid", columns, rows, _shown(len(invalid), "that are not valid"))]


def _shown(count: int, what: str) -> tuple[str, ...]:
    return (f"the first {_SHOWN_MOLECULES} of {count} molecules {what}:",) if count > _SHOWN_MOLECULES else ()


def _brief(value: str) -> str:
    return "-" if value == NOT_RECORDED else value
