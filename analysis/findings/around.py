"""What is around calls, operators and gaps, added up by place: rows with operator, annotation, function and modules.

A place is where the names of all that is around are the same. Python functions are in the trace processor if it was
given them, else beside it (`Stacks`). queries/call_places.sql and idle_places.sql find the same where they are in it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from molprof.analysis.facts import gaps
from molprof.analysis.facts.gaps import Windows
from molprof.analysis.facts.intervals import Coverage, Depth, on_one_line, overlaps
from molprof.analysis.facts.nesting import Nesting
from molprof.analysis.findings.known import Known
from molprof.analysis.frame import Frame
from molprof.analysis.trace_processor.package import Query

_SLICE = "slice.id, slice.ts, slice.ts + slice.dur AS ts_end, slice.track_id, slice.stack_id"
_LAUNCHES = Query("gpu_calls", "SELECT id FROM _molprof_launch_call ORDER BY id")
# The names around each call, as a number.
_STACKS = Query(
    "gpu_calls",
    "SELECT slice.stack_id FROM _molprof_call AS call CROSS JOIN slice WHERE slice.id = call.id ORDER BY call.id",
)
_KIND = "IIF(category = 'python_function', _molprof_function_kind!(name), category) AS kind, name"
_CLASS = "_molprof_module_class!(_molprof_module_name!(name)) AS class"
# Slices in spans of time of their track.
_IN_SPANS = f"""
INCLUDE PERFETTO MODULE intervals.intersect;
SELECT {_SLICE}, {_KIND}, {_CLASS}
FROM (
  SELECT DISTINCT id_1 AS slice_id
  FROM _interval_intersect!(
    (
      (
        SELECT key AS id, value ->> 0 AS ts, value ->> 1 AS dur, value ->> 2 AS track_id
        FROM json_each('{{spans}}')
        ORDER BY ts
      ),
      (
        SELECT id, ts, dur, track_id
        FROM slice
        WHERE dur > 0 AND track_id IN (SELECT value FROM json_each('{{tracks}}'))
      )
    ),
    (track_id)
  )
) AS common
CROSS JOIN slice
WHERE slice.id = common.slice_id
"""
_THREADS = Query(
    "modules",
    "SELECT track.id, IFNULL(process.pid, 0) AS pid, thread.tid FROM thread_track AS track JOIN thread USING (utid)"
    " LEFT JOIN process USING (upid)",
)
_OPERATORS = f"SELECT {_SLICE}, 1 AS count, slice.dur AS time_ns FROM slice WHERE slice.category = 'cpu_op' AND "
_OF_PROCESSOR = Query(
    "call_phases",
    "INCLUDE PERFETTO MODULE molprof.operators;\n" + _OPERATORS + "slice.id IN (SELECT place.id"
    " FROM molprof_call_phase AS place JOIN molprof_phase AS phase ON phase.id = place.phase_id"
    " WHERE phase.phase = 'processor') AND slice.id IN (SELECT id FROM molprof_leaf_operator)",
)
# Of many places of operators those that take longest are told.
_MOST_OPERATORS = 1000
# Places that take less of the idle time are not told, unless they are around others.
_LEAST_SHARE = 0.001
# Kinds of functions in Python stacks.
_OF_STACKS = ("function", "library", "module")
# Shorter calls do not wait.
_LONG_CALL_NS = 100_000
# Pairs of waits and what lies in them, for each of both, up to which all pairs are looked at.
_MOST_PAIRS = 20
Row = dict[str, Any]
# By kind the innermost name; of modules the classes of all.
Place = tuple[str | None, ...]
_KINDS = ("cpu_op", "user_annotation", "function", "library", "module")


def of_work(known: Known, classes: Collection[str], names: Collection[str] = ()) -> list[Row]:
    """The calls of work of some classes, and of some names where they are given."""
    work = known.facts.work
    chosen = (work.call != gaps.NONE) & is_of(known, known.facts.name_of, classes, names)
    return _by_place(known, _calls(known, work.call[chosen], 1, (work.ts_end - work.ts)[chosen]))


def is_of(known: Known, name_of: np.ndarray, classes: Collection[str], names: Collection[str] = ()) -> np.ndarray:
    """Whether each piece of work, by the index of its name, is of these classes, and of these names if given: bool."""
    told = known.facts.names
    wanted = [name.work_class in classes and (not names or name.name in names) for name in told]
    return np.array(wanted, dtype=bool)[name_of]


def of_launches(known: Known) -> list[Row]:
    """Launches of kernels."""
    launches = known.facts.calls.index(_numbers(known.frame(_LAUNCHES), "id"))
    return _by_place(known, _calls(known, launches, 1, 0))


def _stacks(known: Known) -> np.ndarray:
    """The number of the names around each call: equal ones have one number."""
    return np.unique(_numbers(known.frame(_STACKS), "stack_id"), return_inverse=True)[1].reshape(-1)


def _calls(known: Known, index: np.ndarray, count: np.ndarray | int, time_ns: np.ndarray | int) -> Frame:
    """Calls of the runtime or driver by their index, with what counts for each."""
    calls, size = known.facts.calls, len(index)
    columns = {"id": calls.id, "ts": calls.ts, "ts_end": calls.ts_end, "track_id": calls.track}
    columns["stack"] = known.once("stacks of calls", None, lambda: _stacks(known))
    columns = {name: column[index] for name, column in columns.items()}
    return Frame({**columns, "count": np.broadcast_to(count, size), "time_ns": np.broadcast_to(time_ns, size)})


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
    rows = _calls(known, drained, np.bincount(which), _sums(which, time_ns[inside]))
    return _by_place(known, rows), int((calls.ts_end - calls.ts)[drained].sum())


def of_operators(known: Known, name: str) -> list[Row]:
    """Operators of a name, where Python stacks are beside the trace."""
    if known.stacks is None:
        return []
    quoted = name.replace("'", "''")
    return _of_operators(known, Query("modules", f"{_OPERATORS}slice.name = '{quoted}'"))


def of_processor(known: Known) -> list[Row]:
    """The processor's operators that call no other."""
    return _of_operators(known, _OF_PROCESSOR)


