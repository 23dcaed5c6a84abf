"""Figures of a captured run: unprofiled times, tokens and coordinate blocks, the logits that the processor masks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET

from molprof.analysis.figures.figure import STEPS_SQL, CountedEvents, Figure, of_run, without_gpu
from molprof.analysis.figures.model import Group
from molprof.analysis.figures.run_model import RepeatFigures, Run
from molprof.analysis.figures.stood import figures_of
from molprof.common.drafts import Drafts, MaskFills
from molprof.common.manifest import SETUP_PHASES
from molprof.common.values import Unit, per

# From the wall time of a pass, and the times of its phases.
_Timed = Callable[[Run, "int | None", Mapping[str, "int | None"]], "float | None"]


def _timed(name: str, label: str, value: _Timed, unit: Unit = "ns", phase: str | None = None) -> Figure:
    """Return a figure of the median pass and of each timed pass."""

    def median(run: Run) -> float | None:
        return value(run, run.wall_ns.median, {phase: figures.wall_ns for phase, figures in run.phases.items()})

    def of_repeat(run: Run, repeat: RepeatFigures) -> float | None:
        return value(run, repeat.wall_ns, repeat.phases_ns)

    counted = CountedEvents("cpu_or_gpu", in_steps=True, phase=phase)
    return Figure(name, "Unprofiled time", label, unit, of_run(median), repeat=of_repeat, counted=counted)


def _phase(name: str, label: str, steps: Callable[[Run], int | None]) -> Figure:
    """Return the figure of a phase's time per step that has the phase."""
    return _timed(f"{name}_ns", label, lambda run, wall_ns, phases_ns: per(phases_ns.get(name), steps(run)), phase=name)


def _steps_of_processor(run: Run) -> int | None:
    """Return the steps of a run with a processor; None without one, as the phase then holds only molprof's marks."""
    return run.steps if run.has_processor else None


def _once(name: str, label: str, value: Callable[[Run], float | None], unit: Unit = "ns") -> Figure:
    return Figure(name, "Unprofiled time", label, unit, of_run(value), once=True)


def _setup_ns(run: Run, wall_ns: int | None, phases_ns: Mapping[str, int | None]) -> int | None:
    times = [phase_ns for name in SETUP_PHASES if (phase_ns := phases_ns.get(name)) is not None]
    return sum(times) if times else None


def _count(name: str, label: str, unit: Unit = "count", **fields: Any) -> Figure:
    """Return the figure of the run's field of the same name."""
    return Figure(name, "Tokens", label, unit, of_run(lambda run: getattr(run, name)), **fields)


def _of_drift(name: str, label: str, unit: Unit) -> Figure:
    """Return the figure of the drift's field of the same name."""
    return Figure(name, "Tokens", label, unit, of_run(lambda run: getattr(run.drift, name, None)), of_molecules=True)


def _of_answers(name: str, label: str, value: Callable[[Run], float | None], unit: Unit = "number") -> Figure:
    """Return a figure of answers to prompts of plain text."""
    return Figure(name, "Tokens", label, unit, of_run(value), stands_in=True)


def _runaway(run: Run) -> int | None:
    return None if run.of_molecules else run.junk_tokens


def _tokens_per_character(run: Run) -> float | None:
    """Return tokens of all answers per character of valid ones, without white space."""
    useful = sum(len("".join((item.text or "").split())) for item in run.sequences if item.valid)
    return None if run.of_molecules else per(run.generated_tokens, useful)


def _respelled(run: Run) -> float | None:
    """Return an answer's tokens beyond those that the tokenizer needs for its text."""
    ends = sum(not item.cut for item in run.sequences)
    return per(None if run.needed_tokens is None else run.generated_tokens - ends - run.needed_tokens, run.molecules)


def _agreement(name: str, label: str, column: str, choice: str | None = None) -> Figure:
    """Return a column of `Agreement`, of all tokens or of those with this choice."""

    def value(run: Run) -> float | None:
        if run.disagreement is None:
            return None
        groups = {item.choice: item.agreement for item in run.disagreement.groups if item.text is None}
        return getattr(run.disagreement.all if choice is None else groups.get(choice), column, None)

    return Figure(name, "Masking", label, "ratio", of_run(value), stands_in=True)


def _of_forced(name: str, label: str, unit: Unit = "count") -> Figure:
    """Return a figure of where tokens stood, such as those that were the only ones which their masks left."""

    def of_forced(run: Run) -> float | None:
        return None if run.forced is UNSET else figures_of(run.forced, run.generated_tokens).get(name)

    return Figure(name, "Masking", label, unit, of_run(of_forced), stands_in=True)


