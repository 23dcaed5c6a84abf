"""Calls, operators and idle time summed by location: rows with operator, annotation, function and modules."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from molprof.analysis.facts import gaps
from molprof.analysis.facts.intervals import key_sums
from molprof.analysis.facts.places import NO_LEVEL, NOWHERE, Enclosing, Level
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.frame import Frame
from molprof.analysis.trace_processor.package import Query

_OPERATORS = "SELECT slice.id, slice.stack_id FROM slice WHERE slice.category = 'cpu_op' AND "
_OF_PROCESSOR = Query(
    "call_phases",
    _OPERATORS + "slice.id IN (SELECT place.id"
    " FROM molprof_call_phase AS place JOIN molprof_phase AS phase ON phase.id = place.phase_id"
    " WHERE phase.phase = 'processor')",
)
# Annotations that say no more than that it is a step, or compiled code.
_SAY_NOTHING = ("ProfilerStep#", "step[", "## Call CompiledFxGraph")
# What autograd records around each node, which has a record of its own.
_AUTOGRAD = "autograd::engine::evaluate_function: "
# Of which step or batch an annotation is.
_NUMBERS = re.compile(r"( \w+=\d+)+$|#\d+$")
# Of many places of operators those that take longest are told.
_MOST_OPERATORS = 1000
Row = dict[str, Any]


def of_work(known: TraceFacts, classes: Collection[str], names: Collection[str] = ()) -> list[Row]:
    """Return the calls of work of some classes, of some names only if given."""
    work = known.facts.work
    chosen = (work.call != gaps.NONE) & is_of(known, known.facts.name_of, classes, names)
    return _calls(known, work.call[chosen], 1, (work.ts_end - work.ts)[chosen])


def of_pieces(known: TraceFacts, times: np.ndarray) -> list[Row]:
    """Return the calls of pieces of work, each with the time that counts, ns; of a run, those in recorded steps."""
    work = known.facts.work
    chosen = np.flatnonzero(times)
    if known.report.run is not None:
        chosen = chosen[known.scope.spans.holds(work.ts[chosen])]
    return _known_calls(known, work.call[chosen], times[chosen])


def of_gaps(known: TraceFacts, is_chosen: np.ndarray) -> list[Row]:
    """Return the calls that end or precede idle time, each with the time of its chosen parts, ns."""
    idle, times = known.facts.idle, np.where(is_chosen, known.part_times, 0)
    sums = key_sums(known.facts.parts.idle, times, len(idle.ts))
    some = np.flatnonzero(sums)
    return _known_calls(known, idle.call[some], sums[some])


def of_calls(known: TraceFacts, index: np.ndarray, times: np.ndarray) -> list[Row]:
    """Return calls by their index, each with its time, ns."""
    return _calls(known, index, 1, times)


def _known_calls(known: TraceFacts, index: np.ndarray, times: np.ndarray) -> list[Row]:
    """Return calls with their times, and one row for work without a recorded call."""
    is_known = index != gaps.NONE
    rows = _calls(known, index[is_known], 1, times[is_known])
    if not is_known.all():
        (row,) = _rows(known, [(NOWHERE, int((~is_known).sum()), int(times[~is_known].sum()))])
        rows.append({**row, "is_recorded": False})
    return rows


def is_of(known: TraceFacts, name_of: np.ndarray, classes: Collection[str], names: Collection[str] = ()) -> np.ndarray:
    """Return True for pieces of work, by the index of their name, of these classes, and these names if given: bool."""
    names_of_work = known.facts.names
    wanted = [name.work_class in classes and (not names or name.name in names) for name in names_of_work]
    is_wanted: np.ndarray = np.array(wanted, dtype=bool)[name_of]
    return is_wanted


def of_launches(known: TraceFacts) -> list[Row]:
    """Return the launches of kernels."""
    return _calls(known, known.facts.launches, 1, 0)


def _calls(known: TraceFacts, index: np.ndarray, counts: np.ndarray | int, times: np.ndarray | int) -> list[Row]:
    """Return calls of the runtime or driver summed by location. counts, times: of each call."""
    return _rows(
        known, known.places.added_up(known.facts.calls.id[index], known.facts.call_stacks[index], counts, times)
    )


class Drained(NamedTuple):
    """The host syncs in which gaps began."""

    rows: list[Row]  # with the time of the gaps
    sync_ns: int  # time of the syncs
    most_ns: int  # time of the gaps, of each at most that of its sync
    idle: np.ndarray  # indices of the gaps


def of_drained_gaps(known: TraceFacts) -> Drained:
    """Return the host syncs in which gaps began.

    While the CPU was in a sync it could queue nothing before the GPU had caught up. Left out are syncs that outlast all
    recorded work: what ran meanwhile is not known.
    """
    calls, idle = known.facts.calls, known.facts.idle
    syncs = np.setdiff1d(known.facts.syncs, known.facts.long_syncs.call)
    chosen = np.flatnonzero((idle.position == 0) & (idle.queue > gaps.QUEUED))
    # The first sync that ends later, if it began by then.
    first = np.searchsorted(np.maximum.accumulate(calls.ts_end[syncs]), idle.ts[chosen], side="right")
    inside = np.flatnonzero(first < len(syncs))
    inside = inside[calls.ts[syncs[first[inside]]] <= idle.ts[chosen[inside]]]
    if not len(inside):
        return Drained([], 0, 0, inside)
    gap, sync = chosen[inside], syncs[first[inside]]
    time_ns, length_ns = (idle.ts_end - idle.ts)[gap], calls.ts_end - calls.ts
    drained, which = np.unique(sync, return_inverse=True)
    # A sync may be waited for by several devices, each for its length.
    _, of_device = np.unique(which * len(np.unique(idle.device)) + idle.device[gap], return_inverse=True)
    most_ns = np.zeros(int(of_device.max()) + 1, dtype=np.int64)
    np.maximum.at(most_ns, of_device, length_ns[sync])
    most_ns = np.minimum(most_ns, key_sums(of_device, time_ns, len(most_ns)))
    rows = _calls(known, drained, np.bincount(which), key_sums(which, time_ns, len(drained)))
    return Drained(rows, int(length_ns[drained].sum()), int(most_ns.sum()), gap)


def of_operators(known: TraceFacts, name: str) -> list[Row]:
    """Return the operators of a name; none unless Python stacks are read apart from the engine."""
    if known.stacks is None:
        return []
    quoted = name.replace("'", "''")
    return _of_operators(known, known.frame(Query("python_functions", f"{_OPERATORS}slice.name = '{quoted}'")))


def of_processor(known: TraceFacts) -> list[Row]:
    """Return the processor's operators that call no other."""
    operators = known.frame(_OF_PROCESSOR)
    return _of_operators(known, operators.where(np.isin(operators["id"], known.facts.leaf_operators)))


