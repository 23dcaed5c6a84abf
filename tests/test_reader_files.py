"""Files are read in any layout, block size and compression, by content, from pipes, and by two processes."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from certificate_data import CORPUS, needs_traces
from conftest import Cli
from test_fuzz import RUNS, mutated
from test_reader import zstd
from trace_rows import load, rows, x

from molprof.analysis.reader import document, source
from molprof.analysis.reader import load as loading
from molprof.analysis.reader.load import load_trace
from molprof.analysis.reader.part import TracePart
from molprof.analysis.reader.pieces import SecondReader
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.common.errors import TraceError, UsageError

TEXT = json.dumps({"traceEvents": [x(f"n{i * 7919 % 10007}", i, 0.5) for i in range(3000)]}).encode()
# Between events, inside texts, and deeper inside.
TRICKY = ('},{"ph"', '}, {"ph"', "]}", '\\"', "{[", '"},\n  {\n    "ph"', "\\\\")
PIECE_BYTES = 4096


def tricky(count: int) -> list[dict[str, Any]]:
    """Events with texts that look like the end of an event, some of them instants."""
    events = []
    for i in range(count):
        args = {"list": [{"ph": 1}, {"ph": [2, {}]}], "text": TRICKY[i % 7] * (i % 9), "n": i}
        instant = {"name": "[mark]", "ph": "i", "s": "t", "pid": 1, "tid": 2, "ts": i, "args": {"n": i}}
        events.append(x(f"{TRICKY[i % 7]}{i}", i, 1, args=args) if i % 7 else instant)
    return events


def layouts(events: list[dict[str, Any]]) -> dict[str, str]:
    trace = {"head": {"a": ["x{"]}, "traceEvents": events, "tail": [{"ph": TRICKY}]}
    indented = ",\n  ".join(json.dumps(event, indent=4).replace("\n", "\n  ") for event in events)
    tail = json.dumps(trace["tail"])
    return {
        "minified": json.dumps(trace, separators=(",", ":")),
        "spaced": json.dumps(trace),
        "indented": json.dumps(trace, indent=4),
        "torch": f'{{"head": {{"a": ["x{{"]}}, "traceEvents": [\n  {indented}\n  ],\n  "tail": {tail}}}\n',
        "crlf": json.dumps(trace, indent=1, ensure_ascii=False).replace("\n", "\r\n"),
    }


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the size of the blocks in which files are read, so that a short file has many."""

    def cut(size: int) -> None:
        monkeypatch.setattr(document, "DECODE_BYTES", size)
        monkeypatch.setattr(source, "BLOCK_BYTES", size)

    return cut


@pytest.mark.parametrize("size", [16, 50, 1000, 2 * 1024 * 1024])
@pytest.mark.parametrize("layout", ["minified", "spaced", "indented", "torch", "crlf"])
def test_any_layout_in_any_blocks(
    engine: TraceProcessor, tmp_path: Path, small_blocks: Callable[[int], None], layout: str, size: int
) -> None:
    small_blocks(size)
    info = load(engine, tmp_path, layouts(tricky(40))[layout].encode())
    assert (info.events_by_category, info.lost_events) == ({"cpu_op": 34}, 0)
    assert info.keys == {"head": {"a": ["x{"]}, "tail": [{"ph": list(TRICKY)}]}
    numbers = engine.query("SELECT EXTRACT_ARG(arg_set_id, 'args.n') AS n FROM slice ORDER BY ts")["n"]
    assert numbers.tolist() == list(range(40))


def test_keys_around_the_events(engine: TraceProcessor, tmp_path: Path) -> None:
    text = (
        b'\n {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU {[\\" 0"}],"x": null, "y": -1.5e3 ,'
        b'"molprof": {"schema": 1, "traceEvents": [1, {"a": "]}"}]},'
        b'"traceEvents" : [ ' + json.dumps(x("a", 1, 2)).encode() + b' ] , "traceName": "a\\u00e9", "n": 12}\n '
    )
    info = load(engine, tmp_path, text)
    assert info.manifest == {"schema": 1, "traceEvents": [1, {"a": "]}"}]}
    assert info.devices == [{"id": 0, "name": 'GPU {[" 0'}]
    keys = {"schemaVersion": 1, "x": None, "y": -1500.0, "traceName": "aé", "n": 12}
    assert info.keys == keys | {"deviceProperties": info.devices}
    assert info.events_by_category == {"cpu_op": 1}
    with open_engine() as other:
        info = load(other, tmp_path, b" [ ]\n")
    assert (info.events_by_category, info.lost_events, info.complete, info.origin_ns) == ({}, 0, True, 0)


