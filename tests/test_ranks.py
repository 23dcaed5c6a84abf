"""`molprof ranks`: files found by their content, what is wrong with a set of them, and their times."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from rank_traces import events, write_rank

from molprof import api
from molprof.analysis.documents.ranks import ranks_document
from molprof.analysis.ranks.read import needed_bytes, workers_for
from molprof.common.errors import TraceError, UsageError

CORPUS = Path(os.environ.get("MOLPROF_CORPUS", "absent"), "ranks")


def test_ranks_are_told_by_content_not_by_name(tmp_path: Path) -> None:
    write_rank(tmp_path / "b.json", 0)
    write_rank(tmp_path / "a.json.gz", 1, events(late=60))
    (tmp_path / "notes.txt").write_text("rank 2")
    (tmp_path / "report.json").write_text('{"schema": 1, "trace": {}}')
    job = api.ranks([tmp_path])
    assert [(rank.rank, Path(rank.path).name) for rank in job.ranks] == [(0, "b.json"), (1, "a.json.gz")]
    assert (job.world_size, job.remarks) == (2, ())
    assert job.left_out == (f"left out of {tmp_path}: notes.txt, report.json (not traces)",)


def test_a_folder_for_each_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}").mkdir()
        write_rank(tmp_path / f"rank{rank}" / "trace.json", rank)
    (tmp_path / "rank0" / "numbers.json").write_text("[1, 2]")
    job = api.ranks([tmp_path])
    assert [Path(rank.path).parent.name for rank in job.ranks] == ["rank0", "rank1"]
    assert job.left_out == (f"left out of {tmp_path}: rank0/numbers.json (not a trace)",)


def test_times_of_a_rank(tmp_path: Path) -> None:
    write_rank(tmp_path / "0.json", 0)
    write_rank(tmp_path / "1.json", 1, events(late=60))
    found = ranks_document(api.ranks([tmp_path])).data()["ranks"]
    # From 10 to 400 µs; the second allreduce runs beside the kernel for 10 µs.
    assert found[0]["devices"]["0"] == {
        "span_ns": 390_000,
        "compute_ns": 190_000,
        "communication_ns": 190_000,
        "exposed_ns": 180_000,
        "hidden_ns": 10_000,
        "idle_ns": 20_000,
        "kernels": 4,
        "kernel_time_ns": 380_000,
        "kernels_without_call": 0,
        "collectives": 2,
    }
    assert found[1]["devices"]["0"]["compute_ns"] == 250_000
    assert found[1]["devices"]["0"]["exposed_ns"] == 120_000


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    for rank in (1, 5):
        write_rank(tmp_path / f"{rank}.json", rank, world_size=8)
    (remark,) = api.ranks([tmp_path]).remarks
    assert remark.startswith("2 of 8 ranks are here; ranks 0, 2-4, 6-7 missing")


def test_files_that_are_not_one_job_are_refused(tmp_path: Path) -> None:
    first = write_rank(tmp_path / "a.json", 0)
    again = write_rank(tmp_path / "b.json", 0)
    larger = write_rank(tmp_path / "c.json", 1, world_size=4)
    with pytest.raises(TraceError, match=r"a\.json and .*b\.json are both of rank 0"):
        api.ranks([first, again])
    with pytest.raises(TraceError, match=r"a\.json is of a job of 2 ranks, .*c\.json of one of 4"):
        api.ranks([first, larger])
    with pytest.raises(UsageError, match="is named twice"):
        api.ranks([first, first])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no traces"):
        api.ranks([tmp_path / "empty"])


def test_a_file_recorded_at_another_time_is_named(tmp_path: Path) -> None:
    write_rank(tmp_path / "0.json", 0)
    write_rank(tmp_path / "1.json", 1, events(clock=3_600e6))
    (remark,) = api.ranks([tmp_path]).remarks
    assert "1.json: rank 1 is 3,600 s from rank 0: another job's file" in remark


@pytest.mark.parametrize("rank", [True, -1, "0", 2, None, 1.5])
def test_a_wrong_rank_is_refused(tmp_path: Path, rank: Any) -> None:
    path = write_rank(tmp_path / "a.json", rank)
    with pytest.raises(TraceError, match="has a wrong distributedInfo"):
        api.ranks([path])


def test_a_file_without_rank_or_gpu_work_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": events()}))
    with pytest.raises(TraceError, match="does not record its rank"):
        api.ranks([tmp_path / "a.json"])
    write_rank(tmp_path / "b.json", 0, [])
    with pytest.raises(TraceError, match="holds no GPU work of rank 0"):
        api.ranks([tmp_path / "b.json"])


def test_a_damaged_file_is_an_error_also_in_a_folder(tmp_path: Path, molprof: Cli) -> None:
    write_rank(tmp_path / "0.json", 0)
    path = write_rank(tmp_path / "1.json", 1)
    path.write_bytes(path.read_bytes()[:-200])
    result = molprof("ranks", str(tmp_path))
    assert result.returncode == 3
    assert "1.json" in result.stderr
    assert "Traceback" not in result.stderr
    result = molprof("ranks", str(tmp_path), "--partial")
    assert result.returncode == 0
    assert "is damaged, and only its whole part was read" in " ".join(result.stdout.split())


def test_as_many_files_at_once_as_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("molprof.analysis.ranks.read.processors", lambda: 16)
    monkeypatch.setattr("molprof.analysis.ranks.read.available_bytes", lambda: 64_000_000_000)
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    plain.write_bytes(b"[" + b" " * 9_999_999)
    packed.write_bytes(b"\x1f\x8b" + bytes(19_999_998))
    assert needed_bytes(plain) == 190_000_000
    assert needed_bytes(packed) == 1_110_000_000
    assert workers_for([190_000_000] * 64) == 16
    assert workers_for([190_000_000, 1_110_000_000] * 32) == 3
    assert workers_for([1_110_000_000] * 2) == 2
    assert workers_for([90_000_000_000] * 64) == 1
    monkeypatch.setattr("molprof.analysis.ranks.read.available_bytes", lambda: 600_000_000)
    assert workers_for([190_000_000] * 64) == 3


@pytest.mark.skipif(not CORPUS.exists(), reason="MOLPROF_CORPUS is not set")
def test_ranks_of_a_real_job(molprof: Cli) -> None:
    result = molprof("ranks", str(CORPUS), "--format", "json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    expected = json.loads((CORPUS / "expected.json").read_text())
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2, 3]
    for rank in found["ranks"]:
        known = expected[Path(rank["path"]).name]
        ((device, times),) = rank["devices"].items()
        ((known_device, known_times),) = known["devices"].items()
        assert device == known_device
        assert {name: times[name] for name in ("span_ns", "idle_ns")} == {
            name: known_times[name] for name in ("span_ns", "idle_ns")
        }
        assert times["compute_ns"] + times["exposed_ns"] == known_times["busy_ns"]
        for name in ("kernels", "kernel_time_ns", "kernels_without_call"):
            assert times[name] == known["counts"][name]
