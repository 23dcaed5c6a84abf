"""Damaged input gives one line with the position, or, with --partial, its whole part."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
from trace_rows import load, x

from molprof import api
from molprof.analysis.reader import document, survey
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.common.errors import TraceError

WHOLE = json.dumps({"traceEvents": [x(f"n{i}", i, 0.5, args={"s": "{"}) for i in range(100)], "after": 1}).encode()
PLACE_OF_90 = WHOLE.index(b'{"ph": "X", "cat": "cpu_op", "name": "n90"')
PACKED = gzip.compress(WHOLE, mtime=0)  # without the time, which would be another in each process of the tests


BAD = [
    (b"", "is empty (0 bytes)"),
    (b" \n ", "is empty or holds only white space (byte 3"),
    (gzip.compress(b"", mtime=0), "is empty or holds only white space (byte 0"),
    (b"\xef\xbb\xbf", "is empty or holds only white space (byte 3"),
    (b'[{"ph": "X", "ts": 1, "name": "\\ud800"}]', "wrong event 1: text that ends in half a surrogate"),
    (b"null", "is JSON, but neither an object nor an array: it begins with b'null'"),
    (b"3", "is JSON, but neither an object nor an array: it begins with b'3'"),
    (b"hello", "is not JSON: it begins with b'hello' (byte 0 of the text, after 0 events)"),
    (b"\xef\xbb\xbf{}", "has no 'traceEvents' (byte 5 of the text"),
    (b"\xef\xbb{}", "is not JSON: it begins with b'\\xef\\xbb{}' (byte 0"),
    (b"\xff\xfe{\0}\0", "is not JSON: it begins with"),
    (b"PK\x03\x04zip", "is a zip archive, not a trace"),
    (b"{}", "has no 'traceEvents' (byte 2 of the text"),
    (b'{"a": [1, 2]}', "has no 'traceEvents'"),
    (b'{"traceEvents": 5}', "'traceEvents' that is not an array (byte 16"),
    (b'{"traceEvents": null}', "'traceEvents' that is not an array"),
    (b'{"traceEvents": [], "traceEvents": []}', "'traceEvents' twice"),
    (b'{"traceEvents": []} x', "more text after the end of the JSON value (byte 20"),
    (b'{"traceEvents" []}', "no ':' after key 'traceEvents' (byte 15"),
    (b'{"a": 1 "traceEvents": []}', "no ',' or '}' after the value of 'a'"),
    (b'{"traceEvents": [], }', "no key where one should begin"),
    (b'{"traceEvents": [], "a": nope}', "malformed in the value of 'a'"),
    (b'{"traceEvents": [], "molprof": 3}', "the key 'molprof' is int, not an object"),
    (b'{"traceEvents": [', "is truncated inside event 1 (byte 17"),
    (b'{"traceEvents": [1, 2]}', "Expected `object`, got `int`"),
    (b'{"traceEvents": [{"ph": "i", "ts": 1}, {"ph": 7}]}',
     "wrong event 2: Expected `str | null`, got `int` - at `ph` (byte 39 of the text, after 1 events)"),
    (b'{"traceEvents": [{"ph": "i", "ts": 1} {"ph": "i"}]}', "no ',' or ']' after an event (byte 38"),
    (b'{"traceEvents": [{"ph": "i", "ts": 1},]}', "malformed"),
    (b'{"traceEvents": [}', "malformed: no ',' or ']' after an event (byte 17"),
    (b'{"traceEvents": [{"ph": "i", "ts": 1}, }', "is malformed"),
    (b'{"traceEvents": [{"ph": "X", "name": "\xff"}]}', "invalid UTF-8"),
    (b'{"traceEvents": [{"ph": "X", "args": {"a": "\xff"}, "ts": 1}]}', "invalid UTF-8"),
    (b'{"traceEvents": [{"ph": "X", "ts": NaN}]}', "wrong event 1"),
    (WHOLE[: PLACE_OF_90 + 20], f"is truncated inside event 91 (byte {PLACE_OF_90 + 20} of the text,"
     " after 90 events)"),
    (b'[{"ph": "X", "ts": 1}, {"ph": "X", "name": "a", "ts": 1, "dur": -1}]',
     "event 2, 'a' (ph 'X'), has a negative dur, -1 us"),
    (b'[{"ph": "M"}, {"ph": "X", "name": "b", "dur": 1}]', "event 2, 'b' (ph 'X'), has no ts"),
    (b'[{"ph": "X", "name": "c", "ts": "soon"}]', "has a wrong ts: 'soon' is not a time in microseconds"),
    (b'[{"ph": "X", "name": "d", "ts": 1, "dur": [1]}]', "'d' (ph 'X'), has a wrong dur: '[1]' is not a time"),
    # The first wrong event is named, also where those before it are not fed, or what is behind it is no JSON.
    (b'[{"ph": "X", "cat": "python_function", "ts": 1}, {"ph": "X", "name": "b", "ts": "soon"}, {"ph": tru}]',
     "event 2, 'b' (ph 'X'), has a wrong ts: 'soon' is not a time"),
    (b'{"traceEvents": [' + b'{"a":' * 600_000, "is nested too deeply inside event 1 (byte 17 "),
    (b'{"traceEvents": [{"ph": "i", "ts": 1}, ' + b"[" * 600_000, "is nested too deeply inside event 2 (byte "),
    (b'{"other": ' + b"[" * 600_000, "is nested too deeply in the value of a key (byte 10 "),
    (PACKED[:-300], "gzip data is truncated at byte"),
    (PACKED[:-4], "gzip data is truncated at byte"),
    (PACKED[:-6] + b"\0" * 6, "damaged gzip data near byte"),
    (PACKED + b"junk", "the gzip data ends at byte"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_bad_input_is_one_line_with_the_place(
    engine: TraceProcessor, tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as failure:
        load_trace(path, engine)
    message = str(failure.value)
    assert reason in message
    assert str(path) in message
    assert "\n" not in message
    hints = {
        "is JSON, but": "give a trace as torch.profiler or Perfetto write it", "is empty or": "record the trace again",
        "event 2, ": "correct or remove that event", "the key 'molprof'": "capture again, or delete the key 'molprof'",
    }  # fmt: skip
    for beginning, hint in hints.items():
        assert not reason.startswith(beginning) or str(failure.value.hint).startswith(hint)


@pytest.mark.parametrize(
    "content",
    [
        WHOLE[: PLACE_OF_90 + 20],
        WHOLE[:PLACE_OF_90],
        WHOLE[:PLACE_OF_90] + b"nonsense" + WHOLE[PLACE_OF_90:],
        WHOLE[: PLACE_OF_90 - 2] + WHOLE[PLACE_OF_90:],
        WHOLE[:PLACE_OF_90] + b'{"ph": 5}, ' + WHOLE[PLACE_OF_90:],
        WHOLE[:PLACE_OF_90] + b"[" * 600_000,
    ],
    ids=["inside", "between", "malformed", "no comma", "wrong type", "nested"],
)
def test_partial_takes_what_is_whole(engine: TraceProcessor, tmp_path: Path, content: bytes) -> None:
    info = load(engine, tmp_path, content, partial=True)
    assert (info.events_by_category, info.lost_events, info.complete) == ({"cpu_op": 90}, 0, False)
    assert "byte" in str(info.problem)
    assert engine.query("SELECT name FROM slice ORDER BY ts")["name"].tolist() == [f"n{i}" for i in range(90)]


def test_partial_takes_what_truncated_gzip_holds(engine: TraceProcessor, tmp_path: Path) -> None:
    events = [x(f"n{i * 7919 % 10007}", i, 0.5, args={"a": i * i}) for i in range(5000)]
    packed = gzip.compress(json.dumps(events).encode())
    info = load(engine, tmp_path, packed[: len(packed) // 2], partial=True)
    count = info.events_by_category["cpu_op"]
    assert 1000 < count < 4000
    assert "gzip data is truncated" in str(info.problem)
    assert engine.query("SELECT COUNT(*) AS n, MAX(ts) AS last FROM slice")["last"].tolist() == [(count - 1) * 1000]


@pytest.mark.parametrize("content", [b'{"traceEvents": [{"ph": "X"', b"[nonsense]", PACKED[:30]])
def test_partial_of_a_file_damaged_before_any_event(engine: TraceProcessor, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"(?m)there is nothing before the damage$") as failure:
        load_trace(path, engine, partial=True)
    assert failure.value.hint == "record the trace again, or copy the file again"


@hypothesis.settings(max_examples=80, deadline=None)
@hypothesis.given(st.data())
def test_damaged_text_is_an_error_or_the_same_as_json(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever is done to the text: what the reader takes is what the standard library's parser takes."""
    events = [x(f"n{i}", i, 0.5, args={"s": "{"}) for i in range(4)]
    text = bytearray(json.dumps({"k": {"a": [1]}, "traceEvents": events}).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 20))
        put = data.draw(
            st.sampled_from([b"", *(b'{}[],:"\\ 0a1.-\xff\n'[i:][:1] for i in range(17)), b"null", b"\x00"])
        )
        action = data.draw(st.sampled_from(["replace", "cut", "repeat"]))
        end = len(text) if action == "cut" else place if action == "repeat" else place + length
        text[place:end] = text[place : place + length] if action == "repeat" else put
    path = tmp_path_factory.mktemp("damaged") / "trace.json"
    path.write_bytes(text)
    with open_engine() as engine, contextlib.suppress(TraceError):
        info = load_trace(path, engine)
        whole = json.loads(bytes(text), parse_float=Decimal)
        found = whole if isinstance(whole, list) else whole["traceEvents"]
        counts = Counter(str(event.get("cat")) for event in found if event.get("ph") == "X")
        assert (info.events_by_category, info.lost_events) == (dict(sorted(counts.items())), 0)


