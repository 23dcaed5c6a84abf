"""Findings on recordings without warm-up: first calls, which load libraries and kernels, and compilation."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.slices import DRIVER, OPERATOR, RUNTIME
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.findings.run import recorded_compiling
from molprof.analysis.trace_processor.package import Query
from molprof.analysis.union import Union
from molprof.common.values import percent_text, time_text

# A shorter one may be what the operating system does.
_LEAST_NS = 20_000_000
# Share of a first call in which no device works: else it may wait for room in a queue.
_LEAST_IDLE = 0.9
_LEAST_SHARE = 0.02  # of the recorded time
# Names of calls that load libraries or kernels.
_LOADS = ("ModuleLoad", "LibraryLoad")
_CALLERS = """
SELECT call.id, parent.name AS operator
FROM json_each('{ids}') AS one
CROSS JOIN slice AS call ON call.id = one.value
LEFT JOIN slice AS parent ON parent.id = call.parent_id AND parent.category = 'cpu_op'
"""
# TorchScript runs this in place of a graph that it specialized for other arguments: it is made when it specializes.
_SPECIALIZED = Query(
    "gpu_calls",
    """
SELECT slice.id, parent.name AS function
FROM slice LEFT JOIN slice AS parent ON parent.id = slice.parent_id AND parent.category = 'cpu_op'
WHERE slice.category = 'cpu_op' AND slice.name = 'fallback_function'
ORDER BY slice.id
""",
)
SPECIALIZED_FIX = "Warm up with the shapes of the run before recording: TorchScript specializes in its first calls."
# So soon after it has specialized, it runs what it made.
_SOON_NS = 1_000_000


class FirstCall(Struct, frozen=True):
    """A call of the runtime or driver that does something for the first time, such as loading a module."""

    call: int  # index
    name: str
    operator: str | None  # around it
    kernel: str | None  # that it launches for the first time


def first_calls(known: TraceFacts, least_ns: int) -> list[FirstCall]:
    """Return long calls that come first, load a module, or launch the first kernel of a name.

    Host syncs are none of them.
    """
    return known.once("first calls", least_ns, lambda: _found_calls(known, least_ns))


def _found_calls(known: TraceFacts, least_ns: int) -> list[FirstCall]:
    facts = known.facts
    work, names = facts.work, facts.names
    by_start = np.argsort(work.ts, kind="stable")
    _, first = np.unique(facts.name_of[by_start], return_index=True)
    kernel_of = {
        int(work.call[index]): names[int(facts.name_of[index])].name
        for index in by_start[first].tolist()
        if work.call[index] != NONE and facts.is_kernel[index]
    }
    calls, syncs = facts.calls, set(facts.syncs.tolist())
    first_of = np.zeros(len(calls.names), dtype=np.int64)
    first_of[calls.name[::-1]] = np.arange(len(calls.id))[::-1]  # of what is set twice the last stays
    long = [call for call in np.flatnonzero(calls.ts_end - calls.ts >= least_ns).tolist() if call not in syncs]
    chosen = []
    for call in long:
        name, kernel = calls.names[calls.name[call]], kernel_of.get(call)
        loads = name is not None and any(text in name for text in _LOADS)
        if kernel is not None or loads or (name is not None and first_of[calls.name[call]] == call):
            chosen.append((call, name or "(no name)", kernel))
    ids = calls.id[[call for call, *_ in chosen]].tolist() if chosen else []
    operators = dict(known.frame(Query("gpu_calls", _CALLERS.format(ids=ids))).rows()) if ids else {}
    return [FirstCall(call, name, operators[int(calls.id[call])], kernel) for call, name, kernel in chosen]


def _idle_ns(known: TraceFacts, starts: Array, ends: Array) -> Array:
    """Return the time in each interval in which no device worked, ns."""
    work = known.facts.work
    idle: Array = ends - starts - Union(work.ts, work.ts_end).covered(starts, ends)
    return idle


class Specialization(Struct, frozen=True):
    """Time in which nothing is recorded, right before TorchScript runs a specialized function."""

    ts: int
    ts_end: int
    idle_ns: int  # of it no device worked
    function: str | None


def specializations(known: TraceFacts) -> list[Specialization]:
    """Return the specializations that take 20 ms or longer."""
    return known.once("specializations", None, lambda: _found_specializations(known))


def _found_specializations(known: TraceFacts) -> list[Specialization]:
    runs, slices = known.frame(_SPECIALIZED), known.facts.slices
    if not len(runs):
        return []
    ids = runs["id"].astype(np.int64)
    specialized = []
    recorded = slices.of(OPERATOR, RUNTIME, DRIVER)
    for track in np.unique(slices.track[ids]).tolist():
        mine = recorded[slices.track[recorded] == track]
        moments = np.sort(np.concatenate([slices.ts[mine], slices.ts_end[mine]]))
        long = np.flatnonzero(np.diff(moments) >= _LEAST_NS)
        of_track = np.flatnonzero(slices.track[ids] == track)
        starts = slices.ts[ids[of_track]]
        following = np.searchsorted(starts, moments[long + 1])
        for index, next_run in zip(long.tolist(), following.tolist(), strict=True):
            ts, ts_end = int(moments[index]), int(moments[index + 1])
            if next_run < len(starts) and starts[next_run] - ts_end <= _SOON_NS:
                (idle_ns,) = _idle_ns(known, np.array([ts]), np.array([ts_end])).tolist()
                specialized.append(Specialization(ts, ts_end, idle_ns, runs["function"][of_track[next_run]]))
    return specialized


def _where(item: Specialization) -> str:
    return "fallback_function" + (f" in {item.function}" if item.function else "")


@rule(
    id="jit_specialization",
    title="TorchScript specializes during the recording",
    fix=SPECIALIZED_FIX,
    explanation="It compiles a function anew for the types and shapes that it saw, and records nothing meanwhile.",
    query="SELECT name, ts, dur FROM slice WHERE name = 'fallback_function' ORDER BY ts",
    needs=("gpu",),
    rests_on=("gpu_idle", "host_time"),
    certain=False,
)
def jit_specialization(known: TraceFacts) -> FindingEvidence | None:
    """Fire where nothing is recorded for 20 ms or longer right before TorchScript runs a `fallback_function`.

    TorchScript makes this function when it specializes.

    Gain: that time, in which no device worked.
    """
    if not (specialized := specializations(known)) or not (idle_ns := sum(item.idle_ns for item in specialized)):
        return None
    longest = max(specialized, key=lambda item: item.ts_end - item.ts)
    length_ns = longest.ts_end - longest.ts
    return FindingEvidence(
        f"nothing is recorded for {time_text(length_ns)} before {_where(longest)}"
        + (f"; {len(specialized)} such gaps" if len(specialized) > 1 else "")
        + f"; no GPU works for {time_text(idle_ns)} of it",
        {"gaps": len(specialized), "idle_ns": idle_ns, "longest_ns": length_ns},
        known.gain(known.scope.host_part(idle_ns), "gaps before specialized functions"),
        location=_where(longest),
        part_of=("host_work",),
    )


@rule(
    id="cold_start",
    title="The recording is not warmed up",
    fix="Warm up before recording, with the shapes of the run.",
    explanation="First calls load or compile code, which a program that goes on does once.",
    query="gpu_calls",
    needs=("gpu",),
    rests_on=("host_time",),
    warning=True,
)
def cold_start(known: TraceFacts) -> FindingEvidence | None:
    """Fire where first calls, TorchScript and torch.compile take 2 % of a recording that is no run of molprof.

    First calls last 20 ms or longer, while no device works; their name or kernel comes for the first time, or they load
    a module.

    Without gain: it is a warning about all shares of the recorded span.
    """
    if known.report.run is not None:
        return None
    calls, all_calls = known.facts.calls, first_calls(known, _LEAST_NS)
    index = np.array([item.call for item in all_calls], dtype=np.int64)
    starts, ends = calls.ts[index], calls.ts_end[index]
    is_idle = (_idle_ns(known, starts, ends) >= _LEAST_IDLE * (ends - starts)).tolist()
    cold = [item for item, idle in zip(all_calls, is_idle, strict=True) if idle]
    specialized = specializations(known)
    first = np.array([item.call for item in cold], dtype=np.int64)
    parts = (
        Union(calls.ts[first], calls.ts_end[first]),
        Union(*(np.array([getattr(item, side) for item in specialized], dtype=np.int64) for side in ("ts", "ts_end"))),
        recorded_compiling(known),
    )
    scope = known.scope
    first_ns, specialized_ns, compiled_ns = (scope.spans.common_ns(part) for part in parts)
    time_ns = scope.spans.common_ns(parts[0] | parts[1] | parts[2])
    if time_ns < _LEAST_SHARE * scope.recorded_ns:
        return None
    said = []
    if first_ns:
        longest = max(cold, key=lambda item: int(calls.ts_end[item.call] - calls.ts[item.call]))
        longest_ns = int(calls.ts_end[longest.call] - calls.ts[longest.call])
        what = f"one {longest.name}" + (f" in {longest.operator}" if longest.operator else "")
        said.append(f"{what} takes {time_text(longest_ns)}")
        if len(cold) > 1:
            said.append(f"{len(cold)} such first calls take {time_text(first_ns)}")
    if specialized_ns:
        where = _where(max(specialized, key=lambda item: item.ts_end - item.ts))
        said.append(f"TorchScript specializes for {time_text(specialized_ns)} before {where}")
    if compiled_ns:
        said.append(f"torch.compile compiles for {time_text(compiled_ns)}")
    return FindingEvidence(
        f"{percent_text(time_ns / scope.recorded_ns)} of {scope.recorded_text}: {'; '.join(said)}",
        {"cold_ns": time_ns, "first_calls_ns": first_ns, "specialized_ns": specialized_ns, "compiled_ns": compiled_ns},
    )
