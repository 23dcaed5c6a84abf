"""Where in the program work is asked for, the GPU is waited for, or operators are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from molprof.analysis.findings.known import Known
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import count_text, percent_text, short_source, time_text

_PLACE_COLUMNS = "place.operator, place.annotation, place.source, place.module"
_WORK_PLACES = Query(
    "call_places",
    f"SELECT work.class, work.count, work.time_ns, work.place_id IS NULL AS is_lost, {_PLACE_COLUMNS}"
    " FROM molprof_launched_work AS work LEFT JOIN molprof_call_place AS place USING (place_id)",
)
_LAUNCH_PLACES = Query(
    "call_places",
    f"SELECT COUNT() AS count, 0 AS time_ns, 0 AS is_lost, {_PLACE_COLUMNS}"
    " FROM _molprof_launch_call AS call JOIN slice USING (id)"
    " JOIN _molprof_placed_call AS placed USING (stack_id)"
    " JOIN molprof_call_place AS place USING (place_id) GROUP BY place.place_id",
)
# Gaps that began while the CPU was in a host sync: it could queue nothing before the GPU had caught up.
_DRAINED = Query(
    "call_places",
    f"""INCLUDE PERFETTO MODULE molprof.idle_causes;
SELECT SUM(gap.count) AS count, SUM(gap.time_ns) AS time_ns, SUM(slice.dur) AS sync_ns, 0 AS is_lost, {_PLACE_COLUMNS}
FROM (
  SELECT COUNT() AS count, SUM(time_ns) AS time_ns, sync_id
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
  )
  GROUP BY sync_id
) AS gap
JOIN slice ON slice.id = gap.sync_id
JOIN _molprof_placed_call AS placed USING (stack_id)
JOIN molprof_call_place AS place USING (place_id)
GROUP BY place.place_id""",
)
_IDLE_PLACES = Query(
    "idle_places",
    "SELECT idle.count, idle.time_ns, idle.place_id IS NOT NULL AND place.place_id IS NULL AS is_lost,"
    f" {_PLACE_COLUMNS} FROM molprof_idle_time AS idle"
    " LEFT JOIN slice ON slice.id = idle.place_id"
    " LEFT JOIN molprof_idle_place AS place USING (place_id)"
    " WHERE IFNULL(slice.category, '') NOT IN ('cuda_runtime', 'cuda_driver') OR slice.dur < 100000",
)
PLACES = (_WORK_PLACES, _LAUNCH_PLACES, _DRAINED, _IDLE_PLACES)
# Operators of a name, or leaf operators of the processor, by place; of many places those that take longest.
_OPERATOR_PLACES = """
{include}
WITH
  one AS (
    SELECT stack_id, MIN(id) AS id, COUNT() AS count, SUM(dur) AS time_ns
    FROM slice
    WHERE category = 'cpu_op' AND {condition}
    GROUP BY stack_id
    ORDER BY time_ns DESC
    LIMIT 1000
  )
SELECT
  one.count,
  one.time_ns,
  0 AS is_lost,
  slice.name AS operator,
  NULL AS annotation,
  (
    SELECT around.name
    FROM ancestor_slice(one.id) AS around
    WHERE around.category = 'python_function' AND _molprof_function_kind!(around.name) = 'function'
    ORDER BY around.depth DESC
    LIMIT 1
  ) AS source,
  NULL AS module
FROM one
JOIN slice ON slice.id = one.id
"""
_PROCESSOR_PLACES = Query(
    "modules",
    _OPERATOR_PLACES.format(
        include="INCLUDE PERFETTO MODULE molprof.call_phases;\nINCLUDE PERFETTO MODULE molprof.operators;",
        condition="id IN (SELECT place.id FROM molprof_call_phase AS place JOIN molprof_phase AS phase"
        " ON phase.id = place.phase_id WHERE phase.phase = 'processor')"
        " AND id IN (SELECT id FROM molprof_leaf_operator)",
    ),
)
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


def work_places(known: Known, classes: Collection[str]) -> list[Where]:
    """Where GPU work of these classes is asked for, the longest time first."""
    return _where(row for row in known.near.rows(_WORK_PLACES) if row["class"] in classes)


def launch_places(known: Known) -> list[Where]:
    """Where kernels are launched, most first."""
    return _where(known.near.rows(_LAUNCH_PLACES))


def drained(known: Known) -> tuple[list[Where], int]:
    """The host syncs in which gaps began, by place: gaps and their time; and the time of these syncs, ns."""
    rows = known.near.rows(_DRAINED)
    return _where(rows), sum(row["sync_ns"] for row in rows)


def idle_places(known: Known) -> list[Where]:
    """Where the CPU is in long gaps with nothing queued, but for long GPU calls."""
    return _where(known.near.rows(_IDLE_PLACES))


def host_places(known: Known) -> list[Where]:
    """Without GPU work: where the thread with most time in operators is while no thread is in one."""
    return [place for place in idle_places(known) if place.label != NOWHERE]


def operator_places(known: Known, name: str) -> list[Where]:
    """Where operators of a name are called."""
    quoted = name.replace("'", "''")
    query = Query("modules", _OPERATOR_PLACES.format(include="", condition=f"name = '{quoted}'"))
    return [] if known.near is known else _where(known.near.rows(query))


def processor_places(known: Known) -> list[Where]:
    """The operators of the processor and where they are called, the most frequent first."""
    rows = [{**row, "source": _with_operator(row)} for row in known.near.rows(_PROCESSOR_PLACES)]
    return sorted(_where(rows), key=lambda place: -place.count)


def layers_text(known: Known) -> str:
    """How many of the launches layers make that are alike."""
    rows = [row for row in known.near.rows(_LAUNCH_PLACES) if row["module"]]
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


def _where(rows: Iterable[Mapping[str, Any]]) -> list[Where]:
    sums: dict[str, list[int]] = {}
    for row in rows:
        if row["is_lost"]:
            continue
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
