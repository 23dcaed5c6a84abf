"""Intervals of time as arrays: their union, and how much of them lies in others."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

# Disjoint, in order: int64 (n, 2), start and end in ns.
Stretches = np.ndarray


def joined(starts: ArrayLike, ends: ArrayLike) -> Stretches:
    """The union of half-open intervals [start, end), ns."""
    first, last = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    if not len(first):
        return np.empty((0, 2), dtype=np.int64)
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    # A stretch begins where all before it has ended.
    begins = np.concatenate([[True], first[1:] > last[:-1]])
    return np.stack([first[begins], last[np.concatenate([begins[1:], [True]])]], axis=1)


def length_ns(stretches: Stretches) -> int:
    """Total length."""
    return int((stretches[:, 1] - stretches[:, 0]).sum())


def inside_ns(starts: ArrayLike, ends: ArrayLike, stretches: Stretches) -> np.ndarray:
    """How much of each interval lies in `stretches`: int64 (n,), ns. The intervals may overlap each other."""
    before = np.concatenate([[0], np.cumsum(stretches[:, 1] - stretches[:, 0])])

    def covered(moments: ArrayLike) -> np.ndarray:
        """Length of `stretches` up to each moment."""
        at = np.asarray(moments, dtype=np.int64)
        if not len(stretches):
            return np.zeros(len(at), dtype=np.int64)
        place = np.searchsorted(stretches[:, 0], at, side="right")
        last = stretches[np.maximum(place - 1, 0)]
        # The last stretch may end after the moment.
        length: np.ndarray = before[place] - np.where(place > 0, np.maximum(last[:, 1] - at, 0), 0)
        return length

    inside: np.ndarray = covered(ends) - covered(starts)
    return inside
