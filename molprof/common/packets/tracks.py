"""Tracks of a Perfetto trace as the processes and threads of Chrome JSON, named as torch.profiler names them there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

# PyTorch gives threads and streams tracks of their own, which only their names tell apart.
_NUMBERED = re.compile(r"(?P<annotations>GPU annotations )?(?:thread|stream) (?P<number>-?\d{1,18})\b")
_MAX_DEPTH = 64


class Place(NamedTuple):
    """The process and the thread of a track in Chrome JSON."""

    pid: int | str
    tid: int | str


class Tracks:
    """All tracks by their uuid, and the names of processes and threads."""

    def __init__(self) -> None:
        self._descriptors: dict[int, Any] = {}
        self.process_names: dict[int | str, str] = {}
        self._threads: dict[Place, str] = {}

    def describe(self, descriptor: Any) -> None:
        """Takes the description of a track; a later one of the same track adds to it."""
        if descriptor.uuid in self._descriptors:
            self._descriptors[descriptor.uuid].MergeFrom(descriptor)
        else:
            self._descriptors[descriptor.uuid] = descriptor

    def place(self, uuid: int) -> Place:
        """Where the events of a track go; once all tracks are described."""
        chain = list(self._chain(uuid))
        pid = self._process(chain, uuid)
        if not chain:
            return Place(pid, 0)
        own = chain[0]
        name = own.name or own.static_name
        numbered = _NUMBERED.match(name)
        if own.HasField("thread"):
            place = Place(pid, own.thread.tid)
            name = own.thread.thread_name or name
        elif own.HasField("process"):
            place = Place(pid, pid)
        else:
            place = Place(pid, int(numbered["number"]) if numbered else name or f"track {uuid}")
        # In Chrome JSON, a stream's annotations stand beside its work.
        if name and not own.HasField("process") and not (numbered and numbered["annotations"]):
            self._threads.setdefault(place, name)
        return place

    def counter(self, uuid: int) -> tuple[str, int | str]:
        """The name of a counter, and the process it belongs to: `Power (W)` of `GPU 0 Counters`."""
        own = self._descriptors.get(uuid)
        name = "" if own is None else own.name or own.static_name
        return name or f"track {uuid}", self._process(list(self._chain(uuid)), uuid)

    def name_thread(self, place: Place, name: str) -> None:
        """Names a thread that has no track."""
        self._threads.setdefault(place, name)

    def metadata(self) -> Iterator[dict[str, Any]]:
        """The events of Chrome JSON that name processes and threads with events."""
        for pid, name in self.process_names.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for place, name in self._threads.items():
            yield {"ph": "M", "name": "thread_name", "pid": place.pid, "tid": place.tid, "args": {"name": name}}

    def _process(self, chain: list[Any], uuid: int) -> int | str:
        """The process of a track, from those above it; where none is one, the name of the topmost."""
        for track in chain:
            if track.HasField("process"):
                if track.process.process_name:
                    self.process_names.setdefault(track.process.pid, track.process.process_name)
                return int(track.process.pid)
        for track in chain:
            if track.HasField("thread"):
                return int(track.thread.pid)
        return (chain[-1].name or chain[-1].static_name if chain else "") or f"track {uuid}"

    def _chain(self, uuid: int) -> Iterator[Any]:
        """The track and those above it."""
        for _ in range(_MAX_DEPTH):
            if uuid not in self._descriptors:
                return
            yield self._descriptors[uuid]
            uuid = self._descriptors[uuid].parent_uuid
            if not uuid:
                return
