"""Chains of kernels that do one library call's work: fixed sequences of names on a stream, with nothing between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.gaps import Array, GpuWork


class Form(Struct, frozen=True):
    """One form of a chain: its sequence of names."""

    chain: str
    names: tuple[frozenset[int], ...]  # of each place, the names of work that it takes, as numbers


class Chains(Struct, frozen=True):
    """Chains found, in order of device, stream and start; of nested chains only the longest."""

    chain: tuple[str, ...]
    first: Array  # index of its first work
    kernels: Array  # how many it has
    time_ns: Array  # sum of their times
    longest_ns: Array  # of them


NO_CHAINS = Chains((), *(np.empty(0, dtype=np.int64) for _ in range(4)))


def find_chains(work: GpuWork, name_of: Array, forms: Sequence[Form]) -> Chains:
    """Return the chains of the work. name_of: the number of each piece of work's name."""
    order = np.lexsort((work.id, work.ts, work.stream, work.device))
    names, duration = name_of[order], (work.ts_end - work.ts)[order]
    # Where the work of each stream ends: a chain does not go on behind it.
    device, stream = work.device[order], work.stream[order]
    ends = np.append(np.flatnonzero((device[1:] != device[:-1]) | (stream[1:] != stream[:-1])) + 1, len(order))
    left = np.repeat(ends, np.diff(ends, prepend=0)) - np.arange(len(order))
    size = int(names.max(initial=-1)) + 1
    rows: list[tuple[str, Array, int]] = []
    for form in forms:
        kernels = len(form.names)
        starts = np.flatnonzero((left >= kernels) & _mask_of(form.names[0], size)[names])
        for index in range(1, kernels):
            starts = starts[_mask_of(form.names[index], size)[names[starts + index]]]
        rows.append((form.chain, starts, kernels))
    start = np.concatenate([row[1] for row in rows]) if rows else np.empty(0, dtype=np.int64)
    length = np.concatenate([np.full(len(row[1]), row[2]) for row in rows]) if rows else start
    number = np.repeat(np.arange(len(rows)), [len(row[1]) for row in rows])
    kept = ~_inside_longer(start, length)
    start, length, number = start[kept], length[kept], number[kept]
    sums = np.append(0, np.cumsum(duration))
    time_ns = sums[start + length] - sums[start]
    longest_ns = np.zeros(len(start), dtype=np.int64)
    for index in range(int(length.max(initial=0))):
        inside = length > index
        longest_ns[inside] = np.maximum(longest_ns[inside], duration[start[inside] + index])
    by_start = sorted(range(len(start)), key=lambda row: (int(start[row]), rows[number[row]][0]))
    chosen = np.array(by_start, dtype=np.int64)
    return Chains(
        tuple(rows[number[row]][0] for row in by_start),
        order[start[chosen]],
        length[chosen],
        time_ns[chosen],
        longest_ns[chosen],
    )


def _mask_of(wanted: frozenset[int], size: int) -> Array:
    """Return a mask of the wanted numbers below `size`: bool."""
    is_wanted = np.zeros(size, dtype=bool)
    is_wanted[list(wanted)] = True
    return is_wanted


def _inside_longer(start: Array, length: Array) -> Array:
    """Return True for each chain that lies in a longer one: bool."""
    inside = np.zeros(len(start), dtype=bool)
    for longer in np.unique(length).tolist():
        starts = np.unique(start[length == longer])
        # The last chain of that length that begins no later reaches furthest.
        before = np.searchsorted(starts, start, side="right") - 1
        reaches = np.where(before >= 0, starts[np.maximum(before, 0)] + longer, -1)
        inside |= (length < longer) & (reaches >= start + length)
    return inside
