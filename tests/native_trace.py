"""Traces in Perfetto's own format, in the layouts of PyTorch's writers, made from events of Chrome JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from molprof.analysis.reader.packets.events import KEY_CATEGORY

LINKED = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
Event = dict[str, Any]
Document = dict[str, Any]


def ns(us: Any) -> int:
    return int((Decimal(str(us)) * 1000).to_integral_value())


def annotation(name: str, value: Any) -> dict[str, Any]:
    """A debug annotation, with its value as PyTorch writes it."""
    for kind, field in ((bool, "bool_value"), (int, "int_value"), (float, "double_value"), (str, "string_value")):
        if isinstance(value, kind):
            return {"name": name, field: value}
    return {"name": name, "legacy_json_value": json.dumps(value)}


def key_packets(key: str, value: Any) -> list[Any]:
    """The packets that hold a top-level key of Chrome JSON, of a writer and a track of their own."""
    held = [{"name": "value", "legacy_json_value": json.dumps(value)}]
    event = {"type": INSTANT, "track_uuid": 1 << 60, "categories": [KEY_CATEGORY], "name": key}
    own = {"timestamp": 0, "trusted_packet_sequence_id": 0x6D6F6C}
    described = protos.TracePacket(**own, track_descriptor={"uuid": 1 << 60, "name": "molprof"})
    return [described, protos.TracePacket(**own, track_event={**event, "debug_annotations": held})]


def packed(packets: list[Any], document: Document) -> bytes:
    """The packets, and those of the document's keys."""
    keys = [packet for key, value in document.items() if key != "traceEvents" for packet in key_packets(key, value)]
    return bytes(protos.Trace(packet=[*packets, *keys]).SerializeToString())


def write(path: Path, document: Document) -> Path:
    path.write_bytes(track_events(document))
    return path


def named(document: Document) -> Document:
    """The document with names of all processes and threads, as PyTorch writes them into both forms."""
    names = []
    for pid, tid in sorted({(event["pid"], event["tid"]) for event in document["traceEvents"] if event["ph"] == "X"}):
        names.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "python"}})
        names.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": thread(pid, tid)}})
    return {**document, "traceEvents": [*names, *document["traceEvents"]]}


def thread(pid: Any, tid: Any) -> str:
    """A device is a process with its number."""
    return f"stream {tid}" if isinstance(pid, int) and pid < 16 else f"thread {tid} (python)"


def track_events(document: Document) -> bytes:
    """Slices begin and end on tracks: one for each thread, and for each stream, with further ones for what overlaps."""
    packets: list[Any] = []
    uuids: dict[Any, int] = {}
    names = {(e["name"], e["pid"], e["tid"]): e["args"].get("name") for e in document["traceEvents"] if e["ph"] == "M"}

    def track(key: Any) -> int:
        """The track of a process, thread, stream or counter, described when it is first used."""
        if key not in uuids:
            described: dict[str, Any] = {}
            if isinstance(key, int):
                described["process"] = {"pid": key, "process_name": names.get(("process_name", key, 0)) or "python"}
            elif isinstance(key, str):
                described["name"] = key
            elif key[0] == "counter":
                described |= {"name": key[2], "parent_uuid": track(key[1]), "counter": {}}
            else:
                pid, tid, is_annotation, _ = key
                name = names.get(("thread_name", pid, tid)) or thread(pid, tid)
                described["name"] = f"GPU annotations {name}" if is_annotation else name
                described["parent_uuid"] = track(pid)
            uuids[key] = 1000 + len(uuids)
            packets.append(protos.TracePacket(timestamp=0, track_descriptor={"uuid": uuids[key], **described}))
        return uuids[key]

    rows = sorted(_rows(document["traceEvents"]), key=lambda row: row[0])
    events = [_packet(time, kind, track(key), event) for time, kind, key, event in rows]
    return packed([*packets, *events], document)


def _rows(events: list[Event]) -> Iterator[tuple[int, int, Any, Event]]:
    """Time, type, track and event; of each track in order."""
    slices: dict[Any, list[tuple[int, int, Event]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            key = event["pid"], event["tid"], event.get("cat") == "gpu_user_annotation"
            slices[key].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]), event))
        elif event["ph"] == "C":
            yield ns(event["ts"]), COUNTER, ("counter", event["pid"], event["name"]), event
        elif event["ph"] == "i":
            yield ns(event["ts"]), INSTANT, (event["pid"], event["tid"], False, 0), event
    for place, found in slices.items():
        stacks: list[list[int]] = []  # ends of the open slices of each track of this place
        for start, end, event in sorted(found, key=lambda item: (item[0], -item[1])):
            for number, stack in enumerate([*stacks, []]):
                while stack and stack[-1] <= start:
                    yield stack.pop(), END, (*place, number), {}
                if not stack or end <= stack[-1]:
                    break
            if number == len(stacks):
                stacks.append(stack)
            yield start, BEGIN, (*place, number), event
            stack.append(end)
        for number, stack in enumerate(stacks):
            while stack:
                yield stack.pop(), END, (*place, number), {}