def _of_operators(known: Known, query: Query) -> list[Row]:
    rows = sorted(_by_place(known, known.frame(query)), key=lambda row: -row["time_ns"])[:_MOST_OPERATORS]
    return [{**row, "annotation": None, "module": None, "source": row["function"]} for row in rows]


def of_idle_time(known: Known) -> list[Row]:
    """Long gaps in which nothing was queued, by what is around each moment of them, but for long GPU calls.

    A slice has the time that it shares with a gap, less that of the slices in it.
    """
    waits, stacks = known.facts.long_waits, known.stacks
    if not len(waits.ts):
        return []
    spans = Coverage(waits.track, waits.ts, waits.ts_end)
    rows = list(zip(spans.starts.tolist(), (spans.ends - spans.starts).tolist(), spans.keys.tolist(), strict=True))
    tracks = sorted(set(spans.keys.tolist()))
    slices = known.frame(Query("modules", _IN_SPANS.format(spans=json.dumps(rows), tracks=tracks)))
    if stacks is not None:  # which have the functions that mark phases too
        slices = slices.where(np.array([kind not in _OF_STACKS for kind in slices["kind"].tolist()], dtype=np.bool_))
    threads = _threads(known, waits.track)
    kinds = [(row["kind"], row["name"], row["class"]) for row in slices.to_json()]
    # Slices with the same names around them have the number of the first of them.
    _, first, same = np.unique(_numbers(slices, "stack_id"), return_index=True, return_inverse=True)
    columns = [
        _threads(known, _numbers(slices, "track_id")),
        _numbers(slices, "ts"),
        _numbers(slices, "ts_end"),
        first[same],
    ]
    if stacks is not None:
        of_thread = Coverage(threads, waits.ts, waits.ts_end)
        calls = np.flatnonzero(of_thread.covered(stacks.threads, stacks.starts, stacks.ends))
        more = stacks.threads[calls], stacks.starts[calls], stacks.ends[calls], stacks.names[calls] + len(slices)
        columns = [np.concatenate(pair) for pair in zip(columns, more, strict=True)]
        kinds += _kinds(known)
    nesting = Nesting(*columns)
    _, _, outer, name = nesting.nested
    counts, times, first = _own_of_paths(nesting, threads, waits)
    places = _of_paths(nesting, kinds)
    told = {-1}
    for number in (np.flatnonzero(times >= _LEAST_SHARE * times.sum()) - 1).tolist():
        while number not in told:
            told.add(number)
            number = int(outer[number])
    rows = []
    for number in (np.flatnonzero(counts) - 1).tolist():
        index = first[number + 1]
        is_long = number >= 0 and nesting.ends[index] - nesting.starts[index] >= _LONG_CALL_NS
        if number in told and not (is_long and kinds[name[number]][0] in ("cuda_runtime", "cuda_driver")):
            rows.append(_row(places[number], int(counts[number + 1]), int(times[number + 1])))
    return rows


