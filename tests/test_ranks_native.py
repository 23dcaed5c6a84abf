"""Ranks in native traces: one file each, told by names; merged into one; and files that were appended to themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import native_trace
import pytest
from rank_traces import events, write_rank
from tiny_trace import slice_

from molprof import api
from molprof.analysis.ranks import Job
from molprof.commands.open import _ranks as ranks_to_open
from molprof.common.errors import TraceError
from molprof.common.reading import Reading

LATE = (0, 60, 30)


def write_native(path: Path, content: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    return native_trace.write(path, native_trace.named({"traceEvents": content}))


def comparable(job: Job) -> list[Any]:
    ranks = [replace(rank, path="", backend=None, world_size=None, is_named=False) for rank in job.ranks]
    return [ranks, job.clocks, [replace(cost, bus_bytes_per_s=None) for cost in job.costs], job.steps, job.checks]


@pytest.fixture(scope="module")
def in_json(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("json")
    for rank, late in enumerate(LATE):
        write_rank(folder / f"{rank}.json", rank, events(late=late), world_size=3)
    return api.ranks([folder])


@pytest.mark.parametrize("name", ["rank{}.pftrace", "trace-rank-{}_0.pftrace", "Rank_{}/trace.pftrace"])
def test_native_files_equal_those_of_json(tmp_path: Path, in_json: Job, name: str) -> None:
    folder = tmp_path / "native"
    folder.mkdir()
    paths = [write_native(folder / name.format(rank), events(late=late)) for rank, late in enumerate(LATE)]
    job = api.ranks([folder])
    assert comparable(job) == comparable(in_json)
    assert job.remarks[0] == "the files do not record the rank of 0-2: told by name"
    assert ranks_to_open(paths[:2], Reading(partial=False, native_path=None))[1] == (("rank 0", 0), ("rank 1", 0))


def test_a_native_file_without_rank_is_refused(tmp_path: Path) -> None:
    path = write_native(tmp_path / "trace_2.pftrace", events())
    with pytest.raises(TraceError, match="does not record its rank") as refused:
        api.ranks([path])
    assert "such as rank3.json" in str(refused.value.hint)


def merged(names: bool, also: int = 0) -> list[dict[str, Any]]:
    """The events of all ranks in processes of their own."""
    found = []
    for rank, late in enumerate(LATE):
        shift = 1000 * (rank + 1)
        mine = [{**event, "pid": event["pid"] + shift} for event in events(late=late)]
        if not names:
            mine = [{**event, "args": {**event["args"]}} for event in mine]
            for event in mine:
                if "correlation" in event["args"]:
                    event["args"]["correlation"] += also * rank
        label = f"rank {rank}: python" if names else "python"
        for pid in {event["pid"] for event in mine}:
            found.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": label}})
        found += mine
    return found


def test_a_merged_native_file_equals_the_separate_ones(tmp_path: Path, in_json: Job) -> None:
    path = native_trace.write(tmp_path / "merged.pftrace", {"traceEvents": merged(names=True)})
    assert comparable(api.ranks([path])) == comparable(in_json)
    report = api.report(path)
    assert (report.counts.kernels, report.counts.kernels_without_call) == (12, 0)


def test_a_merged_native_file_without_ranks_is_refused_or_kept_apart(tmp_path: Path) -> None:
    path = native_trace.write(tmp_path / "merged.pftrace", {"traceEvents": merged(names=False)})
    with pytest.raises(TraceError, match=r"several runs, .*: calls of process 1100 and process 2100 have the same"):
        api.ranks([path])
    path = native_trace.write(tmp_path / "apart.pftrace", {"traceEvents": merged(names=False, also=100)})
    counts = api.report(path).counts
    assert (counts.kernels, counts.kernels_without_call, counts.launches_without_gpu_work) == (12, 0, 0)


@pytest.mark.parametrize("kind", ["gpu", "work", "cpu"])
def test_a_file_appended_to_itself_is_refused(tmp_path: Path, kind: str) -> None:
    content = {"gpu": events()}
    content["work"] = [event for event in events() if event.get("cat") == "kernel"]
    steps = [event for event in events() if event.get("cat") == "user_annotation"]  # which touch
    content["cpu"] = [*steps, *(slice_("cpu_op", "aten::mm", start, 40) for start in (10, 220, 260))]
    path = write_native(tmp_path / "once.pftrace", content[kind])
    api.report(path)
    once = path.read_bytes()
    for copies in (2, 3):
        path.write_bytes(once * copies)
        with pytest.raises(TraceError, match=f"appended to itself: its events are in it {copies} times"):
            api.report(path)


@pytest.mark.parametrize(("kind", "what"), [("gpu", "a call is in it more than once"), ("cpu", "each slice is in it")])
def test_a_file_merged_with_itself_by_time_is_refused(tmp_path: Path, kind: str, what: str) -> None:
    content = events() if kind == "gpu" else [slice_("cpu_op", "aten::mm", start, 40) for start in (10, 60)]
    with pytest.raises(TraceError, match=f"appended to itself: {what}"):
        api.report(write_native(tmp_path / "twice.pftrace", content * 2))
