"""Parts of ranks: what is read of each file is kept, read again only where the file changed, and put together."""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from rank_traces import events, write_rank

from molprof import api
from molprof.analysis.documents.ranks import ranks_document
from molprof.analysis.ranks.files import is_part, part_path, read_part
from molprof.common.errors import EngineError, TraceError, UsageError
from molprof.common.process import Served, answer


@pytest.fixture(autouse=True)
def in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also files as small as these are read in processes of their own."""
    monkeypatch.setattr("molprof.analysis.ranks.read.ALONE_BYTES", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ranks, and a folder for their parts in it."""
    write_rank(tmp_path / "0.json", 0)
    write_rank(tmp_path / "1.json.gz", 1, events(late=60))
    (tmp_path / "parts").mkdir()
    return tmp_path


def read(paths: list[Path], **options: Any) -> Any:
    """What is shown of ranks, but their remarks on files."""
    data = ranks_document(api.ranks(paths, **options)).data()
    return {name: value for name, value in data.items() if name != "left_out"}


def kept(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "parts").iterdir()}


def test_parts_put_together_equal_the_traces(folder: Path) -> None:
    job = read([folder])
    first = read([folder], parts=folder / "parts")
    names = [part_path(folder / "parts", folder / name) for name in ("0.json", "1.json.gz")]
    assert sorted(path.name for path in names) == sorted(kept(folder))
    assert all(is_part(path) for path in names)
    assert first == read([folder], parts=folder / "parts") == job
    assert read([folder / "parts"]) == job
    assert read([names[1], folder / "0.json"]) == job


def test_only_what_changed_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = folder / "parts"
    api.ranks([folder], parts=parts)
    before = kept(folder)
    write_rank(folder / "1.json.gz", 1, events(late=30))
    damaged = part_path(folder / "parts", folder / "0.json")
    damaged.write_bytes(damaged.read_bytes()[:-40])
    done: list[tuple[int, int]] = []
    job = api.ranks([folder], parts=parts, progress=lambda *state: done.append(state))
    assert [cost.late_ns for cost in job.costs] == [30_000, 0]
    assert done == [(1, 2), (2, 2)]
    assert all(kept(folder)[name] != before[name] for name in before)
    # A part of a damaged file says nothing of the whole one.
    again = read([folder], partial=True, parts=parts)
    monkeypatch.setattr("molprof.api.ranks_of_trace", lambda trace: pytest.fail("it was read again"))
    assert read([folder], partial=True, parts=parts) == again


def test_a_wrong_part_is_refused(folder: Path) -> None:
    api.ranks([folder], parts=folder / "parts")
    path = part_path(folder / "parts", folder / "0.json")
    text = gzip.decompress(path.read_bytes())
    for content, message in (
        (gzip.compress(text.replace(b'"schema":1', b'"schema":2')), "is a part of schema 2; this molprof reads 1"),
        (gzip.compress(text.replace(b'"rank":0', b'"rank":"0"')), "is no whole part of a rank: Expected `int`"),
        (gzip.compress(text)[:-30], "is no whole part of a rank: Compressed file ended"),
    ):
        path.write_bytes(content)
        with pytest.raises(TraceError, match=message):
            read_part(path)


def test_what_is_not_read_yet_goes_to_the_cluster(folder: Path, molprof: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert molprof("ranks", ".", "--submit", "slurm").returncode == 2
    # A cluster that is not there is asked for only if something is missing.
    assert molprof("ranks", ".", "--parts", "parts").returncode == 0
    shown = molprof("ranks", ".", "--parts", "parts", "--submit", "slurm", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    assert "parts has 2 of 2 files" in shown.stderr
    assert shown.stdout == molprof("ranks", ".", "--format", "json").stdout
    assert molprof("ranks", "parts", "--format", "json").returncode == 0


def test_a_first_file_that_fails_stops_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others, most of which are not read yet, are not waited for."""
    (folder / "0.json").write_bytes((folder / "0.json").read_bytes()[:-20])
    for number in range(2, 40):
        write_rank(folder / f"{number}.json", number)
    with pytest.raises(TraceError, match=r"0\.json"):
        api.ranks([folder], parts=folder / "parts")
    assert not kept(folder)
    (folder / "parts" / "x.json").write_text("{}")
    with pytest.raises(UsageError, match="holds no traces"):
        api.ranks([folder / "parts"])


def long_reply() -> None:
    answer(lambda request: request * 1_000_000)


def cut_reply() -> None:
    os.write(int(sys.argv[1]), (100).to_bytes(4, "big") + b"+cut")


def asked(target: str, request: bytes) -> bytes:
    process = Served(target, "hint")
    try:
        return process.ask(request, "x")
    finally:
        process.kill()
        process.close()


def test_a_long_reply_is_whole_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    assert asked(f"{__name__}:long_reply", b"ab") == b"ab" * 1_000_000
    with pytest.raises(EngineError, match="read x failed: its answer was cut off"):
        asked(f"{__name__}:cut_reply", b"")
