"""Bad input: one line with the place, or what is whole of it."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
from trace_rows import load, x

from molprof import api
from molprof.analysis.reader import TraceInfo, document, survey
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.common.errors import TraceError, UsageError

WHOLE = json.dumps({"traceEvents": [x(f"n{i}", i, 0.5, args={"s": "{"}) for i in range(100)], "after": 1}).encode()
PLACE_OF_90 = WHOLE.index(b'{"ph": "X", "cat": "cpu_op", "name": "n90"')
PACKED = gzip.compress(WHOLE, mtime=0)  # without the time, which would be another in each process of the tests


@pytest.mark.parametrize(
    ("content", "reason"),
    [
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
        (PACKED[:-300], "gzip data is truncated at byte"),
        (PACKED[:-4], "gzip data is truncated at byte"),
        (PACKED[:-6] + b"\0" * 6, "damaged gzip data near byte"),
        (PACKED + b"junk", "the gzip data ends at byte"),
    ],
)  # fmt: skip
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


def test_files_that_cannot_be_read(engine: TraceProcessor, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory") as refused:
        load_trace(tmp_path, engine)
    assert refused.value.hint == "give a trace file; there is none in it"
    for name in [f"{number}.json.gz" for number in range(9)] + ["notes.txt"]:
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match="is a directory") as refused:
        load_trace(tmp_path, engine)
    listed = ", ".join(f"{number}.json.gz" for number in range(8))
    assert refused.value.hint == f"give a trace file; in it: {listed} and 1 more"
    with pytest.raises(UsageError, match=r"cannot read .*absent: No such file"):
        load_trace(tmp_path / "absent", engine)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_no_permission(engine: TraceProcessor, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(WHOLE)
    path.chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        load_trace(path, engine)


@pytest.mark.parametrize(
    "content",
    [
        WHOLE[: PLACE_OF_90 + 20],
        WHOLE[:PLACE_OF_90],
        WHOLE[:PLACE_OF_90] + b"nonsense" + WHOLE[PLACE_OF_90:],
        WHOLE[: PLACE_OF_90 - 2] + WHOLE[PLACE_OF_90:],
        WHOLE[:PLACE_OF_90] + b'{"ph": 5}, ' + WHOLE[PLACE_OF_90:],
    ],
    ids=["inside", "between", "malformed", "no comma", "wrong type"],
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


@pytest.mark.parametrize("damaged", [PACKED[:-20], PACKED + b"garbage"])
def test_partial_takes_what_small_damaged_gzip_holds(engine: TraceProcessor, tmp_path: Path, damaged: bytes) -> None:
    info = load(engine, tmp_path, damaged, partial=True)
    assert not info.complete
    assert 50 < info.events_by_category["cpu_op"] <= 100
    assert "gzip data" in str(info.problem)


@pytest.mark.parametrize("content", [b'{"traceEvents": [{"ph": "X"', b"[nonsense]", PACKED[:30]])
def test_partial_of_a_file_damaged_before_any_event(engine: TraceProcessor, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"there is nothing before the damage$") as failure:
        load_trace(path, engine, partial=True)
    assert failure.value.hint == "record the trace again, or copy the file again"


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"hello", "give a trace as torch.profiler or Perfetto write it"),
        (b"null", "give a trace as torch.profiler or Perfetto write it"),
        (b" ", "record the trace again"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": -5}]}', "correct or remove that event"),
        (b'{"traceEvents": [{"ph": "X"}]}', "correct or remove that event"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1e30}]}', "correct or remove that event"),
        (b'{"traceEvents": [], "molprof": "x"}', "capture again, or delete the key 'molprof' from"),
    ],
)
def test_bad_input_names_the_next_step(engine: TraceProcessor, tmp_path: Path, content: bytes, hint: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    for partial in (False, True):
        with pytest.raises(TraceError) as failure:
            load_trace(path, engine, partial=partial)
        assert str(failure.value.hint).startswith(hint)
    with pytest.raises(UsageError, match="No such file") as failure:
        load_trace(tmp_path / "absent", engine)
    assert failure.value.hint == "give the path of a trace; - is standard input"


def test_partial_of_a_whole_file_is_complete(engine: TraceProcessor, tmp_path: Path) -> None:
    assert load(engine, tmp_path, WHOLE, partial=True).complete


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(st.data())
def test_damaged_text_is_an_error_or_the_same_as_json(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever is done to the text: what the reader takes is what the standard library's parser takes."""
    text = bytearray(
        json.dumps({"k": {"a": [1]}, "traceEvents": [x(f"n{i}", i, 0.5, args={"s": "{"}) for i in range(4)]}).encode()
    )
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text) - 1))
        action = data.draw(st.sampled_from(["replace", "drop", "insert", "cut", "repeat"]))
        if action == "replace":
            text[place] = data.draw(st.sampled_from(b'{}[],:"\\ 0a.-\xff\n'))
        elif action == "drop":
            del text[place : place + data.draw(st.integers(1, 9))]
        elif action == "insert":
            text[place:place] = data.draw(
                st.sampled_from([b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"1", b"null", b"\x00"])
            )
        elif action == "cut":
            del text[place + 1 :]
        else:
            text[place:place] = text[place : place + 20]
        if not text:
            return
    path = tmp_path_factory.mktemp("damaged") / "trace.json"
    path.write_bytes(text)
    with open_engine() as engine, contextlib.suppress(TraceError):
        info = load_trace(path, engine)
        _check_against_json(bytes(text), info)


