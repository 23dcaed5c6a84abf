"""Locations in the program that ask for work, that the GPU waits for, or that call operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from molprof.analysis.facts.gaps import CAUSES
from molprof.analysis.findings.around import of_calls, of_drained_gaps, of_gaps, of_idle_time, of_launches, of_processor
from molprof.analysis.findings.known import OUTSIDE_CALLS, TraceFacts
from molprof.analysis.findings.rule import FindingEvidence
from molprof.common.values import count_text, percent_text, short_source, time_text

NOWHERE, NOT_RECORDED = "outside any operator", "call not recorded"
_PLACES_SHOWN = _LEVELS_SHOWN = 3
# Of the launches of a thread, and what it has of all of them.
_NEARLY_ALL, _MAIN = 0.9, 0.25


class Where(Struct, frozen=True):
    """A location in the program, with the number of its requests and their time."""

    label: str
    count: int
    time_ns: int


class Location(Struct, frozen=True):
    """The location with most of a time; of rows without times, with most rows."""

    name: str | None  # None: at no recorded place
    ratio: float  # share of the time that is there
    places: tuple[Where, ...]  # what the time is divided into, the longest first: what `name` is one of, or holds
    is_around: bool = False  # `name` holds them


def location(known: TraceFacts, rows: Iterable[Mapping[str, Any]]) -> Location | None:
    """Return the location with most of the time of rows of `around`; None where there is none.

    It is the first of these that has at least half of it:

    - the innermost place: function and innermost module, without stacks operator and annotation, or no recorded place;
    - of all that is around, operators, annotations, functions and modules by name, the one with least of the time; of
      equal ones the innermost.

    Else the time is spread over places, and the one of the outermost that has most of it is told with its share. What
    is around nearly all launches of a thread, as the main function is, says nothing about any, and is left out.
    """
    rows = list(rows)
    weight = "time_ns" if any(row["time_ns"] for row in rows) else "count"
    total = sum(row[weight] for row in rows)
    if not total:
        return None
    rows.sort(key=lambda row: -row[weight])
    names = [_names(row) for row in rows]
    sums = Counter[str]()
    for row, mine in zip(rows, names, strict=True):
        sums.update(dict.fromkeys(mine, row[weight]))
    innermost = places_of(rows)
    name, most = innermost[0].label, getattr(innermost[0], weight)
    if 2 * most < total:
        whole = _around_all(known)
        names = [[name for name in mine if name not in whole] for mine in names]
        held = [name for name, amount in sums.items() if 2 * amount >= total and name not in whole]
        if not held:
            outermost = [(mine[-1] if mine else _label(row), row) for row, mine in zip(rows, names, strict=True)]
            return _location(_added_up(outermost), total, weight)
        name = min(held, key=lambda name: sums[name])
    elif sums[name] <= most or name in _around_all(known):
        return _location(innermost, total, weight)
    inside = [(_inside(row, mine, name), row) for row, mine in zip(rows, names, strict=True) if name in mine]
    return Location(name, sums[name] / total, tuple(_added_up(inside)), is_around=True)


def _inside(row: Mapping[str, Any], names: list[str], name: str) -> str:
    """Return the enclosing name one level inside `name`, at most the row's label."""
    label = _label(row)
    return names[max(names.index(name) - 1, names.index(label) if label in names else 0)]


def _around_all(known: TraceFacts) -> frozenset[str]:
    """Return the names that enclose nearly all launches of a thread with many launches."""
    return known.once("around all", None, lambda: _found_around_all(known))


def _found_around_all(known: TraceFacts) -> frozenset[str]:
    launches = known.facts.launches
    tracks, counts = np.unique(known.facts.calls.own_track[launches], return_counts=True)
    names: set[str] = set()
    for track in tracks[counts >= _MAIN * len(launches)]:
        index = launches[known.facts.calls.own_track[launches] == track]
        sums = Counter[str]()
        for row in of_calls(known, index, np.zeros(len(index), dtype=np.int64)):
            sums.update(dict.fromkeys(_names(row), row["count"]))
        names |= {name for name, count in sums.items() if count >= _NEARLY_ALL * len(index)}
    return frozenset(names)


def _location(wheres: Sequence[Where], total: int, weight: str) -> Location:
    first = wheres[0]
    ratio = getattr(first, weight) / total
    return Location(None if first.label in (NOWHERE, NOT_RECORDED) else first.label, ratio, tuple(wheres))


