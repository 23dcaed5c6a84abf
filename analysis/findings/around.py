"""Calls, operators and idle time added up by place: rows with operator, annotation, function and modules."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from molprof.analysis.facts import gaps
from molprof.analysis.facts.places import Place, summed
from molprof.analysis.findings.known import Known
from molprof.analysis.frame import Frame
from molprof.analysis.trace_processor.package import Query

_OPERATORS = "SELECT slice.id, slice.stack_id FROM slice WHERE slice.category = 'cpu_op' AND "
_OF_PROCESSOR = Query(
    "call_phases",
    _OPERATORS + "slice.id IN (SELECT place.id"
    " FROM molprof_call_phase AS place JOIN molprof_phase AS phase ON phase.id = place.phase_id"
    " WHERE phase.phase = 'processor')",
)
# Of many places of operators those that take longest are told.
_MOST_OPERATORS = 1000
Row = dict[str, Any]


def of_work(known: Known, classes: Collection[str], names: Collection[str] = ()) -> list[Row]:
    """The calls of work of some classes, and of some names where they are given."""
    work = known.facts.work
    chosen = (work.call != gaps.NONE) & is_of(known, known.facts.name_of, classes, names)
    return _calls(known, work.call[chosen], 1, (work.ts_end - work.ts)[chosen])


def is_of(known: Known, name_of: np.ndarray, classes: Collection[str], names: Collection[str] = ()) -> np.ndarray:
    """Whether each piece of work, by the index of its name, is of these classes, and of these names if given: bool."""
    told = known.facts.names
    wanted = [name.work_class in classes and (not names or name.name in names) for name in told]
    found: np.ndarray = np.array(wanted, dtype=bool)[name_of]
    return found


def of_launches(known: Known) -> list[Row]:
    """Launches of kernels."""
    return _calls(known, known.facts.launches, 1, 0)


def _calls(known: Known, index: np.ndarray, counts: np.ndarray | int, times: np.ndarray | int) -> list[Row]:
    """Calls of the runtime or driver by their index, with what counts for each, by place."""
    return _rows(known.places.added_up(known.facts.calls.id[index], known.facts.call_stacks[index], counts, times))


def of_drained_gaps(known: Known) -> tuple[list[Row], int]:
    """The host syncs in which gaps began, with the time of the gaps; and the time of the syncs, ns.

    While the CPU was in a sync it could queue nothing before the GPU had caught up.
    """
    calls, idle, syncs = known.facts.calls, known.facts.idle, np.sort(known.facts.syncs)
    chosen = (idle.position == 0) & (idle.queue > gaps.QUEUED)
    ts, time_ns = idle.ts[chosen], (idle.ts_end - idle.ts)[chosen]
    # The first sync that ends later, if it began by then.
    first = np.searchsorted(np.maximum.accumulate(calls.ts_end[syncs]), ts, side="right")
    inside = np.flatnonzero(first < len(syncs))
    inside = inside[calls.ts[syncs[first[inside]]] <= ts[inside]]
    if not len(inside):
        return [], 0
    drained, which = np.unique(syncs[first[inside]], return_inverse=True)
    rows = _calls(known, drained, np.bincount(which), summed(which, time_ns[inside], len(drained)))
    return rows, int((calls.ts_end - calls.ts)[drained].sum())


def of_operators(known: Known, name: str) -> list[Row]:
    """Operators of a name, where Python stacks are beside the trace."""
    if known.stacks is None:
        return []
    quoted = name.replace("'", "''")
    return _of_operators(known, known.frame(Query("python_functions", f"{_OPERATORS}slice.name = '{quoted}'")))


def of_processor(known: Known) -> list[Row]:
    """The processor's operators that call no other."""
    found = known.frame(_OF_PROCESSOR)
    return _of_operators(known, found.where(np.isin(found["id"], known.facts.leaf_operators)))


def _of_operators(known: Known, found: Frame) -> list[Row]:
    ids, numbers = (found[name].astype(np.int64) for name in ("id", "stack_id"))
    times = (known.facts.slices.ts_end - known.facts.slices.ts)[ids]
    rows = sorted(_rows(known.places.added_up(ids, numbers, 1, times)), key=lambda row: -row["time_ns"])
    return [{**row, "annotation": None, "module": None, "source": row["function"]} for row in rows[:_MOST_OPERATORS]]


def of_idle_time(known: Known) -> list[Row]:
    """Long gaps in which nothing was queued, by what is around each moment of them, but for long GPU calls."""
    idle = known.places.idle
    rows = zip(idle.places, idle.count.tolist(), idle.time_ns.tolist(), strict=True)
    chosen = (idle.is_shown & ~idle.is_call).tolist()
    return _rows(row for row, is_chosen in zip(rows, chosen, strict=True) if is_chosen)


def _rows(found: Iterable[tuple[Place, int, int]]) -> list[Row]:
    return [
        {
            "count": count, "time_ns": time_ns, "operator": place.operator, "annotation": place.annotation,
            "function": place.function, "source": place.source, "module": place.module,
        }
        for place, count, time_ns in found
    ]  # fmt: skip
