"""Ranking of the processors of one capture: time per step, the constraint's share, its construction, answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from molprof.analysis.compare.statistics import LEAST_REPEATS, LEVEL, ConfidenceInterval, paired_ratio
from molprof.common.document import Document, Section, named, table_of
from molprof.common.measured import MeasuredRun
from molprof.common.values import Range, factor_text, per, time_text

NO_PROCESSOR = "none"
# An engine of which so much less of the answers is valid did not do the same work.
_FEWER_VALID = 0.25


def ranking_document(runs: Sequence[MeasuredRun]) -> Document:
    """Return the ranking of runs that differ in the processor alone, with what to do."""
    ordered = ranked(runs)
    first = next((run for run in runs if run.processor is None), None)
    return Document(
        "Ranking of constraints",
        ranking_sections(runs),
        lambda: [_named(run, first) for run in ordered],
        summary=(decision(runs),),
    )


def ranked(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return the run without a processor first, then the others by the constraint's time per step.

    The rest of a step is the same model, whose noise is often larger than what engines differ by.
    """
    return sorted(runs, key=lambda run: (run.processor is not None, run.constraint_step_ns or 0, run.step_mean_ns))


def ranking_sections(runs: Sequence[MeasuredRun]) -> tuple[Section, ...]:
    """Return the sections of steps, of construction and of answers, a row for each run."""
    ordered = ranked(runs)
    first = next((run for run in runs if run.processor is None), None)
    few = min(len(run.rounds) for run in runs) < LEAST_REPEATS
    notes = [
        "unprofiled, means of the timed passes, which took turns; ratios to none, by round, "
        + ("without intervals of fewer than three rounds (--repeats)" if few else f"at {100 * LEVEL:.0f} %"),
        "constraint: host time to accept tokens, fill masks and apply them; without these parts, the phase processor",
    ]
    if any("read" in run.constraint_ns for run in runs):
        notes.append("reading the chosen tokens is not in it: on a GPU that waits for the forward")

    def part(name: str) -> Any:
        return lambda run: run.constraint_ns.get(name)

    def once(name: str) -> Any:
        return lambda run: run.once_parts_ns.get(name)

    return (
        Section(
            "Time per step",
            tuple(notes),
            table_of(
                ordered, ("engine", "text", name_of), ("time per step", "ns", "step_mean_ns"),
                ("ratio", "factor", lambda run: _ratio(run, first)),
                ("interval", "factor", lambda run: _range(_interval(run, first))),
                ("constraint", "ns", "constraint_step_ns"), ("accept", "ns", part("accept")),
                ("fill", "ns", part("fill")), ("apply", "ns", part("apply")), missing="-",
            ),
        ),
        Section(
            "Making it, and answers",
            ("compiled once, before all passes: package, vocabulary, and the constraint alone",),
            table_of(
                ordered, ("engine", "text", name_of), ("compile once", "ns", "once_ns"),
                ("vocabulary", "ns", once("vocabulary")), ("constraint", "ns", once("constraint")),
                ("valid", "text", lambda run: f"{run.valid} of {run.judged}" if run.judged else None),
                ("tokens per answer", "number", _tokens), ("steps", "count"), missing="-",
            ),
        ),
    )  # fmt: skip


def decision(runs: Sequence[MeasuredRun]) -> str:
    """Return one sentence: the engine to take, by what was measured."""
    engines = [run for run in ranked(runs) if run.processor is not None]
    if not engines:
        return "No engine was measured."
    least, most = min(run.wrong for run in engines), max(per(run.valid, run.judged) or 0 for run in engines)
    able = [run for run in engines if run.wrong == least and (per(run.valid, run.judged) or 0) >= most - _FEWER_VALID]
    able = able or engines
    # Where the constraint's work overlaps with the model's, as on a GPU, the time of a step decides.
    best = min((run for run in able if run is able[0] or _faster(run, able[0])), key=lambda run: run.step_mean_ns)
    said = f"Take {name_of(best)}: of a step of {time_text(best.step_mean_ns)} the constraint takes "
    said += time_text(best.constraint_step_ns)
    first = next((run for run in runs if run.processor is None), None)
    if first is not None:
        interval = _range(_interval(best, first))
        between = "" if interval is None else f" ({' to '.join(map(factor_text, interval))})"
        if interval is not None and interval[0] <= 1 <= interval[1]:
            said += f", and a step does not differ beyond noise from one without a constraint{between}"
        else:
            said += f", and a step takes {factor_text(_ratio(best, first))} of one without a constraint{between}"
    if others := [run for run in able if run is not best]:
        said += f"; with {name_of(others[0])}, the next, the constraint takes {time_text(others[0].constraint_step_ns)}"
    whole = [run for run in others if _faster(run, best, whole=True)]
    if whole:
        said += f"; over whole answers {name_of(whole[0])} is faster: {whole[0].steps:,} steps, not {best.steps:,}"
    if left := [run for run in engines if run not in able]:
        said += f"; left out: {', '.join(f'{name_of(run)} ({run.valid} of {run.judged} valid)' for run in left)}"
    return f"{said}."


def name_of(run: MeasuredRun) -> str:
    """Return the processor's name; `none` without one."""
    return run.processor or NO_PROCESSOR


def _tokens(run: MeasuredRun) -> float | None:
    return per(run.tokens, run.answers)


def _paired(run: MeasuredRun, first: MeasuredRun) -> tuple[list[float], list[float]]:
    """Return the times per step of the rounds that both have."""
    here, there = (dict(zip(item.rounds, item.step_ns, strict=True)) for item in (run, first))
    both = [number for number in here if number in there]
    return [here[number] for number in both], [there[number] for number in both]


def _ratio(run: MeasuredRun, first: MeasuredRun | None) -> float | None:
    if first is None or run is first:
        return None
    here, there = _paired(run, first)
    return per(sum(here), sum(there))


def _interval(run: MeasuredRun, first: MeasuredRun | None) -> ConfidenceInterval | None:
    return None if first is None or run is first else paired_ratio(*_paired(run, first))


def _range(interval: ConfidenceInterval | None) -> Range | None:
    return None if interval is None else (interval.low, interval.high)


def _faster(run: MeasuredRun, other: MeasuredRun, whole: bool = False) -> bool:
    """Return True if its steps, or its `whole` passes, take less time than the other's, beyond noise."""
    here, there = _paired(run, other)
    if whole:
        here, there = [ns * run.steps for ns in here], [ns * other.steps for ns in there]
    interval = paired_ratio(here, there)
    return interval is not None and interval.high < 1


def _named(run: MeasuredRun, first: MeasuredRun | None) -> dict[str, Any]:
    return named(
        run, "name", "processor", ("step_ns", "step_mean_ns"), ("ratio", lambda item: _ratio(item, first)),
        ("interval", lambda item: _range(_interval(item, first))), ("constraint_ns", "constraint_step_ns"),
        ("parts_ns", "constraint_ns"), "once_ns", "once_parts_ns", "answers", "judged", "valid", "wrong", "tokens",
        "steps",
    )  # fmt: skip
