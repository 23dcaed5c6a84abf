"""Native traces that are damaged or none: the byte of the damage, what is whole of them, or one line."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import native_trace
import pytest
import tiny_trace
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
from trace_rows import load, rows

from molprof import api
from molprof.analysis.reader.packets.stream import packets
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import TraceError

EVENTS = [tiny_trace.work("kernel", f"k{number}", number, 0.5, number) for number in range(50)]
DATA = native_trace.Native({"traceEvents": EVENTS}).data()
PLACES = [place for place, _ in packets(iter([DATA]))]
# Two descriptions of tracks, then begin and end of each kernel.
BEGIN_OF_40, END_OF_40 = PLACES[2 + 2 * 40 :][:2]


def trace(*found: Any) -> bytes:
    """A trace of packets given as their fields; one of several bytes is taken as it is."""
    return bytes(protos.Trace(packet=[protos.TracePacket(**fields) for fields in found]).SerializeToString())


def slice_(track: int = 7, begin: int = 1000, **more: Any) -> list[dict[str, Any]]:
    """Begin and end of a kernel of 500 ns."""
    event = {"type": 1, "track_uuid": track, "categories": ["kernel"], "name": "k", **more}
    return [
        {"timestamp": begin, "track_event": event},
        {"timestamp": begin + 500, "track_event": {"type": 2, "track_uuid": track}},
    ]


def test_the_builder_writes_what_the_tests_count_on(engine: TraceProcessor, tmp_path: Path) -> None:
    info = load(engine, tmp_path, DATA)
    assert (info.events_by_category, info.lost_events, info.complete) == ({"kernel": 50}, 0, True)


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
        (DATA[:BEGIN_OF_40] + trace({"track_event": {"type": 1}}), f"an event without a time (byte {BEGIN_OF_40}", 40),
        (DATA[:BEGIN_OF_40] + trace({"timestamp": 2**63, "track_event": {"type": 1}}),
         f"has an event at {2**63} ns, which is no time (byte {BEGIN_OF_40}", 40),
        (DATA[:BEGIN_OF_40] + trace(*slice_(name_iid=5)),
         f"refers to number 5 of its event_names, which is missing (byte {BEGIN_OF_40}", 40),
        (DATA[:BEGIN_OF_40] + trace({"compressed_packets": zlib.compress(DATA)[:-9]}),
         f"has a compressed packet that is cut off (byte {BEGIN_OF_40}", 40),
    ],
    ids=["inside", "head", "open", "between", "wrong", "stray", "huge", "timeless", "late", "unnamed", "compressed"],
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


def test_damaged_gzip_of_a_native_trace(engine: TraceProcessor, tmp_path: Path) -> None:
    numbers = random.Random(1)
    names = [{"name": f"{numbers.random()}", **event} for event in ({**event, "name": ""} for event in EVENTS)]
    packed = gzip.compress(native_trace.Native({"traceEvents": names}).data(), mtime=0)
    info = load(engine, tmp_path, packed[:-300], partial=True)
    assert 5 < info.events_by_category["kernel"] < 50
    assert "gzip data is truncated at byte" in str(info.problem)


@pytest.mark.parametrize(
    "data",
    [
        trace({"timestamp": 5, "trace_uuid": {"msb": 1, "lsb": 2}}, {"timestamp": 6, "system_info": {"page_size": 9}}),
        trace(*[{"track_descriptor": {"uuid": number, "name": "track"}} for number in range(1, 20)]),
    ],
)
def test_other_perfetto_traces_are_refused_in_one_line(engine: TraceProcessor, tmp_path: Path, data: bytes) -> None:
    with pytest.raises(TraceError, match="without track events and GPU render stages, so no profile") as refused:
        load(engine, tmp_path, data)
    assert "give a trace that torch.profiler wrote" in str(refused.value.hint)
    assert "\n" not in str(refused.value)


def test_names_that_packets_share(engine: TraceProcessor, tmp_path: Path) -> None:
    interned = {
        "event_names": [{"iid": 1, "name": "shared"}],
        "event_categories": [{"iid": 2, "name": "kernel"}],
        "debug_annotation_names": [{"iid": 3, "name": "stream"}],
    }
    event = {"type": 1, "name_iid": 1, "category_iids": [2], "debug_annotations": [{"name_iid": 3, "int_value": 7}]}
    defaults = {"track_event_defaults": {"track_uuid": 7}}
    clear = {"trusted_packet_sequence_id": 1, "sequence_flags": 1}
    found = [
        {**clear, "interned_data": interned, "trace_packet_defaults": defaults},
        {"trusted_packet_sequence_id": 1, "timestamp": 10, "track_event": event},
        {"trusted_packet_sequence_id": 1, "timestamp": 20, "track_event": {"type": 2}},
    ]
    load(engine, tmp_path, trace(*found))
    sql = "SELECT name, category, dur, EXTRACT_ARG(arg_set_id, 'args.stream') AS stream FROM slice"
    assert rows(engine.query(sql)) == [("shared", "kernel", 10, 7)]
    # What is forgotten, and what another writer has named, is missing.
    for late in ({**clear, "timestamp": 30}, {"trusted_packet_sequence_id": 2, "timestamp": 30}):
        with pytest.raises(TraceError, match="refers to number 2 of its event_categories"):
            load(engine, tmp_path, trace(*found, {**late, "track_event": {**event, "track_uuid": 7}}))


def test_times_of_several_clocks(engine: TraceProcessor, tmp_path: Path) -> None:
    clocks = [{"clock_id": 6, "timestamp": 5000}, {"clock_id": 3, "timestamp": 1000}]
    own = {"clock_id": 64, "timestamp": 2, "is_incremental": True, "unit_multiplier_ns": 100}
    snapshot = {"trusted_packet_sequence_id": 1, "clock_snapshot": {"clocks": [*clocks, own]}}
    found = [snapshot]
    for clock, track, begin, end in ((6, 1, 5000, 5100), (3, 2, 1200, 1350), (64, 3, 4, 2)):
        for kind, time in ((1, begin), (2, end)):
            event = {"type": kind, "track_uuid": track, "name": f"clock {clock}"}
            packet = {"trusted_packet_sequence_id": 1, "timestamp": time, "timestamp_clock_id": clock}
            found.append({**packet, "track_event": event})
    load(engine, tmp_path, trace(*found))
    shown = rows(engine.query("SELECT name, ts, dur FROM slice ORDER BY ts"))
    assert shown == [("clock 6", 0, 100), ("clock 3", 200, 150), ("clock 64", 400, 200)]
    with pytest.raises(TraceError, match="has times of clock 3 and of others, without a snapshot"):
        load(engine, tmp_path, trace(*found[1:]))


def test_compressed_packets(engine: TraceProcessor, tmp_path: Path) -> None:
    packed = trace({"compressed_packets": zlib.compress(DATA)})
    assert load(engine, tmp_path, packed).events_by_category == {"kernel": 50}


def test_a_compressed_packet_that_unpacks_to_far_too_much(engine: TraceProcessor, tmp_path: Path) -> None:
    bomb = trace(*slice_(), {"compressed_packets": zlib.compress(b"\0" * 50_000_000)})
    with pytest.raises(TraceError, match="a compressed packet that unpacks to far more than its size"):
        load(engine, tmp_path, bomb)


def test_ends_that_follow_all_begins(engine: TraceProcessor, tmp_path: Path) -> None:
    """Of slices that touch, the begin of the second comes before the end of the first."""
    spans = [(0, 10), (10, 30), (12, 20), (40, 40)]
    begins = [{"timestamp": start, "track_event": {"type": 1, "track_uuid": 7}} for start, _ in spans]
    ends = [{"timestamp": end, "track_event": {"type": 2, "track_uuid": 7}} for _, end in spans]
    load(engine, tmp_path, trace(*begins, *ends))
    assert rows(engine.query("SELECT ts, dur FROM slice ORDER BY ts")) == [(0, 10), (10, 20), (12, 8), (40, 0)]


def test_packets_out_of_order(engine: TraceProcessor, tmp_path: Path) -> None:
    found = [*slice_(begin=3000), *slice_(begin=1000), *slice_(begin=1100)]
    found[3]["timestamp"] = 1900  # so that the third is inside the second
    load(engine, tmp_path, trace(*found))
    shown = rows(engine.query("SELECT ts, dur, depth FROM slice ORDER BY ts"))
    assert shown == [(0, 900, 0), (100, 500, 1), (2000, 500, 0)]
