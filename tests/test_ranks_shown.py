"""Ranks in other commands: a report of their folder, and all of them in the UI on one clock."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from conftest import Cli
from rank_traces import events, write_rank

from molprof import api
from molprof.analysis.ranks.files import holds_ranks
from molprof.analysis.ranks.read import told_rank
from molprof.analysis.ui.contents import Place
from molprof.analysis.ui.prepare import prepare
from molprof.commands.open import _ranks as ranks_to_open
from molprof.common.reading import Reading


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rank 1 is 60 µs late to the first collective, and its clock is 5 ms ahead."""
    inside = tmp_path / "ranks"
    inside.mkdir()
    write_rank(inside / "0.json", 0)
    write_rank(inside / "1.json.gz", 1, events(late=60, clock=5_000))
    return inside


def test_a_report_of_a_folder_with_ranks_shows_them(folder: Path, molprof: Cli) -> None:
    shown = molprof("ranks", str(folder), "--format", "json")
    result = molprof("report", str(folder), "--format", "json")
    assert result.returncode == 0, result.stderr
    assert result.stdout == shown.stdout
    assert "holds ranks of a job" in result.stderr
    result = molprof("report", str(folder), "--fail-if", "kernels>1")
    assert result.returncode == 2
    (folder / "0.json").unlink()
    alone = molprof("report", str(folder))
    assert (alone.returncode, alone.stderr) == (0, "")


def test_what_holds_ranks(folder: Path, tmp_path: Path) -> None:
    assert [told_rank(folder / name) for name in ("0.json", "1.json.gz")] == [0, 1]
    other = tmp_path / "other"
    other.mkdir()
    write_rank(other / "0.json", 0)
    assert told_rank(write_rank(other / "text.json", "x")) is None  # type: ignore[arg-type]
    assert [holds_ranks(item) for item in (folder, other)] == [True, False]


def test_ranks_are_opened_on_one_clock(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, clocks = ranks_to_open([folder], Reading(False, None))
    assert clocks == (("rank 0", 0), ("rank 1", 5_000_000))
    prepared = prepare([api.load(path, stacks=True) for path in paths], tmp_path, Place(), clocks)
    content = json.loads(gzip.decompress(prepared.trace.read_bytes()))["traceEvents"]
    ends = sorted(event["ts"] + event["dur"] for event in content if "nccl" in event["name"])
    assert ends == [200, 200, 400, 400]
    names = {event["args"]["name"] for event in content if event["name"] == "process_name"}
    assert {name.split(":")[0] for name in names} == {"rank 0", "rank 1"}


def test_two_traces_of_one_rank_are_not_ranks_of_a_job(tmp_path: Path) -> None:
    paths = [write_rank(tmp_path / name, 0) for name in ("before.json", "after.json")]
    assert ranks_to_open(paths, Reading(False, None)) == (paths, None)
    assert ranks_to_open(paths[:1], Reading(False, None)) == (paths[:1], None)