def _of_operators(known: TraceFacts, frame: Frame) -> list[Row]:
    ids, numbers = (frame[name].astype(np.int64) for name in ("id", "stack_id"))
    times = (known.facts.slices.ts_end - known.facts.slices.ts)[ids]
    rows = sorted(_rows(known, known.places.added_up(ids, numbers, 1, times)), key=lambda row: -row["time_ns"])
    return [{**row, "annotation": None, "module": None, "source": row["function"]} for row in rows[:_MOST_OPERATORS]]


def of_idle_time(known: TraceFacts, windows: gaps.Windows | None = None) -> list[Row]:
    """Return the time in which devices wait for threads, by enclosing slices; without long GPU calls.

    windows: that time; None: all long gaps in which nothing was queued.
    """
    idle = known.places.idle if windows is None else known.places.idle_in(windows)
    rows = zip(idle.places, idle.count.tolist(), idle.time_ns.tolist(), strict=True)
    chosen = (idle.is_shown & ~idle.is_call).tolist()
    return _rows(known, (row for row, is_chosen in zip(rows, chosen, strict=True) if is_chosen))


def _rows(known: TraceFacts, sums: Iterable[tuple[Enclosing, int, int]]) -> list[Row]:
    return [
        {
            "count": count, "time_ns": time_ns, "operator": enclosing.operator, "function": enclosing.function,
            "library": enclosing.library, "source": enclosing.source, "module": enclosing.module,
            "levels": partial(_levels, known, enclosing),
            "annotation": next(_levels(known, enclosing, ("user_annotation",)), NO_LEVEL).name or None,
            "is_recorded": True,
        }
        for enclosing, count, time_ns in sums
    ]  # fmt: skip


def _levels(known: TraceFacts, enclosing: Enclosing, kinds: Collection[str]) -> Iterator[Level]:
    """Yield the enclosing names, innermost first, without annotations of steps and without numbers."""
    for level in enclosing.levels():
        if level.kind not in kinds or level.name.startswith(_SAY_NOTHING):
            continue
        if level.kind != "user_annotation":
            yield level._replace(name=level.name.removeprefix(_AUTOGRAD))
        elif level.name not in known.step_names:
            yield level._replace(name=_NUMBERS.sub("", level.name))