def _check_against_json(text: bytes, info: TraceInfo) -> None:
    whole = json.loads(text, parse_float=Decimal)
    events = whole if isinstance(whole, list) else whole["traceEvents"]
    complete = [event for event in events if event.get("ph") == "X"]
    assert info.events_by_category == dict(sorted(Counter(str(event.get("cat")) for event in complete).items()))
    assert info.lost_events == 0


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b'{"traceEvents": [{"ph": "X", "name": "' + b"x" * 3_000_000, "inside event 1"),
        (b'{"other": "' + b"x" * 3_000_000, "inside the value of 'other'"),
        (b'{"' + b"x" * 3_000_000, "inside a key"),
    ],
    ids=["event", "value", "key"],
)
def test_a_value_without_end_is_refused_in_bounded_memory(
    engine: TraceProcessor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, where: str
) -> None:
    monkeypatch.setattr(document, "_MAX_VALUE_BYTES", 1_000_000)
    with pytest.raises(TraceError, match="has a value of more than 1000000 bytes, " + where):
        load(engine, tmp_path, text)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b'{"traceEvents": [' + b'{"a":' * 600_000, "inside event 1 (byte 17 "),
        (b'{"traceEvents": [{"ph": "i", "ts": 1}, ' + b"[" * 600_000, "inside event 2 (byte "),
        (b'{"other": ' + b"[" * 600_000, "in the value of a key (byte 10 "),
    ],
    ids=["event", "second event", "value"],
)
def test_nesting_without_end_is_refused_at_once(
    engine: TraceProcessor, tmp_path: Path, text: bytes, where: str
) -> None:
    with pytest.raises(TraceError, match=re.escape(f"is nested too deeply {where}")):
        load(engine, tmp_path, text)


def test_partial_takes_what_stands_before_a_nesting_without_end(engine: TraceProcessor, tmp_path: Path) -> None:
    info = load(engine, tmp_path, WHOLE[:PLACE_OF_90] + b"[" * 600_000, partial=True)
    assert (info.events_by_category, info.complete) == ({"cpu_op": 90}, False)
    assert "is nested too deeply inside event 91" in str(info.problem)


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
    message = (
        f"{path}: the event 'wrong' of category {category} has the {arg} {shown}, which is not an integer of 64 bits"
    )
    with pytest.raises(TraceError) as failure:
        api.report(path)
    assert str(failure.value) == message
    with pytest.raises(TraceError) as failure:
        api.query([path], "launches")
    assert str(failure.value) == message


def test_a_kernel_moves_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps(
            [
                x("k", 1, 1, cat="kernel", args={"bytes": "text"}),
                x("Memcpy DtoH", 2, 1, cat="gpu_memcpy", args={"bytes": 1.5e3}),
            ]
        )
    )
    assert api.report(path).counts.memory_operations["Memcpy DtoH"].bytes == 1500


def test_a_device_that_is_null_is_one_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([x("k", 1, 1, cat="kernel", args={"device": None}), x("k", 5, 1, cat="kernel")]))
    assert list(api.report(path).devices) == ["1", "None"]


def test_a_single_line_is_no_obstacle(engine: TraceProcessor, tmp_path: Path) -> None:
    events = [x("n", i, 0.5) for i in range(20_000)]
    text = json.dumps(events, separators=(",", ":")).encode()
    assert b"\n" not in text
    assert load(engine, tmp_path, text).events_by_category == {"cpu_op": 20_000}


@pytest.mark.parametrize("known", [0, 11])
def test_a_file_of_unknown_events_is_refused_early(
    engine: TraceProcessor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    monkeypatch.setattr(survey, "_MAX_UNREAD", 10)
    events = [x("a", i, 1) for i in range(known)] + [{} for _ in range(11)]
    if known:
        assert load(engine, tmp_path, events).not_read == {"None": 11}
    else:
        with pytest.raises(TraceError, match="11 of its first 11 events are of no known kind"):
            load(engine, tmp_path, events)