@pytest.mark.parametrize("text", [b'"a": %b', b'"args": {"a": %b}', b'"args": {"a": %b, "b": "\\n"}'])
@pytest.mark.parametrize("depth", [700, 5000])
def test_deep_nesting_is_an_error_or_read(engine: TraceProcessor, tmp_path: Path, text: bytes, depth: int) -> None:
    event = b'{"ph": "X", "ts": 1, ' + text % (b"[" * depth + b"]" * depth) + b"}"
    try:
        info = load(engine, tmp_path, b'{"traceEvents": [' + event + b"]}")
    except TraceError as error:
        assert str(error).endswith(("nested too deeply", "after 0 events)"))  # noqa: PT017
    else:  # as deep as this Python parses: 3.13 reads 5,000 levels, others do not
        assert (info.lost_events, list(info.events_by_category.values())) == (0, [1])


@pytest.mark.parametrize(
    ("category", "arg", "value", "shown"),
    [
        ("kernel", "correlation", "seven", "'seven'"),
        ("cuda_runtime", "correlation", "7", "'7'"),
        ("gpu_memcpy", "correlation", 10**20, "'100000000000000000000'"),
        ("gpu_memset", "stream", "y" * 70, f"'{'y' * 60}'..."),
        ("gpu_memcpy", "bytes", "12kB", "'12kB'"),
        ("gpu_memcpy", "bytes", 10**20, "'100000000000000000000'"),
    ],
)
def test_text_for_a_number_is_named_with_its_event(
    tmp_path: Path, category: str, arg: str, value: object, shown: str
) -> None:
    path = tmp_path / "trace.json"
    fine = x("fine", 0, 1, cat="cuda_driver", args={"stream": "text", "bytes": "text"})  # which nothing reads
    path.write_text(json.dumps([fine, x("wrong", 1, 1, cat=category, args={arg: value})]))
    what = f"the event 'wrong' of category {category} has the {arg} {shown}, which is not an integer of 64 bits"
    for read in (api.report, lambda path: api.query([path], "launches")):
        with pytest.raises(TraceError) as failure:
            read(path)
        assert str(failure.value) == f"{path}: {what}"


