"""Lanes: which slices cannot stay on their track because they partly overlap another there."""

from __future__ import annotations

import numpy as np


def assign_lanes(tracks: np.ndarray, starts_ns: np.ndarray, ends_ns: np.ndarray) -> np.ndarray:
    """The lane of each slice, int32: 0 for its own track, 1, 2, ... for an additional one.

    tracks: int array, the track of each slice; starts_ns, ends_ns: int64. A track of the trace
    processor is a stack: two slices on it must be nested or disjoint (touching is disjoint). Going
    through a track by time, the longer first, a slice that would outlive the one it started in
    moves on; what moved on is put into the next lane by the same rule. So the slices that move
    are those that Perfetto v51 to v56 drops.
    """
    lanes = np.zeros(len(tracks), dtype=np.int32)
    order = time_order(starts_ns, ends_ns)
    if not len(order):
        return lanes
    # Numbers of 16 bits are sorted in linear time.
    kind = np.uint16 if tracks.max() < 1 << 16 else tracks.dtype
    order = order[np.argsort(tracks[order].astype(kind), kind="stable")]
    bounds = np.flatnonzero(np.diff(tracks[order])) + 1
    for members in np.split(order, bounds):
        lane = 0
        while len(members):
            members = members[_crossing(starts_ns[members], ends_ns[members])]
            lane += 1
            lanes[members] = lane
    return lanes


def time_order(starts_ns: np.ndarray, ends_ns: np.ndarray) -> np.ndarray:
    """Positions by start, of equal starts the latest end first, else as they are."""
    order = np.argsort(starts_ns, kind="stable")
    ordered = starts_ns[order]
    same = ordered[1:] == ordered[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    positions = order[tied]
    order[tied] = positions[np.lexsort((-ends_ns[positions], starts_ns[positions]))]
    return order


def _nested(starts_ns: np.ndarray, ends_ns: np.ndarray) -> bool:
    """Whether no two slices partly overlap; input in track order.

    So it is where each slice is as deep when it ends as when it starts: the first to end that is not the innermost
    is deeper then.
    """
    long = ends_ns > starts_ns  # an empty slice overlaps none in part, and makes none deeper
    starts_ns, ends_ns = starts_ns[long], ends_ns[long]
    count = len(starts_ns)
    by_end = count - 1 - np.argsort(ends_ns[::-1], kind="stable")  # of equal ends the inner one, which is behind
    ordered_ends = ends_ns[by_end]
    started = np.arange(count) - np.searchsorted(ordered_ends, starts_ns, side="right")
    ended = np.searchsorted(starts_ns, ordered_ends, side="left") - np.arange(count)
    return bool(np.array_equal(started[by_end] + 1, ended))


def _crossing(starts_ns: np.ndarray, ends_ns: np.ndarray) -> np.ndarray:
    """Positions of the slices that partly overlap an earlier one that stays; input in track order."""
    if np.all(starts_ns[1:] >= ends_ns[:-1]):  # as on most GPU streams: nothing even touches
        return np.empty(0, dtype=np.intp)
    if _nested(starts_ns, ends_ns):
        return np.empty(0, dtype=np.intp)
    moved = []
    open_ends: list[int] = []
    for position, (start, end) in enumerate(zip(starts_ns.tolist(), ends_ns.tolist(), strict=True)):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            moved.append(position)
        else:
            open_ends.append(end)
    return np.array(moved, dtype=np.intp)
