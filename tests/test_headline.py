"""The first screen: what bounds the time, its parts, steps, classes of GPU work, also for traces of the CPU alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from certificate_data import needs_traces, whole
from decoding_trace import decoding, gemms
from tiny_trace import slice_, work

from molprof import api
from molprof.analysis.documents.headline import overview_lines, report_verdict
from molprof.analysis.facts.gaps import CAUSES
from molprof.analysis.figures import Report
from molprof.analysis.figures.bottleneck import Bottleneck

CASES = Path(__file__).parent / "cases"
Event = dict[str, Any]


def reported(tmp_path: Path, *events: Event) -> Report:
    return api.report(tiny_trace.write(tmp_path / "a.json", {"traceEvents": list(events)}))


def bounded(report: Report) -> Bottleneck:
    assert report.bottleneck is not None
    return report.bottleneck


def launched(name: str, call: float, ts: float, dur: float, number: int, stream: int = 7) -> list[Event]:
    """A launch of 2 us, and the kernel that it starts."""
    return [
        slice_("cuda_runtime", "cudaLaunchKernel", call, 2, correlation=number),
        work("kernel", name, ts, dur, number, tid=stream),
    ]


def busy(count: int = 10, *, gap: float = 0, length: float = 100, name: str = "gemm", first: int = 1) -> list[Event]:
    """Kernels one after the other from 10 on; with a gap between two, each is launched 4 us before it starts."""
    events, ts = [], 10.0
    for number in range(count):
        # On a clock of ns: of a coarser one it is not certain how long the GPU worked.
        dur = length + 0.001 * (1 + number % 2)
        events += launched(name, ts - 4 if gap else 2.5 * number - 20, ts, dur, first + number)
        ts = round(ts + dur + gap, 3)
    return events


def test_a_busy_gpu(tmp_path: Path) -> None:
    report = reported(tmp_path, *busy())
    assert bounded(report).bound == "gpu"
    assert report_verdict(report)[0] == "a: GPU-bound; the GPU was busy for 100 % of 1.00 ms, first work to last."
    assert overview_lines(report)[1] == "GPU work: matmul 100 %."


def test_waiting_for_launches(tmp_path: Path) -> None:
    # 9 gaps of 50 us beside 10 kernels of 10 us.
    report = reported(tmp_path, *busy(gap=50, length=10))
    found = bounded(report)
    assert found.bound == "launch"
    assert found.ratio == pytest.approx(found.parts["launch"] / sum(found.parts.values()))
    assert found.parts["launch"] == pytest.approx(450_000)
    assert "launch-bound (waiting for launches: " in report_verdict(report)[0]


def test_waiting_for_other_work(tmp_path: Path) -> None:
    report = reported(tmp_path, *busy(gap=3000, length=10), slice_("cpu_op", "aten::unique", 30, 2900))
    assert bounded(report).bound == "host"
    assert bounded(report).parts["host"] == pytest.approx(27_000_000, abs=4_000)


def test_host_syncs(tmp_path: Path) -> None:
    # The first kernel's end is told 900 us late.
    sync = slice_("cuda_runtime", "cudaStreamSynchronize", 1450, 60, correlation=99)
    report = reported(tmp_path, *busy(3, gap=1500, length=10), sync)
    assert bounded(report).bound == "host"
    assert bounded(report).parts["sync"] + bounded(report).parts["wait"] <= 60_000


@pytest.mark.skipif("cpu_data" not in CAUSES, reason="no idle time is charged to the data loader")
def test_waiting_for_data(tmp_path: Path) -> None:
    loading = slice_("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20, 2980)
    report = reported(tmp_path, *busy(2, gap=3000, length=10), loading)
    assert bounded(report).bound == "input"
    assert bounded(report).parts["input"] > 2_900_000


def test_exposed_communication(tmp_path: Path) -> None:
    report = reported(
        tmp_path, *busy(4), *_later(busy(6, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", first=50), 400)
    )
    assert bounded(report).bound == "communication"
    assert bounded(report).parts["communication"] == pytest.approx(600_000, rel=1e-3)


def _later(events: list[Event], by: float) -> list[Event]:
    return [{**event, "ts": event["ts"] + by * (event["cat"] == "kernel")} for event in events]


def test_masks_on_the_cpu(tmp_path: Path) -> None:
    mask = slice_("python_function", "vllm/v1/structured_output/__init__.py(12): grammar_bitmask", 20, 2900)
    report = reported(tmp_path, *busy(2, gap=3000, length=10), mask)
    assert bounded(report).bound == "constraint"
    assert bounded(report).parts["constraint"] == pytest.approx(2_900_000)


def test_logits_processors(tmp_path: Path) -> None:
    # Of each step of 1,000 us the GPU computes in the forward, and the processor's 200 us are waited for.
    def step(start: int) -> list[Event]:
        return [*gemms(start, 10, 8, 5), *gemms(start, 10, 8, 1, first=804)]

    found = bounded(api.report(tiny_trace.write(tmp_path / "a.json.gz", decoding(step, processor="a:B"))))
    assert found.parts["constraint"] == 4 * 200_000
    assert sum(found.parts.values()) == 4_000_000


def test_work_that_does_not_start(tmp_path: Path) -> None:
    report = reported(tmp_path, *launched("gemm", 0, 10, 10, 1), *launched("gemm", 5, 2000, 10, 2))
    assert bounded(report).bound == "wait"
    assert "bound by waits (queued work that does not start: " in report_verdict(report)[0]


def test_every_part_of_the_time_is_in_the_sum(tmp_path: Path) -> None:
    for events in (busy(), busy(gap=50), busy(gap=2000)):
        found = bounded(reported(tmp_path, *events))
        assert sum(found.parts.values()) == found.of_ns
        assert all(time_ns >= 0 for time_ns in found.parts.values())


def test_no_cause_is_named_for_next_to_no_idle_time(tmp_path: Path) -> None:
    for gap_us, said in ((0.9, []), (4, ["Idle time: main cause pauses below 5 µs: 100 % of 4.00 µs between work."])):
        events = [work("kernel", "k", 0, 500, 1), work("kernel", "k", 500 + gap_us, 500, 2)]
        lines = overview_lines(reported(tmp_path, *events))
        assert [line for line in lines if line.startswith("Idle time")] == said


def test_a_trace_of_the_cpu_alone(tmp_path: Path) -> None:
    operators = [slice_("cpu_op", "aten::mm", 10 * number, 8) for number in range(9)]
    report = reported(tmp_path, *operators, slice_("cpu_op", "aten::add", 90, 2))
    first = report_verdict(report)[0]
    assert first == (
        "a: a CPU-only trace; 10 operators took 74.0 µs, all threads together, aten::mm 97.3 % of it. 92.0 µs are"
        " recorded."
    )


def test_calls_without_launches_are_no_gpu_work(tmp_path: Path) -> None:
    call = slice_("cuda_runtime", "cudaDeviceSynchronize", 50, 5, correlation=1)
    first = report_verdict(reported(tmp_path, slice_("cpu_op", "aten::mm", 0, 40), call))[0]
    assert first.endswith("GPU calls are recorded, but no launch and no GPU work.")
    assert first.startswith("a: a CPU-only trace; 1 operator took 40.0 µs")


def test_masks_of_a_trace_of_the_cpu_alone(tmp_path: Path) -> None:
    report = reported(
        tmp_path,
        slice_("python_function", "vllm/v1/structured_output/__init__.py(12): grammar_bitmask", 0, 60),
        slice_("user_annotation", "gpu_model_runner: forward", 60, 40),
        slice_("cpu_op", "aten::mm", 62, 30),
    )
    assert (bounded(report).bound, bounded(report).ratio) == ("constraint", pytest.approx(0.6))


def test_one_piece_of_work_and_steps_without_any() -> None:
    first = report_verdict(api.report(CASES / "empty_steps_one_huge.json"))[0]
    assert first.startswith("empty_steps_one_huge: 30 of 32 steps have no GPU work, and kernel_4 takes 31.5 ms once, ")


def test_gpu_time_that_is_summed_over_streams_says_so(tmp_path: Path) -> None:
    from molprof.analysis.documents.figures import main_figures

    both = [*busy(), *_on(busy(first=50), 8), slice_("user_annotation", "ProfilerStep#1", -20, 30)]
    for events, text in ((both, "GPU time per step (streams summed) "), (busy(), "kernel time 1.00 ms")):
        table = main_figures(reported(tmp_path, *events)).table
        assert table is not None
        assert text in str(table.rows[0][1])


def _on(events: list[Event], stream: int) -> list[Event]:
    return [
        {**event, "tid": stream, "args": {**event["args"], "stream": stream}} if event["cat"] == "kernel" else event
        for event in events
    ]


# What an expert reads in the raw events: the verdict, steps with their median on the host, or, where the last is True,
# of the span of their GPU work, and the first one that is unlike the rest; the largest class of GPU work and its share.
PUBLIC = {
    "more/h100_one_layer": ("launch", [(None, 3, 0.86e6, 1.28e6, False)], "matmul", 0.598),
    "more/h800_ep64_dualpipe": ("gpu", [(None, 1, 112.2e6, None, False)], None, None),
    "more/v100_resnet50_dataloader": (
        "input" if "cpu_data" in CAUSES else None, [(None, 6, 176e6, None, False)], "matmul", 0.653,
    ),
    "more/a100_torchscript_cold": ("host", [], "elementwise", 0.266),
    "more/h100_vllm_tp4": (
        "gpu", [("prefill", 1, 88.9e6, None, True), ("decode", 9, 18.6e6, None, True)], "matmul", 0.759,
    ),
    "more/a100_moe_rank1": (None, [(None, 1, 21.3e6, None, False)], "collective", 0.978),
    "traces/v100_resnet_ddp": ("gpu", [(None, 5, 95.6e6, 35.1e6, False)], "matmul", 0.632),
    "ranks/megatron_tp8_rank0": ("communication", [(None, 1, 603e6, None, False)], "collective", 0.647),
    "traces/b200_vllm_eager": ("launch", [("prefill", 1, 87.4e6, None, False)], "matmul", 0.514),
    "pairs/mi300_qwen1.5_0.5b": ("gpu", [(None, 1, 42.7e6, None, False)], "matmul", 0.392),
}  # fmt: skip


@needs_traces
@pytest.mark.parametrize("name", PUBLIC)
def test_public_traces(name: str) -> None:
    bound, steps, largest, share = PUBLIC[name]
    report = whole(name)
    found = bounded(report)
    assert bound is None or found.bound == bound
    assert sum(found.parts.values()) == found.of_ns * len(report.devices)
    rows: list[dict[str, Any]] = report.table("step_lengths").to_json()
    for kind, count, median_ns, first_ns, gpu in steps:
        (row,) = (row for row in rows if (row["kind"], row["measure"]) == (kind, "gpu" if gpu else "host"))
        assert row["steps"] == count
        assert row["median_ns"] == pytest.approx(median_ns, rel=0.003)
        assert row["first_is_unlike"] == (first_ns is not None)
        assert first_ns is None or row["first_ns"] == pytest.approx(first_ns, rel=0.003)
    assert len({row["kind"] for row in rows}) == len(steps)
    first = report.table("kernel_classes").to_json()[0]
    assert largest is None or (first["class"], first["time_ratio"]) == (largest, pytest.approx(share, abs=0.001))


@needs_traces
def test_phases_are_not_said_to_be_missing_where_some_are_shown() -> None:
    lines = report_verdict(whole("more/h100_vllm_tp4"))
    assert lines[-1].startswith("Not recorded: some phases, tokens")
