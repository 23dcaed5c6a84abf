"""The file that results are added to: what is no line of it, and lines that are written whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench_data import ran, write

from molprof.common.bench_records import GenerationFigures, read_results
from molprof.common.errors import RunError, TraceError, UsageError
from molprof.profiler.bench import results_file
from molprof.profiler.bench.cases import GenerateCase
from molprof.profiler.bench.results_file import ResultsFile

RUN = {"record": "run", "text": "a" * 100}


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """A write beyond that size fails, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_that_the_disk_has_no_room_for_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    results = ResultsFile(path)
    results.write(RUN)
    whole = path.read_bytes()
    with largest_file(len(whole) + 50), pytest.raises(RunError, match=r"cannot write .*: File too large"):
        results.write(RUN)
    assert path.read_bytes() == whole
    results.write(RUN)
    assert path.read_bytes() == 2 * whole
    results.close()


def test_a_line_that_another_process_is_writing_is_not_taken_for_one_that_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.jsonl"
    line = json.dumps({"schema": 1, "record": "run"}).encode() + b"\n"
    path.write_bytes(line + line[:9])
    opened = os.open(path, os.O_WRONLY | os.O_APPEND)

    def finished(file: int, operation: int) -> None:
        """The other one has the lock until its line is whole."""
        if operation == fcntl.LOCK_EX and path.stat().st_size == len(line) + 9:
            os.write(opened, line[9:])

    monkeypatch.setattr(results_file.fcntl, "flock", finished)
    ResultsFile(path).close()
    os.close(opened)
    assert path.read_bytes() == 2 * line


def test_what_a_killed_neighbour_began_is_not_glued_to_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    results = ResultsFile(path)
    results.write(RUN)
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(whole[:20])
    results.write(RUN)
    results.close()
    assert path.read_bytes() == 2 * whole


WRONG = {
    b'{"schema":"1","record":"run"}': " is not a benchmark record: schema: expected `int`, got `str`",
    b'{"schema":null,"record":"run"}': " is not a benchmark record: schema: expected `int`, got `null`",
    b'{"record":"run"}': " is not a benchmark record: missing field `schema`",
    b'{"schema":1,"record":["run"]}': " is not a benchmark record: record: expected `str`, got `array`",
    b'{"schema":1,"record":"environment","id":["a"],"environment":{}}': ": id: expected `str`, got `array`",
    b'{"schema":1,"record":"environment","environment":{}}': ": missing field `id`",
    b'{"schema":1,"record":"result","case":["a"],"environment":"b","repeat":0,"status":"ok"}': ": case: expected `str`",
    b'{"schema":1,"record":"result","environment":"b","repeat":0,"status":"ok"}': ": missing field `case`",
    b"\xff\xfe{}": " is not JSON: ",
    b"[" * 100_000: " is not JSON: ",
}


@pytest.mark.parametrize("line", WRONG, ids=lambda line: line[:70].decode("ascii", "replace"))
def test_another_file_is_refused_by_both_sides_and_left_as_it_is(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"schema":1,"record":"run"}\n' + line + b"\n")
    before = path.read_bytes()
    for error, code, open_it in ((UsageError, 2, ResultsFile), (TraceError, 3, read_results)):
        with pytest.raises(error, match=re.escape(f"out.jsonl line 2{WRONG[line]}")) as raised:
            open_it(path)
        assert raised.value.exit_code == code
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", [b'"\xc2x"', b"[" * 100_000], ids=["not UTF-8", "deep"])
def test_lines_that_cannot_be_decoded_are_refused_by_readers(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(TraceError, match="line 1 is not JSON"):
        read_results(path)


@pytest.mark.parametrize("figure", ["load_ns", "kv_cache_bytes", "tokens"])
@pytest.mark.parametrize("value", [-1, 10**400], ids=["negative", "huge"])
def test_figures_that_nothing_can_have_measured_are_refused(tmp_path: Path, figure: str, value: int) -> None:
    (made,) = ran(GenerateCase(model="qwen"), [1000])
    made["figures"][figure] = value
    (found,) = read_results(write(tmp_path / "out.jsonl", made)).results
    with pytest.raises(TraceError, match=f"figures: .*{figure}"):
        found.read_figures(GenerationFigures)
