"""Times of events: exact nanoseconds whatever their size, and wrong ones named."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from trace_rows import SLICES, load, rows, x

from molprof.analysis.reader.part import WrongEventError
from molprof.analysis.reader.times import nanoseconds
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import TraceError


def test_times_are_exact_whatever_their_size(engine: TraceProcessor, tmp_path: Path) -> None:
    text = b"""[
      {"ph":"X","cat":"a","name":"first","pid":1,"tid":2,"ts":1712195495519689.047,"dur":63.813},
      {"ph":"X","cat":"a","name":"second","pid":1,"tid":3,"ts":1712195495519690.1,"dur":0.001},
      {"ph":"X","cat":"a","name":"third","pid":1,"tid":4,"ts":"1712195495519691","dur":1.2345e1},
      {"ph":"X","cat":"a","name":"half even","pid":1,"tid":5,"ts":1712195495519692.0005,"dur":0.0015},
      {"ph":"X","cat":"a","name":"end","pid":1,"tid":5,"ts":1715195495519692.999,"dur":1000000000.001}
    ]"""
    info = load(engine, tmp_path, text)
    assert info.origin_ns == 1712195495519689047
    assert rows(engine.query(SLICES), "name", "ts", "dur") == [
        ("first", 0, 63813),
        ("second", 1053, 1),
        ("third", 1953, 12345),
        ("half even", 2953, 2),
        ("end", 3_000_000_000_003_952, 1_000_000_000_001),
    ]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"0", 0), (b"1", 1000), (b"1.5", 1500), (b"1.25", 1250), (b"1.125", 1125),
        (b"0.0005", 0), (b"0.0015", 2),
        (b"0.0025", 2), (b"-1.5", -1500), (b"1e3", 1_000_000), (b"1E-3", 1), (b"1.7e15", 1700000000000000000),
        (b'"12.5"', 12500), (b"999999999999999.999", 999999999999999999), (b"1.1230", 1123),
        (b"4607182418800017.408", 4607182418800017408),
    ],
)  # fmt: skip
def test_nanoseconds(text: bytes, ns: int) -> None:
    assert nanoseconds([text]).tolist() == [ns]
    assert nanoseconds([b"1.001", text, b"7"]).tolist() == [1001, ns, 7000]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"true",
        b'"x"',
        b"[1]",
        b"1e400",
        b"99999999999999999999",
        b'"NaN"',
        b"1e999999",
        b"-1e99999999",
        b"1e999999999",
        b"1e9999999999999999999999",
        b"1e19",
    ],
)
def test_what_is_no_time_is_placed(text: bytes) -> None:
    with pytest.raises(ValueError, match="is not a time in microseconds") as failure:
        nanoseconds([b"1", text])
    assert failure.value.args[1] == 1


@hypothesis.given(st.lists(st.decimals(0, 10**15 - 1, places=3), min_size=1))
def test_nanoseconds_agree_with_decimal_arithmetic(values: list[Decimal]) -> None:
    texts = [format(value, "f").encode() for value in values]
    assert nanoseconds(texts).tolist() == [int(value * 1000) for value in values]


def test_a_span_that_floats_cannot_hold_is_refused(engine: TraceProcessor, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="times span"):
        load(engine, tmp_path, [x("a", 0, 1), x("b", 1.7e15, 1)])


@pytest.mark.parametrize(
    ("first", "second", "span_ns"),
    [
        (x("a", -9e15, 1), x("b", 9e15, 1), 18 * 10**18),
        (x("a", 0, 1), x("b", 1, 9e15), 9 * 10**18),
        (x("a", -9e15, 1), x("b", 4e14, 9e15), 94 * 10**17),
        (x("a", 0, 3e12), x("b", 3e12, 3e12), 6 * 10**15),
    ],
)
def test_a_span_beyond_an_integer_is_refused_too(
    engine: TraceProcessor, tmp_path: Path, first: dict[str, Any], second: dict[str, Any], span_ns: int
) -> None:
    with pytest.raises(TraceError, match=f"times span {span_ns} ns, more than"):
        load(engine, tmp_path, [first, second])


def test_dur_zero_and_missing_are_slices(engine: TraceProcessor, tmp_path: Path) -> None:
    missing = x("missing", 3, 0)
    del missing["dur"]
    info = load(engine, tmp_path, [x("zero", 1, 0), missing, x("null", 4, None)])
    assert (info.events_by_category, info.lost_events) == ({"cpu_op": 3}, 0)
    assert rows(engine.query(SLICES), "name", "ts", "dur") == [
        ("zero", 0, 0),
        ("missing", 2000, 0),
        ("null", 3000, 0),
    ]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (x("a", 1, -1), "event 2, 'a' (ph 'X'), has a negative dur, -1 us"),
        ({"ph": "X", "name": "b", "pid": 1, "tid": 1, "dur": 1}, "event 2, 'b' (ph 'X'), has no ts"),
        (x("c", "soon", 1), "'soon' is not a time in microseconds"),
        (x("d", 1, [1]), "event 2, 'd' (ph 'X'), has a wrong dur: '[1]' is not a time"),
    ],
)
def test_wrong_times_are_named(engine: TraceProcessor, tmp_path: Path, event: dict[str, Any], reason: str) -> None:
    with pytest.raises(TraceError, match=r"trace\.json") as failure:
        load(engine, tmp_path, [x("ok", 1, 1), event])
    assert reason in str(failure.value)


def test_a_wrong_event_says_which(engine: TraceProcessor, tmp_path: Path) -> None:
    """Also where events before it are not fed, or those behind it are no JSON."""
    stack = x("stack", 1, 1, cat="python_function")
    events = [stack, *(x("a", i, 0.5) for i in range(7)), {"ph": "M"}, x("b", "soon", 1), x("c", 9, -2)]
    told = r"trace.json: event 10, 'b' \(ph 'X'\), has a wrong ts: 'soon' is not a time in microseconds"
    with pytest.raises(TraceError, match=told):
        load(engine, tmp_path, events, stacks=False)
    text = json.dumps(events).encode().removesuffix(b"]") + b', {"ph": tru}]'
    with pytest.raises(TraceError, match=told):
        load(engine, tmp_path, text)
    del events[9]
    with pytest.raises(TraceError, match=r"event 10, 'c' \(ph 'X'\), has a negative dur, -2 us"):
        load(engine, tmp_path, events)
    assert WrongEventError("is nested too deeply").message(7) == "an event after event 7 is nested too deeply"
