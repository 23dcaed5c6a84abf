"""Sub-tracks for slices that partly overlap others of their track: those on one sub-track are nested or disjoint."""

from __future__ import annotations

import heapq

import numpy as np

# Levels of nested slices that are checked one by one; all deeper ones together, which takes longer for each.
_LEVELS = 16
# Slices around one on the engine's stack, which ends at 512: of deeper ones it drops args, depth and parent. Instants,
# which stay on their track, find room.
_DEEPEST = 500
# Lanes of a track that are filled one by one; all further ones together, which takes longer for each slice.
_FEW_LANES = 8
_EVER = 2**62


def assign_lanes(
    lanes: np.ndarray,
    order: np.ndarray,
    tracks: np.ndarray,
    starts_ns: np.ndarray,
    ends_ns: np.ndarray,
    deepest: int = _DEEPEST,
    kinds: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """Set the sub-track of each slice, int32: 0 for its own track, 1, 2, ... for others; return the too deep slices.

    A track of the trace processor is a stack: slices on it are nested or disjoint (touching is disjoint). By time, the
    longer first, a slice that would outlive the one it started in, or that has `deepest` around it, moves to the next
    lane, where the same rule holds. So the slices that move are those that Perfetto v51 to v56 drops, and those whose
    args it drops.

    kinds: whether each event gives way, and whether it stays: one that gives way moves in place of one that stays,
    starts in it and outlives it.

    lanes: of all events; order: positions of the slices, as `time_order` gives them; tracks: int, the track of each
    event; starts_ns, ends_ns: int64.
    """
    if not len(order):
        return order
    # numpy sorts 16-bit numbers in linear time.
    kind = np.uint16 if tracks.max() < 1 << 16 else tracks.dtype
    order = order[np.argsort(tracks[order].astype(kind), kind="stable")]
    bounds = np.flatnonzero(np.diff(tracks[order])) + 1
    deep = [order[:0]]
    for members in np.split(order, bounds):
        lane = 0
        while len(members):
            if lane == _FEW_LANES:
                lanes[members] += _first_lanes(starts_ns[members], ends_ns[members], deepest)
                break
            gives_and_stays = kinds and (kinds[0][members], kinds[1][members])
            moving, too_deep = _overlapping(starts_ns[members], ends_ns[members], deepest, gives_and_stays)
            deep.append(members[too_deep])
            members = members[moving]
            lane += 1
            lanes[members] = lane
    return np.concatenate(deep)


def time_order(starts_ns: np.ndarray, ends_ns: np.ndarray) -> np.ndarray:
    """Return positions by start, of equal starts the latest end first."""
    order = np.argsort(starts_ns, kind="stable")
    ordered = starts_ns[order]
    same = ordered[1:] == ordered[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    positions = order[tied]
    order[tied] = positions[np.lexsort((-ends_ns[positions], starts_ns[positions]))]
    return order


def _are_nested(starts_ns: np.ndarray, ends_ns: np.ndarray, deepest: int) -> bool:
    """Return True if slices, in track order, never partly overlap and are not deep; False if possibly half as deep."""
    # Empty slices overlap none, but the engine nests those of one moment.
    if np.any(starts_ns[deepest // 2 :] == starts_ns[: -(deepest // 2)]):
        return False
    if np.all(starts_ns[1:] >= ends_ns[:-1]):  # as on most GPU streams
        return True
    long = ends_ns > starts_ns
    starts_ns, ends_ns = starts_ns[long], ends_ns[long]
    for _ in range(_LEVELS):
        # Each outermost slice is followed by those that it holds. None of these may end later.
        latest = np.maximum.accumulate(ends_ns)
        inner = starts_ns[1:] < latest[:-1]
        if np.any(inner & (latest[1:] != latest[:-1])):
            return False
        starts_ns, ends_ns = starts_ns[1:][inner], ends_ns[1:][inner]
    # Of what is deeper still, each is as deep at its end as at its start: the first that ends out of turn is deeper.
    count = len(starts_ns)
    by_end = count - 1 - np.argsort(ends_ns[::-1], kind="stable")  # of equal ends the inner first
    ordered_ends = ends_ns[by_end]
    started = np.arange(count) - np.searchsorted(ordered_ends, starts_ns, side="right")
    ended = np.searchsorted(starts_ns, ordered_ends, side="left") - np.arange(count)
    is_shallow = started.max(initial=0) + _LEVELS < deepest // 2
    return bool(is_shallow and np.array_equal(started[by_end] + 1, ended))


def _overlapping(
    starts_ns: np.ndarray, ends_ns: np.ndarray, deepest: int, kinds: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[list[int], list[int]]:
    """Return positions of slices, in track order, that must leave their track, and those of them that are too deep.

    kinds: see `assign_lanes`.
    """
    moved: list[int] = []
    deep: list[int] = []
    if _are_nested(starts_ns, ends_ns, deepest):
        return moved, deep
    open_ends: list[int] = []
    open_at: list[int] = []  # their positions
    gives_way, stays = (kind.tolist() for kind in kinds) if kinds is not None and kinds[0].any() else ([], [])
    starts, ends = _doubled(starts_ns, ends_ns)
    for position, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
            open_at.pop()
        while stays and stays[position] and open_ends and end > open_ends[-1] and gives_way[open_at[-1]]:
            open_ends.pop()
            moved.append(open_at.pop())
        if open_ends and end > open_ends[-1]:
            moved.append(position)
        elif len(open_ends) == deepest:
            moved.append(position)
            deep.append(position)
        else:
            open_ends.append(end)
            open_at.append(position)
    return sorted(moved), deep


def _first_lanes(starts_ns: np.ndarray, ends_ns: np.ndarray, deepest: int) -> np.ndarray:
    """Return the sub-tracks of slices, in track order, from 0; for many sub-tracks."""
    lanes: np.ndarray = np.zeros(len(starts_ns), dtype=np.int32)
    open_ends: list[list[int]] = []  # by lane
    latest: np.ndarray = np.empty(0, dtype=np.int64)  # that a slice on the lane may end now
    ending: list[tuple[int, int]] = []  # a heap of ends and lanes
    for position, (start, end) in enumerate(zip(*_doubled(starts_ns, ends_ns), strict=True)):
        while ending and ending[0][0] <= start:
            lane = heapq.heappop(ending)[1]
            open_ends[lane].pop()
            latest[lane] = open_ends[lane][-1] if open_ends[lane] else _EVER
        if len(open_ends) == len(latest):  # so that the last lane is free
            latest = np.concatenate([latest, np.full(len(latest) + 1, _EVER)])
        lanes[position] = lane = int(np.argmax(latest >= end))
        if lane == len(open_ends):
            open_ends.append([])
        open_ends[lane].append(end)
        heapq.heappush(ending, (end, lane))
        latest[lane] = end if len(open_ends[lane]) < deepest else -1
    return lanes


def _doubled(starts_ns: np.ndarray, ends_ns: np.ndarray) -> tuple[list[int], list[int]]:
    """Return starts and end in half ns, where an empty slice lasts one.

    So long do those of one moment nest in the engine.
    """
    return (2 * starts_ns).tolist(), (2 * ends_ns + (starts_ns == ends_ns)).tolist()