@pytest.mark.parametrize("junk", [b"j", b"\x1f", b"junk" * 100_000, b"\0\0PK"])
def test_bytes_after_the_packed_data_are_named_as_such(engine: TraceProcessor, tmp_path: Path, junk: bytes) -> None:
    packed = gzip.compress(TEXT)
    begin = len(packed) + len(junk) - len(junk.lstrip(b"\0"))
    reason = f"the gzip data ends at byte {len(packed)}, and other bytes follow it, from byte {begin} on: "
    with pytest.raises(TraceError, match=re.escape(reason + repr(junk.lstrip(b"\0")[:20]))):
        load(engine, tmp_path, packed + junk)
    info = load(engine, tmp_path, packed + junk, partial=True)
    assert (info.events_by_category, info.complete) == ({"cpu_op": 3000}, False)
    assert reason in str(info.problem)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-9], "zstd data is truncated at byte"),
        (lambda data: data[:4] + b"\xff" * 9 + data[13:], "damaged zstd data near byte"),
        (lambda data: data + b"junk", "and other bytes follow it, from byte"),
    ],
)
def test_damaged_zstd(engine: TraceProcessor, tmp_path: Path, change: Callable[[bytes], bytes], reason: str) -> None:
    with pytest.raises(TraceError, match=re.escape(reason)):
        load(engine, tmp_path, change(zstd.compress(TEXT)))


@pytest.mark.parametrize("packing", source.PACKINGS, ids=lambda packing: packing.name)
def test_a_bomb_is_refused_in_bounded_blocks(packing: source.Packing) -> None:
    """A gigabyte and a half of spaces."""
    pack = {"gzip": gzip.compress, "zstd": zstd.compress}[packing.name]
    data = pack(b"[") + pack(b" " * 50_000_000) * 30
    lengths: list[int] = []
    blocks = (lengths.append(len(block)) for block in source.unpack("bomb", io.BytesIO(data).read, packing))
    with pytest.raises(TraceError, match="over 400 times as many: not a trace"):
        list(blocks)
    assert max(lengths) <= source.BLOCK_BYTES


def test_files_that_cannot_be_read(engine: TraceProcessor, tmp_path: Path) -> None:
    for name in [f"{number}.json.gz" for number in range(9)] + ["notes.txt"]:
        (tmp_path / name).touch()
    (tmp_path / "0.json").write_text('{"no": "trace"}')
    with pytest.raises(UsageError, match="is a directory") as refused:
        load_trace(tmp_path, engine)
    listed = ", ".join(f"{number}.json.gz" for number in range(8))
    assert refused.value.hint == f"give a trace file; in it: {listed} and 1 more"
    with pytest.raises(UsageError, match=r"cannot read .*absent: No such file"):
        load_trace(tmp_path / "absent", engine)


def test_standard_input_and_pipes_are_read_once(tmp_path: Path, molprof: Cli) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(TEXT))
    with path.open("rb") as file:
        result = molprof("report", "-", "--format", "json", stdin=file)
    report = json.loads(result.stdout)
    assert (report["trace"]["path"], report["trace"]["events_by_category"]) == ("-", {"cpu_op": 3000})
    assert report["figures"]["trace"] == "standard input"
    line = f"{sys.executable} -m molprof compare <(zcat trace.json.gz) <(cat trace.json.gz) --by kernel --format json"
    result = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, "3000" in result.stdout) == (0, True), result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("compare pipe link", "link can be read once only"),
        ("query launches pipe pipe", "pipe can be read once only"),
        ("open pipe", "pipe can be read once only: name a file"),
        ("trim pipe --from 0s -o out.json", "pipe can be read once only: name a file"),
        ("ranks pipe link", "ranks are read from files, not from pipe"),
        ("report pipe --graph-capture trace.json", "pipe can be read once only: name a file"),
        ("report pipe --submit here", "a report on a cluster reads a file and writes one"),
    ],
)
def test_a_stream_that_would_be_read_twice_is_refused(tmp_path: Path, molprof: Cli, words: str, message: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    result = molprof(*words.split())
    assert (result.returncode, result.stderr.splitlines()[0]) == (2, f"molprof: error: {message}")


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize("ending", ["whole", "interrupted"])
def test_a_pipe_that_stalls_is_named_and_can_be_left(tmp_path: Path, ending: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    line = [sys.executable, "-m", "molprof", "report", "pipe", "--format", "json"]
    heard: dict[str, Any] = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), "text": True}
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, cwd=tmp_path, **outputs, **heard) as process:
        if ending == "interrupted":
            pipe = (tmp_path / "pipe").open("wb", buffering=0)
            pipe.write(TEXT[:-1000])
        assert process.stderr.readline() == "waiting for data from pipe; Ctrl-C ends it\n"
        if ending == "interrupted":
            process.send_signal(signal.SIGINT)
        else:
            (tmp_path / "pipe").write_bytes(TEXT)
        result, said = process.communicate(timeout=60)
    if ending == "interrupted":
        pipe.close()
        assert (process.returncode, said) == (130, "\nmolprof: error: interrupted; no file was changed\n")
    else:
        assert json.loads(result)["trace"]["events_by_category"] == {"cpu_op": 3000}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch, small_blocks: Callable[[int], None]) -> Iterator[list[int]]:
    """Short files are cut into pieces that a second process takes: their sizes."""
    sizes: list[int] = []
    submit = SecondReader.submit

    def counted(self: SecondReader, text: memoryview) -> Future[TracePart | None] | None:
        future = submit(self, text)
        sizes.extend([len(text)] * (future is not None))
        return future

    small_blocks(PIECE_BYTES)
    monkeypatch.setattr(source, "LONG_BYTES", 0)
    monkeypatch.setattr(loading, "can_copy", lambda: True)  # though the test runner has threads
    monkeypatch.setattr(SecondReader, "submit", counted)
    return sizes


