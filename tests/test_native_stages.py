"""Native traces with GPU render stages: names and categories that packets share, all begins before all ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import native_trace
import pytest
import tiny_trace
from native_trace import annotation, key_packets, ns
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
from test_native import shown
from test_native_fuzz import varint
from trace_rows import SLICES, load, rows

from molprof import api
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import TraceError

STAGES = {"kernel": 1, "gpu_memcpy": 2, "gpu_memset": 3, "gpu_user_annotation": 4}
_RENAMED = {"device": "device id", "stream": "stream id"}
_QUEUES = 100


def field(number: int, value: int | bytes) -> bytes:
    """One protobuf field, for those that the perfetto package does not know."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


class Stages:
    """The document in the layout of PyTorch's writer of GPU render stages."""

    def __init__(self, document: dict[str, Any], correlated: bool = True) -> None:
        """correlated: events have correlation numbers; else calls name the stages that they started."""
        self.packets: list[Any] = []
        self.correlated = correlated
        self.names: dict[str, int] = {}
        self.categories: dict[str, int] = {}
        self.kernels: dict[str, int] = {}
        self.queues: dict[int, int] = {}
        events = [event for event in document["traceEvents"] if event["ph"] == "X"]
        works = [event for event in events if event["cat"] in STAGES]
        hosts = [event for event in events if event["cat"] not in STAGES]
        self.started: dict[int, list[int]] = {}
        for number, event in enumerate(works, 1):
            self.started.setdefault(event["args"].get("correlation", -1), []).append(number)
        tracks = {place: uuid for uuid, place in enumerate(sorted({(e["pid"], e["tid"]) for e in hosts}), 1)}
        for (pid, tid), uuid in tracks.items():
            thread = {"pid": pid, "tid": tid, "thread_name": f"thread {tid} (python)"}
            self.add(track_descriptor={"uuid": uuid, "thread": thread})
        begins = [self.begin(event, tracks[event["pid"], event["tid"]]) for event in hosts]
        ends = [(ns(e["ts"]) + ns(e["dur"]), tracks[e["pid"], e["tid"]]) for e in hosts]
        stages = [self.stage(number, event) for number, event in enumerate(works, 1)]
        self.packets.append(self.interned())
        self.packets += begins
        for time, uuid in ends:
            self.add(timestamp=time, track_event={"type": 2, "track_uuid": uuid})
        self.packets += stages
        self.keys = {key: value for key, value in document.items() if key != "traceEvents"}

    def data(self) -> bytes:
        keys = b"".join(key_packets(key, value) for key, value in self.keys.items())
        return bytes(protos.Trace(packet=self.packets).SerializeToString()) + keys

    def add(self, **fields: Any) -> Any:
        self.packets.append(protos.TracePacket(trusted_packet_sequence_id=1, **fields))
        return self.packets[-1]

    def begin(self, event: dict[str, Any], uuid: int) -> Any:
        found = {"type": 1, "track_uuid": uuid, "name_iid": number(self.names, event["name"])}
        packet = protos.TracePacket(trusted_packet_sequence_id=1, timestamp=ns(event["ts"]), track_event=found)
        packet.track_event.category_iids.append(number(self.categories, event["cat"]))
        for name, value in event["args"].items():
            if self.correlated or name != "correlation":
                packet.track_event.debug_annotations.add(**annotation(name, value))
        if not self.correlated and event["args"].get("correlation") in self.started:
            started = b"".join(field(1, stage) for stage in self.started[event["args"]["correlation"]])
            packet.track_event.MergeFromString(field(3000, started))
        return packet

    def stage(self, event_id: int, event: dict[str, Any]) -> Any:
        stream = event["tid"]
        self.queues.setdefault(stream, _QUEUES + len(self.queues))
        found = protos.GpuRenderStageEvent(
            event_id=event_id, duration=ns(event["dur"]), hw_queue_iid=self.queues[stream],
            stage_iid=STAGES[event["cat"]], gpu_id=event["pid"], context=1,
        )  # fmt: skip
        for name, value in event["args"].items():
            if self.correlated or name != "correlation":
                found.extra_data.add(name=_RENAMED.get(name, name), value=str(value))
        if event["cat"] == "kernel":
            found.kernel_iid = number(self.kernels, event["name"])
            found.launch.grid_size.x = 4
            found.launch.args.add(name_iid=1, uint_value=32)
        else:
            found.name_iid = number(self.names, event["name"])
        return protos.TracePacket(trusted_packet_sequence_id=1, timestamp=ns(event["ts"]), gpu_render_stage_event=found)

    def interned(self) -> Any:
        packet = protos.TracePacket(trusted_packet_sequence_id=1, sequence_flags=1)
        data = packet.interned_data
        for entries, names in ((data.event_names, self.names), (data.event_categories, self.categories)):
            for name, iid in names.items():
                entries.add(iid=iid, name=name)
        for name, category in (("Kernel", 2), ("Memcpy", 0), ("Memset", 0), ("Annotation", 0)):
            data.gpu_specifications.add(iid=len(data.gpu_specifications) + 1, name=name, category=category)
        for stream, iid in self.queues.items():
            data.gpu_specifications.add(iid=iid, name=f"[{stream:02d}] stream {stream}")
        for name, iid in self.kernels.items():
            data.MergeFromString(field(1000, field(1, iid) + field(3, name.encode())))
        data.MergeFromString(field(1001, field(1, 1) + field(2, b"registers_per_thread")))
        return packet


