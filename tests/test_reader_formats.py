"""Formats told by content: zstd, gzip, standard input; bombs; what reports leave out."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from msgspec.structs import replace
from trace_rows import load, rows, x

from molprof import api
from molprof.analysis.figures.build import build_report
from molprof.analysis.reader import source
from molprof.analysis.reader.events import NEEDED_ARGS
from molprof.analysis.reader.load import load_trace
from molprof.analysis.reader.open import open_trace
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import TraceError
from molprof.queries import modules

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = json.dumps({"traceEvents": [x(f"n{i * 7919 % 10007}", i, 0.5) for i in range(3000)]}).encode()


def test_zstd_by_content_in_several_frames(engine: TraceProcessor, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"  # no .zst
    path.write_bytes(zstd.compress(TEXT[:1000]) + zstd.compress(TEXT[1000:]))
    info = load_trace(path, engine)
    assert (info.events_by_category, info.lost_events) == ({"cpu_op": 3000}, 0)
    assert info.bytes == path.stat().st_size


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-9], "zstd data is truncated at byte"),
        (lambda data: data[:4] + b"\xff" * 9 + data[13:], "damaged zstd data near byte"),
        (lambda data: data + b"junk", "and other bytes follow it, from byte"),
    ],
)
def test_damaged_zstd(engine: TraceProcessor, tmp_path: Path, change: object, reason: str) -> None:
    with pytest.raises(TraceError, match=re.escape(reason)):
        load(engine, tmp_path, change(zstd.compress(TEXT)))  # type: ignore[operator]


def test_zstd_frames_without_data_are_skipped(engine: TraceProcessor, tmp_path: Path) -> None:
    skipped = b"\x50\x2a\x4d\x18\x05\x00\x00\x00hello"
    info = load(engine, tmp_path, skipped + zstd.compress(TEXT[:1000]) + skipped + zstd.compress(TEXT[1000:]) + skipped)
    assert (info.events_by_category, info.complete) == ({"cpu_op": 3000}, True)


@pytest.mark.parametrize("padding", [b"", b"\0", b"\0" * 300_000])
def test_gzip_members_follow_each_other(engine: TraceProcessor, tmp_path: Path, padding: bytes) -> None:
    packed = gzip.compress(TEXT[:1000]) + padding + gzip.compress(TEXT[1000:]) + padding
    info = load(engine, tmp_path, packed)
    assert (info.events_by_category, info.bytes) == ({"cpu_op": 3000}, len(packed))


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


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress])
@pytest.mark.parametrize("text", [TEXT, b"[" + TEXT[TEXT.index(b"[") + 1 : -1]])
def test_a_byte_order_mark_is_no_part_of_the_text(
    engine: TraceProcessor, tmp_path: Path, text: bytes, pack: object
) -> None:
    assert load(engine, tmp_path, pack(b"\xef\xbb\xbf \n" + text)).events_by_category == {"cpu_op": 3000}  # type: ignore[operator]


def test_json_that_begins_like_perfetto_is_json(engine: TraceProcessor, tmp_path: Path) -> None:
    assert load(engine, tmp_path, b"\n" + TEXT).events_by_category == {"cpu_op": 3000}


def test_standard_input(tmp_path: Path, molprof: object) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT)
    with path.open("rb") as file:
        result = molprof("report", "-", "--format", "json", stdin=file)  # type: ignore[operator]
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    trace = report["trace"]
    assert (trace["path"], trace["bytes"], trace["events_by_category"]) == ("-", len(TEXT), {"cpu_op": 3000})
    assert report["figures"]["trace"] == "standard input"


@pytest.mark.parametrize(
    "words",
    [
        "report {}",
        "report {} --by operator",
        "report {} --rows",
        "compare {} {}",
        "compare {} {} --by kernel",
        "query 'SELECT COUNT() FROM slice' {} {}",
    ],
)
def test_process_substitution_is_read_once(tmp_path: Path, words: str) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(TEXT))
    given = words.replace("{}", "<(zcat trace.json.gz)")
    line = ["bash", "-c", f"{sys.executable} -m molprof {given} --format json"]
    result = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "3000" in result.stdout


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
def test_a_stream_that_would_be_read_twice_is_refused(
    tmp_path: Path, molprof: Callable[..., Any], words: str, message: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    result = molprof(*words.split())
    assert (result.returncode, result.stderr.splitlines()[0]) == (2, f"molprof: error: {message}")


@pytest.mark.parametrize("ending", ["whole", "interrupted"])
def test_a_pipe_that_stalls_is_named_and_can_be_left(tmp_path: Path, ending: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    line = [sys.executable, "-m", "molprof", "report", "pipe", "--format", "json"]
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(
        line,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **heard,  # type: ignore[call-overload]
    ) as process:
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


@pytest.mark.parametrize("packing", source.PACKINGS, ids=lambda packing: packing.name)
def test_a_bomb_is_refused_in_bounded_blocks(monkeypatch: pytest.MonkeyPatch, packing: source.Packing) -> None:
    monkeypatch.setattr(source, "_HARMLESS_BYTES", 10_000_000)
    data = {"gzip": gzip.compress, "zstd": zstd.compress}[packing.name](b"[" + b" " * 50_000_000)
    lengths: list[int] = []
    blocks = (lengths.append(len(block)) for block in source.unpack("bomb", io.BytesIO(data).read, packing))
    with pytest.raises(TraceError, match="over 400 times as many: not a trace"):
        list(blocks)
    assert max(lengths) <= source.BLOCK_BYTES


def test_a_report_needs_no_other_args() -> None:
    """What the SQL modules read is what `all_args=False` keeps, besides molprof's own tracks and lanes."""
    own = {"molprof_tid", "sequence", "batch", "row", "smiles", "tokens", "position"}
    own |= {"token_id", "text", "kind", "block", "step", "block_free", "block_needed"}
    own |= {"probability", "rank", "choice", "forbidden", "block_open", "block_close"}
    used = {name for sql in modules().values() for name in re.findall(r"'args\.([^'\[.]+)", sql)}
    assert used - own <= set(NEEDED_ARGS)


