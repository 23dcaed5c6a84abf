"""`molprof ranks`: files found by content, exact figures of a small job, merged and native files, stored parts."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import native_trace
import numpy as np
import pytest
from conftest import Cli
from rank_traces import ALLREDUCE, SIZES, events, gpu, launch, write_rank
from tiny_trace import slice_

from molprof import api
from molprof.analysis.documents.ranks import ranks_document
from molprof.analysis.ranks import RankedJob
from molprof.analysis.ranks.exchanges import bus_factor
from molprof.analysis.ranks.files import ranks_path, read_part
from molprof.analysis.ranks.read import needed_bytes, workers_for
from molprof.analysis.reader.parts import digest_of
from molprof.analysis.render import render
from molprof.analysis.union import Union
from molprof.common.errors import MolprofError, TraceError

CORPUS = Path(os.environ.get("MOLPROF_CORPUS", "absent"), "ranks")
needs_ranks = pytest.mark.skipif(not CORPUS.exists(), reason="MOLPROF_CORPUS is not set")
Events = list[dict[str, Any]]


def written(folder: Path, *ranks: Events, name: str = "{}.json", world_size: int = 2) -> Path:
    """A folder with a file for each rank."""
    folder.mkdir(exist_ok=True)
    for rank, content in enumerate(ranks):
        write_rank(folder / name.format(rank), rank, content, world_size)
    return folder


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> RankedJob:
    """Rank 1 is 60 µs late to the first collective, and its clock is 5 ms ahead."""
    return api.ranks([written(tmp_path_factory.mktemp("job"), events(), events(late=60, clock=5_000))])


def test_times_of_two_ranks(job: RankedJob) -> None:
    assert job.clocks.offsets_ns == {0: 0, 1: 5_000_000}
    spreads = (job.clocks.recorded, job.clocks.aligned)
    assert [item and (item.median_ns, item.most_ns) for item in spreads] == [(5_000_000, 5_000_000), (0, 0)]
    found = ranks_document(job).json()
    # From 10 to 400 µs; the second allreduce runs beside the kernel for 10 µs.
    assert found["ranks"][0]["devices"]["0"] == {
        "span_ns": 390_000, "compute_ns": 190_000, "communication_ns": 190_000, "exposed_ns": 180_000,
        "hidden_ns": 10_000, "idle_ns": 20_000, "kernels": 4, "kernel_time_ns": 380_000, "kernels_without_call": 0,
        "collectives": 2,
    }  # fmt: skip
    assert [found["ranks"][1]["devices"]["0"][name] for name in ("compute_ns", "exposed_ns")] == [250_000, 120_000]
    first, second = found["collectives"]
    assert first == {
        "group": "group 0", "operation": "allreduce", "dtype": "BFloat16", "bytes": 2000, "ranks": [0, 1],
        "start_ns": 100_000, "end_ns": 200_000, "last_rank": 1, "late_ns": 60_000, "data_ns": 40_000,
        "waiting_ns": 60_000, "moving_ns": 80_000, "exposed_ns": 140_000, "hidden_ns": 0,
        # 2000 bytes in 40 µs, times 2 (n - 1) / n for two ranks.
        "bus_bytes_per_s": (5e7, 5e7),
    }  # fmt: skip
    assert [second[name] for name in ("last_rank", "late_ns", "hidden_ns", "waiting_ns")] == [0, 0, 20_000, 0]
    names = ("start_ns", "wall_ns", "compute_ns", "exposed_ns", "waiting_ns", "idle_ns", "hidden_ns")
    assert [(step["name"], [rank[name] for name in names]) for step in found["steps"] for rank in step["ranks"]] == [
        ("ProfilerStep#1", [10_000, 210_000, 90_000, 40_000, 60_000, 20_000, 0]),
        ("ProfilerStep#1", [5_010_000, 210_000, 150_000, 40_000, 0, 20_000, 0]),
        ("ProfilerStep#2", [220_000, 180_000, 100_000, 80_000, 0, 0, 10_000]),
        ("ProfilerStep#2", [5_220_000, 180_000, 100_000, 80_000, 0, 0, 10_000]),
    ]
    (late,), none = (step["stragglers"] for step in found["steps"])
    assert none == []
    assert {name: late[name] for name in ("rank", "late_ns", "collectives", "of_collectives", "waited_ns")} == {
        "rank": 1, "late_ns": 60_000, "collectives": 1, "of_collectives": 1, "waited_ns": 60_000,
    }  # fmt: skip
    assert (late["compute_ns"], late["idle_ns"], late["kernels"]) == (60_000, 0, (("gemm", 60_000),))
    assert (len(job.checks), all(check.holds for check in job.checks)) == (14, True)


def test_a_sum_that_does_not_hold_is_named(job: RankedJob) -> None:
    broken = replace(job, checks=(replace(job.checks[0], left_ns=1), *job.checks[1:]))
    shown = render(ranks_document(broken), "table")
    assert "NOT EQUAL: rank 0, span, summed over steps and as SQL counts it: 1 ns and 390000 ns" in shown
    assert "sums hold" not in shown


def test_a_straggler_that_waits_for_its_host(tmp_path: Path) -> None:
    slow = events()
    slow[2:5] = [
        gpu("gemm", 10, 90, 1),
        slice_("cpu_op", "aten::item", 110, 45),
        launch(158, 2),
        gpu(ALLREDUCE, 160, 40, 2, 20, **SIZES),
    ]
    job = api.ranks([written(tmp_path, events(), slow)])
    found = ranks_document(job).json()["steps"][0]["stragglers"][0]
    assert (found["rank"], found["late_ns"], found["compute_ns"], found["idle_ns"]) == (1, 60_000, 0, 60_000)
    assert (found["causes"], found["host"]) == ((("cpu_operators", 60_000),), (("aten::item", 60_000),))


def grouped(pairs: list[str], clock: float) -> Events:
    """A kernel, then an allreduce in each of the groups."""
    kernels = [
        gpu(ALLREDUCE, clock + 100 * place, 50, place, 20, **SIZES | {"Process Group Ranks": name})
        for place, name in enumerate(pairs, 1)
        if name
    ]
    return [gpu("gemm", clock, 50, 9), *kernels]


def in_group(content: Events, group: list[int]) -> Events:
    named = {"Process Group Ranks": str(group)}
    return [
        {**event, "args": {**event["args"], **(named if "Group size" in event["args"] else {})}} for event in content
    ]


def unnamed(content: Events) -> Events:
    """Its collectives are of another operation, which the name of the kernel alone tells."""
    return [
        {**event, "name": "ncclDevKernel_AllGather",
         "args": {name: value for name, value in event["args"].items() if name != "Collective name"}}
        if "nccl" in event["name"] else event
        for event in content
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "size", "offsets_ns", "unaligned", "late", "remark"),
    [
        # Rank 1 is in a group with rank 0, and in one with rank 2: rank 2 is aligned by way of it.
        ([grouped(["[0, 1]", ""], 0), grouped(["[0, 1]", "[1, 2]"], 30), grouped(["", "[1, 2]"], 70)], 3,
         {0: 0, 1: 30_000, 2: 70_000}, (), [(0, 0), (1, 0)], None),
        # Two groups that share no rank are aligned each for itself.
        ([in_group(events(late=10 * rank * (rank % 2), clock=rank * 1_000), [0, 1] if rank < 2 else [2, 3])
          for rank in range(4)], 4,
         {0: 0, 1: 1_000_000, 2: 0, 3: 1_000_000}, (2, 3), [(1, 10_000), (3, 30_000), (0, 0), (2, 0)], None),
        ([events(), [event for event in events() if event["ts"] != 310]], 2, {0: 0, 1: 0}, (), [(0, 0)],
         "collectives of group 0 [0, 1] differ (rank 0 has 2, rank 1 has 1): 1 of them are matched"),
        ([events(), unnamed(events())], 2, {0: 0, 1: 0}, (1,), [], "none is matched"),
        ([events(), events(clock=3_600e6)], 2, {0: 0, 1: 3_600_000_000_000}, (), [(0, 0), (0, 0)],
         "1.json: rank 1 is 3,600 s from rank 0: another job's file"),
        ([events()], 8, {0: 0}, (), None, "1 of 8 ranks are here; ranks 1-7 missing"),
    ],
    ids=["chain", "apart", "fewer", "other", "another time", "missing"],
)  # fmt: skip
def test_clocks_and_groups(
    tmp_path: Path, ranks: list[Events], size: int, offsets_ns: Any, unaligned: Any, late: Any, remark: str | None
) -> None:
    job = api.ranks([written(tmp_path, *ranks, world_size=size)])
    assert (job.clocks.offsets_ns, job.clocks.unaligned) == (offsets_ns, unaligned)
    if late is not None:
        assert sorted((cost.last_rank, cost.late_ns) for cost in job.costs) == sorted(late)
    assert all(check.holds for check in job.checks)
    assert [remark in item for item in job.remarks] == [True] if remark else job.remarks == ()


def test_bus_bandwidth_follows_nccl_tests() -> None:
    names = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "other")
    assert [bus_factor(name, 4) for name in names] == [1.5, 0.75, 0.75, 0.75, 1.0, None]


def test_union_of_intervals() -> None:
    found = Union([10, 0, 12, 30, 40], [20, 5, 15, 40, 41])
    assert (found.starts_ns.tolist(), found.ends_ns.tolist()) == ([0, 10, 30], [5, 20, 41])
    assert found.common_ns(Union([3, 11], [12, 19])) == 11
    assert Union([], []).length_ns == Union([], []).covered(0, 9) == 0
    random = np.random.default_rng(0)
    starts = random.integers(0, 1000, 60)
    inside = np.zeros(1100, dtype=bool)
    for start, end in zip(starts, ends := starts + random.integers(0, 30, 60), strict=True):
        inside[start:end] = True
    found = Union(starts, ends)
    asked = np.sort(random.integers(0, 1100, (200, 2)))
    assert found.covered(asked[:, 0], asked[:, 1]).tolist() == [inside[a:b].sum() for a, b in asked]
    assert found.length_ns == inside.sum()
    assert found.holds(np.arange(1100)).tolist() == inside.tolist()


def test_ranks_are_told_by_content_not_by_name(tmp_path: Path, molprof: Cli) -> None:
    folder = tmp_path / "job"
    (folder / "rank0").mkdir(parents=True)
    write_rank(folder / "rank0" / "b.json", 0)
    write_rank(folder / "a.json.gz", 1, events(late=60))
    (folder / "notes.txt").write_text("rank 2")
    (folder / "report.json").write_text('{"schema": 1, "trace": {}}')
    (folder / "rank0" / "numbers.json").write_text("[1, 2]")
    job = api.ranks([folder])
    assert [(rank.rank, Path(rank.path).name) for rank in job.ranks] == [(0, "b.json"), (1, "a.json.gz")]
    assert (job.world_size, job.remarks) == (2, ())
    assert job.left_out == (f"left out of {folder}: notes.txt, rank0/numbers.json, report.json (not traces)",)
    # A report of the folder shows them too; a threshold has nothing to judge.
    shown = molprof("ranks", "job", "--format", "json")
    result = molprof("report", "job", "--format", "json")
    assert (result.returncode, result.stdout) == (0, shown.stdout)
    assert "holds ranks of a job" in result.stderr
    assert molprof("report", "job", "--fail-if", "kernels>1").returncode == 2
    assert molprof("ranks", "job", "--format", "svg", "-o", "job.svg").returncode == 0
    assert "waiting for the last rank" in (tmp_path / "job.svg").read_text()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([("a", 0, 2), ("b", 0, 2)], r"a\.json and .*b\.json are both of rank 0"),
        ([("a", 0, 2), ("b", 1, 4)], r"a\.json is of a job of 2 ranks, .*b\.json of one of 4"),
        ([("a", 0, 2), ("a", 0, 2)], "is named twice"),
        *(([("a", rank, 2)], "has a wrong distributedInfo") for rank in (True, -1, "0", 2, None, 1.5)),
    ],
)
def test_files_that_are_not_one_job_are_refused(tmp_path: Path, files: list[Any], message: str) -> None:
    paths = [write_rank(tmp_path / f"{name}.json", rank, None, size) for name, rank, size in files]
    with pytest.raises(MolprofError, match=message):
        api.ranks(paths)


def test_a_file_without_rank_or_gpu_work_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": events()}))
    for path, message in (
        (tmp_path / "a.json", "does not record its rank"),
        (native_trace.write(tmp_path / "trace_2.pftrace", {"traceEvents": events()}), "does not record its rank"),
        (write_rank(tmp_path / "b.json", 0, []), "holds no GPU work of rank 0"),
    ):
        with pytest.raises(TraceError, match=message):
            api.ranks([path])


def test_a_damaged_file_is_an_error_also_in_a_folder(tmp_path: Path, molprof: Cli) -> None:
    path = written(tmp_path, events(), events()) / "1.json"
    path.write_bytes(path.read_bytes()[:-200])
    result = molprof("ranks", ".")
    assert (result.returncode, "1.json" in result.stderr, "Traceback" in result.stderr) == (3, True, False)
    result = molprof("ranks", ".", "--partial")
    assert result.returncode == 0
    assert "is damaged, and only its whole part was read" in " ".join(result.stdout.split())


def test_as_many_files_at_once_as_memory_allows(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    plain.write_bytes(b"[" + b" " * 9_999_999)
    packed.write_bytes(b"\x1f\x8b" + bytes(19_999_998))
    assert (needed_bytes(plain), needed_bytes(packed)) == (190_000_000, 1_110_000_000)
    assert workers_for([90_000_000_000] * 64) == 1
    assert 1 <= workers_for([190_000_000] * 64) <= min(os.cpu_count() or 1, 3_500_000_000 // 190_000_000)


def merged(path: Path, traces: list[Events], rename: Callable[[int, Any], Any], label: str | None = None) -> Path:
    """One trace of all, process numbers renamed by rank."""
    content = [{**event, "pid": rename(rank, event.get("pid"))} for rank, trace in enumerate(traces) for event in trace]
    if label:
        pids = sorted({(rank, rename(rank, event["pid"])) for rank, trace in enumerate(traces) for event in trace})
        content += [
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": label.format(rank)}}
            for rank, pid in pids
        ]
    if path.suffix == ".pftrace":
        return native_trace.write(path, {"traceEvents": content})
    info = {"backend": "nccl", "rank": 0, "world_size": 8}
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": content}))
    return path


def comparable(job: RankedJob) -> list[Any]:
    """What other files of the same ranks must have in common: all but where it comes from."""
    ranks = [replace(rank, path="", backend=None, world_size=None, is_named=False) for rank in job.ranks]
    costs = [replace(cost, bus_bytes_per_s=None) for cost in job.costs]
    return [ranks, job.clocks, costs, job.steps, job.stragglers, job.checks]


TRACES = [events(), events(late=60), events(late=30)]


@pytest.fixture(scope="module")
def separate(tmp_path_factory: pytest.TempPathFactory) -> RankedJob:
    return api.ranks([written(tmp_path_factory.mktemp("separate"), *TRACES, world_size=8)])


@pytest.mark.parametrize(
    ("name", "rename", "label"),
    [
        ("rank.json", lambda rank, pid: f"rank{rank}_{pid}", None),
        ("label.json", lambda rank, pid: f"[TP{rank:02d}] {pid}", None),
        ("short.json", lambda rank, pid: f"r{rank}:{pid}", None),
        ("number.json", lambda rank, pid: f"{rank}_{pid}", None),
        ("names.json", lambda rank, pid: 1000 * (rank + 1) + pid, "Rank {} python"),
        ("names.pftrace", lambda rank, pid: 1000 * (rank + 1) + pid, "rank {}: python"),
    ],
)
def test_a_merged_trace_equals_the_separate_ones(
    tmp_path: Path, separate: RankedJob, name: str, rename: Callable[[int, Any], Any], label: str | None
) -> None:
    path = merged(tmp_path / name, TRACES, rename, label)
    assert comparable(api.ranks([path])) == comparable(separate)
    report = api.report(path)
    assert (report.counts.kernels, report.counts.kernels_without_call) == (12, 0)
    assert [times.busy_ns for times in report.devices.values()] == [370_000] * 3


@pytest.mark.parametrize("name", ["a.json", "a.pftrace"])
def test_merged_ranks_without_names_are_refused_or_told_by_their_numbers(tmp_path: Path, name: str) -> None:
    def path(shift: int) -> Path:
        traces = [
            [{**event, "args": {**event["args"]}} for event in events(late=late, clock=clock)]
            for late, clock in ((0, 0), (60, 300))
        ]
        for event in traces[1]:
            if "correlation" in event["args"]:
                event["args"]["correlation"] += shift
        return merged(tmp_path / name, traces, lambda rank, pid: 1000 * (rank + 1) + pid, "python")

    with pytest.raises(TraceError, match=r"correlation numbers, such as 1, are of several|several runs") as refused:
        api.report(path(shift=0))
    assert "process numbers that begin with the rank" in str(refused.value.hint) or name.endswith("pftrace")
    with pytest.raises(TraceError):
        api.ranks([path(shift=0)])
    if name.endswith("json"):
        same = [events(), events(late=60, clock=300)]
        with pytest.raises(TraceError, match="4 correlation numbers, such as 1, are of several calls"):
            api.report(merged(tmp_path / "same.json", same, lambda _, pid: pid))
    counts = api.report(path(shift=100)).counts
    assert (counts.kernels, counts.kernels_without_call, counts.launches_without_gpu_work) == (8, 0, 0)


@pytest.mark.parametrize("name", ["rank{}.pftrace", "trace-rank-{}_0.pftrace", "Rank_{}/trace.pftrace"])
def test_native_files_are_told_by_name(tmp_path: Path, separate: RankedJob, name: str) -> None:
    for rank, content in enumerate(TRACES):
        (tmp_path / name.format(rank)).parent.mkdir(exist_ok=True)
        native_trace.write(tmp_path / name.format(rank), native_trace.named({"traceEvents": content}))
    job = api.ranks([tmp_path])
    assert comparable(job) == comparable(separate)
    assert job.remarks[0] == "the files do not record the rank of 0-2: told by name"


@pytest.mark.parametrize("kind", ["gpu", "work", "cpu"])
def test_a_native_file_that_holds_itself_twice_is_refused(tmp_path: Path, kind: str) -> None:
    steps = [event for event in events() if event.get("cat") == "user_annotation"]  # which touch
    content = {
        "gpu": events(),
        "work": [event for event in events() if event.get("cat") == "kernel"],
        "cpu": [*steps, *(slice_("cpu_op", "aten::mm", start, 40) for start in (10, 220, 260))],
    }[kind]
    path = native_trace.write(tmp_path / "once.pftrace", native_trace.named({"traceEvents": content}))
    api.report(path)
    once = path.read_bytes()
    for copies in (2, 3):
        path.write_bytes(once * copies)
        with pytest.raises(TraceError, match=f"appended to itself: its events are in it {copies} times"):
            api.report(path)
    if kind == "gpu":  # merged by time
        twice = native_trace.named({"traceEvents": content * 2})
        with pytest.raises(TraceError, match="appended to itself: a call is in it more than once"):
            api.report(native_trace.write(path, twice))


def test_parts_put_together_equal_the_traces_and_are_read_again_only_if_changed(tmp_path: Path, molprof: Cli) -> None:
    written(tmp_path, events(), events(late=60))
    parts = tmp_path / "parts"
    parts.mkdir()

    def names(partial: bool = False) -> list[Path]:
        return [ranks_path(parts, digest_of(tmp_path / name) or "", partial) for name in ("0.json", "1.json")]

    def shown(*paths: Path, **options: Any) -> dict[str, Any]:
        data = ranks_document(api.ranks(list(paths), **options)).json()
        return {name: value for name, value in data.items() if name != "left_out"}

    def kept() -> list[int]:
        return [path.stat().st_mtime_ns for path in names()]

    job = shown(tmp_path)
    assert shown(tmp_path, parts=parts) == shown(parts) == shown(names()[1], tmp_path / "0.json") == job
    first, first_of_one = kept(), names()[1]
    assert shown(tmp_path, parts=parts) == job
    assert kept() == first
    write_rank(tmp_path / "1.json", 1, events(late=30))
    damaged = names()[0]
    damaged.write_bytes(damaged.read_bytes()[:-40])
    done: list[tuple[int, int]] = []
    again = api.ranks([tmp_path], parts=parts, progress=lambda *state: done.append(state))
    assert [cost.late_ns for cost in again.costs] == [30_000, 0]
    assert done == [(1, 2), (2, 2)]
    assert all(one != two for one, two in zip(first, kept(), strict=True))
    # A cluster that is not there is asked for only if something is missing; the part of a whole file is none of a cut.
    assert molprof("ranks", ".", "--submit", "slurm").returncode == 2
    result = molprof("ranks", ".", "--parts", "parts", "--submit", "slurm", "--format", "json")
    assert result.returncode == 0, result.stderr
    assert "parts has 2 of 2 files" in result.stderr
    shown(tmp_path, parts=parts, partial=True)
    assert sorted(parts.iterdir()) == sorted({first_of_one, *names(), *names(partial=True)})

    text = gzip.decompress(damaged.read_bytes())
    for content, message in (
        (gzip.compress(text.replace(b'"schema":2', b'"schema":3')), "is a part of schema 3; this molprof reads 2"),
        (gzip.compress(text.replace(b'"rank":0', b'"rank":"0"')), "is no whole part of a rank: Expected `int`"),
        (gzip.compress(text)[:-30], "is no whole part of a rank: Compressed file ended"),
    ):
        damaged.write_bytes(content)
        with pytest.raises(TraceError, match=message):
            read_part(damaged)


@needs_ranks
def test_a_real_job() -> None:
    job = api.ranks([CORPUS])
    assert len(job.costs) == 84
    assert job.clocks.recorded is not None
    assert (job.clocks.recorded.median_ns, job.clocks.recorded.most_ns) == (20_000, 41_000)
    assert all(check.holds for check in job.checks)
    data = json.loads(render(ranks_document(job), "json"))
    expected = json.loads((CORPUS / "expected.json").read_text())
    for rank in data["ranks"]:
        known = expected[Path(rank["path"]).name]
        ((device, times),) = rank["devices"].items()
        assert [device] == list(known["devices"])
        figures = {**known["devices"][device], **known["counts"]}
        names = ("span_ns", "idle_ns", "kernels", "kernel_time_ns", "kernels_without_call")
        assert [times[name] for name in names] == [figures[name] for name in names]
        assert times["compute_ns"] + times["exposed_ns"] == figures["busy_ns"]
    (step,) = data["steps"]
    assert [(item["rank"], item["collectives"]) for item in step["stragglers"]] == [(0, 40), (2, 10)]
    waited = sum(item["waiting_ns"] for item in data["collectives"])
    assert all(item["waited_ns"] >= 0.1 * waited for item in step["stragglers"])
    for rank in step["ranks"]:
        assert rank["wall_ns"] == sum(rank[f"{part}_ns"] for part in ("compute", "exposed", "waiting", "idle"))
    assert {item["bytes"] for item in data["collectives"]} == {67_108_864, 32_768}
