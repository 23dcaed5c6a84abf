"""What is around calls, operators and gaps, added up by place: rows with operator, annotation, function and modules.

A place is where the names of all that is around are the same. Python functions are in the trace processor if it was
given them, else beside it (`Stacks`). queries/call_places.sql and idle_places.sql find the same where they are in it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import numpy as np

from molprof.analysis.findings.known import Known
from molprof.analysis.frame import Frame
from molprof.analysis.reader.stacks import Nest
from molprof.analysis.trace_processor.package import Query

_SLICE = "slice.id, slice.ts, slice.ts + slice.dur AS ts_end, slice.track_id, slice.stack_id"
_WORK = Query(
    "gpu_work",
    f"SELECT {_SLICE}, kernel.stack_id AS kind, 1 AS count, work.dur AS time_ns FROM _molprof_work AS work"
    " CROSS JOIN slice AS kernel CROSS JOIN slice WHERE kernel.id = work.id AND slice.id = work.call_id",
)
# Class and name of each kind of work.
CLASSES = Query(
    "kernel_classes",
    """
SELECT work.stack_id AS kind, class.class, class.name
FROM (
  SELECT stack_id, MIN(id) AS id FROM slice WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset') GROUP BY stack_id
) AS work
CROSS JOIN slice
CROSS JOIN molprof_work_class AS class
WHERE slice.id = work.id AND class.category = slice.category AND class.name = IFNULL(slice.name, '(no name)')
""",
)
_LAUNCHES = Query(
    "gpu_calls",
    f"SELECT {_SLICE}, 1 AS count, 0 AS time_ns FROM _molprof_launch_call AS call CROSS JOIN slice"
    " WHERE slice.id = call.id",
)
# Gaps that began while the CPU was in a host sync: it could queue nothing before the GPU had caught up.
_DRAINED = Query(
    "idle_causes",
    f"""
SELECT {_SLICE}, COUNT() AS count, SUM(gap.time_ns) AS time_ns
FROM (
  SELECT idle.ts_end - idle.ts AS time_ns, MIN(common.id_1) AS sync_id
  FROM _interval_intersect!(
    (
      (SELECT _auto_id AS id, ts, 1 AS dur FROM _molprof_idle WHERE position = 'between' AND queue > 1),
      (SELECT id, ts, dur FROM molprof_host_sync WHERE dur > 0)
    ),
    ()
  ) AS common
  JOIN _molprof_idle AS idle ON idle._auto_id = common.id_0
  GROUP BY common.id_0
) AS gap
CROSS JOIN slice
WHERE slice.id = gap.sync_id
GROUP BY slice.id
""",
)
_GAPS = Query("idle_causes", "SELECT id, ts, ts + dur AS ts_end, track_id FROM _molprof_long_host_idle")
_KIND = "IIF(category = 'python_function', _molprof_function_kind!(name), category) AS kind, name"
_CLASS = "_molprof_module_class!(_molprof_module_name!(name)) AS class"
_IN_GAPS = Query(
    "modules",
    f"""
