"""Which end belongs to which begin of the slices of a trace."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from molprof.common.packets.recording import BEGIN, END

OPEN = -1


def durations(kinds: np.ndarray, times_ns: np.ndarray, tracks: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The time that each begin lasts, OPEN where it has no end; and the positions of ends without a begin.

    kinds, times_ns, tracks: of the events in file order, of which only begins and ends count. An end closes the latest
    slice of its track that is open at its time; of equal times, the order of the file counts.
    """
    lasting = np.full(len(kinds), OPEN, dtype=np.int64)
    places = np.flatnonzero((kinds == BEGIN) | (kinds == END))
    pairs = _grouped(kinds[places], times_ns[places], tracks[places])
    if pairs is not None:
        begins, ends = places[pairs[0]], places[pairs[1]]
        lasting[begins] = times_ns[ends] - times_ns[begins]
        return lasting, []
    strays: list[int] = []
    order = places[np.argsort(times_ns[places], kind="stable")]
    stacks: dict[int, list[int]] = defaultdict(list)
    is_begin = (kinds[order] == BEGIN).tolist()
    for position, begin, track in zip(order.tolist(), is_begin, tracks[order].tolist(), strict=True):
        if begin:
            stacks[track].append(position)
        elif stacks[track]:
            opened = stacks[track].pop()
            lasting[opened] = times_ns[position] - times_ns[opened]
        else:
            strays.append(position)
    return lasting, strays


def _grouped(kinds: np.ndarray, times_ns: np.ndarray, tracks: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Positions of begins and of their ends, in a file that writes all begins of a group, then their ends in order.

    There the order of the file says more than the times: of two slices that touch, the begin of the second may come
    before the end of the first. None for any other file: a group of several slices in order of time nests them.
    """
    starts = np.flatnonzero(np.diff(kinds, prepend=END if len(kinds) else []))
    lengths = np.diff(starts, append=len(kinds))
    if not len(kinds) or kinds[0] != BEGIN or not np.array_equal(lengths[::2], lengths[1::2]):
        return None
    backwards = np.flatnonzero(times_ns[1:] < times_ns[:-1])
    unordered = np.zeros(len(starts) // 2, dtype=np.bool_)
    groups = np.searchsorted(starts[::2], np.arange(len(kinds)), side="right") - 1
    unordered[groups[backwards[groups[backwards] == groups[backwards + 1]]]] = True
    if not np.all(unordered | (lengths[::2] == 1)):
        return None
    begins, ends = np.flatnonzero(kinds == BEGIN), np.flatnonzero(kinds == END)
    if not np.array_equal(tracks[begins], tracks[ends]) or np.any(times_ns[ends] < times_ns[begins]):
        return None
    return begins, ends
