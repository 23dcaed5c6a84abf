"""A plain reference for facts about intervals: lists and loops, written from the definitions in the docs.

Times are ns. A piece of work runs on a device, and may know the call that started it; a thread is the number of its
track, on which its operators, calls and masks are.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

Interval = tuple[int, int]
CAUSES_OF_HOST = ("cpu_masks", "cpu_data", "cpu_waited", "cpu_calls", "cpu_compiled", "cpu_operators")
BEHIND = 1 << 62


class Call(NamedTuple):
    """A call of the runtime or driver."""

    id: int
    ts: int
    end: int
    thread: int


class Piece(NamedTuple):
    """A kernel, copy or set."""

    id: int
    device: Any
    stream: int | None
    ts: int
    end: int
    call: Call | None
    name: Any
    rank: int | None = None


class Gap(NamedTuple):
    """Time of a device between two pieces of work."""

    last: Piece  # whose end begins it; of several the one that began first
    next: Piece
    queue: str  # what was queued when it began: not recorded, queued, nothing, or late (nothing, and it starts late)


class Idle(NamedTuple):
    """Idle time of a device, up to `host_end` with nothing queued."""

    device: Any
    position: str
    ts: int
    end: int
    next: Piece | None
    queue: str
    host_end: int
    call: Call | None  # that is waited for
    before: Call | None  # of the work before


class Wait(NamedTuple):
    """Time in which a device waits for a thread."""

    thread: int
    ts: int
    end: int


# Of each thread, merged intervals in which it is in masks, host syncs, calls and operators.
Host = dict[int, tuple[list[Interval], ...]]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The intervals merged, touching ones too, without those of no length."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if end > start:
            if merged and start <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], end)
            else:
                merged.append((start, end))
    return merged


def length(merged: Iterable[Interval]) -> int:
    return sum(end - start for start, end in merged)


def common(merged: list[Interval], start: int, end: int) -> list[Interval]:
    """The parts of merged intervals in a window."""
    found = []
    for place in range(bisect.bisect_right(merged, start, key=lambda interval: interval[1]), len(merged)):
        first, last = merged[place]
        if first >= end:
            break
        found.append((max(first, start), min(last, end)))
    return found


def between_all(intervals: Iterable[Interval], first: int, last: int) -> list[Interval]:
    """The time from first to last in which no interval is open; one of no length cuts it."""
    found, reached = [], first
    for start, end in [*sorted(intervals), (last, last)]:
        if start > reached:
            found.append((reached, start))
        reached = max(reached, end)
    return found


def by_device(work: Iterable[Piece]) -> dict[Any, list[Piece]]:
    """The work of each device in order of start."""
    found = defaultdict(list)
    for piece in sorted(work, key=lambda piece: (piece.ts, piece.id)):
        found[piece.device].append(piece)
    return dict(sorted(found.items()))


def device_gaps(work: Iterable[Piece]) -> list[Gap]:
    found = []
    for mine in by_device(work).values():
        queued = sorted(queued_ts(piece) for piece in mine)
        last = mine[0]
        for begun, piece in enumerate(mine):
            if piece.ts > last.end:
                # All that began before has ended; of what is queued, that alone counts which is more.
                is_queued = bisect.bisect_right(queued, last.end) > begun
                found.append(Gap(last, piece, queue_of(piece, last.end, is_queued)))
            if piece.end > last.end:
                last = piece
    return found


def queued_ts(piece: Piece) -> int:
    return piece.ts if piece.call is None else min(piece.call.ts, piece.ts)


def queue_of(piece: Piece, gap_ts: int, is_queued: bool) -> str:
    if piece.call is None:
        return "not recorded"
    if is_queued:
        return "queued"
    waited_ns = piece.ts - piece.call.end
    return "late" if waited_ns > 100_000 and waited_ns > piece.call.end - gap_ts else "nothing"


def idle_time(work: Iterable[Piece], recorded: dict[int | None, Interval]) -> list[Idle]:
    """All idle time: gaps between work, then before the first, then after the last. recorded: the span of each rank."""
    found = []
    for last, piece, queue in device_gaps(work):
        is_open = queue in ("nothing", "late")
        host_end = min(piece.call.ts, piece.ts) if is_open and piece.call else last.end
        before = last.call if is_open else None
        found.append(Idle(piece.device, "between", last.end, piece.ts, piece, queue, host_end, piece.call, before))
    edges = []
    for device, mine in by_device(work).items():
        first, last = mine[0], max(mine, key=lambda piece: (piece.end, piece.id))
        ts = recorded.get(first.rank, (first.ts, 0))[0]
        if ts < first.ts:
            queue, host_end = queue_of(first, ts, False), ts
            if first.call:
                host_end = max(ts, min(first.call.ts, first.ts))
            edges.append(Idle(device, "before", ts, first.ts, first, queue, host_end, first.call, None))
        end = recorded.get(last.rank, (0, last.end))[1]
        if end > last.end:
            queue, host_end = ("nothing", end) if last.call else ("not recorded", last.end)
            edges.append(Idle(device, "after", last.end, end, None, queue, host_end, last.call, None))
    return found + sorted(edges, key=lambda idle: idle.position == "after")


def waits(idle: Idle, host: Host) -> list[Wait]:
    """The threads that are waited for while nothing is queued: another one until the call's is first in anything."""
    if idle.call is None or idle.host_end <= idle.ts:
        return []
    own, until = idle.call.thread, idle.ts
    found = []
    if idle.before is not None and idle.before.thread != own:
        began = [part[0] for intervals in host.get(own, ()) for part in common(intervals, idle.ts, idle.host_end)[:1]]
        until = min(began, default=idle.host_end)
        found.append(Wait(idle.before.thread, idle.ts, until))
    found.append(Wait(own, until, idle.host_end))
    return [wait for wait in found if wait.end > wait.ts]