def test_odd_values_of_work(tmp_path: Path) -> None:
    """A kernel moves no bytes; devices that are no numbers are shown as what they are; streams must be numbers."""
    devices = [True, False, [1], {"a": 1}, "x", 1.5, None]
    events = [x("k", 9 * n, 1, cat="kernel", args={"device": device}) for n, device in enumerate(devices)]
    events.append(x("k", 99, 1, cat="kernel", args={"bytes": "text"}))
    events.append(x("Memcpy DtoH", 100, 1, cat="gpu_memcpy", args={"bytes": 1.5e3, "device": 1.5}))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    report = api.report(path)
    assert report.counts.memory_operations["Memcpy DtoH"].bytes == 1500
    assert list(report.devices) == sorted(["1", "true", "false", "[1]", '{"a":1}', "x", "1.5", "None"])
    for stream in ("true", "1e999", '"x"', "[7]"):
        text = '[{"ph":"X","cat":"kernel","name":"k","pid":0,"ts":1,"args":{"stream":STREAM}}]'
        path.write_text(text.replace("STREAM", stream))
        with pytest.raises(TraceError, match=r"has the stream .*, which is not an integer"):
            api.report(path)


@pytest.mark.parametrize("known", [0, 11])
def test_a_file_of_unknown_events_is_refused_early(
    engine: TraceProcessor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    monkeypatch.setattr(survey, "MAX_UNREAD", 10)
    events = [x("a", i, 1) for i in range(known)] + [{} for _ in range(11)]
    if known:
        assert load(engine, tmp_path, events).not_read == {"None": 11}
    else:
        with pytest.raises(TraceError, match="11 of its first 11 events are of no known kind"):
            load(engine, tmp_path, events)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b'{"traceEvents": [{"ph": "X", "name": "', "inside event 1"),
        (b'{"other": "', "inside the value of 'other'"),
        (b'{"', "inside a key"),
    ],
)
def test_a_value_without_end_is_refused_in_bounded_memory(
    engine: TraceProcessor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, where: str
) -> None:
    monkeypatch.setattr(document, "MAX_VALUE_BYTES", 1_000_000)
    with pytest.raises(TraceError, match="has a value of more than 1000000 bytes, " + where):
        load(engine, tmp_path, text + b"x" * 3_000_000)


def test_text_for_bytes_of_memory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    place = {"cat": "cpu_instant_event", "name": "[memory]", "ph": "i", "s": "t", "pid": 1, "tid": 1, "ts": 1}
    path.write_text(json.dumps([{**place, "args": {"Bytes": "many", "Addr": 1, "Device Type": 0}}]))
    with pytest.raises(TraceError, match=r"the event '\[memory\]' .* has the Bytes 'many', which is not an integer"):
        api.memory(path)
