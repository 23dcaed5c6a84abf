"""Python functions that phases spend their time in, callees included: by stacks, or as sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import UNSET

from molprof.analysis.facts.gaps import Windows
from molprof.analysis.figures.model import STACK_CATEGORY
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.places import Location, Where
from molprof.analysis.trace_processor.package import Query
from molprof.common.sampled import SampledFunctions
from molprof.common.values import factor_text, percent_text, short_source, time_text

# Files whose functions are no constraint of the program: transformers' own, and molprof's marks.
NOT_OWN = ("transformers/generation/", "profiler/recording/")
# Beginnings of the names of an engine's phases.
OF_ENGINE = (("mask_",), ("grammar_",))
PROCESSOR = "processor"  # the phase of a run
# Lines and functions that are named, functions with so much of the time; and what sampling may cost without a word.
_SHOWN, _FUNCTIONS, _LEAST_NAMED, _LEAST_SLOWDOWN = 3, 2, 0.02, 1.1
_NEARLY_ALL = 0.9
_TRACKS = Query("annotations", "SELECT id, upid, tid FROM _molprof_thread_track ORDER BY id")


def functions_of(known: TraceFacts, phases: tuple[str, ...]) -> Location | None:
    """Return the Python functions of phases whose names begin so; None where they are not recorded.

    Of a run's processor without stacks they are sampled: by line of the program, or where none is in it, by innermost
    function. The name is that of the first with half of the time, or of the smallest function that has it.
    """
    return known.once("functions of phases", phases, lambda: _found(known, phases)) or (
        _sampled(known) if phases == (PROCESSOR,) else None
    )


def sampled_functions(known: TraceFacts) -> SampledFunctions | None:
    """Return the samples of a run's processor; None where stacks suffice, or there are too few samples."""
    run = known.report.run
    if run is None or run.functions is UNSET or _has_functions(known):
        return None
    return run.functions if run.functions.is_enough else None


def _has_functions(known: TraceFacts) -> bool:
    """Return True if stacks contain the functions of the processor."""
    return known.once("functions of phases", (PROCESSOR,), lambda: _found(known, (PROCESSOR,))) is not None


def _sampled(known: TraceFacts) -> Location | None:
    sampled = sampled_functions(known)
    if sampled is None:
        return None
    times: Counter[str] = Counter({line_text(*line): ns for line, ns in sampled.by_line().items()})
    if not sampled.program:
        times = Counter({short_source(name): ns for name, ns in sampled.by_function().items()})
    wheres, whole = tuple(Where(name, 0, ns) for name, ns in times.most_common()), sampled.sampled_ns
    name, ns = wheres[0].label, wheres[0].time_ns
    inside = sampled.inside()
    held = [function for index in sampled.program if 2 * inside[function := sampled.functions[index]] >= whole]
    if 2 * ns < whole and held:
        held.sort(key=lambda name: inside[name])
        name, ns = short_source(held[0]), inside[held[0]]
    return Location(name, ns / whole, wheres)


def is_of_masks(known: TraceFacts, function: Where) -> bool:
    """Return True if nearly all time of a function is in an engine's phases of masks and grammars."""
    mine = (functions_of(known, phases) for phases in OF_ENGINE)
    times = [item.time_ns for where in mine if where for item in where.places if function.label.startswith(item.label)]
    return sum(times) >= _NEARLY_ALL * function.time_ns


def by_sample(sampled: SampledFunctions) -> Iterator[str]:
    """Yield the sampled time of the first lines of the program, and of the first functions."""
    whole = sampled.sampled_ns
    program = {sampled.functions[index] for index in sampled.program}
    lines = [item for item in sampled.by_line().most_common() if item[0][0] in program][:_SHOWN]
    if lines:
        said = ", ".join(f"{line_text(*line).partition(', ')[0]} {percent_text(ns / whole)}" for line, ns in lines)
        yield f"by line, sampled: {said}"
    functions = [item for item in sampled.by_function().most_common(_FUNCTIONS) if item[1] >= _LEAST_NAMED * whole]
    said = ", ".join(f"{time_text(ns)} in {_name(function)}" for function, ns in functions)
    yield f"of {time_text(whole)} sampled {said}"
    if (slowdown := sampled.slowdown or 1.0) >= _LEAST_SLOWDOWN:
        yield f"a sampled step took {factor_text(slowdown)} the time of the other recorded ones"


def _name(function: str) -> str:
    """Return the name of a function, with its file where that is one of Python's own, such as `__call__`."""
    location, _, name = short_source(function).rpartition("): ")
    return f"{location.rpartition('(')[0]}: {name}" if name.startswith(("_", "<")) else name


def line_text(function: str, line: int) -> str:
    """Return a line of a function: `folder/file.py:30, __call__`."""
    location, _, name = short_source(function).rpartition("): ")
    return f"{location.rpartition('(')[0]}:{line}, {name}"


def _found(known: TraceFacts, phases: tuple[str, ...]) -> Location | None:
    if STACK_CATEGORY not in known.report.trace.events_by_category:
        return None
    facts, lanes = known.facts, known.facts.innermost_phases
    chosen = np.array([facts.phase_names[number].startswith(phases) for number in lanes.id.tolist()], dtype=bool)
    tracks = _main_tracks(known)[lanes.thread[chosen]]
    enclosing = known.places.idle_in(Windows(np.zeros_like(tracks), lanes.ts[chosen], lanes.ts_end[chosen], tracks))
    counts, times = Counter[str](), Counter[str]()
    for item, count, time_ns in zip(
        enclosing.places, enclosing.count.tolist(), enclosing.time_ns.tolist(), strict=True
    ):
        if item.source is not None and not any(folder in item.source for folder in NOT_OWN):
            counts[short_source(item.source)] += count
            times[short_source(item.source)] += time_ns
    if not times:
        return None
    wheres = tuple(Where(name, counts[name], ns) for name, ns in times.most_common())
    return Location(wheres[0].label, wheres[0].time_ns / max(1, int(enclosing.time_ns.sum())), wheres)


def _main_tracks(known: TraceFacts) -> np.ndarray:
    """Return the track with most slices of each thread with phases; overlapping phases have sub-tracks."""
    counts = np.bincount(known.facts.slices.track[known.facts.slices.track >= 0])
    main: dict[tuple[Any, Any], int] = {}
    for track, *thread in known.frame(_TRACKS).rows():
        best = main.setdefault((thread[0], thread[1]), track)
        if track < len(counts) and counts[track] > counts[best]:
            main[thread[0], thread[1]] = track
    return np.array([main[thread] for thread in known.facts.phase_places], dtype=np.int64)
