"""Lanes for slices that partly overlap another on their track."""

from __future__ import annotations

import numpy as np


def assign_lanes(tracks: np.ndarray, starts_ns: np.ndarray, ends_ns: np.ndarray) -> np.ndarray:
    """The lane of each slice, int32: 0 for its own track, 1, 2, ... for others.

    A track of the trace processor is a stack: slices on it are nested or disjoint (touching is disjoint). By time, the
    longer first, a slice that would outlive the one it started in moves to the next lane, where the same rule holds. So
    the slices that move are those that Perfetto v51 to v56 drops.

    tracks: int, the track of each slice; starts_ns, ends_ns: int64.
    """
    lanes = np.zeros(len(tracks), dtype=np.int32)
    order = time_order(starts_ns, ends_ns)
    if not len(order):
        return lanes
    # numpy sorts 16-bit numbers in linear time.
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
    """Positions by start, of equal starts the latest end first."""
    order = np.argsort(starts_ns, kind="stable")
    ordered = starts_ns[order]
    same = ordered[1:] == ordered[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    positions = order[tied]
    order[tied] = positions[np.lexsort((-ends_ns[positions], starts_ns[positions]))]
    return order


def _nested(starts_ns: np.ndarray, ends_ns: np.ndarray) -> bool:
    """Whether no two slices, in track order, partly overlap."""
    # Each is then as deep at its end as at its start: the first that ends out of turn is deeper.
    long = ends_ns > starts_ns  # empty slices overlap none
    starts_ns, ends_ns = starts_ns[long], ends_ns[long]
    count = len(starts_ns)
    by_end = count - 1 - np.argsort(ends_ns[::-1], kind="stable")  # of equal ends the inner first
    ordered_ends = ends_ns[by_end]
    started = np.arange(count) - np.searchsorted(ordered_ends, starts_ns, side="right")
    ended = np.searchsorted(starts_ns, ordered_ends, side="left") - np.arange(count)
    return bool(np.array_equal(started[by_end] + 1, ended))


def _crossing(starts_ns: np.ndarray, ends_ns: np.ndarray) -> np.ndarray:
    """Positions of slices, in track order, that partly overlap an earlier one that stays."""
    if np.all(starts_ns[1:] >= ends_ns[:-1]):  # as on most GPU streams
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