def main_idle(known: TraceFacts) -> tuple[str, Location | None] | None:
    """Return the main cause of idle time between work, and where most of that time is; None without any.

    In long gaps it is where the CPU was, in shorter ones where the call is that ends them; None where the CPU is not
    waited for.
    """
    idle, parts = known.facts.idle, known.facts.parts
    is_between = idle.position[parts.idle] == 0
    times = np.bincount(parts.cause, np.where(is_between, known.part_times, 0), len(CAUSES))
    if not times.any():
        return None
    cause = max(zip(times.tolist(), CAUSES, strict=True))[1]
    is_mine, is_long = is_between & (parts.cause == CAUSES.index(cause)), idle.is_long[parts.idle]
    if cause == "cpu_waited":
        return cause, location(known, of_drained_gaps(known).rows)
    if cause in ("cpu_calls", "launching"):
        return cause, location(known, of_gaps(known, is_mine))
    if cause not in OUTSIDE_CALLS:  # the device waits, and what for is not recorded
        return cause, None
    rows = of_idle_time(known, known.long_waits(cause))
    if cause in ("cpu_operators", "cpu_outside"):
        rows = [row for row in rows if (row["operator"] is None) == (cause == "cpu_outside")]
    return cause, location(known, of_gaps(known, is_mine & ~is_long) + rows)


def placed(evidence: FindingEvidence, where: Location | None) -> FindingEvidence:
    """Return the finding with the location of most of its time, at the end of its evidence too."""
    if where is None:
        return evidence
    return replace(
        evidence, evidence=evidence.evidence + listed(where), location=where.name, location_ratio=where.ratio
    )


def listed(where: Location) -> str:
    """Return the first of its locations, as the end of a sentence."""
    shown = [
        f"{'this one' if item.label == where.name else item.label} {count_text(item.count)}"
        + (f" ({time_text(item.time_ns)})" if item.time_ns else "")
        for item in where.places[:_PLACES_SHOWN]
    ]
    if len(where.places) == 1 and where.places[0].label in (where.name, NOWHERE, NOT_RECORDED):
        return ""
    return f"; {'in it' if where.is_around else 'by place'}: {', '.join(shown)}"


def processor_places(known: TraceFacts) -> list[Where]:
    """Return the operators of the processor and their callers, the most frequent first."""
    rows = [{**row, "source": _with_operator(row)} for row in of_processor(known)]
    return sorted(places_of(rows), key=lambda item: -item.count)


def layers_text(known: TraceFacts) -> str:
    """Return how many of the launches equal layers make, as text."""
    rows = [row for row in of_launches(known) if row["module"]]
    total = known.report.counts.launches
    outer = Counter[str]()
    for row in rows:
        for depth in range(1, row["module"].count("/") + 2):
            outer["/".join(row["module"].split("/")[:depth])] += row["count"]
    inner = [(count, path) for path, count in outer.items() if path.count("/") == 1 and count >= 0.5 * total]
    if not inner or not total:
        return ""
    count, path = max(inner)
    return f"; {percent_text(count / total)} of the launches are in {path.rsplit('/', 1)[-1]}"


def places_of(rows: Iterable[Mapping[str, Any]]) -> list[Where]:
    """Return the innermost locations of rows of `around`, the longest time first."""
    return _added_up((_label(row), row) for row in rows)


def _added_up(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Where]:
    sums: dict[str, list[int]] = {}
    for label, row in rows:
        one = sums.setdefault(label, [0, 0])
        one[0] += row["count"]
        one[1] += row["time_ns"]
    wheres = [Where(label, count, time_ns) for label, (count, time_ns) in sums.items()]
    return sorted(wheres, key=lambda item: (-item.time_ns, -item.count, item.label))


def path_text(row: Mapping[str, Any]) -> str:
    """Return the innermost location of a row with enough enclosing names to find it."""
    names = _names(row)
    return " < ".join(names[names.index(_label(row)) :][:_LEVELS_SHOWN]) if names else _label(row)


def _names(row: Mapping[str, Any]) -> list[str]:
    """Return the enclosing names of a row, innermost first.

    Its label, then functions and modules, else operators.
    """
    label = _label(row)
    if label in (NOWHERE, NOT_RECORDED):
        return []
    kinds = ("function", "module", "user_annotation") if row["source"] is not None else ("cpu_op", "user_annotation")
    # First a function in whatever module.
    names = [label] if row["source"] is None else [_function(row["source"], None), label]
    for level in row["levels"](kinds):
        names.append(_function(level.name, level.module) if level.kind == "function" else level.name)
    return list(dict.fromkeys(names))


@lru_cache(maxsize=1 << 16)
def _function(source: str, module: str | None) -> str:
    return short_source(source) + (f" in {module}" if module else "")


def _with_operator(row: Mapping[str, Any]) -> str:
    """Return the operator and the function that calls it."""
    return " in ".join(filter(None, (row["operator"], row["source"] and short_source(row["source"]))))


def _label(row: Mapping[str, Any]) -> str:
    """Return function and innermost module; without stacks operator and annotation."""
    if not row["is_recorded"]:
        return NOT_RECORDED
    if row["source"] is not None:
        return _function(row["source"], (row["module"] or "").rsplit("/", 1)[-1])
    operator = next((level.name for level in row["levels"](("cpu_op",))), None)
    return " in ".join(filter(None, (operator, row["annotation"]))) or NOWHERE