def idle_parts(idle: list[Idle], work: Iterable[Piece], host: Host) -> list[dict[str, int]]:
    """What each idle time went to: ns by cause."""
    ended = defaultdict(list)
    for piece in work:
        ended[piece.device, piece.end].append(piece.stream)
    found = []
    for one in idle:
        parts: Counter[str] = Counter()
        for thread, ts, end in waits(one, host):
            covered: list[Interval] = []
            for cause, intervals in zip(CAUSES_OF_HOST, host.get(thread, ()), strict=False):
                more = union(covered + common(intervals, ts, end))
                parts[cause] += length(more) - length(covered)
                covered = more
            parts["cpu_outside"] += end - ts - length(covered)
        parts[rest_of(one, ended[one.device, one.ts])] += one.end - one.host_end
        found.append({cause: time_ns for cause, time_ns in parts.items() if time_ns})
    return found


def rest_of(idle: Idle, ended: list[int | None]) -> str:
    """The cause of what is left. ended: streams of the work that ended when the idle time began."""
    if idle.queue == "nothing":
        return "launching"
    if idle.end - idle.ts < 5_000 and idle.queue != "late":
        return "short"
    if idle.queue == "not recorded":
        return "not_recorded"
    own = idle.next.stream if idle.next else None
    is_called_before = idle.queue == "queued" and idle.next.call.ts <= idle.ts and idle.end - idle.ts <= 100_000
    is_other = ended and own is not None and not {own, None} & set(ended)
    return "other_stream" if is_other and is_called_before else "other"


def largest_part(parts: dict[str, int]) -> str:
    return min(parts, key=lambda cause: (-parts[cause], cause))


def running(work: Iterable[Piece], key_of: Callable[[Piece], Hashable]) -> Iterator[tuple[int, list[Any]]]:
    """The time between two changes on a device, ns, and the keys of what runs in it."""
    for mine in by_device(work).values():
        edges = [(piece.ts, 1, key_of(piece)) for piece in mine] + [(piece.end, -1, key_of(piece)) for piece in mine]
        edges.sort(key=lambda edge: edge[0])
        open_: Counter[Any] = Counter()
        for (ts, change, key), (next_ts, *_) in pairwise(edges):
            open_[key] += change
            yield next_ts - ts, [key for key, count in open_.items() if count]


