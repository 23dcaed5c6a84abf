"""Replays of small traces equal results by hand; a replay without changes equals the recorded trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tiny_trace import slice_, work, write

from molprof import api
from molprof.cli import cli
from molprof.common.errors import TraceError, UsageError

CORPUS = os.environ.get("MOLPROF_CORPUS")
GEMM, ADD = "ampere_sgemm_32x128_nn", "void at::native::vectorized_elementwise_kernel<4, Add>(int)"


def call(ts: float, number: int, name: str = "cudaLaunchKernel", dur: float = 1) -> dict[str, Any]:
    return slice_("cuda_runtime", name, ts, dur, correlation=number)


# Us. The first wait is for two kernels of 40 that the GPU takes one after the other; the second for one of 10.
ONE_STREAM = [
    slice_("cpu_op", "aten::a", 0, 4),
    call(2, 1),
    slice_("cpu_op", "aten::b", 4, 4),
    call(6, 2),
    work("kernel", GEMM, 7, 10, 1),
    work("kernel", ADD, 17, 30, 2),
    call(10, 3, "cudaStreamSynchronize", 40),
    call(60, 4),
    work("kernel", GEMM, 65, 10, 4),
    call(62, 5, "cudaStreamSynchronize", 15),
    slice_("cpu_op", "aten::c", 77, 3),
]
# The second stream was launched early, and begins when the first ends.
TWO_STREAMS = [
    slice_("cpu_op", "aten::a", 0, 4),
    call(0, 1),
    call(2, 2),
    work("kernel", GEMM, 10, 15, 1),
    work("kernel", ADD, 26, 4, 2, tid=8),
]
# Launches with host time of 10 before each; kernels of 1.
LAUNCH_BOUND = [
    slice_("user_annotation", "ProfilerStep#1", 0, 50),
    *(call(10 * number, number) for number in (1, 2, 3)),
    *(work("kernel", ADD, 10 * number + 5, 1, number) for number in (1, 2, 3)),
    call(32, 4, "cudaDeviceSynchronize", 6),
]


def lengths(tmp_path: Path, events: list[dict[str, Any]], *changes: str) -> tuple[float, float | None]:
    """Of the trace and of the trace with changes, us."""
    found, _ = api.critical_path(write(tmp_path / "trace.json", {"traceEvents": events}), changes=changes)
    assert sum(found.recorded.path.values()) == pytest.approx(found.recorded.length_ns)
    if found.changed is None:
        return found.recorded.length_ns / 1000, None
    assert sum(found.changed.path.values()) == pytest.approx(found.changed.length_ns)
    return found.recorded.length_ns / 1000, found.changed.length_ns / 1000


@pytest.mark.parametrize(
    ("changes", "length"),
    [
        ("elementwise=0x", 50),
        ("elementwise=0.5x", 65),
        ("aten::b=0x", 50),  # its kernel
        ("aten::?=0", 35),  # both kernels too
        ("matmul=0x", 64),  # the second kernel waits for its launch then
        ("gpu=0", 34),
        ("host=0x", 65),
        ("operators=0x", 75),
        ("calls=0x", 80),
        ("syncs=none", 57),
        ("syncs=none,gpu=0x", 25),
        ("launches=graph", 80),
        ("elementwise=2x", 110),
    ],
)
def test_what_waits_follows(changes: str, length: float, tmp_path: Path) -> None:
    assert lengths(tmp_path, ONE_STREAM, changes) == (80, pytest.approx(length))


def test_no_time_at_all(tmp_path: Path) -> None:
    events = [slice_("cpu_op", "aten::a", 0, 5)]
    path = write(tmp_path / "trace.json", {"traceEvents": events})
    said = CliRunner().invoke(cli, ["report", "by", "path", str(path), "--what-if", "host=0x"])
    assert (said.exit_code, "With host=0x: 0 ns, 100 % less.\n" in said.stdout) == (0, True)
    with pytest.raises(UsageError, match="selects nothing") as caught:
        api.critical_path(path, changes=["no=0x"])
    assert "phases here: none;" in (caught.value.hint or "")
    events[0]["dur"] = 0
    with pytest.raises(TraceError, match="takes 0 ns"):
        api.critical_path(write(tmp_path / "none.json", {"traceEvents": events}))


def test_calls_without_length_follow_each_other(tmp_path: Path) -> None:
    events = [call(ts, number, dur=0) for number, ts in enumerate((0, 10, 10, 20), 1)]
    assert lengths(tmp_path, [*events, work("kernel", ADD, 25, 5, 4)]) == (30, None)


def test_the_path_names_what_decides(tmp_path: Path) -> None:
    found, _ = api.critical_path(write(tmp_path / "trace.json", {"traceEvents": ONE_STREAM}))
    assert {tuple(piece): round(ns) for piece, ns in found.recorded.path.items() if ns} == {
        ("GPU", "matmul", None): 20_000,
        ("GPU", "elementwise", None): 30_000,
        ("between", "from launch to start", None): 10_000,
        ("between", "return from a sync", None): 5_000,
        ("CPU", "operators", None): 5_000,
        ("CPU", "Python and other", None): 10_000,
    }


def test_a_page_names_the_damage_of_its_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", {"traceEvents": ONE_STREAM})
    path.write_bytes(path.read_bytes()[:-3])
    for by in ("path", "operator"):
        shown = CliRunner().invoke(cli, ["report", "by", by, str(path), "--partial", "--format", "markdown"])
        assert (shown.exit_code, "is damaged, and only its whole part was read" in shown.stdout) == (0, True)


def test_work_waits_for_another_stream(tmp_path: Path) -> None:
    assert lengths(tmp_path, TWO_STREAMS, "matmul=0x") == (30, 17)
    assert lengths(tmp_path, TWO_STREAMS, "matmul=3x") == (30, 60)


def test_launches_of_a_graph_cost_one(tmp_path: Path) -> None:
    recorded, changed = lengths(tmp_path, LAUNCH_BOUND, "launches=graph")
    # One launch at 10, kernels from 15 to 18, the sync returns 2 us later, and 12 us come after it.
    assert (recorded, changed) == (50, 32)


def test_a_thread_takes_over_from_another(tmp_path: Path) -> None:
    events = [
        slice_("cpu_op", "aten::a", 0, 10),
        call(8, 1),
        work("kernel", GEMM, 18, 5, 1),
        slice_("cpu_op", "aten::b", 400, 10, tid=200),
        slice_("cuda_runtime", "cudaLaunchKernel", 402, 1, tid=200, correlation=2),
        work("kernel", GEMM, 412, 5, 2),
    ]
    assert lengths(tmp_path, events, "aten::a=0x") == (417, 408)


GIVEN = ["traces/cpu-qwen-grammar.json.gz", "tests/goldens/given/gpu-eager.json.gz"]
OTHERS = ["traces/mi300x_vllm_piecewise_graph", "traces/v100_resnet_ddp"]


@pytest.mark.parametrize("name", [*GIVEN, *OTHERS])
def test_a_replay_without_changes_is_the_trace(name: str) -> None:
    path = Path(__file__).parent.parent / name
    if name in OTHERS:
        if not CORPUS:
            pytest.skip("MOLPROF_CORPUS is not set: no real traces to read")
        path = Path(CORPUS, f"{name}.json.gz")
    found, _ = api.critical_path(path, changes=["gpu=1x", "host=1x"])
    with api.load(path) as trace:
        steps, work, calls = trace.steps, trace.work, trace.calls
    start, end = int(steps["ts"].min()), int((steps["ts"] + steps["dur"]).max())
    if len(calls):
        inside = calls.where((calls["ts"] >= start) & (calls["ts"] <= end))
        ids = set(inside["id"].tolist())
        begun = [begins <= end or call in ids for begins, call in zip(work["ts"], work["call_id"], strict=True)]
        end = max(end, int((inside["ts"] + inside["dur"]).max()), int((work["ts"] + work["dur"])[begun].max()))
    length = end - start
    assert found.changed is not None
    for replayed in (found.recorded, found.changed):
        assert replayed.length_ns == pytest.approx(length, abs=1)
        assert sum(replayed.path.values()) == pytest.approx(length, abs=1)


def test_a_wait_for_what_is_not_recorded_is_told(tmp_path: Path) -> None:
    events = [slice_("cpu_op", "aten::a", 0, 4), call(1, 1), work("kernel", GEMM, 91, 10, 1)]
    found, _ = api.critical_path(write(tmp_path / "trace.json", {"traceEvents": events}))
    assert found.notes == (
        "the first work of a stream starts 90.0 µs after its launch: the GPU may have been busy with work that is not "
        "recorded",
    )
