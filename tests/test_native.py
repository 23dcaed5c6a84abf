"""Traces in Perfetto's own format: one run has one report in every form; damage is named by its byte."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import native_trace
import pytest
import tiny_trace
from certificate_data import CORPUS, needs_traces
from native_trace import ns, protos
from tiny_trace import GPU, slice_, work
from trace_rows import SLICES, load, rows

from molprof import api
from molprof.analysis.figures.model import Report
from molprof.analysis.reader.open import open_trace
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trim import Wish, trim
from molprof.common.errors import TraceError

WRITERS = {"track events": native_trace.track_events, "render stages": native_trace.render_stages}


def document(stages: bool = False) -> dict[str, Any]:
    """The tiny run, and what a GPU records beside: annotations, overlap on a stream, and in one form two devices."""
    result = tiny_trace.document()
    result["traceEvents"] += [
        slice_("gpu_user_annotation", "molprof.forward batch=0 step=1", 1030, 50, GPU, 7),
        work("kernel", "overlaps the mystery", 1178.5, 1.25, 99),
    ]
    if not stages:
        args = {"device": 1, "stream": 9, "correlation": 98, "grid": [1, 2]}
        result["traceEvents"].append(slice_("overhead", "Activity Buffer Request", 990, 4, 77, 77))
        result["traceEvents"].append(slice_("kernel", "elsewhere", 1100.001, 7.002, 1, 9, **args))
    return native_trace.named(result)


def both(tmp_path: Path, content: dict[str, Any], writer: str = "track events") -> tuple[Path, Path]:
    """The document in both forms."""
    path = tmp_path / "run.pftrace"
    path.write_bytes(WRITERS[writer](content))
    return tiny_trace.write(tmp_path / "run.json", content), path


def shown(report: Report) -> dict[str, Any]:
    """A report without what differs between two files of one run."""
    result = json.loads(json.dumps(report.to_json()))
    for name in ("path", "bytes"):
        del result["trace"][name]
    return result


@pytest.mark.parametrize("writer", WRITERS)
def test_one_run_in_every_form_has_one_report(tmp_path: Path, writer: str) -> None:
    content = document(stages=writer == "render stages")
    paths = both(tmp_path, content, writer)
    for stacks in (False, True):
        expected, report = (api.report(path, stacks=stacks) for path in paths)
        assert expected.trace.lanes == 1
        assert shown(report) == shown(expected)
        assert (report.findings, report.tables) == (expected.findings, expected.tables)
    slices, args, launches = [], [], []
    for path in paths:
        with open_trace(path) as (engine, info):
            assert (info.lost_events, info.complete) == (0, True)
            # The numbers of lanes are made up.
            slices.append(sorted((row[:4] + row[5:] for row in rows(engine.query(SLICES))), key=repr))
            sql = "SELECT s.name, flat_key, display_value FROM slice AS s JOIN args USING (arg_set_id)"
            args.append({row for row in rows(engine.query(sql)) if row[1] != "args.molprof_tid"})
        launches.append(api.query([path], "launches").frame.rows())
    assert launches[0] == launches[1]
    if writer == "track events":
        assert (slices[0], args[0]) == (slices[1], args[1])
    small = [tmp_path / "a.json", tmp_path / "b.json"]
    outcomes = [trim(path, output, Wish(steps=(2, 2))) for path, output in zip(paths, small, strict=True)]
    assert outcomes[0].after == outcomes[1].after < outcomes[0].before
    first, second = (shown(api.report(path)) for path in small)
    for item in (first, second):
        del item["trace"]["trimmed"]  # names the file
    assert first == second


def test_args_are_those_of_chrome_json(tmp_path: Path) -> None:
    args = {
        "device": 0, "stream": 7, "correlation": 5, "graph id": 2, "graph node id": 8589934592, "grid": [2, 1, 1],
        "annotation": '[{"name": "embedding"}]', "blocks per SM": 1.5, "odd": {"a": [1, "x"]}, "flag": True,
        "est. achieved occupancy %": 50, "launch_latency_us[91]": 2.5,
    }  # fmt: skip
    events = [
        slice_("kernel", "k", 31, 1, 0, 7, **args),
        slice_("cpu_op", "aten::relu", 1, 9, 99, 99, **{"External id": 4, "Input Dims": [[2, 2]]}),
        slice_("user_annotation", "nccl:all_reduce", 11, 9, 99, 99, **{"Input Dims": [[2048]], "Seq": 3}),
        slice_("molprof.token", "<", 21, 9, 99, 98, sequence=0, kind="free", grid=5),
    ]
    paths = both(tmp_path, native_trace.named({"traceEvents": events}))
    sql = "SELECT s.name, flat_key, key, value_type, display_value FROM slice AS s LEFT JOIN args USING (arg_set_id)"
    for all_args in (True, False):
        found = []
        for path in paths:
            with open_trace(path, all_args=all_args) as (engine, _):
                found.append(sorted(rows(engine.query(sql)), key=repr))
        assert found[0] == found[1]
        assert ("k", "args.graph node id", "args.graph node id", "int", "8589934592") in found[1]
        assert (("aten::relu", None, None, None, None) in found[1]) == (not all_args)


def test_counters_keep_names_owners_and_values(tmp_path: Path) -> None:
    samples = [
        {"ph": "C", "name": "Power (W)", "pid": "GPU 0 Counters", "ts": time, "args": {"": watts}}
        for time, watts in ((1.5, 260.25), (2.5, 300.0))
    ]
    sql = """SELECT ts, value, t.name AS name, p.name AS process FROM counter AS c
        JOIN process_counter_track AS t ON t.id = c.track_id JOIN process AS p USING (upid) ORDER BY ts"""
    for path in both(tmp_path, {"traceEvents": [work("kernel", "k", 1, 2, 1), *samples]}):
        with open_trace(path) as (engine, _):
            assert rows(engine.query(sql)) == [
                (500, 260.25, "Power (W) ", "GPU 0 Counters"), (1500, 300.0, "Power (W) ", "GPU 0 Counters"),
            ]  # fmt: skip


@pytest.mark.parametrize("name", ["other.json", "run.pftrace.gz"])
def test_a_file_is_recognized_by_its_content(tmp_path: Path, name: str) -> None:
    data = native_trace.track_events(document())
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert api.report(tmp_path / name).counts.kernels == 8


@pytest.mark.parametrize("shared", ["calls", "GPU work", "nothing"])
def test_two_runs_in_one_file_are_refused_where_they_share_a_number(tmp_path: Path, shared: str) -> None:
    events = []
    for run in (0, 1):
        numbers = {what: 5 if shared == what else 6 + run for what in ("calls", "GPU work")}
        args = {"device": 0, "stream": 7, "correlation": numbers["GPU work"]}
        call = {"correlation": numbers["calls"]}
        events.append(slice_("cuda_runtime", "cudaLaunchKernel", 1, 1, run, 40 + run, **call))
        events.append(slice_("kernel", "k", 3 + run, 1, run, 7, **args))
    path = native_trace.write(tmp_path / "runs.pftrace", {"traceEvents": events})
    if shared == "nothing":
        counts = api.report(path).counts
        assert (counts.kernels, counts.kernels_without_call, counts.launches_without_gpu_work) == (2, 0, 0)
        return
    message = f"{path} holds several runs, .*: {shared} of process 0 and process 1 have the same correlation number, 5"
    with pytest.raises(TraceError, match=message) as refused:
        api.report(path)
    assert "into a file of its own" in str(refused.value.hint)


def test_one_graph_may_run_on_several_devices(tmp_path: Path) -> None:
    events = [slice_("cuda_runtime", "cudaGraphLaunch", 1, 1, 100, 100, correlation=5)]
    events += [slice_("kernel", "k", 3, 1, gpu, 7, device=gpu, stream=7, correlation=5) for gpu in (0, 1)]
    counts = api.report(native_trace.write(tmp_path / "graph.pftrace", {"traceEvents": events})).counts
    assert (counts.kernels, counts.graph_launches, counts.kernels_without_call) == (2, 1, 0)


@needs_traces
def test_real_traces_have_exactly_the_expected_figures() -> None:
    folder = Path(str(CORPUS), "native")
    for name, figures in json.loads((folder / "expected.json").read_text()).items():
        report = api.report(folder / name).to_json()
        assert {key: report["counts"][key] for key in figures["counts"]} == figures["counts"], name
        assert report["devices"] == figures["devices"], name
        assert report["trace"]["events_by_category"] == figures["trace"]["events_by_category"], name
        assert report["trace"]["lost_events"] == 0, name


def test_calls_name_the_stages_that_they_started(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    path.write_bytes(native_trace.render_stages(document(stages=True), correlated=False))
    plain = api.report(tiny_trace.write(tmp_path / "run.json", document(stages=True)))
    report = api.report(path)
    assert report.counts.launches_without_gpu_work == plain.counts.launches_without_gpu_work == 1
    assert report.table("launch_calls") == plain.table("launch_calls")
    assert report.table("graphs") == plain.table("graphs")
    assert [row["kernels"] for row in report.table("launch_calls").to_json()] == [2, 0, 2, 1]


def test_slices_and_args_of_stages(engine: TraceProcessor, tmp_path: Path) -> None:
    load(engine, tmp_path, native_trace.render_stages(document(stages=True)))
    events = [event for event in document(stages=True)["traceEvents"] if event["ph"] == "X"]
    expected = {(e["name"], e["cat"], ns(e["ts"]) - 1_000_000, ns(e["dur"])) for e in events}
    assert {row[:4] for row in rows(engine.query(SLICES))} == expected
    sql = "SELECT flat_key, int_value AS v FROM args JOIN slice USING (arg_set_id) WHERE slice.name = 'mystery'"
    assert {("args.registers per thread", 32), ("args.grid", 4), ("args.stream", 7)} <= set(rows(engine.query(sql)))


def packed(*found: Any) -> bytes:
    """A trace of packets, given as such or as their fields."""
    made = [item if isinstance(item, protos.TracePacket) else protos.TracePacket(**item) for item in found]
    return bytes(protos.Trace(packet=made).SerializeToString())


def kernel(begin: int = 1000, **more: Any) -> list[dict[str, Any]]:
    """Begin and end of a kernel of 500 ns."""
    event = {"type": 1, "track_uuid": 7, "categories": ["kernel"], "name": "k", **more}
    return [
        {"timestamp": begin, "track_event": event},
        {"timestamp": begin + 500, "track_event": {"type": 2, "track_uuid": 7}},
    ]


def test_counters_of_the_gpu(engine: TraceProcessor, tmp_path: Path) -> None:
    names = protos.TracePacket(trusted_packet_sequence_id=1, sequence_flags=1)
    counters = names.interned_data.gpu_counter_descriptors.add(iid=1, gpu_id=3).counter_descriptor
    counters.specs.add(counter_id=5, name="Power (W)")
    own = {"specs": [{"counter_id": 6, "name": "Cycles"}]}
    at = {"trusted_packet_sequence_id": 1, "timestamp": 10}
    power = {"counter_descriptor_iid": 1, "counters": [{"counter_id": 5, "double_value": 250.5}]}
    cycles = {"counter_descriptor": own, "counters": [{"counter_id": 6, "int_value": 9}]}
    stage = {"event_id": 1, "duration": 10, "launch": {"grid_size": {"x": 1}}, "name": "k"}
    events = [
        {**at, "gpu_counter_event": power},
        {**at, "gpu_counter_event": cycles},
        {**at, "gpu_render_stage_event": stage},
    ]
    load(engine, tmp_path, packed(names, *events))
    sql = """SELECT TRIM(t.name) AS name, p.name AS process, value FROM counter AS c
        JOIN process_counter_track AS t ON t.id = c.track_id JOIN process AS p USING (upid) ORDER BY value"""
    assert rows(engine.query(sql)) == [("Cycles", "GPU 0 Counters", 9), ("Power (W)", "GPU 3 Counters", 250.5)]
    assert rows(engine.query("SELECT name, category, dur FROM slice")) == [("k", "kernel", 10)]


def test_names_of_older_writers(engine: TraceProcessor, tmp_path: Path) -> None:
    """Their queues and stages are lists in the first event, which has no time of its own."""
    lists = {"hw_queue": [{"name": "queue A"}, {"name": "stream 4"}], "stage": [{"name": "vertex"}, {"name": "Memset"}]}
    found: list[Any] = [{"timestamp": 0, "gpu_render_stage_event": {"specifications": lists}}]
    for queue, stage, start in ((0, 0, 10), (1, 1, 20)):
        event = {"event_id": start, "duration": 5, "hw_queue_id": queue, "stage_id": stage}
        found.append({"timestamp": start, "gpu_render_stage_event": event})
    load(engine, tmp_path, packed(*found))
    sql = "SELECT name, category, EXTRACT_ARG(arg_set_id, 'args.stream') AS stream FROM slice ORDER BY ts"
    assert rows(engine.query(sql)) == [("vertex", "vertex", None), ("Memset", "gpu_memset", 4)]


def test_names_that_packets_share(engine: TraceProcessor, tmp_path: Path) -> None:
    interned = {
        "event_names": [{"iid": 1, "name": "shared"}],
        "event_categories": [{"iid": 2, "name": "kernel"}],
        "debug_annotation_names": [{"iid": 3, "name": "stream"}],
    }
    event = {"type": 1, "name_iid": 1, "category_iids": [2], "debug_annotations": [{"name_iid": 3, "int_value": 7}]}
    clear = {"trusted_packet_sequence_id": 1, "sequence_flags": 1}
    found = [
        {**clear, "interned_data": interned, "trace_packet_defaults": {"track_event_defaults": {"track_uuid": 7}}},
        {"trusted_packet_sequence_id": 1, "timestamp": 10, "track_event": event},
        {"trusted_packet_sequence_id": 1, "timestamp": 20, "track_event": {"type": 2}},
    ]
    load(engine, tmp_path, packed(*found))
    sql = "SELECT name, category, dur, EXTRACT_ARG(arg_set_id, 'args.stream') AS stream FROM slice"
    assert rows(engine.query(sql)) == [("shared", "kernel", 10, 7)]
    # What is forgotten, and what another writer has named, is missing.
    for late in ({**clear, "timestamp": 30}, {"trusted_packet_sequence_id": 2, "timestamp": 30}):
        with pytest.raises(TraceError, match="refers to number 2 of its event_categories"):
            load(engine, tmp_path, packed(*found, {**late, "track_event": {**event, "track_uuid": 7}}))


def test_times_of_several_clocks(engine: TraceProcessor, tmp_path: Path) -> None:
    clocks = [{"clock_id": 6, "timestamp": 5000}, {"clock_id": 3, "timestamp": 1000}]
    own = {"clock_id": 64, "timestamp": 2, "is_incremental": True, "unit_multiplier_ns": 100}
    found = [{"trusted_packet_sequence_id": 1, "clock_snapshot": {"clocks": [*clocks, own]}}]
    for clock, track, begin, end in ((6, 1, 5000, 5100), (3, 2, 1200, 1350), (64, 3, 4, 2)):
        for kind, time in ((1, begin), (2, end)):
            event = {"type": kind, "track_uuid": track, "name": f"clock {clock}"}
            at = {"trusted_packet_sequence_id": 1, "timestamp": time, "timestamp_clock_id": clock}
            found.append({**at, "track_event": event})
    load(engine, tmp_path, packed(*found))
    shown = rows(engine.query("SELECT name, ts, dur FROM slice ORDER BY ts"))
    assert shown == [("clock 6", 0, 100), ("clock 3", 200, 150), ("clock 64", 400, 200)]
    with pytest.raises(TraceError, match="has times of clock 3 and of others, without a snapshot"):
        load(engine, tmp_path, packed(*found[1:]))


def test_packets_in_any_order(tmp_path: Path) -> None:
    """Of slices that touch, the begin of the second may come before the end of the first."""
    spans = [(0, 10), (10, 30), (12, 20), (40, 40)]
    begins = [{"timestamp": start, "track_event": {"type": 1, "track_uuid": 7}} for start, _ in spans]
    ends = [{"timestamp": end, "track_event": {"type": 2, "track_uuid": 7}} for _, end in spans]
    mixed = [*kernel(3000), *kernel(1000), *kernel(1100)]
    mixed[3]["timestamp"] = 1900  # so that the third is inside the second
    for packets, expected in (
        ([*begins, *ends], [(0, 10, 0), (10, 20, 0), (12, 8, 1), (40, 0, 0)]),
        (mixed, [(0, 900, 0), (100, 500, 1), (2000, 500, 0)]),
    ):
        path = tmp_path / "trace.pftrace"
        path.write_bytes(packed(*packets))
        with open_trace(path) as (engine, _):
            assert rows(engine.query("SELECT ts, dur, depth FROM slice ORDER BY ts")) == expected


EVENTS = [work("kernel", f"k{number}", number, 0.5, number) for number in range(50)]
DATA = native_trace.track_events({"traceEvents": EVENTS})


def places(data: bytes) -> list[int]:
    """Where the packets of a short trace begin."""
    found, place = [], 0
    for packet in protos.Trace.FromString(data).packet:
        found.append(place)
        place += protos.Trace(packet=[packet]).ByteSize()
    return found


# Two descriptions of tracks, then begin and end of each kernel.
BEGIN_OF_40, END_OF_40 = places(DATA)[2 + 2 * 40 :][:2]
UNDESCRIBED = {"timestamp": 10, "gpu_render_stage_event": {"event_id": 1, "duration": 10, "stage_iid": 9}}


@pytest.mark.parametrize(
    ("data", "reason", "kernels"),
    [
        (DATA[: BEGIN_OF_40 + 9], f"is truncated inside a packet (byte {BEGIN_OF_40 + 9} of the trace", 40),
        (DATA[: END_OF_40 + 1], f"is truncated inside a packet (byte {END_OF_40 + 1} of the trace", 40),
        (DATA[:END_OF_40], f"has a slice that does not end (byte {BEGIN_OF_40} of the trace, after 81 events)", 40),
        (DATA[:BEGIN_OF_40] + b"\x0b" + DATA[BEGIN_OF_40:],
         f"is damaged: no packet begins with 0b 0a 53 40 (byte {BEGIN_OF_40} of the trace, after 80 events)", 40),
        (DATA[:BEGIN_OF_40] + b"\x0a\x02\x08\xff" + DATA[BEGIN_OF_40:],
         f"has a wrong packet: it does not decode (byte {BEGIN_OF_40} of the trace", 40),
        (DATA[:BEGIN_OF_40] + DATA[END_OF_40:],
         f"has the end of a slice that did not begin (byte {BEGIN_OF_40} of the trace, after 99 events)", 49),
        (DATA[:BEGIN_OF_40] + b"\x0a\xff\xff\xff\xff\x0f", f"has a packet of 4294967295 bytes (byte {BEGIN_OF_40}", 40),
        (DATA[:BEGIN_OF_40] + packed({"track_event": {"type": 1}}), f"an event without a time (byte {BEGIN_OF_40}", 40),
        (DATA[:BEGIN_OF_40] + packed({"timestamp": 2**63, "track_event": {"type": 1}}),
         f"has an event at {2**63} ns, which is no time (byte {BEGIN_OF_40}", 40),
        (DATA[:BEGIN_OF_40] + packed(*kernel(name_iid=5)),
         f"refers to number 5 of its event_names, which is missing (byte {BEGIN_OF_40}", 40),
        (DATA[:BEGIN_OF_40] + packed(UNDESCRIBED),
         f"refers to number 9 of its gpu_specifications, which is missing (byte {BEGIN_OF_40}", 40),
        (DATA[:BEGIN_OF_40] + packed({"compressed_packets": zlib.compress(DATA)[:-9]}),
         f"has a compressed packet that is cut off (byte {BEGIN_OF_40}", 40),
        (DATA[:BEGIN_OF_40] + packed({"compressed_packets": zlib.compress(b"\0" * 50_000_000)}),
         "a compressed packet that unpacks to far more than its size", 40),
    ],
    ids=["inside", "head", "open", "between", "wrong", "stray", "huge", "timeless", "late", "unnamed", "undescribed",
         "compressed", "bomb"],
)  # fmt: skip
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_damage_is_named_with_its_byte(
    tmp_path: Path, engine: TraceProcessor, data: bytes, reason: str, kernels: int, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "trace.pftrace"
    path.write_bytes(pack(data))
    with pytest.raises(TraceError) as failure:
        api.report(path)
    assert str(failure.value).startswith(f"{path} ")
    assert reason in str(failure.value)
    assert "\n" not in str(failure.value)
    assert "--partial" in str(failure.value.hint)
    info = load(engine, tmp_path, pack(data), partial=True)
    assert (info.events_by_category, info.lost_events, info.complete) == ({"kernel": kernels}, 0, False)
    assert reason in str(info.problem)


def test_gzip_and_compressed_packets(engine: TraceProcessor, tmp_path: Path) -> None:
    info = load(engine, tmp_path, packed({"compressed_packets": zlib.compress(DATA)}))
    assert (info.events_by_category, info.lost_events, info.complete) == ({"kernel": 50}, 0, True)
    numbers = random.Random(1)
    named = [{**event, "name": f"{numbers.random()}"} for event in EVENTS]
    cut = gzip.compress(native_trace.track_events({"traceEvents": named}), mtime=0)[:-300]
    info = load(engine, tmp_path, cut, partial=True)
    assert 5 < info.events_by_category["kernel"] < 50
    assert "gzip data is truncated at byte" in str(info.problem)


@pytest.mark.parametrize(
    "data",
    [
        packed({"timestamp": 5, "trace_uuid": {"msb": 1, "lsb": 2}}, {"timestamp": 6, "system_info": {"page_size": 9}}),
        packed(*[{"track_descriptor": {"uuid": number, "name": "track"}} for number in range(1, 20)]),
    ],
)
def test_other_perfetto_traces_are_refused_in_one_line(engine: TraceProcessor, tmp_path: Path, data: bytes) -> None:
    with pytest.raises(TraceError, match="without track events and GPU render stages, so no profile") as refused:
        load(engine, tmp_path, data)
    assert "give a trace that torch.profiler wrote" in str(refused.value.hint)
    assert "\n" not in str(refused.value)