def exposure(work: Iterable[Piece], key_of: Callable[[Piece], Hashable]) -> dict[Any, Interval]:
    """Busy and exposed time of each key."""
    busy: Counter[Any] = Counter()
    exposed: Counter[Any] = Counter()
    for time_ns, keys in running(work, key_of):
        for key in keys:
            busy[key] += time_ns
            exposed[key] += time_ns * (len(keys) == 1)
    return {key: (busy[key], exposed[key]) for key in map(key_of, work)}


def shared_time(work: Iterable[Piece], key_of: Callable[[Piece], Hashable]) -> dict[tuple[Any, Any], int]:
    """How long work of each pair of keys runs at the same time; pairs that never do are left out."""
    found: Counter[tuple[Any, Any]] = Counter()
    for time_ns, keys in running(work, key_of):
        for one in keys:
            for other in keys:
                found[one, other] += time_ns * (one != other)
    return {pair: time_ns for pair, time_ns in found.items() if time_ns}


def by_stream(work: Iterable[Piece]) -> dict[tuple[Any, int | None], list[Piece]]:
    """The work of each stream in order of start; of a device, what has no stream is first."""

    def stream_of(piece: Piece) -> tuple[Any, bool, int]:
        return piece.device, piece.stream is not None, piece.stream or 0

    ordered = sorted(work, key=lambda piece: (*stream_of(piece), piece.ts, piece.id))
    return {(mine[0].device, mine[0].stream): mine for mine in (list(some) for _, some in groupby(ordered, stream_of))}


Form = tuple[str, Sequence[set[Any]]]  # what a chain does, and names by place


def find_chains(work: Iterable[Piece], forms: Iterable[Form]) -> list[tuple[str, list[Piece]]]:
    """Chains in order of device, stream, start and name; of those inside each other the longest."""
    kept = []
    for mine in by_stream(work).values():
        found = [
            (place, chain, len(names))
            for place in range(len(mine))
            for chain, names in forms
            if place + len(names) <= len(mine) and all(mine[place + at].name in names[at] for at in range(len(names)))
        ]
        reach = {}  # of each start the longest
        for place, _, size in found:
            reach[place] = max(reach.get(place, 0), size)
        longest = max(reach.values(), default=0)
        for place, chain, size in sorted(found):
            before = range(place - longest, place + 1)
            if not any(reach.get(one, 0) > size and one + reach[one] >= place + size for one in before):
                kept.append((chain, mine[place : place + size]))
    return kept


class Lane(NamedTuple):
    """Time of a step or phase on a thread, or on all of a process where `tid` is None."""

    id: int
    upid: int
    tid: int | None
    ts: int
    end: int


def placed(moment: tuple[int, int, int], lanes: dict[tuple[int, int | None], list[Lane]]) -> int | None:
    """The id of the lane in which something of a process and thread began."""
    upid, tid, ts = moment
    for key in ((upid, None), (upid, tid)):
        mine = lanes.get(key, [])
        place = bisect.bisect_right(mine, ts, key=lambda lane: lane.ts) - 1
        if place >= 0 and ts < mine[place].end:
            return mine[place].id
    return None


def by_lane(lanes: Iterable[Lane]) -> dict[tuple[int, int | None], list[Lane]]:
    found = defaultdict(list)
    for lane in sorted(lanes, key=lambda lane: lane.ts):
        found[lane.upid, lane.tid].append(lane)
    return found


def innermost(slices: Iterable[Lane]) -> list[Lane]:
    """The time of each thread that is in any slice, cut where slices begin and end: each part is of the last begun."""
    found = []
    for (upid, tid), mine in by_lane(slices).items():
        moments = sorted({moment for one in mine if one.end > one.ts for moment in (one.ts, one.end)})
        begun: list[Lane] = []
        waiting = sorted((one for one in mine if one.end > one.ts), key=lambda one: (one.ts, one.id), reverse=True)
        for ts, end in pairwise(moments):
            while waiting and waiting[-1].ts <= ts:
                begun.append(waiting.pop())
            begun = [one for one in begun if one.end > ts]
            if begun:
                found.append(Lane(begun[-1].id, upid, tid, ts, end))
    return found
