"""Generated tokens, steps, coordinate blocks, and the logits that the processor masks."""

from __future__ import annotations

from collections.abc import Callable

from molprof.analysis.figures.certificate.model import Group
from molprof.analysis.figures.drift.model import Drift
from molprof.analysis.figures.figure import STEPS_SQL, Figure, of_run, without_gpu
from molprof.analysis.figures.run_model import Run
from molprof.common.values import Unit, Value, per


def _count(name: str, label: str, compared: bool = True, of_molecules: bool = False) -> Figure:
    """The field of the run that is called as the figure."""
    value = of_run(lambda run: getattr(run, name))
    return Figure(name, "Tokens", label, "count", value, compared=compared, of_molecules=of_molecules)


def _of_blocks(name: str, label: str, compared: bool = True) -> Figure:
    return _count(name, label, compared, of_molecules=True)


def _of_drift(name: str, label: str, unit: Unit, value: Callable[[Drift], Value]) -> Figure:
    """A figure of the drift of the run's blocks."""
    read = of_run(lambda run: None if run.drift is None else value(run.drift))
    return Figure(name, "Tokens", label, unit, read, of_molecules=True)


def _mean(
    name: str, label: str, value: Callable[[Run], float | None], group: str = "Tokens", of_molecules: bool = False
) -> Figure:
    return Figure(name, group, label, "number", of_run(value), of_molecules=of_molecules)


def _of_processor(name: str, label: str, column: str, *rests_on: Group, gpu: bool = True) -> Figure:
    """A figure of the processor phase, a column of `PhaseFigures`, per recorded step."""
    read = of_run(lambda run: per(getattr(run.phases["processor"], column), run.window.steps))
    sql = f"SELECT SUM({column}) * 1.0 / {STEPS_SQL} AS {name} FROM molprof_phase_work WHERE phase = 'processor'"
    is_time = column.endswith("_ns")
    return Figure(name, "Masking", label, "ns" if is_time else "number", read if gpu else without_gpu(read), sql,
                  rests_on, once=is_time, stands_in=not gpu)  # fmt: skip


def _masked(name: str, label: str, of_molecules: bool = False) -> Figure:
    """Masked logits of one kind per molecule. FREE and COPY are positions of a molecule's template."""

    def value(run: Run) -> float | None:
        return None if run.masked is None else per(getattr(run.masked, name), run.molecules)

    return _mean(f"masked_{name}_per_molecule", label, value, "Masking", of_molecules)


TOKENS = (
    Figure("generated_tokens", "Tokens", "generated tokens", "count", lambda it: it.tokens, compared=False),
    Figure("tokens_per_molecule", "Tokens", "tokens per molecule", "number", lambda it: per(it.tokens, it.molecules)),
    _count("decode_steps", "decode steps"),
    _count("idle_row_steps", "steps on finished rows"),
    _of_blocks("blocks", "coordinate blocks"),
    _mean(
        "free_positions_per_block",
        "FREE positions per block",
        lambda run: run.free_positions_per_block,
        of_molecules=True,
    ),
    _mean(
        "coordinate_tokens_per_block",
        "coordinate tokens per block",
        lambda run: run.coordinate_tokens_per_block,
        of_molecules=True,
    ),
    _of_blocks("junk_tokens", "junk tokens"),
    _of_drift("drift_blocks", "blocks with drift (not good)", "count", lambda drift: drift.drift_blocks),
    _of_drift(
        "drift_block_ratio",
        "share of blocks with drift",
        "ratio",
        lambda drift: None if drift.states is None else per(drift.drift_blocks, sum(drift.states.values())),
    ),
    _of_blocks("junk_blocks", "blocks with junk"),
    _of_blocks("filler_tokens", "filler tokens"),
    _of_blocks("malformed_blocks", "malformed blocks"),
    _of_blocks("cut_blocks", "cut blocks", compared=False),
    _count("cut_answers", "answers that stopped at the token limit", compared=False),
    _count("skipped", "skipped input lines", compared=False),
)
MASKING = (
    _mean(
        "masked_logits_per_molecule",
        "masked logits per molecule",
        lambda run: per(run.masked_logits, run.molecules),
        "Masking",
    ),
    _masked("free", "masked logits per molecule at FREE positions", of_molecules=True),
    _masked("copy", "masked logits per molecule at COPY positions", of_molecules=True),
    _masked("end", "masked logits per molecule at end tokens"),
    _masked("idle", "masked logits per molecule on finished rows"),
    _mean(
        "masked_logits_per_free_position",
        "masked logits per FREE position",
        lambda run: None if run.masked is None else per(run.masked.free, run.masked.free_choices),
        "Masking",
        of_molecules=True,
    ),
    _of_processor("masking_launches", "processor launches per step", "launches", "launches"),
    _of_processor("masking_gpu_ns", "processor GPU time per step", "gpu_ns", "launches", "links", "gpu_time"),
    _of_processor("masking_operators", "processor leaf operators per step", "leaf_operators", "launches", gpu=False),
    _of_processor("masking_syncs", "processor host syncs per step", "syncs", "launches"),
)