INCLUDE PERFETTO MODULE molprof.idle_causes;
SELECT {_SLICE}, {_KIND}, {_CLASS}
FROM (
  SELECT DISTINCT slice_id
  FROM _molprof_common!(
    _molprof_long_host_idle,
    (
      SELECT id, ts, dur, track_id
      FROM slice
      WHERE dur > 0 AND track_id IN (SELECT DISTINCT track_id FROM _molprof_long_host_idle)
    )
  )
) AS common
CROSS JOIN slice
WHERE slice.id = common.slice_id
""",
)
ASKED = (_WORK, CLASSES, _LAUNCHES, _DRAINED, _GAPS, _IN_GAPS)
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
Row = dict[str, Any]
# Innermost operator, annotation, function, function of a library; classes of the modules.
Place = tuple[str | None, str | None, str | None, str | None, str | None]
_NOWHERE: Place = (None, None, None, None, None)


def of_work(known: Known, classes: Collection[str], names: Collection[str] = ()) -> list[Row]:
    """The calls of work of some classes, and of some names where they are given."""
    work = known.frame(_WORK)
    return _by_place(known, work.where(is_of(known, work, classes, names)))


def is_of(known: Known, work: Frame, classes: Collection[str], names: Collection[str] = ()) -> np.ndarray:
    """Whether each row, by its `kind`, is work of these classes, and of one of these names where they are given."""
    kinds = known.frame(CLASSES)
    told = zip(kinds["class"].tolist(), kinds["name"].tolist(), strict=True)
    wanted = kinds["kind"][[kind in classes and (not names or name in names) for kind, name in told]]
    return np.isin(work["kind"], wanted)


def of_launches(known: Known) -> list[Row]:
    """Launches of kernels."""
    return _by_place(known, known.frame(_LAUNCHES))


def of_drained_gaps(known: Known) -> tuple[list[Row], int]:
    """The host syncs in which gaps began, with the time of the gaps; and the time of the syncs, ns."""
    syncs = known.frame(_DRAINED)
    return _by_place(known, syncs), int((syncs["ts_end"] - syncs["ts"]).sum()) if len(syncs) else 0


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
    gaps, slices, stacks = known.frame(_GAPS), known.frame(_IN_GAPS), known.stacks
    if not len(gaps):
        return []
    if stacks is not None:  # which have the functions that mark phases too
        slices = slices.where(np.array([kind not in _OF_STACKS for kind in slices["kind"].tolist()], dtype=np.bool_))
    threads = _threads(known, gaps)
    kinds = [(row["kind"], row["name"], row["class"]) for row in slices.to_json()]
    # Slices with the same names around them have the number of the first of them.
    _, first, same = np.unique(_numbers(slices, "stack_id"), return_index=True, return_inverse=True)
    columns = [_threads(known, slices), _numbers(slices, "ts"), _numbers(slices, "ts_end"), first[same]]
    if stacks is not None:
        calls = np.unique(stacks.during(threads, gaps["ts"], gaps["ts_end"])[1])
        more = stacks.threads[calls], stacks.starts[calls], stacks.ends[calls], stacks.names[calls] + len(slices)
        columns = [np.concatenate(pair) for pair in zip(columns, more, strict=True)]
        kinds += _kinds(known)
    nest = Nest(*columns)
    around, path, outer, name = nest.nested
    gap, found = nest.during(threads, gaps["ts"], gaps["ts_end"])
    time_ns = np.minimum(nest.ends[found], gaps["ts_end"][gap]) - np.maximum(nest.starts[found], gaps["ts"][gap])
    # By gap and slice; what is left of a gap is in none, and has the last number.
    width = len(path)
    left = np.arange(len(gaps)) * width + width - 1
    keys = np.concatenate([gap * width + found, gap * width + around[found] % width, left])
    keys, numbers = np.unique(keys, return_inverse=True)
    own = _sums(numbers, np.concatenate([time_ns, -time_ns, gaps["ts_end"] - gaps["ts"]]))
    keys, own = keys[own != 0], own[own != 0]
    places = _described({-1: _NOWHERE}, outer, [kinds[number] for number in name.tolist()])
    # A place counts once for each gap in which it has time.
    gap, slice_ = np.divmod(keys, width)
    numbers, which = np.unique(path[slice_], return_inverse=True)
    counts = _sums(np.unique(which * len(gaps) + gap) // len(gaps), 1)
    times = _sums(which, own)
    told = {-1}
    for number in numbers[times >= _LEAST_SHARE * times.sum()].tolist():
        while number not in told:
            told.add(number)
            number = int(outer[number])
    rows = []
    for number, count, time_ns in zip(numbers.tolist(), counts.tolist(), times.tolist(), strict=True):
        first = slice_[path[slice_] == number].min()
        is_long = number >= 0 and nest.ends[first] - nest.starts[first] >= _LONG_CALL_NS
        if number in told and not (is_long and kinds[name[number]][0] in ("cuda_runtime", "cuda_driver")):
            rows.append(_row(places[number], count, time_ns))
    return rows


def _by_place(known: Known, slices: Frame) -> list[Row]:
    """Slices added up by place."""
    stacks = known.stacks
    _, first, numbers = np.unique(_numbers(slices, "stack_id"), return_index=True, return_inverse=True)
    paths = np.full(len(slices), -1)
    if stacks is not None:
        around = stacks.around(_threads(known, slices), _numbers(slices, "ts"), _numbers(slices, "ts_end"))
        paths = stacks.nested[1][around]
    width = int(paths.max(initial=-1)) + 2
    keys, places = np.unique(numbers * width + paths + 1, return_inverse=True)
    ids = _numbers(slices, "id")[first].tolist()
    surroundings = _surroundings(known, ids)
    functions = known.once("functions", None, lambda: _functions(known))
    rows = []
    counts, times = (_sums(places, _numbers(slices, name)).tolist() for name in ("count", "time_ns"))
    for key, count, time_ns in zip(keys.tolist(), counts, times, strict=True):
        number, path = divmod(key, width)
        place = surroundings[ids[number]]
        rows.append(_row(place if stacks is None else (*place[:2], *functions[path - 1][2:]), count, time_ns))
    return rows


def _functions(known: Known) -> dict[int, Place]:
    """What the paths of the stacks hold."""
    if known.stacks is None:
        return {}
    kinds = _kinds(known)
    _, _, outer, name = known.stacks.nested
    return _described({-1: _NOWHERE}, outer, [kinds[number] for number in name.tolist()])


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
    found = {-1: _NOWHERE}
    for row in known.rows(Query("modules", sql)):
        found[row["id"]] = _within(found[row["parent_id"]], row["kind"], row["name"], row["class"])
    return found


def _kinds(known: Known) -> list[tuple[str | None, str, str]]:
    """Kind, name and class of the functions whose names the stacks have."""
    assert known.stacks is not None
    texts = json.dumps(known.stacks.texts).replace("'", "''")
    names = f"(SELECT value AS name FROM json_each('{texts}'))"
    sql = f"SELECT _molprof_function_kind!(name) AS kind, name, {_CLASS} FROM {names}"
    return [(row["kind"], row["name"], row["class"]) for row in known.rows(Query("modules", sql))]


def _described(found: dict[int, Place], outer: np.ndarray, kinds: list[tuple[Any, Any, Any]]) -> dict[int, Place]:
    """What paths hold, each behind the one around it."""
    for number, (inside, kind) in enumerate(zip(outer.tolist(), kinds, strict=True)):
        found[number] = _within(found[inside], *kind)
    return found


def _within(place: Place, kind: str | None, name: str, module_class: str) -> Place:
    """What is around something in a slice of a kind in a place."""
    operator, annotation, function, library, module = place
    if kind == "cpu_op":
        return name, annotation, function, library, module
    if kind == "user_annotation":
        return operator, name, function, library, module
    if kind == "function":
        return operator, annotation, name, library, module
    if kind == "library":
        return operator, annotation, function, name, module
    if kind == "module":
        return operator, annotation, function, library, f"{module}/{module_class}" if module else module_class
    return place


def _row(place: Place, count: int, time_ns: int) -> Row:
    operator, annotation, function, library, module = place
    return {
        "count": count, "time_ns": time_ns, "operator": operator, "annotation": annotation, "function": function,
        "source": function or library, "module": module,
    }  # fmt: skip


def _threads(known: Known, slices: Frame) -> np.ndarray:
    """The numbers of threads: those of the stacks, and others without."""
    numbers = {} if known.stacks is None else known.stacks.numbers
    found = {row["id"]: numbers.get((row["pid"], row["tid"])) for row in known.rows(_THREADS)}
    distinct, where = np.unique(_numbers(slices, "track_id"), return_inverse=True)
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
