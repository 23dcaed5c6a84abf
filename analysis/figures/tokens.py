"""Generated tokens, steps, coordinate blocks, and the logits that the processor masks."""

from __future__ import annotations

from collections.abc import Callable

from molprof.analysis.figures.drift.model import Drift
from molprof.analysis.figures.figure import Figure, of_run, without_gpu
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import PhaseFigures, Run
from molprof.analysis.figures.work import molecules, tokens
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


def _per_step(
    name: str, label: str, value: Callable[[PhaseFigures], float | None], unit: Unit = "number", once: bool = False
) -> Figure:
    """A figure of the processor phase per recorded step."""
    return Figure(name, "Masking", label, unit, _of_processor(value), once=once)


def _of_processor(value: Callable[[PhaseFigures], float | None]) -> Callable[[Report], Value]:
    return of_run(lambda run: per(value(run.phases["processor"]), run.window.steps))


def _masked(name: str, label: str, of_molecules: bool = False) -> Figure:
    """Masked logits of one kind per molecule. FREE and COPY are positions of a molecule's template."""

    def value(run: Run) -> float | None:
        return None if run.masked is None else per(getattr(run.masked, name), run.molecules)

    return _mean(f"masked_{name}_per_molecule", label, value, "Masking", of_molecules)


TOKENS = (
    Figure("generated_tokens", "Tokens", "generated tokens", "count", tokens, compared=False),
    Figure("tokens_per_molecule", "Tokens", "tokens per molecule", "number", lambda it: per(tokens(it), molecules(it))),
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
    _per_step("masking_launches", "processor launches per step", lambda phase: phase.launches),
    _per_step("masking_gpu_ns", "processor GPU time per step", lambda phase: phase.gpu_ns, "ns", once=True),
    Figure(
        "masking_operators",
        "Masking",
        "processor leaf operators per step",
        "number",
        without_gpu(_of_processor(lambda phase: phase.leaf_operators)),
        stands_in=True,
    ),
    _per_step("masking_syncs", "processor host syncs per step", lambda phase: phase.syncs),
)