def number(known: dict[str, int], name: str) -> int:
    return known.setdefault(name, len(known) + 1)


def document() -> dict[str, Any]:
    result = tiny_trace.document()
    spans = tiny_trace.slice_("gpu_user_annotation", "molprof.forward batch=0 step=1", 1030, 50, tiny_trace.GPU, 7)
    result["traceEvents"] += [spans, tiny_trace.work("kernel", "overlaps the mystery", 1178.5, 1.25, 99)]
    return native_trace.named(result)


def test_a_run_with_render_stages_has_the_report_of_its_chrome_json(tmp_path: Path) -> None:
    plain = tiny_trace.write(tmp_path / "run.json", document())
    native = tmp_path / "run.pftrace"
    native.write_bytes(Stages(document()).data())
    expected, report = api.report(plain), api.report(native)
    assert expected.run is not None
    assert expected.counts.kernels == 7
    assert shown(report) == shown(expected)
    assert (report.findings, report.tables) == (expected.findings, expected.tables)


def test_its_slices_are_those_of_its_chrome_json(engine: TraceProcessor, tmp_path: Path) -> None:
    load(engine, tmp_path, Stages(document()).data())
    found = {row[:4] for row in rows(engine.query(SLICES))}
    events = [event for event in document()["traceEvents"] if event["ph"] == "X"]
    assert found == {(e["name"], e["cat"], ns(e["ts"]) - 1_000_000, ns(e["dur"])) for e in events}
    sql = "SELECT flat_key, int_value AS v FROM args JOIN slice USING (arg_set_id) WHERE slice.name = 'mystery'"
    assert {("args.registers per thread", 32), ("args.grid", 4), ("args.stream", 7)} <= set(rows(engine.query(sql)))


def test_calls_name_the_stages_that_they_started(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    path.write_bytes(Stages(document(), correlated=False).data())
    plain = api.report(tiny_trace.write(tmp_path / "run.json", document()))
    report = api.report(path)
    assert report.counts.launches_without_gpu_work == plain.counts.launches_without_gpu_work == 1
    assert report.table("launch_calls") == plain.table("launch_calls")
    assert report.table("graphs") == plain.table("graphs")
    assert [row["kernels"] for row in report.table("launch_calls").to_json()] == [2, 0, 2, 1]


def test_counters_of_the_gpu(engine: TraceProcessor, tmp_path: Path) -> None:
    packet = protos.TracePacket(trusted_packet_sequence_id=1, sequence_flags=1)
    counters = packet.interned_data.gpu_counter_descriptors.add(iid=1, gpu_id=3).counter_descriptor
    counters.specs.add(counter_id=5, name="Power (W)")
    first = protos.GpuCounterEvent(counter_descriptor_iid=1, counters=[{"counter_id": 5, "double_value": 250.5}])
    own = {"specs": [{"counter_id": 6, "name": "Cycles"}]}
    second = protos.GpuCounterEvent(counter_descriptor=own, counters=[{"counter_id": 6, "int_value": 9}])
    stage = protos.GpuRenderStageEvent(event_id=1, duration=10, launch={"grid_size": {"x": 1}}, name="k")
    found = [packet, *(protos.TracePacket(trusted_packet_sequence_id=1, timestamp=10) for _ in range(3))]
    found[1].gpu_counter_event.CopyFrom(first)
    found[2].gpu_counter_event.CopyFrom(second)
    found[3].gpu_render_stage_event.CopyFrom(stage)
    load(engine, tmp_path, protos.Trace(packet=found).SerializeToString())
    sql = """SELECT TRIM(t.name) AS name, p.name AS process, value FROM counter AS c
        JOIN process_counter_track AS t ON t.id = c.track_id JOIN process AS p USING (upid) ORDER BY value"""
    assert rows(engine.query(sql)) == [("Cycles", "GPU 0 Counters", 9), ("Power (W)", "GPU 3 Counters", 250.5)]
    assert rows(engine.query("SELECT name, category, dur FROM slice")) == [("k", "kernel", 10)]


def test_names_of_older_writers(engine: TraceProcessor, tmp_path: Path) -> None:
    """Their queues and stages are lists in the first event, which has no time of its own."""
    lists = {"hw_queue": [{"name": "queue A"}, {"name": "stream 4"}], "stage": [{"name": "vertex"}, {"name": "Memset"}]}
    found = [protos.TracePacket(timestamp=0, gpu_render_stage_event={"specifications": lists})]
    for queue, stage, start in ((0, 0, 10), (1, 1, 20)):
        event = {"event_id": start, "duration": 5, "hw_queue_id": queue, "stage_id": stage}
        found.append(protos.TracePacket(timestamp=start, gpu_render_stage_event=event))
    load(engine, tmp_path, protos.Trace(packet=found).SerializeToString())
    sql = "SELECT name, category, EXTRACT_ARG(arg_set_id, 'args.stream') AS stream FROM slice ORDER BY ts"
    assert rows(engine.query(sql)) == [("vertex", "vertex", None), ("Memset", "gpu_memset", 4)]


def test_a_stage_that_is_not_described_is_named(engine: TraceProcessor, tmp_path: Path) -> None:
    stage = protos.GpuRenderStageEvent(event_id=1, duration=10, stage_iid=9)
    packet = protos.TracePacket(timestamp=10, gpu_render_stage_event=stage)
    with pytest.raises(TraceError, match=r"refers to number 9 of its gpu_specifications, which is missing \(byte 0"):
        load(engine, tmp_path, protos.Trace(packet=[packet]).SerializeToString())
