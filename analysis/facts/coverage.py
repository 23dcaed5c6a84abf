"""Exposed and hidden time: how much work of one key (a name, class, phase) overlaps other work of its device.

Of all work of a key: busy time is the time in which any of it runs, exposed the part in which no work of another key
does, hidden the rest. Work of one key beside work of its own key alone is exposed. Work of 0 ns counts nothing.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.gaps import Array, GpuWork
from molprof.analysis.facts.intervals import Coverage, ends_before, on_one_line

# Keys of which a pair can be told by the bits of one int64.
MOST_PAIRED = 62


class Exposure(Struct, frozen=True):
    """Busy and exposed time by key: arrays of int64, ns; times of several devices add up."""

    busy: Array
    exposed: Array


def exposure(work: GpuWork, keys: Array, size: int) -> Exposure:
    """Return busy and exposed time of each key below `size`. keys: of each piece of work."""
    merged = Coverage(work.device * size + keys, work.ts, work.ts_end)
    key = merged.keys % size
    busy = np.zeros(size, dtype=np.int64)
    np.add.at(busy, key, merged.ends - merged.starts)
    # Between two moments, each key that runs has one merged interval: where one runs, their sum is its number.
    length, running, total = _moments(merged.keys // size, merged, key)
    exposed = np.zeros(size, dtype=np.int64)
    alone = running == 1
    np.add.at(exposed, total[alone], length[alone])
    return Exposure(busy, exposed)


def overlapping(work: GpuWork) -> Array:
    """Return True for each piece of work that overlaps other work of its device: bool."""
    before = ends_before(work.device, work.ts, work.ts_end)
    overlaps: Array = (before >= 0) & (work.ts < work.ts_end[before])
    overlaps[:-1] |= (work.device[1:] == work.device[:-1]) & (work.ts[1:] < work.ts_end[:-1])
    return overlaps


def alone_ns(work: GpuWork, chosen: Array, overlaps: Array) -> int:
    """Return the time in which chosen work runs on a device and no other does, ns. overlaps: as `overlapping`."""
    single = chosen & ~overlaps
    among = GpuWork(*(getattr(work, name)[overlaps] for name in work.__struct_fields__))
    beside = int(exposure(among, chosen[overlaps].astype(np.int64), 2).exposed[1]) if len(among.ts) else 0
    return int((work.ts_end - work.ts)[single].sum()) + beside


def shared_time(work: GpuWork, keys: Array, size: int) -> Array:
    """Return the time in which work of two keys runs at once, ns: int64, (size, size), symmetric, diagonal 0.

    Raises ValueError for more than MOST_PAIRED keys.
    """
    if size > MOST_PAIRED:
        raise ValueError(f"{size} keys, and pairs of at most {MOST_PAIRED} can be told")
    merged = Coverage(work.device * size + keys, work.ts, work.ts_end)
    length, _, masks = _moments(merged.keys // size, merged, np.left_shift(1, merged.keys % size))
    distinct, which = np.unique(masks, return_inverse=True)
    times = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(times, which.reshape(-1), length)
    bits = (distinct[:, None] >> np.arange(size)) & 1
    shared: Array = (bits * times[:, None]).T @ bits
    np.fill_diagonal(shared, 0)
    return shared


def _moments(device: Array, merged: Coverage, amounts: Array) -> tuple[Array, Array, Array]:
    """Return the time to the next change on a device, how many intervals run in it, and the sum of their amounts."""
    device, moment = np.concatenate([device, device]), np.concatenate([merged.starts, merged.ends])
    change = np.repeat([1, -1], len(merged.starts))
    (line,) = on_one_line([device], [moment])
    order = np.argsort(line, kind="stable")
    running, total = np.cumsum(change[order]), np.cumsum((change * np.concatenate([amounts, amounts]))[order])
    ordered = moment[order]
    # At the end of a device nothing runs, so that the step to the next device counts nothing.
    length = np.append(np.diff(ordered), 0)[: len(ordered)]
    some = running > 0
    return length[some], running[some], total[some]


def concurrency(work: GpuWork) -> tuple[Array, Array, Array]:
    """Return device, number of pieces of work at once, and the time with that number from first to last work, ns.

    Rows stand in order of device and number; none is of 0 ns.
    """
    device, moment = np.append(work.device, work.device), np.append(work.ts, work.ts_end)
    order = np.lexsort((moment, device))
    device, moment = device[order], moment[order]
    running = np.cumsum(np.repeat([1, -1], len(work.ts))[order])
    some = np.flatnonzero((device[1:] == device[:-1]) & (moment[1:] > moment[:-1]))
    width = int(running.max(initial=0)) + 1
    keys, which = np.unique(device[some] * width + running[some], return_inverse=True)
    time_ns = np.zeros(len(keys), dtype=np.int64)
    np.add.at(time_ns, which, (moment[1:] - moment[:-1])[some])
    return keys // width, keys % width, time_ns
