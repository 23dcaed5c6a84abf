"""Ranks set side by side: clocks, waiting, hidden communication, stragglers, steps; exact figures of literal events."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from rank_traces import ALLREDUCE, SIZES, events, gpu, launch, write_rank
from tiny_trace import slice_

from molprof import api
from molprof.analysis.documents.ranks import ranks_document
from molprof.analysis.figures.union import Union
from molprof.analysis.ranks import Job
from molprof.analysis.ranks.exchanges import bus_factor
from molprof.analysis.render import FORMATS, render

CORPUS = Path(os.environ.get("MOLPROF_CORPUS", "absent"), "ranks")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Rank 1 is 60 µs late to the first collective, and its clock is 5 ms ahead."""
    folder = tmp_path_factory.mktemp("job")
    write_rank(folder / "0.json", 0)
    write_rank(folder / "1.json", 1, events(late=60, clock=5_000))
    return api.ranks([folder])


def test_clocks_are_aligned_by_the_ends_of_collectives(job: Job) -> None:
    assert job.clocks.offsets_ns == {0: 0, 1: 5_000_000}
    assert job.clocks.recorded is not None
    assert job.clocks.aligned is not None
    assert (job.clocks.recorded.median_ns, job.clocks.recorded.most_ns) == (5_000_000, 5_000_000)
    assert (job.clocks.aligned.median_ns, job.clocks.aligned.most_ns, job.clocks.aligned.collectives) == (0, 0, 2)


def test_waiting_moving_and_bandwidth_of_each_collective(job: Job) -> None:
    first, second = ranks_document(job).data()["collectives"]
    assert first == {
        "group": "group 0",
        "operation": "allreduce",
        "dtype": "BFloat16",
        "bytes": 2000,
        "ranks": [0, 1],
        "start_ns": 100_000,
        "end_ns": 200_000,
        "last_rank": 1,
        "late_ns": 60_000,
        "data_ns": 40_000,
        "waiting_ns": 60_000,
        "moving_ns": 80_000,
        "exposed_ns": 140_000,
        "hidden_ns": 0,
        # 2000 bytes in 40 µs, times 2 (n - 1) / n for two ranks.
        "bus_bytes_per_s": [5e7, 5e7],
    }
    assert (second["last_rank"], second["late_ns"], second["hidden_ns"], second["waiting_ns"]) == (0, 0, 20_000, 0)


def test_a_step_is_compute_communication_waiting_and_idle(job: Job) -> None:
    found = ranks_document(job).data()["steps"]
    assert [(step["name"], [rank["rank"] for rank in step["ranks"]]) for step in found] == [
        ("ProfilerStep#1", [0, 1]),
        ("ProfilerStep#2", [0, 1]),
    ]
    names = ("start_ns", "wall_ns", "compute_ns", "exposed_ns", "waiting_ns", "idle_ns", "hidden_ns")
    assert [[rank[name] for name in names] for step in found for rank in step["ranks"]] == [
        [10_000, 210_000, 90_000, 40_000, 60_000, 20_000, 0],
        [5_010_000, 210_000, 150_000, 40_000, 0, 20_000, 0],
        [220_000, 180_000, 100_000, 80_000, 0, 0, 10_000],
        [5_220_000, 180_000, 100_000, 80_000, 0, 0, 10_000],
    ]
    assert all(check.holds for check in job.checks)
    assert len(job.checks) == 2 * (5 + 2)


def test_the_straggler_and_what_it_did_instead(job: Job) -> None:
    (first,), second = (step["stragglers"] for step in ranks_document(job).data()["steps"])
    assert {name: first[name] for name in ("rank", "late_ns", "collectives", "of_collectives", "waited_ns")} == {
        "rank": 1,
        "late_ns": 60_000,
        "collectives": 1,
        "of_collectives": 1,
        "waited_ns": 60_000,
    }
    assert (first["compute_ns"], first["idle_ns"], first["kernels"]) == (60_000, 0, (("gemm", 60_000),))
    assert second == []


def test_a_straggler_that_waits_for_its_host(tmp_path: Path) -> None:
    slow = events()
    slow[2:5] = [
        gpu("gemm", 10, 90, 1),
        slice_("cpu_op", "aten::item", 110, 45),
        launch(158, 2),
        gpu(ALLREDUCE, 160, 40, 2, 20, **SIZES),
    ]
    write_rank(tmp_path / "0.json", 0)
    write_rank(tmp_path / "1.json", 1, slow)
    found = ranks_document(api.ranks([tmp_path])).data()["steps"][0]["stragglers"][0]
    assert (found["rank"], found["late_ns"], found["compute_ns"], found["idle_ns"]) == (1, 60_000, 0, 60_000)
    assert found["causes"] == (("cpu_operators", 60_000),)
    assert found["host"] == (("aten::item", 60_000),)


def test_collectives_that_differ_are_not_matched(tmp_path: Path) -> None:
    write_rank(tmp_path / "0.json", 0)
    write_rank(tmp_path / "1.json", 1, [event for event in events() if event["ts"] != 310])
    job = api.ranks([tmp_path])
    assert job.remarks == ("collectives of group 0 [0, 1] differ (rank 0 has 2, rank 1 has 1): 1 of them are matched",)
    assert len(job.costs) == 1
    other = [{**event, "name": "ncclDevKernel_AllGather"} if "nccl" in event["name"] else event for event in events()]
    for event in other:
        event["args"] = {name: value for name, value in event["args"].items() if name != "Collective name"}
    write_rank(tmp_path / "1.json", 1, other)
    job = api.ranks([tmp_path])
    assert "none is matched" in job.remarks[0]
    assert job.clocks.unaligned == (1,)
    assert all(check.holds for check in job.checks)