def test_a_report_without_the_other_args_is_the_same(tmp_path: Path) -> None:
    path = tiny_trace.write(tmp_path / "trace.json", tiny_trace.document())
    with open_trace(path) as (engine, info):
        whole = build_report(engine, info)
    assert replace(api.report(path, stacks=True), findings=()) == whole  # which come on top


def test_only_needed_args_are_kept(engine: TraceProcessor, tmp_path: Path) -> None:
    args = {"correlation": 7, "grid": [1, 2], "stream": 3, "External id": 9}
    # Of operators and Python stacks none, however their block is decoded.
    others = [x("b", 2, 1, args=args), x("c", 3, 1, cat="python_function", args=args)]
    load(engine, tmp_path, [x("a", 0, 1, cat="kernel", args=args), *others * 200], all_args=False)
    shown = engine.query("SELECT key, int_value FROM args JOIN slice USING (arg_set_id) ORDER BY key")
    assert rows(shown) == [("args.correlation", 7), ("args.stream", 3)]


@pytest.mark.parametrize("all_args", [True, False])
def test_numbers_beyond_float64_become_text(engine: TraceProcessor, tmp_path: Path, all_args: bool) -> None:
    text = b'[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1,"args":{"bytes":1e400,"stream":-2E+999,"device":0}}]'
    load(engine, tmp_path, text, all_args=all_args)
    shown = engine.query("SELECT key, COALESCE(string_value, int_value) AS v FROM args ORDER BY key")
    assert [row for row in rows(shown) if row[0].startswith("args.")] == [
        ("args.bytes", "1e400"), ("args.device", 0), ("args.stream", "-2E+999"),
    ]  # fmt: skip


def test_engines_are_made_as_large_as_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from molprof.analysis.reader import load as loading

    path = tmp_path / "trace.json"
    path.write_bytes(TEXT)
    for most, large in ((1 << 30, False), (1000, True)):
        monkeypatch.setattr(loading, "_MAX_BYTES", most)
        with open_trace(path, all_args=False) as (engine, info):
            assert engine._transport._memory64 == large  # type: ignore[union-attr]
            assert info.lost_events == 0
