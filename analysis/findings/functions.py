"""The Python functions in which phases pass, operators that they call included."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from molprof.analysis.facts.gaps import Windows
from molprof.analysis.figures.model import STACK_CATEGORY
from molprof.analysis.findings.known import Known
from molprof.analysis.findings.places import Location, Where
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import short_source

# Files whose functions are no constraint of the program: transformers' own, and molprof's marks.
NOT_OWN = ("transformers/generation/", "profiler/recording/")
# Beginnings of the names of an engine's phases.
OF_ENGINE = (("mask_",), ("grammar_",))
_NEARLY_ALL = 0.9
_TRACKS = Query("annotations", "SELECT id, upid, tid FROM _molprof_thread_track ORDER BY id")


def functions_of(known: Known, phases: tuple[str, ...]) -> Location | None:
    """The Python functions in which phases of these beginnings pass; None where no stacks are recorded."""
    return known.once("functions of phases", phases, lambda: _found(known, phases))


def is_of_masks(known: Known, place: Where) -> bool:
    """Whether nearly all time of a function passes in an engine's phases of masks and grammars."""
    mine = (functions_of(known, phases) for phases in OF_ENGINE)
    times = [item.time_ns for where in mine if where for item in where.places if place.label.startswith(item.label)]
    return sum(times) >= _NEARLY_ALL * place.time_ns


def _found(known: Known, phases: tuple[str, ...]) -> Location | None:
    if STACK_CATEGORY not in known.report.trace.events_by_category:
        return None
    facts, lanes = known.facts, known.facts.innermost_phases
    chosen = np.array([facts.phase_names[number].startswith(phases) for number in lanes.id.tolist()], dtype=bool)
    tracks = _main_tracks(known)[lanes.thread[chosen]]
    found = known.places.idle_in(Windows(np.zeros_like(tracks), lanes.ts[chosen], lanes.ts_end[chosen], tracks))
    counts, times = Counter[str](), Counter[str]()
    for place, count, time_ns in zip(found.places, found.count.tolist(), found.time_ns.tolist(), strict=True):
        if place.source is not None and not any(folder in place.source for folder in NOT_OWN):
            counts[short_source(place.source)] += count
            times[short_source(place.source)] += time_ns
    if not times:
        return None
    wheres = tuple(Where(name, counts[name], ns) for name, ns in times.most_common())
    return Location(wheres[0].label, wheres[0].time_ns / max(1, int(found.time_ns.sum())), wheres)


def _main_tracks(known: Known) -> np.ndarray:
    """By thread with phases, its track with most slices: phases that partly overlap others have tracks of their own."""
    counts = np.bincount(known.facts.slices.track[known.facts.slices.track >= 0])
    main: dict[tuple[Any, Any], int] = {}
    for track, *place in known.frame(_TRACKS).rows():
        best = main.setdefault((place[0], place[1]), track)
        if track < len(counts) and counts[track] > counts[best]:
            main[place[0], place[1]] = track
    return np.array([main[place] for place in known.facts.phase_places], dtype=np.int64)