def contents(path: Path, processes: int, **options: Any) -> Any:
    """All that is read of a file, or that it is refused: of several faults either may be named."""
    with open_engine() as engine:
        try:
            info = load_trace(path, engine, processes=processes, **options)
        except TraceError as error:
            return str(error)
        # Numbers that are made up depend on which process read what first.
        sql = """SELECT s.name, s.category, s.ts, s.dur, IIF(t.tid < 1 << 31, t.tid, NULL), t.name AS thread,
            IIF(p.pid < 1 << 31, p.pid, NULL), p.name AS process, key, display_value
            FROM slice AS s LEFT JOIN args USING (arg_set_id) JOIN thread_track AS tt ON tt.id = s.track_id
            JOIN thread AS t USING (utid) JOIN process AS p USING (upid)"""
        return info, sorted(rows(engine.query(sql)), key=repr)


def ordinary(count: int) -> list[dict[str, Any]]:
    """Operators, calls with numbers, kernels and Python stacks."""
    kinds = ("cpu_op", "python_function", "cuda_runtime", "kernel")
    return [
        x(f"{kinds[i % 4]} {i % 7}", i, 0.5, cat=kinds[i % 4], tid=1 + i % 4, args={"correlation": i // 4, "stream": 7})
        for i in range(count)
    ]


@needs_traces
@pytest.mark.parametrize("whole", [True, False])
def test_two_processes_read_what_one_reads(taken: list[int], whole: bool) -> None:
    path = Path(str(CORPUS), "traces/mi300x_vllm_decode_graph.json.gz")
    options = {"stacks": whole, "all_args": whole}
    assert contents(path, 2, **options) == contents(path, 1, **options)
    assert len(taken) > 10


@pytest.mark.parametrize("layout", ["minified", "indented"])
@pytest.mark.parametrize("cut", [None, -9_000])
def test_two_processes_find_the_same_events_and_the_same_end(
    tmp_path: Path, taken: list[int], layout: str, cut: int | None
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(layouts(tricky(700))[layout].encode()[:cut])
    assert contents(path, 2) == contents(path, 1)
    assert ("is truncated inside event" in str(contents(path, 2))) == (cut is not None)
    assert contents(path, 2, partial=True) == contents(path, 1, partial=True)
    assert taken


@pytest.mark.parametrize("wrong", ['{"ph": "X", "dur": 1}', '{"ph": "X", "ts": 1, "dur": -4}', "{]", '"event"', "\x00"])
def test_two_processes_find_the_same_error(tmp_path: Path, taken: list[int], wrong: str) -> None:
    path = tmp_path / "trace.json"
    texts = [json.dumps(event) for event in ordinary(2000)]
    texts[1500] = wrong
    path.write_text('{"traceEvents": [' + ", ".join(texts) + "]}")
    messages = [contents(path, processes) for processes in (1, 2)]
    assert messages[0] == messages[1]
    assert str(path) in messages[0]
    assert taken


@needs_traces
def test_two_processes_read_damaged_traces_alike(tmp_path: Path, taken: list[int]) -> None:
    whole = gzip.decompress(Path(str(CORPUS), "traces/torch_compile_triton.json.gz").read_bytes())
    path = tmp_path / "damaged.json"
    for run in range(RUNS):
        path.write_bytes(mutated(whole, random.Random(f"pieces {run}")))
        one, two = (contents(path, processes) for processes in (1, 2))
        assert one == two or (isinstance(one, str) and isinstance(two, str)), run
    assert taken


def test_places_that_only_look_like_one_between_events(tmp_path: Path, taken: list[int]) -> None:
    """After some wrong guesses the second process is done without."""
    events = [x(f"a{i}", i, 1, args={"list": [{"ph": 1}] * 400}) for i in range(200)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([x("first", 0, 1), x("second", 1, 1), *events]))
    assert contents(path, 2) == contents(path, 1)
    assert 5 < len(taken) < 100


def test_a_second_process_that_dies_is_done_without(
    tmp_path: Path, taken: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parent = os.getpid()
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(ordinary(4000)))
    submit = SecondReader.submit

    def killing(self: SecondReader, text: memoryview) -> Future[TracePart | None] | None:
        if len(taken) == 5:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            os.kill(int(children[-1]), signal.SIGKILL)
        return submit(self, text)

    monkeypatch.setattr(SecondReader, "submit", killing)
    with caplog.at_level(logging.WARNING, "molprof"):
        found = contents(path, 2)
    assert "the second reading process ended" in caplog.text
    assert 5 <= len(taken) < 10
    assert found == contents(path, 1)