def _own_of_paths(nesting: Nesting, threads: np.ndarray, waits: Windows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return by path: waits in which it has time of its own, that time, ns, and its first slice with any.

    The first entry is that of no slice, path -1.
    """
    size, segments = len(nesting.nested.outer) + 1, nesting.segments
    path = nesting.nested.path[segments.owners] + 1
    windows = threads, waits.ts, waits.ts_end
    own_ns = Depth(*windows).time(*segments[:3])
    times = np.zeros(size, dtype=np.int64)
    np.add.at(times, path, own_ns)
    first = np.full(size, len(nesting.starts))
    np.minimum.at(first, path[own_ns > 0], segments.owners[own_ns > 0])
    alone = waits.ts_end - waits.ts - Coverage(*segments[:3]).covered(*windows)
    times[0] = alone.sum()
    keys, moments = (threads, threads, *[segments.threads] * 2), (*windows[1:], segments.starts, segments.ends)
    counts = _counts(*on_one_line(keys, moments), path, size)
    counts[0] = (alone > 0).sum()
    return counts, times, first


def _counts(
    starts: np.ndarray, ends: np.ndarray, begin: np.ndarray, end: np.ndarray, path: np.ndarray, size: int
) -> np.ndarray:
    """Return of each path below `size` how many windows share time with any of its segments."""
    pairs = np.searchsorted(np.sort(starts), end, side="left") - np.searchsorted(np.sort(ends), begin, side="right")
    if pairs.sum() <= _MOST_PAIRS * (len(starts) + len(begin)):
        zero, none = (np.zeros(len(x), dtype=np.int64) for x in (starts, begin))
        window, segment = overlaps((zero, starts, ends), (none, begin, end))
        return np.bincount(np.unique(path[segment] * len(starts) + window) // max(1, len(starts)), minlength=size)
    # Many devices wait for one thread at the same time: each path is looked at alone.
    counts = np.zeros(size, dtype=np.int64)
    order = np.argsort(path, kind="stable")
    bounds = np.flatnonzero(np.diff(path[order])) + 1
    for rows in np.split(order, bounds):
        following = np.searchsorted(end[rows], starts, side="right")
        inside = following < len(rows)
        counts[path[rows[0]]] = int((begin[rows][following[inside]] < ends[inside]).sum())
    return counts


def _by_place(known: Known, slices: Frame) -> list[Row]:
    """Slices added up by place."""
    stacks = known.stacks
    numbers = slices["stack"] if "stack" in slices.names else _numbers(slices, "stack_id")
    _, first, numbers = np.unique(numbers, return_index=True, return_inverse=True)
    paths = np.full(len(slices), -1)
    if stacks is not None:
        threads, starts, ends = (_numbers(slices, name) for name in ("track_id", "ts", "ts_end"))
        around = stacks.around(_threads(known, threads), starts, ends)
        paths = stacks.nested[1][around]
    width = int(paths.max(initial=-1)) + 2
    keys, places = np.unique(numbers * width + paths + 1, return_inverse=True)
    ids = _numbers(slices, "id")[first].tolist()
    surroundings = _surroundings(known, ids)
    functions = {} if stacks is None else known.once("functions", None, lambda: _of_paths(stacks, _kinds(known)))
    rows = []
    counts, times = (_sums(places, _numbers(slices, name)).tolist() for name in ("count", "time_ns"))
    for key, count, time_ns in zip(keys.tolist(), counts, times, strict=True):
        number, path = divmod(key, width)
        place = surroundings[ids[number]]
        rows.append(_row(place if stacks is None else (*place[:2], *functions[path - 1][2:]), count, time_ns))
    return rows


def _surroundings(known: Known, ids: list[int]) -> dict[int, Place]:
    """What is around slices, themselves included, as the trace processor has it."""
    sql = f"""
SELECT slice.id, IFNULL(parent_id, -1) AS parent_id, {_KIND}, {_CLASS}
FROM (
  SELECT value AS slice_id FROM json_each('{ids}')
  UNION
  SELECT around.id FROM json_each('{ids}') AS one CROSS JOIN ancestor_slice(one.value) AS around
) AS told
CROSS JOIN slice
WHERE slice.id = told.slice_id
ORDER BY depth
"""
    return _places(tuple(row.values()) for row in known.rows(Query("modules", sql)))


def _kinds(known: Known) -> list[tuple[str | None, str, str]]:
    """Kind, name and class of the functions whose names the stacks have."""
    assert known.stacks is not None
    texts = json.dumps(known.stacks.texts).replace("'", "''")
    names = f"(SELECT value AS name FROM json_each('{texts}'))"
    sql = f"SELECT _molprof_function_kind!(name) AS kind, name, {_CLASS} FROM {names}"
    return [(row["kind"], row["name"], row["class"]) for row in known.rows(Query("modules", sql))]


def _of_paths(nesting: Nesting, kinds: Sequence[tuple[Any, ...]]) -> dict[int, Place]:
    """What paths hold. kinds: kind, name and class of each name."""
    paths = zip(nesting.nested.outer.tolist(), nesting.nested.name.tolist(), strict=True)
    return _places((path, outer, *kinds[name]) for path, (outer, name) in enumerate(paths))


def _places(rows: Iterable[tuple[Any, ...]]) -> dict[int, Place]:
    """What is around something in each of some slices or paths.

    rows: their number, that of the one around it, which is in an earlier row, or -1; kind, name and class.
    """
    found: dict[int, Place] = {-1: (None,) * len(_KINDS)}
    for number, outer, kind, name, module_class in rows:
        place = found[outer]
        if kind in _KINDS:
            at = _KINDS.index(kind)
            text = name if kind != "module" else f"{place[at]}/{module_class}" if place[at] else module_class
            place = (*place[:at], text, *place[at + 1 :])
        found[number] = place
    return found


def _row(place: Place, count: int, time_ns: int) -> Row:
    operator, annotation, function, library, module = place
    return {
        "count": count, "time_ns": time_ns, "operator": operator, "annotation": annotation, "function": function,
        "source": function or library, "module": module,
    }  # fmt: skip


def _threads(known: Known, tracks: np.ndarray) -> np.ndarray:
    """Return the number of each track's thread: those of the stacks, and others without."""
    numbers = {} if known.stacks is None else known.stacks.numbers
    found = {row["id"]: numbers.get((row["pid"], row["tid"])) for row in known.rows(_THREADS)}
    distinct, where = np.unique(tracks, return_inverse=True)
    threads = [len(numbers) + track if (thread := found.get(track)) is None else thread for track in distinct.tolist()]
    return np.array(threads, dtype=np.int64)[where]


def _sums(numbers: np.ndarray, values: np.ndarray | int) -> np.ndarray:
    """The sum of the values of each number."""
    sums = np.zeros(int(numbers.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(sums, numbers, values)
    return sums


def _numbers(frame: Frame, name: str) -> np.ndarray:
    """A column of numbers; one without rows has no type."""
    return frame[name].astype(np.int64)
