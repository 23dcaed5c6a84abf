"""Tracks of a Perfetto trace: their process and thread in Chrome JSON, and the pairs of begin and end of slices."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

# Kinds of events: values of a track event's `type`.
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
OPEN = -1  # duration of a slice without an end
# PyTorch gives threads and streams tracks of their own, which only their names tell apart.
_NUMBERED = re.compile(r"(?P<annotations>GPU annotations )?(?:thread|stream) (?P<number>-?\d{1,18})\b")
_MAX_DEPTH = 64
# In Chrome JSON.
Thread = tuple[int | str, int | str]  # pid and tid


class Tracks:
    """All tracks by their uuid, and the names of processes and threads with events."""

    def __init__(self) -> None:
        self._descriptors: dict[int, Any] = {}
        self.process_names: dict[int | str, str] = {}
        self.thread_names: dict[Thread, str] = {}

    def describe(self, descriptor: Any) -> None:
        """Add a track's description, as read from the file; a later one of the same track extends it."""
        if descriptor.uuid in self._descriptors:
            self._descriptors[descriptor.uuid].MergeFrom(descriptor)
        else:
            self._descriptors[descriptor.uuid] = descriptor

    def thread(self, uuid: int) -> Thread:
        """Return the process and thread of a track, once all tracks are described."""
        ancestry = list(self._ancestry(uuid))
        pid = self._process(ancestry, uuid)
        if not ancestry:
            return pid, 0
        track = ancestry[0]
        name = track.name or track.static_name
        numbered = _NUMBERED.match(name)
        tid: int | str = int(numbered["number"]) if numbered else name or f"track {uuid}"
        if track.HasField("thread"):
            tid, name = track.thread.tid, track.thread.thread_name or name
        elif track.HasField("process"):
            tid = pid
        # In Chrome JSON, a stream's annotations stand beside its work.
        if name and not track.HasField("process") and not (numbered and numbered["annotations"]):
            self.thread_names.setdefault((pid, tid), name)
        return pid, tid

    def counter(self, uuid: int) -> tuple[str, int | str]:
        """Return the name of a counter, and the process that it belongs to: `Power (W)` of `GPU 0 Counters`."""
        ancestry = list(self._ancestry(uuid))
        name = ancestry[0].name or ancestry[0].static_name if ancestry else ""
        return name or f"track {uuid}", self._process(ancestry, uuid)

    def metadata(self) -> Iterator[dict[str, Any]]:
        """Return the events of Chrome JSON that name processes and threads."""
        for pid, name in self.process_names.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for (pid, tid), name in self.thread_names.items():
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}

    def _process(self, ancestry: list[Any], uuid: int) -> int | str:
        """Return the process of a track or of one above it; if there is none, the name of the topmost."""
        for track in ancestry:
            if track.HasField("process"):
                if track.process.process_name:
                    self.process_names.setdefault(track.process.pid, track.process.process_name)
                return int(track.process.pid)
        for track in ancestry:
            if track.HasField("thread"):
                return int(track.thread.pid)
        return (ancestry[-1].name or ancestry[-1].static_name if ancestry else "") or f"track {uuid}"

    def _ancestry(self, uuid: int) -> Iterator[Any]:
        """Return the track and those above it."""
        for _ in range(_MAX_DEPTH):
            if uuid not in self._descriptors:
                return
            yield self._descriptors[uuid]
            uuid = self._descriptors[uuid].parent_uuid
            if not uuid:
                return


def set_durations(durations_ns: np.ndarray, kinds: np.ndarray, times_ns: np.ndarray, tracks: np.ndarray) -> int | None:
    """Set the durations of slices with a begin and an end; return the first position without its counterpart.

    All arrays are of the events in file order. An end closes the latest slice of its track that is open at its time; of
    equal times, the order of the file counts.
    """
    positions = np.flatnonzero((kinds == BEGIN) | (kinds == END))
    kinds, times_ns, tracks = kinds[positions], times_ns[positions], tracks[positions]
    begins, ends = np.flatnonzero(kinds == BEGIN), np.flatnonzero(kinds == END)
    is_paired = _is_grouped(kinds, times_ns) and np.array_equal(tracks[begins], tracks[ends])
    if is_paired and np.all(times_ns[ends] >= times_ns[begins]):
        durations_ns[positions[begins]] = times_ns[ends] - times_ns[begins]
        return None
    alone: list[int] = []
    stacks: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    order = np.argsort(times_ns, kind="stable")
    columns = (positions[order], kinds[order], times_ns[order], tracks[order])
    for position, kind, time, track in zip(*(column.tolist() for column in columns), strict=True):
        if kind == BEGIN:
            stacks[track].append((position, time))
        elif stacks[track]:
            begin, start = stacks[track].pop()
            durations_ns[begin] = time - start
        else:
            alone.append(position)
    return min([*alone, *(begin for begin, _ in itertools.chain(*stacks.values()))], default=None)


def _is_grouped(kinds: np.ndarray, times_ns: np.ndarray) -> bool:
    """Return True if the file writes all begins of a group, then their ends in the same order.

    There the order of the file says more than the times: of two slices that touch, the begin of the second may come
    before the end of the first. Not so in any other file: a group of several slices in order of time nests them.
    """
    if not len(kinds) or kinds[0] != BEGIN:
        return False
    run = np.cumsum(np.diff(kinds, prepend=BEGIN) != 0)  # number of the run of begins, or of ends
    lengths = np.bincount(run)
    if not np.array_equal(lengths[::2], lengths[1::2]):
        return False
    group = run // 2
    backwards = (times_ns[1:] < times_ns[:-1]) & (group[1:] == group[:-1])
    is_ordered = np.bincount(group[1:][backwards], minlength=len(lengths) // 2) == 0
    return not np.any(is_ordered & (lengths[::2] > 1))