def _drafts(name: str, label: str, value: Callable[[Drafts], float | None], unit: Unit = "count") -> Figure:
    """Return a figure of the tokens that an assistant drafted."""
    return _of_answers(name, label, lambda run: None if run.drafts is None else value(run.drafts), unit)


def _of_passes(
    name: str, heading: str, label: str, value: Callable[[RepeatFigures], float | None], unit: Unit = "ns"
) -> Figure:
    """Return a figure of each timed pass, of the run their median; None where no pass has it."""

    def median(run: Run) -> float | None:
        values = [number for repeat in run.repeats if (number := value(repeat)) is not None]
        return statistics.median(values) if values else None

    repeat = None if unit == "count" else lambda run, repeat: value(repeat)
    return Figure(name, heading, label, unit, of_run(median), repeat=repeat, stands_in=True)


def _filled(name: str, label: str, value: Callable[[MaskFills], float | None], unit: Unit = "ns") -> Figure:
    """Return a figure of the masks that are filled in a pass."""

    def of_pass(repeat: RepeatFigures) -> float | None:
        return None if repeat.mask_fills is UNSET else value(repeat.mask_fills)

    return _of_passes(name, "Masking", label, of_pass, unit)


def _masked(name: str, label: str, value: Callable[[Run], float | None], of_molecules: bool = False) -> Figure:
    """Return a figure of masked logits. FREE and COPY are positions of a molecule's template."""
    label = f"masked logits per {label}"
    return Figure(f"masked_{name}", "Masking", label, "number", of_run(value), of_molecules=of_molecules)


def _masked_at(kind: str, label: str, of_molecules: bool = False) -> Figure:
    """Return a figure of masked logits of one kind per molecule."""

    def value(run: Run) -> float | None:
        return per(getattr(run.masked, kind, None), run.molecules)

    return _masked(f"{kind}_per_molecule", f"molecule {label}", value, of_molecules)


def _of_processor(name: str, label: str, column: str, *rests_on: Group, gpu: bool = True) -> Figure:
    """Return a figure of the processor phase, a column of `PhaseFigures`, per recorded step."""
    is_time = column.endswith("_ns")

    def value(run: Run) -> float | None:
        is_recorded = run.has_processor or not is_time
        return per(getattr(run.phases["processor"], column), run.window.steps) if is_recorded else None

    read = of_run(value)
    sql = f"SELECT SUM({column}) * 1.0 / {STEPS_SQL} AS {name} FROM molprof_phase_work WHERE phase = 'processor'"
    counted = CountedEvents("work" if is_time else column, in_steps=True, phase="processor")
    return Figure(name, "Masking", label, "ns" if is_time else "number", read if gpu else without_gpu(read), sql,
                  rests_on, once=is_time, counted=counted, stands_in=not gpu)  # fmt: skip


