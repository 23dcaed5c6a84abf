"""Declaration of rules, and queries for their operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from molprof.analysis.figures.figure import any_masks
from molprof.analysis.figures.model import Gain, Group, ServedTimes
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.frame import Frame
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query
from molprof.analysis.union import Union

# Less is not worth a finding.
LEAST_GAIN = 0.01

# A thread of a process; a slice on a sub-track still belongs to its thread.
_THREAD = "(track.upid << 33) + track.tid AS thread"
_OPERATORS = f"""
SELECT slice.id, slice.ts, slice.ts + slice.dur AS ts_end, {_THREAD}, slice.name
FROM ({{}}) AS named
CROSS JOIN slice ON slice.id = named.id
JOIN _molprof_thread_track AS track ON track.id = slice.track_id
ORDER BY slice.ts, slice.dur DESC, slice.id
"""
_NAMED = "SELECT id FROM slice WHERE +category = 'cpu_op' AND name GLOB '{}'"
# GPU work by its call.
_LAUNCHED = Query(
    "gpu_work",
    f"""INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.gpu_calls;
SELECT call.ts, {_THREAD}, work.dur AS gpu_ns
FROM _molprof_work AS work
JOIN _molprof_call AS call ON call.id = work.call_id
JOIN _molprof_thread_track AS track ON track.id = call.track_id
""",
)


# GLOB patterns of operators that compute attention, whatever the backend.
ATTENTION = ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_*attention*")


def operators_named(*patterns: str) -> Query:
    """Return a query for operators that match one of the GLOB patterns, in order of start, outer before inner."""
    # The engine finds names by one pattern without looking at every slice: of those alone it asks the category, by "+".
    return Query("annotations", _OPERATORS.format(" UNION ".join(_NAMED.format(pattern) for pattern in patterns)))


def within(known: TraceFacts, operators: Frame, *phases: str) -> Frame:
    """Return the operators that began in one of the phases, the innermost of their threads."""
    facts = known.facts
    wanted = [number for number, name in facts.phase_names.items() if name in phases]
    return operators.where(np.isin(facts.placed(operators["id"].astype(np.int64), facts.phase_lanes), wanted))


def host_ns(operators: Frame) -> int:
    """Return the time in operators, ns: nested calls count once, threads are summed."""
    return sum(Union(mine["ts"], mine["ts_end"]).length_ns for mine in _threads(operators).values())


def host_times(known: TraceFacts, operators: Frame, phases: Collection[str]) -> list[tuple[int, str]]:
    """Return the time in operators of each phase that has any, ns, and the phase."""
    times = [(host_ns(within(known, operators, phase)), phase) for phase in phases]
    return [time for time in times if time[0]]


def launched(engine: TraceProcessor, operators: Frame) -> tuple[int, int]:
    """Return the count of GPU work launched inside operators, and the sum of its times, ns."""
    calls = Frame(engine.query(_LAUNCHED.text))
    count = gpu_ns = 0
    for thread, mine in _threads(operators).items():
        there = calls.where(calls["thread"] == thread)
        moments = there["ts"].astype(np.int64)
        inside = Union(mine["ts"], mine["ts_end"]).covered(moments, moments + 1) > 0
        count += int(inside.sum())
        gpu_ns += int(there["gpu_ns"][inside].sum())
    return count, gpu_ns


def _threads(operators: Frame) -> dict[int, Frame]:
    threads = operators["thread"]
    return {thread: operators.where(threads == thread) for thread in dict.fromkeys(threads.tolist())}


Need = Literal["report", "time", "gpu", "no_gpu", "launches", "run", "timed", "passes", "steps", "processor", "masks"]
_HAS: Mapping[str, Callable[[TraceFacts], bool]] = {
    "report": lambda known: True,
    "time": lambda known: known.any_scope is not None,
    "gpu": lambda known: known.any_scope is not None and known.scope.devices > 0,  # GPU work, and time
    "no_gpu": lambda known: known.any_scope is not None and not known.scope.devices,
    "launches": lambda known: known.report.counts.launches > 0,
    "run": lambda known: known.report.run is not None,
    "passes": lambda known: isinstance(known.report.served, ServedTimes) or _HAS["timed"](known),  # at a client too
    "timed": lambda known: known.report.run is not None and bool(known.run.wall_ns.median),  # unprofiled passes
    "steps": lambda known: known.any_scope is not None and bool(known.scope.steps),  # recorded steps of a run
    "processor": lambda known: known.report.run is not None and known.run.setup.processor is not None,
    "masks": lambda known: any_masks(known.report.table("engine_phases")),
}


class FindingEvidence(Struct, frozen=True):
    """The evidence of a finding, with figures; other fields given replace those of the rule."""

    evidence: str
    figures: dict[str, int | float]
    gain: Gain | None = None
    fix: str = ""
    explanation: str = ""
    location: str | None = None  # as `places.location` finds it
    location_ratio: float | None = None
    share: float | None = None  # of a note: what part of the time it is about
    part_of: tuple[str, ...] = ()  # ids of findings whose time may hold the time of this one
    title: str = ""
    query: str = ""
    note: bool = False  # nothing to do about it here, though its rule is no note


class Rule(Struct, frozen=True, kw_only=True):
    """A finding, declared with its requirements of a trace; `find` returns its evidence, or None."""

    id: str
    title: str
    fix: str
    explanation: str
    query: str  # argument of `molprof query` that shows the evidence
    find: Callable[[TraceFacts], FindingEvidence | None]
    needs: tuple[Need, ...] = ()
    rests_on: tuple[Group, ...] = ()  # groups of figures behind evidence and gain; none: the manifest alone
    least_gain: float = LEAST_GAIN
    certain: bool = True  # False: it infers from names or shapes
    weight: float = 1.0  # part of its bound that such a fix reaches as a rule, for the order of findings alone
    note: bool = False  # nothing to do about it
    warning: bool = False  # what a reader must know before all findings
    leads: bool = False  # it stands before all findings but warnings, whatever they gain
    of_steps: bool = False  # `least_gain` is of the time of such steps as were recorded, not of the run

    def applied(self, known: TraceFacts) -> FindingEvidence | None:
        """Return the finding if the trace meets the rule's requirements and the gain is not too small.

        Nothing where a check says that figures which it rests on are not to be had.
        """
        is_had = known.lost.isdisjoint(self.rests_on) and all(_HAS[need](known) for need in self.needs)
        evidence = self.find(known) if is_had else None
        if evidence is None or evidence.gain is None:
            return evidence
        least = self.least_gain * (known.scope.wall_ratio if self.of_steps else 1)
        return None if evidence.gain.high < least else evidence


def rule(**declared: Any) -> Callable[[Callable[[TraceFacts], FindingEvidence | None]], Rule]:
    """Make a function a `Rule` of these fields."""
    return lambda find: Rule(find=find, **declared)
