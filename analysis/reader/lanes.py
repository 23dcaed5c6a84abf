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
    # Sorting by all three at once is one pass over memory; a track is then a contiguous range.
    order = np.lexsort((-ends_ns, starts_ns, tracks))
    if not len(order):
        return lanes
    bounds = np.flatnonzero(np.diff(tracks[order])) + 1
    for members in np.split(order, bounds):
        lane = 0
        while len(members):
            members = members[_crossing(starts_ns[members], ends_ns[members])]
            lane += 1
            lanes[members] = lane
    return lanes


def _crossing(starts_ns: np.ndarray, ends_ns: np.ndarray) -> np.ndarray:
    """Positions of the slices that partly overlap an earlier one that stays; input in track order."""
    if np.all(starts_ns[1:] >= ends_ns[:-1]):  # as on most GPU streams: nothing even touches
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
