"""Tables about calls and operators: their steps, phases and locations, and input of the certificate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from molprof.analysis.facts import clocks, gaps, graph_parts, missing, step_times
from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.intervals import key_sums
from molprof.analysis.facts.places import Enclosing, EnclosingIndex
from molprof.analysis.facts.slices import DRIVER, INSTANT, OPERATOR, RUNTIME
from molprof.analysis.facts.source import Lanes
from molprof.analysis.facts.steps import are_prefills
from molprof.analysis.facts.tables.table import Column, FactTable, ids, known, names, transposed


def _launches(facts: Facts) -> Sequence[Column]:
    """Return the columns of launches with the work that each started; its device is the first of several."""
    work, calls = facts.work, facts.calls
    launches = np.sort(np.append(facts.launches, facts.graph_launches))
    started = work.call != NONE
    size = len(calls.id)
    device, first_ts = (np.full(size, np.iinfo(np.int64).max) for _ in range(2))
    np.minimum.at(device, work.call[started], work.device[started])
    np.minimum.at(first_ts, work.call[started], work.ts[started])
    kernels = key_sums(work.call[started], facts.is_kernel[started], size)[launches]
    device = np.where(device == np.iinfo(np.int64).max, NONE, device)[launches]
    has_work = device != NONE
    ts = calls.ts[launches]
    depth = np.where(has_work, gaps.queue_depth(work, device, ts), NONE)
    delay = [
        at - begin if is_known else None
        for at, begin, is_known in zip(first_ts[launches].tolist(), ts.tolist(), has_work.tolist(), strict=True)
    ]
    return calls.id[launches], names(facts.devices, device), kernels, delay, known(depth, NONE)


def _placed_calls(facts: Facts) -> tuple[Array, Array]:
    """Return the names that enclose each call that starts work or waits, as numbers, and the first call with them."""
    work = facts.work.call
    placed = np.unique(np.concatenate([work[work != NONE], facts.syncs, facts.launches]))
    stacks, first = np.unique(facts.call_stacks[placed], return_index=True)
    return stacks, facts.calls.id[placed[first]]


def _call_locations(facts: Facts) -> Sequence[Column]:
    first_ids = np.sort(_placed_calls(facts)[1])
    enclosing = EnclosingIndex(facts).of_slices(first_ids.tolist())
    return first_ids, *_location_columns([enclosing[number] for number in first_ids.tolist()])


def _location_columns(enclosing: Sequence[Enclosing]) -> list[list[str | None]]:
    return [[getattr(location, column) for location in enclosing] for column in _LOCATION]


def _launched_work(facts: Facts) -> Sequence[Column]:
    work, (stacks, first_ids) = facts.work, _placed_calls(facts)
    classes, class_of = facts.classes
    launched = np.flatnonzero(work.call != NONE)
    place_number = np.zeros(len(work.call), dtype=np.int64)
    place_number[launched] = np.searchsorted(stacks, facts.call_stacks[work.call[launched]]) + 1
    keys, which = np.unique(place_number * len(classes) + class_of, return_inverse=True)
    place_numbers, of_class = np.divmod(keys, max(1, len(classes)))
    return (
        ids(first_ids, place_numbers - 1),
        names(classes, of_class),
        np.bincount(which, minlength=len(keys)),
        key_sums(which, work.ts_end - work.ts, len(keys)),
    )


def _idle_locations(facts: Facts) -> Sequence[Column]:
    idle = EnclosingIndex(facts).idle
    location_ids = ids(idle.slice_id, np.where(idle.slice_id == NONE, NONE, np.arange(len(idle.slice_id))))
    return location_ids, idle.count, idle.time_ns, idle.is_shown.astype(np.int64), *_location_columns(idle.places)


def _step_runs(facts: Facts) -> Sequence[Column]:
    return _runs(facts.calls.id, facts.call_steps)


def _operator_steps(facts: Facts) -> Sequence[Column]:
    """Return the leaf operators in steps, with the outermost operator of each, where no GPU calls are recorded."""
    leaves = facts.leaf_operators if not len(facts.calls.id) and facts.step_lanes else np.empty(0, dtype=np.int64)
    steps = facts.placed(leaves, facts.step_lanes)
    leaves, steps = leaves[steps != NONE], steps[steps != NONE]
    return leaves, steps, facts.outermost_operators(leaves)


def _slice_runs(facts: Facts, lanes: Lanes) -> Sequence[Column]:
    """Return the runs of operators, calls and instants that began in one of some sub-tracks."""
    ids = facts.slices.of(OPERATOR, RUNTIME, DRIVER, INSTANT) if lanes else np.empty(0, dtype=np.int64)
    return _runs(ids, facts.placed(ids, lanes))


def _runs(numbers: Array, groups: Array) -> Sequence[Column]:
    """Return the first and last number of each run of consecutive numbers with one group.

    Those without a group are in none.
    """
    edges = np.flatnonzero(np.append(True, groups[1:] != groups[:-1])[: len(groups)])
    last = np.append(edges[1:], len(groups))[: len(edges)] - 1
    some = groups[edges] != NONE
    return groups[edges][some], numbers[edges][some], numbers[last][some]


def _steps(facts: Facts) -> Sequence[Column]:
    steps = facts.steps
    times = steps.id, steps.ts, steps.ts_end - steps.ts, steps.is_whole.astype(np.int64)
    return *times, np.full(len(steps.id), steps.rank), _kinds(facts)


def _kinds(facts: Facts) -> list[str | None]:
    """Return prefill or decode for steps that functions mark, as far as their lengths show it; None for all others.

    The length is the time of the GPU work that a step launched, where any is recorded: a stall of the host does not
    make a decode step longer.
    """
    steps, work = facts.steps, facts.work
    lengths = steps.ts_end - steps.ts
    if steps.by_function and len(work.id):
        step = np.append(facts.call_steps, NONE)[work.call]
        some = step != NONE
        lengths = key_sums(np.searchsorted(steps.id, step[some]), (work.ts_end - work.ts)[some], len(steps.id))
    prefills = are_prefills(lengths) if steps.by_function else None
    if prefills is None:
        return [None] * len(steps.id)
    return ["prefill" if is_prefill else "decode" for is_prefill in prefills.tolist()]


def _step_spans(facts: Facts) -> Sequence[Column]:
    """Return the first start and the last end of the GPU work that each step launched, if there is any."""
    work = facts.work
    step = np.append(facts.call_steps, NONE)[work.call]
    some = np.flatnonzero(step != NONE)
    steps, which = np.unique(step[some], return_inverse=True)
    first, last = np.full(len(steps), np.iinfo(np.int64).max), np.zeros(len(steps), dtype=np.int64)
    np.minimum.at(first, which, work.ts[some])
    np.maximum.at(last, which, work.ts_end[some])
    return steps, first, last


def _step_sums(facts: Facts) -> Sequence[Column]:
    steps = facts.steps.id.tolist()
    is_counted = not len(facts.calls.id)
    return _call_sums(facts, facts.call_steps, facts.step_lanes, is_counted, [*steps, NONE] if steps else [])


def _step_times(facts: Facts) -> Sequence[Column]:
    rows = facts.rows(_STEPS, "steps")
    ids_, starts, ends, processes = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    order = np.argsort(ids_)
    step = np.append(facts.call_steps, NONE)[facts.work.call]  # the last is that of no call
    has_step = step != NONE
    index = np.full(len(step), NONE)
    if len(ids_):
        index[has_step] = order[np.searchsorted(ids_[order], step[has_step])]
    return ids_, *step_times.done(starts, ends, processes, index, facts.work.ts_end)


def _phase_sums(facts: Facts) -> Sequence[Column]:
    groups = [*facts.phases.id.tolist(), NONE]
    return _call_sums(facts, facts.call_phases, facts.phase_lanes, facts.counts_operators, groups)


def _call_sums(facts: Facts, group_of: Array, lanes: Lanes, is_counted: bool, groups: list[int]) -> Sequence[Column]:
    """Return the sums of the calls and leaf operators by group, also of those without a group."""
    sums = facts.call_sums(group_of) if groups else {}
    leaves: Counter[int] | None = None
    if is_counted and groups:
        leaves = Counter(facts.placed(facts.leaf_operators, lanes).tolist())
    rows = [
        (None if group == NONE else group, *sums.get(group, [0] * 6), None if leaves is None else leaves[group])
        for group in groups
    ]
    return transposed(rows, 8)


def _host_tracks(facts: Facts) -> Sequence[Column]:
    slices = facts.slices
    rows = slices.of(OPERATOR, RUNTIME, DRIVER)
    rows = rows[slices.track[rows] >= 0]
    tracks, which = np.unique(slices.track[rows], return_inverse=True)
    calls = np.bincount(which, slices.category[rows] != OPERATOR, len(tracks)).astype(np.int64)
    first = np.full(len(tracks), np.iinfo(np.int64).max)
    np.minimum.at(first, which, slices.ts[rows])
    return tracks, np.bincount(which, minlength=len(tracks)) - calls, calls, first


_CALL_SUMS = (
    "launches LONG", "graph_launches LONG", "kernels LONG", "gpu_ns DURATION", "syncs LONG", "sync_ns DURATION",
    "leaf_operators LONG",
)  # fmt: skip
_STEPS = "SELECT id, ts, ts + dur, IFNULL(upid, -1) FROM molprof_any_step ORDER BY ts, id"
_LOCATION = ("operator", "annotation", "source", "module")
TABLES = {
    "launch": FactTable(
        ("id JOINID(slice.id)", "device STRING", "kernels LONG", "delay DURATION", "queue_depth LONG"), _launches
    ),
    "call_location": FactTable(
        ("location_id JOINID(slice.id)", *(f"{column} STRING" for column in _LOCATION)), _call_locations
    ),
    "launched_work": FactTable(
        ("location_id JOINID(slice.id)", "class STRING", "count LONG", "time_ns DURATION"), _launched_work
    ),
    "idle_location": FactTable(
        (
            "location_id JOINID(slice.id)", "count LONG", "time_ns DURATION", "is_shown LONG",
            *(f"{column} STRING" for column in _LOCATION),
        ),
        _idle_locations,
    ),
    "step": FactTable(
        (
            "id JOINID(slice.id)", "ts TIMESTAMP", "dur DURATION", "is_whole LONG", "rank LONG", "kind STRING",
        ),
        _steps,
    ),
    "open_step": FactTable(
        ("id JOINID(slice.id)", "ts TIMESTAMP", "ts_end TIMESTAMP", "upid JOINID(process.id)", "tid LONG"),
        lambda facts: transposed(facts.step_lanes, 5),
    ),
    "step_span": FactTable(("step_id JOINID(slice.id)", "ts TIMESTAMP", "ts_end TIMESTAMP"), _step_spans),
    "step_run": FactTable(
        ("step_id JOINID(slice.id)", "first_id JOINID(slice.id)", "last_id JOINID(slice.id)"), _step_runs
    ),
    "operator_step": FactTable(
        ("id JOINID(slice.id)", "step_id JOINID(slice.id)", "top_id JOINID(slice.id)"), _operator_steps
    ),
    "leaf_operator": FactTable(("id JOINID(slice.id)",), lambda facts: [facts.leaf_operators]),
    "phase_run": FactTable(
        ("phase_id JOINID(slice.id)", "first_id JOINID(slice.id)", "last_id JOINID(slice.id)"),
        lambda facts: _slice_runs(facts, facts.phase_lanes),
    ),
    "slice_step_run": FactTable(
        ("step_id JOINID(slice.id)", "first_id JOINID(slice.id)", "last_id JOINID(slice.id)"),
        lambda facts: _slice_runs(facts, facts.step_lanes),
    ),
    "step_time": FactTable(("step_id JOINID(slice.id)", "done_ts TIMESTAMP", "time_ns DURATION"), _step_times),
    "step_sum": FactTable(("step_id JOINID(slice.id)", *_CALL_SUMS), _step_sums),
    "phase_sum": FactTable(("phase_id JOINID(slice.id)", *_CALL_SUMS), _phase_sums),
    "phase_own": FactTable(("id JOINID(slice.id)", "own_ns DURATION"), lambda facts: facts.phase_own),
    "host_track": FactTable(
        ("track_id JOINID(track.id)", "operators LONG", "gpu_calls LONG", "ts TIMESTAMP"), _host_tracks
    ),
    "repeated_sync": FactTable(
        ("copy_id JOINID(slice.id)", "id JOINID(slice.id)"),
        lambda facts: [facts.calls.id[calls] for calls in facts.repeated_syncs],
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
        ("position STRING", "launches LONG", "in_steps LONG", "first_ts TIMESTAMP", "last_ts TIMESTAMP"),
        lambda facts: transposed(missing.missing_work(facts), 5),
    ),
    "missing_time": FactTable(
        ("position STRING", "device STRING", "inside_ns DURATION", "outside_ns DURATION"),
        lambda facts: transposed(missing.missing_time(facts), 4),
    ),
    "long_sync": FactTable(
        ("id JOINID(slice.id)", "dur DURATION"),
        lambda facts: [
            facts.calls.id[facts.long_syncs.call], facts.calls.ts_end[facts.long_syncs.call] - facts.long_syncs.ts,
        ],
    ),
    "missing_call": FactTable(
        ("position STRING", "kernels LONG", "calls LONG", "kernel_time_ns DURATION", "first_ts TIMESTAMP"),
        lambda facts: transposed(missing.missing_calls(facts), 5),
    ),
    "graph_incomplete": FactTable(
        ("device STRING", "launches LONG", "absent LONG", "time_ns DURATION"),
        lambda facts: transposed(graph_parts.incomplete_graphs(facts), 4),
    ),
}  # fmt: skip
