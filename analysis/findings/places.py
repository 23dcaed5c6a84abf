"""Where in the program work is asked for, the GPU is waited for, or operators are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from molprof.analysis.findings.around import of_idle_time, of_launches, of_processor
from molprof.analysis.findings.known import Known
from molprof.common.values import count_text, percent_text, short_source, time_text

NOWHERE = "outside any operator"
_PLACES_SHOWN = 3
# Annotations that say no more than that it is a step, or compiled code.
_SAY_NOTHING = ("ProfilerStep#", "step[", "## Call CompiledFxGraph")


class Where(Struct, frozen=True):
    """A place in the program and what it asks for."""

    label: str
    count: int
    time_ns: int


def first_place(places: Sequence[Where]) -> str | None:
    """The label of the first one that is known."""
    return next((place.label for place in places if place.label != NOWHERE), None)


def listed(places: Sequence[Where], beside: bool = True) -> str:
    """The first of them, as the end of a sentence. beside: the first that is known stands beside it."""
    first = first_place(places)
    shown = [
        f"{'this one' if beside and place.label == first else place.label} {count_text(place.count)}"
        + (f" ({time_text(place.time_ns)})" if place.time_ns else "")
        for place in places[:_PLACES_SHOWN]
    ]
    return f"; by place: {', '.join(shown)}" if first and (len(places) > 1 or not beside) else ""


def host_places(known: Known) -> list[Where]:
    """Without GPU work: where the thread with most time in operators is while no thread is in one."""
    return [place for place in places_of(of_idle_time(known)) if place.label != NOWHERE]


def processor_places(known: Known) -> list[Where]:
    """The operators of the processor and where they are called, the most frequent first."""
    rows = [{**row, "source": _with_operator(row)} for row in of_processor(known)]
    return sorted(places_of(rows), key=lambda place: -place.count)


def layers_text(known: Known) -> str:
    """How many of the launches layers make that are alike."""
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
    return f"; {percent_text(count / total)} of them in {path.rsplit('/', 1)[-1]}"


def places_of(rows: Iterable[Mapping[str, Any]]) -> list[Where]:
    """The places that rows of `around` are at, the longest time first."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        one = sums.setdefault(_label(row), [0, 0])
        one[0] += row["count"]
        one[1] += row["time_ns"]
    found = [Where(label, count, time_ns) for label, (count, time_ns) in sums.items()]
    return sorted(found, key=lambda item: (-item.time_ns, -item.count, item.label))


def _with_operator(row: Mapping[str, Any]) -> str:
    """Operator and the function that calls it."""
    return " in ".join(filter(None, (row["operator"], row["source"] and short_source(row["source"]))))


def _label(row: Mapping[str, Any]) -> str:
    """Function and innermost module; without stacks operator and annotation."""
    if row["source"] is not None:
        module = (row["module"] or "").rsplit("/", 1)[-1]
        return short_source(row["source"]) + (f" in {module}" if module else "")
    annotation = row["annotation"] or ""
    names = [row["operator"], None if annotation.startswith(_SAY_NOTHING) else annotation]
    return " in ".join(filter(None, names)) or NOWHERE
