"""Facts as tables of the trace processor: each is made when SQL that reads it is asked.

SQL modules read them as `_molprof_fact_NAME`. A new one is an entry of TABLES: its columns with their types in SQL, and
a function from `Facts` to its columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from molprof.analysis.facts import clocks, coverage, gaps, graph_parts, graphs, intervals, missing, statements
from molprof.analysis.facts.facts import Facts, Lanes
from molprof.analysis.facts.gaps import CAUSES, NONE, POSITIONS, Array
from molprof.analysis.facts.places import Place, Places, summed
from molprof.analysis.facts.slices import DRIVER, INSTANT, OPERATOR, RUNTIME
from molprof.common.errors import MolprofError
from molprof.queries import FACTS, PACKAGE, facts_in, modules

if TYPE_CHECKING:
    from molprof.analysis.trace_processor import TraceProcessor

Column = Sequence[Any] | np.ndarray


class FactTable(Struct, frozen=True):
    """A table of facts."""

    columns: tuple[str, ...]  # name and type of each, as SQL declares them
    make: Callable[[Facts], Sequence[Column]]  # the values of each; NONE of an id is NULL


def names(texts: Sequence[str | None], numbers: Array) -> list[str | None]:
    """Return the text of each number; None for NONE."""
    return [None if number == NONE else texts[number] for number in numbers.tolist()]


def ids(known: Array, index: Array) -> list[int | None]:
    """Return the id of each index; None for NONE."""
    return [None if number == NONE else int(known[number]) for number in index.tolist()]


def known(numbers: Array, absent: int) -> list[int | None]:
    """Return the numbers, with None for those that are absent."""
    return [None if number == absent else number for number in numbers.tolist()]


def _devices(facts: Facts) -> Sequence[Column]:
    span, idle, count = gaps.busy_time(facts.work, facts.gaps, len(facts.devices))
    return facts.devices, span, span - idle, idle, count


def _device_gaps(facts: Facts) -> Sequence[Column]:
    found = facts.gaps
    return names(facts.devices, facts.work.device[found.next]), found.ts, found.ts_end


def _device_work(facts: Facts) -> Sequence[Column]:
    work = facts.work
    before = intervals.ends_before(work.device, work.ts, work.ts_end)
    return work.id, [None if last == NONE else int(work.ts_end[last]) for last in before.tolist()]


def _idle_sums(facts: Facts) -> Sequence[Column]:
    idle, parts = facts.idle, facts.parts
    of = parts.idle
    keys = idle.device[of], idle.position[of], idle.is_long[of].astype(np.int64), parts.cause
    rows, counts, times, longest = gaps.summed(keys, parts.time_ns)
    return (
        [facts.devices[row[0]] for row in rows],
        [POSITIONS[row[1]] for row in rows],
        [row[2] for row in rows],
        [CAUSES[row[3]] for row in rows],
        counts,
        times,
        longest,
    )


def _idle_gaps(facts: Facts) -> Sequence[Column]:
    idle, size = facts.idle, len(facts.idle.ts)
    return (
        np.arange(size),
        names(facts.devices, idle.device),
        names(POSITIONS, idle.position),
        idle.ts,
        idle.ts_end,
        ids(facts.work.id, idle.next),
        names(CAUSES, gaps.largest_part(facts.parts, size)),
    )


def _concurrency(facts: Facts) -> Sequence[Column]:
    device, running, time_ns = coverage.concurrency(facts.work)
    return names(facts.devices, device), running, time_ns


def _launches(facts: Facts) -> Sequence[Column]:
    """What each launch started; its device is the first of several."""
    work, calls = facts.work, facts.calls
    launches = np.sort(np.append(facts.launches, facts.graph_launches))
    started = work.call != NONE
    size = len(calls.id)
    device, first_ts = (np.full(size, np.iinfo(np.int64).max) for _ in range(2))
    np.minimum.at(device, work.call[started], work.device[started])
    np.minimum.at(first_ts, work.call[started], work.ts[started])
    kernels = summed(work.call[started], facts.is_kernel[started], size)[launches]
    device = np.where(device == np.iinfo(np.int64).max, NONE, device)[launches]
    has_work = device != NONE
    ts = calls.ts[launches]
    depth = np.where(has_work, gaps.queue_depth(work, device, ts), NONE)
    delay = [
        at - begin if is_known else None
        for at, begin, is_known in zip(first_ts[launches].tolist(), ts.tolist(), has_work.tolist(), strict=True)
    ]
    return calls.id[launches], names(facts.devices, device), kernels, delay, known(depth, NONE)


def _exposed_names(facts: Facts) -> Sequence[Column]:
    work, names_ = facts.work, facts.names
    found = coverage.exposure(work, facts.name_of, len(names_))
    count, time_ns = _totals(facts.name_of, work, len(names_))
    return np.arange(len(names_)), [name.work_class for name in names_], count, time_ns, found.busy, found.exposed


def _exposed_classes(facts: Facts) -> Sequence[Column]:
    classes, class_of = _classes(facts)
    found = coverage.exposure(facts.work, class_of, len(classes))
    return classes, *_totals(class_of, facts.work, len(classes)), found.busy, found.exposed


def _class_overlap(facts: Facts) -> Sequence[Column]:
    classes, class_of = _classes(facts)
    one, other = np.nonzero(shared := coverage.shared_time(facts.work, class_of, len(classes)))
    return [classes[number] for number in one], [classes[number] for number in other], shared[one, other]


def _classes(facts: Facts) -> tuple[list[str], Array]:
    """Classes of work in order, and the index of that of each piece of work."""
    classes = sorted({name.work_class for name in facts.names})
    of_name = np.array([classes.index(name.work_class) for name in facts.names], dtype=np.int64)
    return classes, of_name[facts.name_of]


def _totals(keys: Array, work: gaps.Work, size: int) -> tuple[Array, Array]:
    """Number of pieces of work, and sum of their times, of each key."""
    times = np.zeros(size, dtype=np.int64)
    np.add.at(times, keys, work.ts_end - work.ts)
    return np.bincount(keys, minlength=size), times


def _exposed_phases(facts: Facts) -> Sequence[Column]:
    phases, phase_of = facts.work_phases
    keys = phase_of + 1  # 0: outside any phase
    size = len(phases) + 1
    found = coverage.exposure(facts.work, keys, size)
    count, time_ns = _totals(keys, facts.work, size)
    there = np.flatnonzero(count)
    told = [None, *phases]
    return [told[key] for key in there.tolist()], *(x[there] for x in (count, time_ns, found.busy, found.exposed))


def _placed_calls(facts: Facts) -> tuple[Array, Array]:
    """The number of the names around each call that starts work or waits, once each, and the first call with them."""
    work = facts.work.call
    placed = np.unique(np.concatenate([work[work != NONE], facts.syncs, facts.launches]))
    stacks, first = np.unique(facts.call_stacks[placed], return_index=True)
    return stacks, facts.calls.id[placed[first]]


def _call_places(facts: Facts) -> Sequence[Column]:
    first_ids = np.sort(_placed_calls(facts)[1])
    found = Places(facts).of_slices(first_ids.tolist())
    return first_ids, *_place_columns([found[number] for number in first_ids.tolist()])


def _place_columns(places: Sequence[Place]) -> list[list[str | None]]:
    return [[getattr(place, column) for place in places] for column in _PLACE]


def _launched_work(facts: Facts) -> Sequence[Column]:
    work, (stacks, first_ids) = facts.work, _placed_calls(facts)
    classes, class_of = _classes(facts)
    known = np.flatnonzero(work.call != NONE)
    place = np.zeros(len(work.call), dtype=np.int64)
    place[known] = np.searchsorted(stacks, facts.call_stacks[work.call[known]]) + 1
    keys, which = np.unique(place * len(classes) + class_of, return_inverse=True)
    places, of_class = np.divmod(keys, max(1, len(classes)))
    return (
        ids(first_ids, places - 1),
        names(classes, of_class),
        np.bincount(which, minlength=len(keys)),
        summed(which, work.ts_end - work.ts, len(keys)),
    )


def _idle_places(facts: Facts) -> Sequence[Column]:
    idle = Places(facts).idle
    place_ids = ids(idle.slice_id, np.where(idle.slice_id == NONE, NONE, np.arange(len(idle.slice_id))))
    return place_ids, idle.count, idle.time_ns, idle.is_shown.astype(np.int64), *_place_columns(idle.places)


def _graph_replays(facts: Facts) -> Sequence[Column]:
    found, _ = facts.graphs
    return (
        facts.calls.id[found.launch], found.graph, found.number, known(found.graph_id, graphs.UNKNOWN), found.ts,
        found.ts_end - found.ts, found.kernels, found.memory_operations, found.gpu_ns, found.gaps_ns,
    )  # fmt: skip


def _replayed_graphs(facts: Facts) -> Sequence[Column]:
    found, _ = facts.graphs
    size = int(found.graph.max(initial=-1)) + 1
    first = np.flatnonzero(found.number == 0)
    first = first[np.argsort(found.graph[first])]
    took = graphs.spread(found.graph, found.ts_end - found.ts, size)
    return (
        np.arange(size), known(found.graph_id[first], graphs.UNKNOWN), took.count, found.kernels[first],
        found.memory_operations[first], took.middle, took.least, took.most, summed(found.graph, found.gpu_ns, size),
        summed(found.graph, found.gaps_ns, size),
    )  # fmt: skip


def _graph_positions(facts: Facts) -> Sequence[Column]:
    work, (_, nodes) = facts.graph_work, facts.graphs
    placed = np.flatnonzero(nodes.position != NONE)
    width = int(nodes.position.max(initial=0)) + 1
    keys, which = np.unique(nodes.graph[placed] * width + nodes.position[placed], return_inverse=True)
    took = graphs.spread(which, (work.ts_end - work.ts)[placed], len(keys))
    waits = nodes.gap_ns[placed] != NONE
    gap = graphs.spread(which[waits], nodes.gap_ns[placed][waits], len(keys))
    texts, categories = ([getattr(name, key) for name in facts.names] for key in ("name", "category"))
    return (
        keys // width, keys % width, _least(texts, work.name[placed], which, len(keys)),
        _least(categories, work.name[placed], which, len(keys)), took.count, took.middle, took.least, took.most,
        took.sum, known(gap.middle, NONE), known(np.where(gap.count > 0, gap.sum, NONE), NONE),
    )  # fmt: skip


def _least(texts: list[str], of: Array, groups: Array, size: int) -> list[str]:
    """Return the first text by order of each group. of: the index of the text of each row."""
    order = sorted(set(texts))
    ranks = {text: rank for rank, text in enumerate(order)}
    least = np.full(size, len(order))
    np.minimum.at(least, groups, np.array([ranks[text] for text in texts], dtype=np.int64)[of])
    return [order[rank] for rank in least.tolist()]


def _graph_nodes(facts: Facts) -> Sequence[Column]:
    work, (_, nodes) = facts.graph_work, facts.graphs
    order = np.lexsort((work.id, work.ts))
    columns = (
        work.id, facts.calls.id[work.launch], nodes.graph, nodes.replay, known(nodes.position, NONE),
        known(nodes.gap_ns, NONE),
    )  # fmt: skip
    return [np.asarray(column)[order] for column in columns]


def _chains(facts: Facts) -> Sequence[Column]:
    found, work = facts.chains, facts.work
    saved = found.time_ns - found.longest_ns
    return found.chain, work.id[found.first], work.ts[found.first], found.kernels, found.time_ns, saved


def _chain_sums(facts: Facts) -> Sequence[Column]:
    found = facts.chains
    chains = sorted(set(found.chain))
    number = np.array([chains.index(chain) for chain in found.chain], dtype=np.int64)
    sums = np.zeros((2, len(chains)), dtype=np.int64)
    np.add.at(sums[0], number, found.time_ns)
    np.add.at(sums[1], number, found.time_ns - found.longest_ns)
    return chains, np.bincount(number, minlength=len(chains)), sums[0], sums[1]


def _fused_sums(facts: Facts) -> Sequence[Column]:
    count, times = _totals(facts.name_of, facts.work, len(facts.names))
    chains = sorted(facts.fused)
    rows = [sorted(facts.fused[chain]) for chain in chains]
    return chains, [int(count[row].sum()) for row in rows], [int(times[row].sum()) for row in rows]


def _work_classes(facts: Facts) -> Sequence[Column]:
    return np.arange(len(facts.names)), [name.work_class for name in facts.names]


def _streams(facts: Facts) -> Sequence[Column]:
    work = facts.work
    order = np.lexsort((work.id, work.ts, work.stream, work.device))
    device, stream, ts, ts_end = (x[order] for x in (work.device, work.stream, work.ts, work.ts_end))
    new = np.append(True, (device[1:] != device[:-1]) | (stream[1:] != stream[:-1]))[: len(order)]
    key = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    before = intervals.ends_before(key, ts, ts_end)
    overlap = np.where(before >= 0, np.maximum(np.minimum(ts_end, ts_end[before]) - ts, 0), 0)
    sums = np.zeros((3, len(first)), dtype=np.int64)
    for row, amounts in enumerate((facts.is_kernel[order], ts_end - ts, overlap)):
        np.add.at(sums[row], key, amounts)
    if not len(first):
        return [()] * 9
    return (
        names(facts.devices, device[first]),
        [None if number == gaps.NO_STREAM else number for number in stream[first].tolist()],
        np.bincount(key),
        sums[0],
        sums[1],
        np.maximum.reduceat(ts_end, first) - ts[first],
        np.bincount(key, overlap > 0).astype(np.int64),
        sums[2],
        np.maximum.reduceat(overlap, first),
    )


def _rank_devices(facts: Facts) -> Sequence[Column]:
    work, size = facts.work, len(facts.devices)
    span, idle, _ = gaps.busy_time(work, facts.gaps, size)
    is_collective, is_kernel = facts.is_collective, facts.is_kernel
    of_kind = coverage.exposure(work, is_collective.astype(np.int64) + 2 * work.device, 2 * size).busy.reshape(size, 2)
    counts = [
        np.bincount(work.device, weights, minlength=size).astype(np.int64)
        for weights in (is_kernel, is_kernel & (work.call == NONE), is_collective)
    ]
    kernel_ns = np.zeros(size, dtype=np.int64)
    np.add.at(kernel_ns, work.device[is_kernel], (work.ts_end - work.ts)[is_kernel])
    rank = np.full(size, NONE)
    rank[work.device] = facts.ranks
    return (
        [None if number == NONE else number for number in rank.tolist()], facts.devices, span, span - idle,
        of_kind[:, 0], of_kind[:, 1], counts[0], kernel_ns, counts[1], counts[2],
    )  # fmt: skip


def _host_tracks(facts: Facts) -> Sequence[Column]:
    slices = facts.slices
    rows = slices.of(OPERATOR, RUNTIME, DRIVER)
    rows = rows[slices.track[rows] >= 0]
    tracks, which = np.unique(slices.track[rows], return_inverse=True)
    calls = np.bincount(which, slices.category[rows] != OPERATOR, len(tracks)).astype(np.int64)
    first = np.full(len(tracks), np.iinfo(np.int64).max)
    np.minimum.at(first, which, slices.ts[rows])
    return tracks, np.bincount(which, minlength=len(tracks)) - calls, calls, first


def _transposed(rows: Sequence[tuple[Any, ...]], columns: int) -> Sequence[Column]:
    return list(zip(*rows, strict=True)) or [()] * columns


def _recorded(facts: Facts) -> Sequence[Column]:
    ranks, starts, ends = facts.recorded
    return [None if rank == NONE else rank for rank in ranks.tolist()], starts, ends


def _work_totals(facts: Facts) -> Sequence[Column]:
    slices = facts.slices
    work = np.flatnonzero(slices.name >= 0)
    size = len(slices.names)
    times = np.zeros(size, dtype=np.int64)
    np.add.at(times, slices.name[work], (slices.ts_end - slices.ts)[work])
    order = sorted(range(size), key=slices.names.__getitem__)
    first = np.full(size, len(slices.ts))
    np.minimum.at(first, slices.name[work], work)
    count = np.bincount(slices.name[work], minlength=size)
    categories, texts = zip(*(slices.names[number] for number in order), strict=True) if size else ((), ())
    return np.arange(size), categories, texts, count[order], times[order], first[order]


def _step_runs(facts: Facts) -> Sequence[Column]:
    return _runs(np.arange(len(facts.calls.id)), facts.call_steps)


def _operator_steps(facts: Facts) -> Sequence[Column]:
    ids = facts.leaf_operators if not len(facts.calls.id) and facts.step_lanes else np.empty(0, dtype=np.int64)
    steps = facts.placed(ids, facts.step_lanes)
    return ids[steps != NONE], steps[steps != NONE]


def _phase_runs(facts: Facts) -> Sequence[Column]:
    ids = facts.slices.of(OPERATOR, RUNTIME, DRIVER, INSTANT) if facts.phase_lanes else np.empty(0, dtype=np.int64)
    return _runs(ids, facts.placed(ids, facts.phase_lanes))


def _runs(numbers: Array, groups: Array) -> Sequence[Column]:
    """The first and last number of each run of numbers that have one group; those without a group are in none."""
    edges = np.flatnonzero(np.append(True, groups[1:] != groups[:-1])[: len(groups)])
    last = np.append(edges[1:], len(groups))[: len(edges)] - 1
    some = groups[edges] != NONE
    return groups[edges][some], numbers[edges][some], numbers[last][some]


def _step_sums(facts: Facts) -> Sequence[Column]:
    steps = [row[0] for row in facts.rows("SELECT id FROM molprof_any_step", "steps")]
    is_counted = not len(facts.calls.id)
    return _call_sums(facts, facts.call_steps, facts.step_lanes, is_counted, [*steps, NONE] if steps else [])


def _phase_sums(facts: Facts) -> Sequence[Column]:
    groups = [*facts.phases.id.tolist(), NONE]
    return _call_sums(facts, facts.call_phases, facts.phase_lanes, facts.counts_operators, groups)


def _call_sums(facts: Facts, group_of: Array, lanes: Lanes, is_counted: bool, groups: list[int]) -> Sequence[Column]:
    """The sums of the calls and leaf operators of some groups, also of those without."""
    sums = facts.call_sums(group_of) if groups else {}
    leaves: Counter[int] | None = None
    if is_counted and groups:
        leaves = Counter(facts.placed(facts.leaf_operators, lanes).tolist())
    rows = [
        (None if group == NONE else group, *sums.get(group, [0] * 6), None if leaves is None else leaves[group])
        for group in groups
    ]
    return _transposed(rows, 8)


def _phase_own(facts: Facts) -> Sequence[Column]:
    phases, lanes = facts.phases, facts.innermost_phases
    own_ns = summed(np.searchsorted(phases.id, lanes.id), lanes.ts_end - lanes.ts, len(phases.id))
    differ = own_ns != phases.ts_end - phases.ts
    return phases.id[differ], own_ns[differ]


def _outside_steps(facts: Facts) -> Sequence[Column]:
    work = facts.work
    outside = np.append(facts.call_steps, NONE)[work.call] == NONE
    name_of = facts.name_of[outside]
    times = np.zeros(len(facts.names), dtype=np.int64)
    np.add.at(times, name_of, (work.ts_end - work.ts)[outside])
    count = np.bincount(name_of, minlength=len(facts.names))
    there = np.flatnonzero(count)
    return there, count[there], times[there]


_CALL_SUMS = (
    "launches LONG", "graph_launches LONG", "kernels LONG", "gpu_ns DURATION", "syncs LONG", "sync_ns DURATION",
    "leaf_operators LONG",
)  # fmt: skip
_PLACE = ("operator", "annotation", "source", "module")
_EXPOSURE = ("busy_ns DURATION", "exposed_ns DURATION")
TABLES = {
    "recorded": FactTable(("rank LONG", "ts TIMESTAMP", "ts_end TIMESTAMP"), _recorded),
    "work_total": FactTable(
        (
            "name_id LONG", "category STRING", "name STRING", "count LONG", "time_ns DURATION",
            "first_id JOINID(slice.id)",
        ),
        _work_totals,
    ),
    "device": FactTable(
        ("device STRING", "span_ns DURATION", "busy_ns DURATION", "idle_ns DURATION", "count LONG"), _devices
    ),
    "device_gap": FactTable(("device STRING", "ts TIMESTAMP", "ts_end TIMESTAMP"), _device_gaps),
    "device_work": FactTable(("id JOINID(slice.id)", "busy_until TIMESTAMP"), _device_work),
    "idle_sum": FactTable(
        (
            "device STRING", "position STRING", "is_long LONG", "cause STRING", "count LONG", "time_ns DURATION",
            "longest_ns DURATION",
        ),
        _idle_sums,
    ),
    "idle_gap": FactTable(
        (
            "id LONG", "device STRING", "position STRING", "ts TIMESTAMP", "ts_end TIMESTAMP",
            "next_id JOINID(slice.id)", "cause STRING",
        ),
        _idle_gaps,
    ),
    "concurrency": FactTable(("device STRING", "running LONG", "time_ns DURATION"), _concurrency),
    "launch": FactTable(
        ("id JOINID(slice.id)", "device STRING", "kernels LONG", "delay DURATION", "queue_depth LONG"), _launches
    ),
    "exposed_name": FactTable(
        ("name_id LONG", "class STRING", "count LONG", "time_ns DURATION", *_EXPOSURE), _exposed_names
    ),
    "exposed_class": FactTable(("class STRING", "count LONG", "time_ns DURATION", *_EXPOSURE), _exposed_classes),
    "exposed_phase": FactTable(("phase STRING", "count LONG", "time_ns DURATION", *_EXPOSURE), _exposed_phases),
    "class_overlap": FactTable(("class STRING", "beside STRING", "time_ns DURATION"), _class_overlap),
    "call_place": FactTable(("place_id JOINID(slice.id)", *(f"{column} STRING" for column in _PLACE)), _call_places),
    "launched_work": FactTable(
        ("place_id JOINID(slice.id)", "class STRING", "count LONG", "time_ns DURATION"), _launched_work
    ),
    "idle_place": FactTable(
        (
            "place_id JOINID(slice.id)", "count LONG", "time_ns DURATION", "is_shown LONG",
            *(f"{column} STRING" for column in _PLACE),
        ),
        _idle_places,
    ),
    "graph_replay": FactTable(
        (
            "launch_id JOINID(slice.id)", "graph LONG", "replay LONG", "graph_id LONG", "ts TIMESTAMP", "dur DURATION",
            "kernels LONG", "memory_operations LONG", "gpu_ns DURATION", "gaps_ns DURATION",
        ),
        _graph_replays,
    ),
    "replayed_graph": FactTable(
        (
            "graph LONG", "graph_id LONG", "replays LONG", "kernels LONG", "memory_operations LONG", "p50_ns DURATION",
            "shortest_ns DURATION", "longest_ns DURATION", "gpu_ns DURATION", "gaps_ns DURATION",
        ),
        _replayed_graphs,
    ),
    "graph_position": FactTable(
        (
            "graph LONG", "position LONG", "name STRING", "category STRING", "count LONG", "p50_ns DURATION",
            "shortest_ns DURATION", "longest_ns DURATION", "time_ns DURATION", "p50_gap_ns DURATION",
            "gaps_ns DURATION",
        ),
        _graph_positions,
    ),
    "graph_node": FactTable(
        (
            "id JOINID(slice.id)", "launch_id JOINID(slice.id)", "graph LONG", "replay LONG", "position LONG",
            "gap_ns DURATION",
        ),
        _graph_nodes,
    ),
    "chain": FactTable(
        (
            "chain STRING", "id JOINID(slice.id)", "ts TIMESTAMP", "kernels LONG", "time_ns DURATION",
            "saved_ns DURATION",
        ),
        _chains,
    ),
    "chain_sum": FactTable(("chain STRING", "count LONG", "time_ns DURATION", "saved_ns DURATION"), _chain_sums),
    "fused_sum": FactTable(("chain STRING", "count LONG", "time_ns DURATION"), _fused_sums),
    "work_class": FactTable(("name_id LONG", "class STRING"), _work_classes),
    "stream": FactTable(
        (
            "device STRING", "stream LONG", "count LONG", "kernels LONG", "time_ns DURATION", "span_ns DURATION",
            "overlaps LONG", "overlap_ns DURATION", "longest_ns DURATION",
        ),
        _streams,
    ),
    "rank_device": FactTable(
        (
            "rank LONG", "device STRING", "span_ns DURATION", "busy_ns DURATION", "compute_ns DURATION",
            "communication_ns DURATION", "kernels LONG", "kernel_time_ns DURATION", "kernels_without_call LONG",
            "collectives LONG",
        ),
        _rank_devices,
    ),
    "step_sum": FactTable(("step_id JOINID(slice.id)", *_CALL_SUMS), _step_sums),
    "phase_sum": FactTable(("phase_id JOINID(slice.id)", *_CALL_SUMS), _phase_sums),
    "work_outside_steps": FactTable(
        ("name_id LONG", "count LONG", "time_ns DURATION"), _outside_steps
    ),
    "step_run": FactTable(("step_id JOINID(slice.id)", "first LONG", "last LONG"), _step_runs),
    "operator_step": FactTable(("id JOINID(slice.id)", "step_id JOINID(slice.id)"), _operator_steps),
    "leaf_operator": FactTable(("id JOINID(slice.id)",), lambda facts: [facts.leaf_operators]),
    "phase_run": FactTable(
        ("phase_id JOINID(slice.id)", "first_id JOINID(slice.id)", "last_id JOINID(slice.id)"), _phase_runs
    ),
    "device_sync": FactTable(("id JOINID(slice.id)", "slack DURATION"), clocks.device_syncs),
    "clock": FactTable(
        (
            "early_work LONG", "earliest_ns DURATION", "late_syncs LONG", "latest_ns DURATION",
            "least_delay_ns DURATION", "least_slack_ns DURATION", "mean_delay_ns DOUBLE",
        ),
        lambda facts: [[value] for value in clocks.clock(facts)],
    ),
    "captured_launch": FactTable(
        ("id JOINID(slice.id)",), lambda facts: [facts.calls.id[missing.captured_launches(facts)]]
    ),
    "lost_launch": FactTable(("id JOINID(slice.id)",), lambda facts: [facts.calls.id[missing.lost_launches(facts)]]),
    "missing_work": FactTable(
        ("place STRING", "launches LONG", "in_steps LONG", "first_ts TIMESTAMP", "last_ts TIMESTAMP"),
        lambda facts: _transposed(missing.missing_work(facts), 5),
    ),
    "phase_own": FactTable(("id JOINID(slice.id)", "own_ns DURATION"), _phase_own),
    "missing_time": FactTable(
        ("place STRING", "device STRING", "inside_ns DURATION", "outside_ns DURATION"),
        lambda facts: _transposed(missing.missing_time(facts), 4),
    ),
    "missing_call": FactTable(
        ("place STRING", "kernels LONG", "calls LONG", "kernel_time_ns DURATION", "first_ts TIMESTAMP"),
        lambda facts: _transposed(missing.missing_calls(facts), 5),
    ),
    "graph_incomplete": FactTable(
        ("device STRING", "launches LONG", "absent LONG", "time_ns DURATION"),
        lambda facts: _transposed(graph_parts.incomplete_graphs(facts), 4),
    ),
    "host_track": FactTable(
        ("track_id JOINID(track.id)", "operators LONG", "gpu_calls LONG", "ts TIMESTAMP"), _host_tracks
    ),
    "phase_bound": FactTable(
        ("phase_id JOINID(slice.id)", "idle_ns DURATION", "sync_idle_ns DURATION"), lambda facts: facts.phase_bound
    ),
}  # fmt: skip


def install(engine: TraceProcessor, everything: bool = False) -> None:
    """Register the SQL package with an engine that holds a trace, and add fact tables as queries read them.

    everything: add all of them now. Raises EngineError.
    """
    facts = Facts(engine)
    made: set[str] = set()

    def provide(sql: str) -> None:
        for name in sorted(facts_in(sql) & TABLES.keys()):
            if name in made:  # also by what another one is made from
                continue
            made.add(name)  # first: what it is made from is asked too
            try:
                engine.query(table_sql(name, facts))
            except MolprofError:
                made.discard(name)
                raise

    engine.facts = facts
    engine.before_query = provide
    engine.register_package(PACKAGE, {**modules(), FACTS: statements.NO_MODULE})
    if everything:
        provide(" ".join(f"_molprof_fact_{name}" for name in TABLES))


def columns_of(name: str, facts: Facts) -> list[Sequence[Any]]:
    """The columns of a table of facts."""
    return [column.tolist() if isinstance(column, np.ndarray) else column for column in TABLES[name].make(facts)]


def table_sql(name: str, facts: Facts) -> str:
    """The statement that makes a table of facts."""
    return statements.of_rows(name, TABLES[name].columns, zip(*columns_of(name, facts), strict=True))