def test_a_rank_is_aligned_by_way_of_another(tmp_path: Path) -> None:
    """Ranks 0 and 1 share a group, and ranks 1 and 2."""

    def rank(pairs: list[str], clock: float) -> list[dict[str, object]]:
        kernels = [
            gpu(ALLREDUCE, clock + 100 * pair, 50, pair, 20, **SIZES | {"Process Group Ranks": name})
            for pair, name in enumerate(pairs, 1)
            if name
        ]
        return [gpu("gemm", clock, 50, 9), *kernels]

    for number, (pairs, clock) in enumerate([(["[0, 1]", ""], 0), (["[0, 1]", "[1, 2]"], 30), (["", "[1, 2]"], 70)]):
        write_rank(tmp_path / f"{number}.json", number, rank(pairs, clock), world_size=4)
    job = api.ranks([tmp_path])
    assert job.clocks.offsets_ns == {0: 0, 1: 30_000, 2: 70_000}
    assert len(job.costs) == 2


def test_bus_bandwidth_follows_nccl_tests() -> None:
    assert [bus_factor(name, 4) for name in ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast")] == [
        1.5,
        0.75,
        0.75,
        0.75,
        1.0,
    ]
    assert bus_factor("other", 4) is None


def test_union_of_intervals() -> None:
    found = Union([10, 0, 12, 30, 40], [20, 5, 15, 40, 41])
    assert (found.starts_ns.tolist(), found.ends_ns.tolist()) == ([0, 10, 30], [5, 20, 41])
    assert found.covered(0, 41) == 26
    assert found.covered(3, 12) == 4
    assert found.covered(np.array([5, 19]), np.array([10, 31])).tolist() == [0, 2]
    assert found.length_ns == 26
    assert found.common_ns(Union([3, 11], [12, 19])) == 11
    assert Union([], []).length_ns == Union([], []).covered(0, 9) == 0
    random = np.random.default_rng(0)
    starts = random.integers(0, 1000, 60)
    ends = starts + random.integers(0, 30, 60)
    inside = np.zeros(1100, dtype=bool)
    for start, end in zip(starts, ends, strict=True):
        inside[start:end] = True
    found = Union(starts, ends)
    assert all(found.covered(a, b) == inside[a:b].sum() for a, b in random.integers(0, 1100, (200, 2)) if a <= b)


@pytest.mark.parametrize("style", FORMATS)
def test_every_format_shows_it(job: Job, style: str) -> None:
    shown = render(ranks_document(job), style)
    assert "ProfilerStep" in shown
    if style == "html":
        assert "<svg" in shown


def test_a_sum_that_does_not_hold_is_named(job: Job) -> None:
    broken = replace(job, checks=(replace(job.checks[0], left_ns=1), *job.checks[1:]))
    shown = render(ranks_document(broken), "table")
    assert "NOT EQUAL: rank 0, span, summed over steps and as SQL counts it: 1 ns and 390000 ns" in shown
    assert "sums hold" not in shown
    assert "all 14 sums hold to the nanosecond" in render(ranks_document(job), "table")


def test_a_timeline_as_a_file(tmp_path: Path, molprof: Cli) -> None:
    write_rank(tmp_path / "0.json", 0)
    write_rank(tmp_path / "1.json", 1, events(late=60))
    assert molprof("ranks", "0.json", "1.json", "--format", "png").returncode == 2
    result = molprof("ranks", "0.json", "1.json", "--format", "svg", "-o", "ranks.svg")
    assert result.returncode == 0, result.stderr
    drawn = (tmp_path / "ranks.svg").read_text()
    assert all(text in drawn for text in ("rank 0", "rank 1", "waiting for the last rank"))


def test_groups_that_share_no_rank_are_aligned_each_for_itself(tmp_path: Path) -> None:
    """Two groups of two ranks; the second of each is 10 and 30 µs late, and its clock is ahead."""
    for rank in range(4):
        group = [0, 1] if rank < 2 else [2, 3]
        content = events(late=10 * rank * (rank % 2), clock=rank * 1_000)
        for event in content:
            if "Process Group Ranks" in event["args"]:
                event["args"] = {**event["args"], "Process Group Ranks": str(group)}
        write_rank(tmp_path / f"{rank}.json", rank, content, world_size=4)
    job = api.ranks([tmp_path])
    assert job.clocks.offsets_ns == {0: 0, 1: 1_000_000, 2: 0, 3: 1_000_000}
    assert job.clocks.unaligned == (2, 3)
    late = {tuple(cost.parts): (cost.last_rank, cost.late_ns) for cost in job.costs if cost.late_ns}
    assert late == {(0, 1): (1, 10_000), (2, 3): (3, 30_000)}


@pytest.mark.skipif(not CORPUS.exists(), reason="MOLPROF_CORPUS is not set")
def test_a_real_job_adds_up() -> None:
    job = api.ranks([CORPUS])
    assert len(job.costs) == 84
    assert job.clocks.recorded is not None
    assert (job.clocks.recorded.median_ns, job.clocks.recorded.most_ns) == (20_000, 41_000)
    assert all(check.holds for check in job.checks)
    data = json.loads(render(ranks_document(job), "json"))
    (step,) = data["steps"]
    late = [(item["rank"], item["collectives"], item["waited_ns"]) for item in step["stragglers"]]
    assert [item[:2] for item in late] == [(0, 40), (2, 10)]
    waited = sum(item["waiting_ns"] for item in data["collectives"])
    assert all(waited_ns >= 0.1 * waited for _, _, waited_ns in late)
    for rank in step["ranks"]:
        assert rank["wall_ns"] == sum(rank[f"{part}_ns"] for part in ("compute", "exposed", "waiting", "idle"))
    assert {item["bytes"] for item in data["collectives"]} == {67_108_864, 32_768}