def _packet(time: int, kind: int, track: int, event: Event) -> Any:
    found: dict[str, Any] = {"type": kind, "track_uuid": track}
    if kind == COUNTER:
        (found["double_counter_value"],) = event["args"].values()
    elif event:
        found |= {"name": event["name"], "categories": [event["cat"]] if "cat" in event else []}
        found["debug_annotations"] = [annotation(*item) for item in event.get("args", {}).items()]
        number = event.get("args", {}).get("correlation")
        if event.get("cat") in LINKED and number is not None:
            found |= {"correlation_id": number, "flow_ids": [number]}
    return protos.TracePacket(timestamp=time, trusted_packet_sequence_id=1001, track_event=found)


STAGES = {"kernel": 1, "gpu_memcpy": 2, "gpu_memset": 3, "gpu_user_annotation": 4}


def varint(value: int) -> bytes:
    result = b""
    while value > 0x7F:
        result += bytes([value & 0x7F | 0x80])
        value >>= 7
    return result + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    """One protobuf field, for those that the perfetto package does not know."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def render_stages(document: Document, correlated: bool = True) -> bytes:
    """The layout of PyTorch's writer of GPU render stages: names are numbered, all begins stand before all ends.

    correlated: events have correlation numbers; else calls name the stages that they started.
    """
    names, categories, kernels, queues = ({} for _ in range(4))  # type: tuple[dict[Any, int], ...]
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    works = [event for event in events if event["cat"] in STAGES]
    hosts = [event for event in events if event["cat"] not in STAGES]
    started: dict[Any, list[int]] = defaultdict(list)
    for event_id, event in enumerate(works, 1):
        started[event["args"].get("correlation")].append(event_id)
    tracks = {place: uuid for uuid, place in enumerate(sorted({(e["pid"], e["tid"]) for e in hosts}), 1)}

    def number(known: dict[Any, int], name: Any, first: int = 1) -> int:
        return known.setdefault(name, first + len(known))

    def args_of(event: Event) -> list[tuple[str, Any]]:
        return [item for item in event["args"].items() if correlated or item[0] != "correlation"]

    def begin(event: Event) -> Any:
        found = {
            "type": BEGIN, "track_uuid": tracks[event["pid"], event["tid"]], "name_iid": number(names, event["name"]),
            "category_iids": [number(categories, event["cat"])],
            "debug_annotations": [annotation(*item) for item in args_of(event)],
        }  # fmt: skip
        packet = protos.TracePacket(trusted_packet_sequence_id=1, timestamp=ns(event["ts"]), track_event=found)
        if not correlated and (its := started.get(event["args"].get("correlation", -1))):
            its_stages = b"".join(field(1, stage) for stage in its)
            packet.track_event.MergeFromString(field(3000, its_stages))
        return packet

    def stage(event_id: int, event: Event) -> Any:
        renamed = {"device": "device id", "stream": "stream id"}
        found: dict[str, Any] = {
            "event_id": event_id, "duration": ns(event["dur"]), "hw_queue_iid": number(queues, event["tid"], 100),
            "stage_iid": STAGES[event["cat"]], "gpu_id": event["pid"], "context": 1,
            "extra_data": [{"name": renamed.get(name, name), "value": str(value)} for name, value in args_of(event)],
        }  # fmt: skip
        if event["cat"] == "kernel":
            found["kernel_iid"] = number(kernels, event["name"])
            found["launch"] = {"grid_size": {"x": 4}, "args": [{"name_iid": 1, "uint_value": 32}]}
        else:
            found["name_iid"] = number(names, event["name"])
        at = ns(event["ts"])
        return protos.TracePacket(trusted_packet_sequence_id=1, timestamp=at, gpu_render_stage_event=found)

    described = [
        {"uuid": uuid, "thread": {"pid": pid, "tid": tid, "thread_name": f"thread {tid} (python)"}}
        for (pid, tid), uuid in tracks.items()
    ]
    begins, stages = [begin(event) for event in hosts], [stage(*item) for item in enumerate(works, 1)]
    ends = [(ns(e["ts"]) + ns(e["dur"]), {"type": END, "track_uuid": tracks[e["pid"], e["tid"]]}) for e in hosts]
    interned = protos.TracePacket(trusted_packet_sequence_id=1, sequence_flags=1)
    data = interned.interned_data
    for entries, known in ((data.event_names, names), (data.event_categories, categories)):
        for name, iid in known.items():
            entries.add(iid=iid, name=name)
    for iid, (name, category) in enumerate((("Kernel", 2), ("Memcpy", 0), ("Memset", 0), ("Annotation", 0)), 1):
        data.gpu_specifications.add(iid=iid, name=name, category=category)
    for stream, iid in queues.items():
        data.gpu_specifications.add(iid=iid, name=f"[{stream:02d}] stream {stream}")
    for name, iid in kernels.items():
        data.MergeFromString(field(1000, field(1, iid) + field(3, name.encode())))
    data.MergeFromString(field(1001, field(1, 1) + field(2, b"registers_per_thread")))
    packets = [protos.TracePacket(trusted_packet_sequence_id=1, track_descriptor=one) for one in described]
    packets += [interned, *begins]
    packets += [protos.TracePacket(trusted_packet_sequence_id=1, timestamp=at, track_event=end) for at, end in ends]
    return packed([*packets, *stages], document)
