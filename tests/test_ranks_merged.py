"""Traces merged from those of several ranks: equal to the separate ones, or refused."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from rank_traces import events, write_rank

from molprof import api
from molprof.analysis.ranks import Job
from molprof.common.errors import TraceError

CORPUS = Path(os.environ.get("MOLPROF_CORPUS", "absent"), "ranks")
Id = Any


def merged(
    path: Path, traces: list[list[dict[str, Any]]], rename: Callable[[int, Id], Id], named: bool = False
) -> Path:
    """One trace of all, process numbers renamed by rank."""
    content = [{**event, "pid": rename(rank, event.get("pid"))} for rank, trace in enumerate(traces) for event in trace]
    if named:
        pids = {(rank, rename(rank, event["pid"])) for rank, trace in enumerate(traces) for event in trace}
        content += [
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": f"Rank {rank} python"}}
            for rank, pid in pids
        ]
    info = {"backend": "nccl", "rank": 0, "world_size": 8}
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": content}))
    return path


def comparable(job: Job) -> list[Any]:
    """What a merged file must have in common with the separate ones: all but where it comes from."""
    ranks = [replace(rank, path="", backend=None) for rank in job.ranks]
    return [ranks, job.clocks, job.costs, job.steps, job.stragglers, job.checks]


@pytest.mark.parametrize(
    ("rename", "named"),
    [
        (lambda rank, pid: f"rank{rank}_{pid}", False),
        (lambda rank, pid: f"[TP{rank:02d}] {pid}", False),
        (lambda rank, pid: f"r{rank}:{pid}", False),
        (lambda rank, pid: f"{rank}_{pid}", False),
        (lambda rank, pid: 1000 * (rank + 1) + pid, True),
    ],
    ids=["rank", "label", "short", "number", "names"],
)
def test_a_merged_trace_equals_the_separate_ones(tmp_path: Path, rename: Callable[[int, Id], Id], named: bool) -> None:
    traces = [events(), events(late=60), events(late=30)]
    for rank, trace in enumerate(traces):
        write_rank(tmp_path / f"{rank}.json", rank, trace, world_size=8)
    separate = api.ranks([tmp_path])
    job = api.ranks([merged(tmp_path / "merged.json", traces, rename, named)])
    assert comparable(job) == comparable(separate)
    assert job.remarks == separate.remarks


def test_a_report_keeps_the_ranks_apart(tmp_path: Path) -> None:
    traces = [events(), events(late=60)]
    report = api.report(merged(tmp_path / "merged.json", traces, lambda rank, pid: f"rank{rank}_{pid}"))
    assert (report.counts.launches, report.counts.launches_without_gpu_work) == (8, 0)
    assert (report.counts.kernels, report.counts.kernels_without_call) == (8, 0)
    assert {name: times.busy_ns for name, times in report.devices.items()} == {"0:0": 370_000, "1:0": 370_000}


@pytest.mark.parametrize(
    "rename", [lambda rank, pid: pid + 1000 * rank, lambda _, pid: pid], ids=["other processes", "the same processes"]
)
def test_ranks_that_cannot_be_told_apart_are_refused(
    tmp_path: Path, rename: Callable[[int, Id], Id], molprof: Cli
) -> None:
    path = merged(tmp_path / "merged.json", [events(), events(late=60, clock=300)], rename)
    with pytest.raises(TraceError, match="4 correlation numbers, such as 1, are of several calls"):
        api.report(path)
    for command in ("report", "ranks"):
        result = molprof(command, str(path))
        assert result.returncode == 3
        assert "merge them with process numbers that begin with the rank" in result.stderr


def test_merged_ranks_whose_numbers_differ_need_no_names(tmp_path: Path) -> None:
    traces = [events(), events(late=60)]
    for event in traces[1]:
        if "correlation" in event["args"]:
            event["args"]["correlation"] += 100
    report = api.report(merged(tmp_path / "merged.json", traces, lambda rank, pid: pid + 1000 * rank))
    assert report.counts.kernels_without_call == 0


@pytest.mark.skipif(not CORPUS.exists(), reason="MOLPROF_CORPUS is not set")
def test_a_real_job_merged(tmp_path: Path) -> None:
    files = sorted(CORPUS.glob("*.json.gz"))
    traces = [json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] for path in files]
    job = api.ranks([merged(tmp_path / "merged.json", traces, lambda rank, pid: f"rank{rank}_{pid}")])
    assert comparable(job) == comparable(api.ranks(files))
    with pytest.raises(TraceError, match="cannot be told"):
        api.report(merged(tmp_path / "plain.json", traces, lambda _, pid: pid))
