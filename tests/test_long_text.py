"""Long texts in a trace are read in bounded memory; names are shown by beginning, length and hash."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from trace_rows import load, x

from molprof import api
from molprof.analysis.reader.document import TracePass
from molprof.analysis.reader.events import Wanted
from molprof.analysis.reader.part import PartReader
from molprof.analysis.reader.pieces import Pieces
from molprof.analysis.reader.text import MOST_CHARACTERS
from molprof.analysis.trace_processor import TraceProcessor

NAMES = [character * count for character in "ab" for count in (MOST_CHARACTERS, MOST_CHARACTERS + 1, 200_000)]


def short(name: str) -> str:
    """A name as it is read."""
    if len(name) <= MOST_CHARACTERS:
        return name
    return f"{name[: 65536 - 64]}... ({len(name)} characters, sha256 {hashlib.sha256(name.encode()).hexdigest()[:16]})"


@pytest.mark.parametrize("all_args", [False, True])
def test_a_long_name_is_its_beginning_length_and_hash(engine: TraceProcessor, tmp_path: Path, all_args: bool) -> None:
    events = [x(name, 10 * number, number, cat="kernel") for number, name in enumerate(2 * NAMES)]
    info = load(engine, tmp_path, events, all_args=all_args)
    found = engine.query("SELECT name, COUNT() AS count, SUM(dur) AS dur FROM slice GROUP BY name ORDER BY MIN(id)")
    assert list(found["name"]) == [short(name) for name in NAMES]
    assert found["count"].tolist() == [2] * 6
    assert found["dur"].tolist() == [1000 * (2 * number + 6) for number in range(6)]
    assert max(map(len, found["name"])) == MOST_CHARACTERS
    assert (info.long_names, info.lost_events) == (8, 0)
    assert "has 8 names of more than 65,536 characters" in info.notes()[0]


@pytest.mark.parametrize("all_args", [False, True])
def test_long_names_of_tracks_and_categories(engine: TraceProcessor, tmp_path: Path, all_args: bool) -> None:
    first, second = "c" * 100_000, "c" * 100_001
    named: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": first}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": first, "args": {"name": second}},
        {"ph": "M", "name": "process_name", "pid": second, "tid": 1, "args": {"name": "other"}},
        {"ph": "Z", "name": "a", "cat": first, "pid": 1, "tid": 1, "ts": 1},
    ]
    events = [x("a", 0, 1, cat=first, tid=first), x("b", 2, 1, cat=second, tid=second), x("c", 4, 1, pid=second)]
    info = load(engine, tmp_path, named + events, all_args=all_args)
    rows = engine.query(
        "SELECT s.category, t.name AS thread, p.name AS process FROM slice AS s JOIN thread_track AS tt"
        " ON tt.id = s.track_id JOIN thread AS t USING (utid) JOIN process AS p USING (upid) ORDER BY s.ts"
    )
    assert list(rows["category"]) == [short(first), short(second), "cpu_op"]
    assert list(rows["thread"])[:2] == [short(second), short(second)]
    assert list(rows["process"]) == [short(first), short(first), "other"]
    assert info.events_by_category == {short(first): 1, short(second): 1, "cpu_op": 1}
    assert info.not_read == {short(first): 2, short(second): 1}
    assert len(info.not_read_text) < 300
    assert info.long_names == 4


def test_a_report_says_that_names_are_long(tmp_path: Path) -> None:
    reports = []
    for name in ("short", "gemm" + "k" * 100_000):
        events = [tiny_trace.work("kernel", name, 10 * number, 5, number) for number in range(3)]
        reports.append(api.report(tiny_trace.write(tmp_path / "a.json", {"traceEvents": events})))
    assert [report.counts.kernel_time_ns for report in reports] == [15_000, 15_000]
    assert [report.trace.long_names for report in reports] == [0, 3]
    assert not reports[0].trace.remarks
    (remark,) = reports[1].trace.remarks
    assert "has 3 names of more than 65,536 characters: the beginning" in remark
    assert "long_names" not in reports[0].to_json()["trace"]
    assert reports[1].to_json()["trace"]["long_names"] == 3


def test_an_array_of_sizes_that_is_too_long_is_text(engine: TraceProcessor, tmp_path: Path) -> None:
    sizes = [[[2, 3]], [[1] * 40_000]]
    events = [x("aten::argmax", 2 * n, 1, args={"Input Dims": size}) for n, size in enumerate(sizes)]
    load(engine, tmp_path, events, all_args=False)
    found = engine.query("SELECT flat_key, COUNT() AS count FROM args WHERE flat_key GLOB 'args.*' GROUP BY flat_key")
    assert dict(zip(*(column.tolist() for column in found.values()), strict=True)) == {
        "args.Input Dims": 1,
        "args.Input Dims.0.0": 1,
        "args.Input Dims.0.1": 1,
    }


def test_categories_that_are_not_read_are_listed_up_to_eight(engine: TraceProcessor, tmp_path: Path) -> None:
    info = load(engine, tmp_path, [x("a", number, 0.5, cat=f"c{number}") for number in range(11)])
    assert info.not_read_text.endswith("of category c5, 1 event of category c6, 3 events of 3 other categories")


def document(text: bytes) -> TracePass:
    """A trace, read to its end."""
    found = TracePass("t", iter([text[:5000], text[5000:]]), Pieces(PartReader(Wanted()).read), partial=False)
    assert sum(part.events for part in found.parts()) == 2
    return found


@pytest.mark.parametrize("ending", ["", '"', '"}]', '\\"', "]{"])
@pytest.mark.parametrize("filling", ["\\", "\\\\", '"', "a", "[{", "é"])
def test_escapes_at_any_place(filling: str, ending: str) -> None:
    """Text is searched in pieces, of 4096 bytes at first: an escape may stand on both sides of an edge."""
    for count in (*range(1000, 1400, 37), *range(2015, 2060), *range(4060, 4110)):
        value = filling * (count // len(filling)) + "x" * (count % len(filling)) + ending
        keys = {"text": value, "list": [[value], {value: "}"}]}
        text = json.dumps({**keys, "traceEvents": [x(value, 1, 1), x("]}", 2, 1, args=keys)]}, ensure_ascii=False)
        assert document(text.encode()).keys == keys


@pytest.mark.parametrize("text", ["\\\\", '\\"', "\\u00e9", "},{", "[[]],", "1"])
@pytest.mark.parametrize("place", ['"name": "%s"', '"args": {"a": "%s"}', '"args": {"%s": 1}', "key", "value"])
def test_memory_by_what_a_text_holds(text: str, place: str) -> None:
    """Some copies of the text, not many bytes for each of its characters."""
    long = text * (2_000_000 // len(text))
    event = '{"ph": "X", "ts": 1, ' + (place % long if "%" in place else '"name": "a"') + "}"
    keys = {"key": f'"{long}": 1, ', "value": f'"a": "{long}", '}.get(place, "")
    whole = f'{{{keys}"traceEvents": [{event}, {{"ph": "i", "ts": 2}}]}}'.encode()
    tracemalloc.start()
    document(whole)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 12 * len(whole) + 16_000_000