TIMES = (
    _timed("wall_ns", "total time (median)", lambda run, wall_ns, phases_ns: wall_ns),
    _once("wall_low_ns", "total time, lowest", lambda run: run.wall_ns.low),
    _once("wall_high_ns", "total time, highest", lambda run: run.wall_ns.high),
    _timed("ns_per_molecule", "time per molecule", lambda run, ns, _: per(ns, run.molecules)),
    _timed("ns_per_token", "time per generated token", lambda run, ns, _: per(ns, run.generated_tokens)),
    _timed("tokens_per_s", "generated tokens per s", lambda run, ns, _: per(run.generated_tokens * 1e9, ns), "number"),
    _timed("setup_ns", "set-up time", _setup_ns),
    _phase("prefill", "prefill time per batch", lambda run: run.batches),
    _phase("forward", "forward time per decode step", lambda run: run.decode_steps),
    _of_passes("draft_ns", "Unprofiled time", "drafting time, part of the steps", lambda repeat: repeat.draft_ns),
    _phase("processor", "processor time per step", _steps_of_processor),
    _phase("sampling", "sampling time per step", lambda run: run.steps),
    _phase("bookkeeping", "bookkeeping time per step", lambda run: run.steps),
    _once("peak_memory_bytes", "peak memory in timed passes", lambda run: run.peak_memory_bytes, "bytes"),
    _once("profiled_ratio", "profiled / unprofiled step time", lambda run: run.profiled_ratio, "number"),
)
TOKENS = (
    Figure("generated_tokens", "Tokens", "generated tokens", "count", lambda it: it.tokens, compared=False),
    Figure("tokens_per_molecule", "Tokens", "tokens per molecule", "number", lambda it: per(it.tokens, it.molecules)),
    _count("decode_steps", "decode steps"),
    _count("tokens_per_step", "tokens per row and step", "number"),
    _count("idle_row_steps", "steps on finished rows"),
    _drafts("drafted_tokens", "drafted tokens", lambda drafts: drafts.drafted),
    _drafts("accepted_ratio", "drafted tokens accepted", lambda it: per(it.accepted, it.drafted), "ratio"),
    _drafts("rejected_by_model", "drafted tokens rejected by the model", lambda it: it.rejected_by_model),
    _drafts("rejected_by_grammar", "drafted tokens rejected by the grammar", lambda it: it.rejected_by_grammar),
    _drafts("dropped_drafts", "drafted tokens dropped", lambda it: it.dropped),
    _drafts("rollbacks", "rollbacks of drafts", lambda it: it.rollbacks),
    _count("blocks", "coordinate blocks", of_molecules=True),
    _count("free_positions_per_block", "FREE positions per block", "number", of_molecules=True),
    _count("coordinate_tokens_per_block", "coordinate tokens per block", "number", of_molecules=True),
    _count("junk_tokens", "junk tokens", of_molecules=True),
    _of_drift("drift_blocks", "blocks with drift (not good)", "count"),
    _of_drift("drift_block_ratio", "share of blocks with drift", "ratio"),
    _count("junk_blocks", "blocks with junk", of_molecules=True),
    _count("filler_tokens", "filler tokens", of_molecules=True),
    _count("malformed_blocks", "malformed blocks", of_molecules=True),
    _count("cut_blocks", "cut blocks", of_molecules=True, compared=False),
    _count("cut_answers", "answers that stopped at the token limit", compared=False),
    _of_answers("runaway_tokens", "tokens of white space, digits and loops that go on", _runaway, "count"),
    _of_answers(
        "tokens_per_useful_character",
        "tokens per character of correct answers without white space",
        _tokens_per_character,
    ),
    _of_answers("respelled_tokens_per_answer", "tokens of an answer beyond those that the tokenizer needs", _respelled),
    _count("skipped", "skipped input lines", compared=False),
)
MASKING = (
    _masked("logits_per_molecule", "molecule", lambda run: per(run.masked_logits, run.molecules)),
    _masked_at("free", "at FREE positions", of_molecules=True),
    _masked_at("copy", "at COPY positions", of_molecules=True),
    _masked_at("end", "at end tokens"),
    _masked_at("idle", "on finished rows"),
    _masked(
        "logits_per_free_position",
        "FREE position",
        lambda run: None if run.masked is None else per(run.masked.free, run.masked.free_choices),
        of_molecules=True,
    ),
    _of_processor("masking_launches", "processor launches per step", "launches", "launches"),
    _of_processor("masking_gpu_ns", "processor GPU time per step", "gpu_ns", "launches", "links", "gpu_time"),
    _of_processor("masking_operators", "processor leaf operators per step", "leaf_operators", "launches", gpu=False),
    _of_processor("masking_syncs", "processor host syncs per step", "syncs", "launches"),
    _filled("masks_filled", "masks filled", lambda it: it.masks, "count"),
    _filled("draft_masks", "masks filled for drafts alone", lambda it: it.draft_masks, "count"),
    _filled("mask_fill_ns", "time to fill a mask", lambda it: per(it.ns, it.masks)),
    _filled("draft_mask_ns", "time to fill a mask for drafts alone", lambda it: per(it.draft_ns, it.draft_masks)),
    _of_forced("forced_ratio", "share of tokens that were forced", "ratio"),
    _of_forced("forced_run_tokens", "tokens of a run of forced ones, mean", "number"),
    _of_forced("forced_longest_run", "tokens of the longest run of forced ones"),
    _of_forced("free_tokens", "tokens that nothing constrained"),
    _of_forced("tag_tokens", "tokens of tags, not forced"),
    _of_forced("forced_tokens", "tokens that were forced"),
    _of_forced("inside_tokens", "tokens inside of a schema or grammar, not forced"),
    _agreement("removed_ratio", "probability of forbidden tokens, mean", "mean_removed"),
    _agreement("first_choice_forbidden_ratio", "tokens in place of a forbidden first choice", "forbidden_ratio"),
    _agreement("unlike_ratio", "tokens spelled unlike the tokenizer's", "unlike_ratio"),
    _agreement("forced_unlike_ratio", "forced tokens spelled unlike the tokenizer's", "unlike_ratio", "copy"),
)
