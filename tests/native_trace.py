"""Traces in Perfetto's own format, in the layout of PyTorch's writer, made from events of Chrome JSON.

Slices begin and end on tracks: one for each thread, and for each stream, beside which further ones of its name take
what overlaps on it. A device is a process with its number.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from molprof.analysis.reader.packets.events import KEY_CATEGORY

WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
BEGIN, END, INSTANT, COUNTER = (
    protos.TrackEvent.TYPE_SLICE_BEGIN,
    protos.TrackEvent.TYPE_SLICE_END,
    protos.TrackEvent.TYPE_INSTANT,
    protos.TrackEvent.TYPE_COUNTER,
)


def annotation(name: str, value: Any) -> dict[str, Any]:
    """A debug annotation, with its value as PyTorch writes it."""
    for kind, field in ((bool, "bool_value"), (int, "int_value"), (float, "double_value"), (str, "string_value")):
        if isinstance(value, kind):
            return {"name": name, field: value}
    return {"name": name, "legacy_json_value": json.dumps(value)}


def key_packets(key: str, value: Any) -> bytes:
    """The packets that hold a top-level key of Chrome JSON, of a writer and a track of their own."""
    held = [{"name": "value", "legacy_json_value": json.dumps(value)}]
    event = {"type": INSTANT, "track_uuid": 1 << 60, "categories": [KEY_CATEGORY], "name": key}
    packets = [{"track_descriptor": {"uuid": 1 << 60, "name": "molprof"}}]
    packets.append({"track_event": {**event, "debug_annotations": held}})
    made = [protos.TracePacket(timestamp=0, trusted_packet_sequence_id=0x6D6F6C, **fields) for fields in packets]
    return bytes(protos.Trace(packet=made).SerializeToString())


def ns(us: Any) -> int:
    return int((Decimal(str(us)) * 1000).to_integral_value())


def write(path: Path, document: dict[str, Any]) -> Path:
    """Writes the document's events, and its other keys as PyTorch's format has no place for them."""
    path.write_bytes(Native(document).data())
    return path


def named(document: dict[str, Any]) -> dict[str, Any]:
    """The document with names of all processes and threads, as PyTorch writes them into both forms."""
    names = []
    for pid, tid in sorted({(event["pid"], event["tid"]) for event in document["traceEvents"] if event["ph"] == "X"}):
        name = f"stream {tid}" if pid < 16 else f"thread {tid} (python)"
        names.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "python"}})
        names.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
    return {**document, "traceEvents": [*names, *document["traceEvents"]]}


class Native:
    """A trace under construction: tracks first, then events by time."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.builder = TraceProtoBuilder()
        self._uuids: dict[Any, int] = {}
        self._names: dict[tuple[str, Any, Any], str] = {}
        events = document["traceEvents"]
        for event in events:
            if event["ph"] == "M":
                self._names[event["name"], event["pid"], event.get("tid")] = event["args"].get("name", "")
        rows = list(self._rows(events))
        self._keys = {key: value for key, value in document.items() if key != "traceEvents"}
        for time, kind, track, event in heapq.merge(*rows, key=lambda row: row[0]):
            self.event(time, kind, track, event)

    def data(self) -> bytes:
        keys = b"".join(key_packets(key, value) for key, value in self._keys.items())
        return bytes(self.builder.serialize()) + keys

    def _rows(self, events: list[dict[str, Any]]) -> Iterator[list[tuple[int, int, int, dict[str, Any] | None]]]:
        """For each track its begins, ends and other events, in order."""
        slices: dict[Any, list[tuple[int, int, dict[str, Any]]]] = defaultdict(list)
        for event in events:
            if event["ph"] == "X":
                start = ns(event["ts"])
                is_annotation = event.get("cat") == "gpu_user_annotation"
                slices[event["pid"], event["tid"], is_annotation].append((start, start + ns(event["dur"]), event))
            elif event["ph"] == "C":
                track = self.track(("counter", event["pid"], event["name"]))
                yield [(ns(event["ts"]), COUNTER, track, event)]
            elif event["ph"] == "i":
                yield [(ns(event["ts"]), INSTANT, self.track((event["pid"], event["tid"], False, 0)), event)]
        for (pid, tid, is_annotation), found in slices.items():
            stacks: list[list[tuple[int, int]]] = []  # of each track of the name: end and track of its open slices
            rows: list[list[tuple[int, int, int, dict[str, Any] | None]]] = []
            for start, end, event in sorted(found, key=lambda item: (item[0], -item[1])):
                for number, stack in enumerate(stacks):
                    while stack and stack[-1][0] <= start:
                        closed, track = stack.pop()
                        rows[number].append((closed, END, track, None))
                    if not stack or end <= stack[-1][0]:
                        break
                else:
                    number = len(stacks)
                    stacks.append([])
                    rows.append([])
                track = self.track((pid, tid, is_annotation, number))
                rows[number].append((start, BEGIN, track, event))
                stacks[number].append((end, track))
            for number, stack in enumerate(stacks):
                while stack:
                    end, track = stack.pop()
                    rows[number].append((end, END, track, None))
            yield from rows

    def track(self, key: Any) -> int:
        """The track of a process, thread, stream or counter, described when it is first used."""
        if key in self._uuids:
            return self._uuids[key]
        uuid = self._uuids[key] = 1000 + len(self._uuids)
        if not isinstance(key, tuple):  # a process, or what stands for one
            descriptor = self.describe(uuid, None, 0)
            if isinstance(key, int):
                descriptor.process.pid = key
                descriptor.process.process_name = self._names.get(("process_name", key, 0), "python")
            else:
                descriptor.name = key
        elif key[0] == "counter":
            _, pid, name = key
            self.describe(uuid, name, self.track(pid)).counter.SetInParent()
        else:
            pid, tid, is_annotation, _ = key
            name = self._names.get(("thread_name", pid, tid), f"stream {tid}" if pid < 16 else f"thread {tid} (python)")
            self.describe(uuid, f"GPU annotations {name}" if is_annotation else name, self.track(pid))
        return uuid

    def describe(self, uuid: int, name: str | None, parent: int) -> Any:
        packet = self.builder.add_packet()
        packet.timestamp = 0
        packet.track_descriptor.uuid = uuid
        if name is not None:
            packet.track_descriptor.name = name
        if parent:
            packet.track_descriptor.parent_uuid = parent
        return packet.track_descriptor

    def event(self, time: int, kind: int, track: int, event: dict[str, Any] | None) -> Any:
        packet = self.builder.add_packet()
        packet.timestamp = time
        packet.trusted_packet_sequence_id = 1001
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        if event is None:
            return packet
        if kind == COUNTER:
            (packet.track_event.double_counter_value,) = event["args"].values()
            return packet
        if "cat" in event:
            packet.track_event.categories.append(event["cat"])
        packet.track_event.name = event["name"]
        for name, value in event.get("args", {}).items():
            packet.track_event.debug_annotations.add(**annotation(name, value))
        number = event.get("args", {}).get("correlation")
        if event.get("cat") in (*WORK, *CALLS) and number is not None:
            packet.track_event.correlation_id = number
            packet.track_event.flow_ids.append(number)
        return packet
