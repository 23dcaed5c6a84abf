"""The first screen of public traces: the verdict, steps, and the first remarks that an expert has.

Values were counted plainly from the events of each file, with no code of molprof.
"""

from __future__ import annotations

from typing import Any

import pytest
import tiny_trace
from certificate_data import needs_traces, whole
from finding_cases import findings, plain
from test_places import launch
from tiny_trace import slice_, work

from molprof import api
from molprof.analysis.documents.report import report_document
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import Finding
from molprof.analysis.render import render

Event = dict[str, Any]


def by_id(name: str) -> dict[str, Finding]:
    return {item.id: item for item in whole(f"more/{name}").findings}


def screen(report: Report) -> str:
    """As a terminal shows it."""
    return render(report_document(report), "table", terminal=100, whole=False)


# Trace: verdict and its share of the time; steps as kind, measure, number, median, first if unlike the rest, in ms.
VERDICTS: dict[str, tuple[str, float, list[tuple[str | None, str, int, float, float | None]]]] = {
    "h100_vllm_tp4": ("gpu", 0.778, [("prefill", "gpu", 1, 88.949, None), ("decode", "gpu", 9, 18.581, None)]),
    "h800_ep64_dualpipe": ("gpu", 0.960, [(None, "host", 1, 112.202, None)]),
    "v100_resnet50_dataloader": ("input", 0.266, [(None, "host", 6, 176.273, None)]),
    "a100_torchscript_cold": ("host", 0.946, []),
    "h100_one_layer": ("launch", 0.721, [(None, "host", 3, 0.860, 1.280)]),
    "a100_moe_rank0": ("wait", 0.629, [(None, "host", 1, 20.770, None)]),
    "a100_moe_rank1": ("wait", 0.423, [(None, "host", 1, 21.289, None)]),
}
# Trace: what stands first, in order; each with its gain as a share of the recorded span, None where it has none.
FIRST: dict[str, list[tuple[str, float | None]]] = {
    # 89.639, 24.161 and 13.75 of 268.9 ms. 24.178 ms of all collectives are 8.99 %, of which 17 µs are beside others.
    "h100_vllm_tp4": [("dominant_kernel", 0.3333), ("communication", 0.0898), ("launch_bound", 0.0511)],
    # 4.149 of 129.553 ms; 2.158 of it, 1.67 %, in combine. The product takes 32.8 ms, and 3.04 of it alone.
    "h800_ep64_dualpipe": [("communication", 0.0320), ("dominant_kernel", 0.0235)],
    # The loader takes 415.8 of 1065.7 ms, 39.0 %; for 283.7 of them nothing is queued: no more can be had.
    "v100_resnet50_dataloader": [("host_work", 0.2688), ("fp32_matmul", 0.3693), ("launch_bound", 0.0895)],
    # 1337.13 ms of one cudaLaunchKernel; 365.8 ms before a TorchScript fallback.
    "a100_torchscript_cold": [("cold_start", None), ("long_calls", 0.7397), ("host_work", 0.2060)],
    # 2.224 of 3.082 ms. The recording's ends, 454 µs, are a note and have no gain.
    "h100_one_layer": [("launch_bound", 0.7214), ("unfused_attention", 0.0175)],
    # Nothing hides 2.066 and 9.631 ms of all-to-all, 43.8 % and 97.8 % of all GPU work.
    "a100_moe_rank0": [("communication", 0.0903), ("unknown_waits", None), ("slow_runs", None)],
    "a100_moe_rank1": [("communication", 0.4135), ("unknown_waits", None)],
    # 241 of 603 ms of all-reduces; more than the 177 ms in which the CPU does other work, and what the verdict says.
    "../ranks/megatron_tp8_rank0": [("communication", 0.3998), ("host_work", 0.2928)],
}
# Trace: what its first screen says.
SAID = {
    "h100_vllm_tp4": (
        "GPU-bound; the GPU was busy for 89.1 % of 262 ms", "1 prefill step", "88.9 ms", "9 decode steps", "18.6 ms",
        "matmul 75.9 %", "exposed communication 8.98 %", "4.70 %", "sm90_xmma_gemm_bf16bf16", "1,440 runs",
    ),
    "h800_ep64_dualpipe": ("busy for 99.6 %", "1 step of 112 ms", "2.16 ms", "::combine<", "(streams summed)"),
    "v100_resnet50_dataloader": (
        "input-bound", "6 steps of 176 ms", "num_workers", "Optimizer.zero_grad#SGD.zero_grad (38.2 % of it)",
        "float16 (autocast and a GradScaler): this device has neither bfloat16", "Gradients are set to zero by kernels",
    ),
    "a100_torchscript_cold": ("WARNING: ", "one cudaLaunchKernel", "1.34 s", "366 ms", "fallback_function in delta_r2"),
    "h100_one_layer": ("launch-bound", "busy for", "14.9 %", "the first 1.28 ms", "Self-Attention (45.7 % of it)"),
    "a100_moe_rank0": ("62.9 % of the time", "1 takes 1.93 ms, others as large 12.3 µs each", "molprof ranks DIR"),
    "a100_moe_rank1": ("42.3 % of the time", "3 take 9.52 ms, others as large 12.3 µs each", "molprof ranks DIR"),
}  # fmt: skip


@needs_traces
@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_and_steps(name: str) -> None:
    bound, ratio, steps = VERDICTS[name]
    report = whole(f"more/{name}")
    assert report.bottleneck is not None
    assert (report.bottleneck.bound, report.bottleneck.ratio) == (bound, pytest.approx(ratio, abs=0.001))
    rows: list[dict[str, Any]] = report.table("step_lengths").to_json()
    for kind, measure, count, median_ms, first_ms in steps:
        (row,) = (row for row in rows if (row["kind"], row["measure"]) == (kind, measure))
        assert (row["steps"], row["median_ns"]) == (count, pytest.approx(median_ms * 1e6, rel=0.001))
        assert row["first_is_unlike"] == (first_ms is not None)
        assert first_ms is None or row["first_ns"] == pytest.approx(first_ms * 1e6, rel=0.001)
    assert bool(rows) == bool(steps)


@needs_traces
@pytest.mark.parametrize("name", FIRST)
def test_the_first_remarks(name: str) -> None:
    worth = [item for item in whole(f"more/{name}").findings if item.part_of is None and item.id != "limits"]
    for item, (rule, gain) in zip(worth, FIRST[name], strict=False):
        assert (item.id, item.gain_ratio) == (rule, None if gain is None else pytest.approx(gain, abs=0.0005))
        assert item.warning == (rule == "cold_start")


@needs_traces
@pytest.mark.parametrize("name", SAID)
def test_what_the_first_screen_says(name: str) -> None:
    text = screen(whole(f"more/{name}"))
    assert text.count("\n") <= 40
    joined = " ".join(text.split())
    assert [words for words in SAID[name] if " ".join(words.split()) not in joined] == []


@needs_traces
def test_what_part_of_a_finding_is_told_with_it() -> None:
    found = by_id("v100_resnet50_dataloader")
    # 36.112 ms of zero_grad on the host, and 1.03 ms of its kernels, of 1065.658 ms.
    assert found["zero_grad"].part_of == "launch_bound"
    assert found["zero_grad"].gain_ratio == pytest.approx(0.03485, abs=0.0002)
    assert "set_to_none=True" in found["zero_grad"].fix
    # 11.492 ms of 12 copies: time in which the GPU works is no part of the time in which it waits.
    assert found["host_copies"].part_of is None
    cold = by_id("a100_torchscript_cold")
    assert cold["jit_specialization"].part_of == "host_work"
    assert cold["jit_specialization"].figures["idle_ns"] == pytest.approx(365.8e6, rel=0.001)


@needs_traces
def test_a_product_that_is_slow_once_is_no_matter_of_its_precision() -> None:
    found = by_id("a100_moe_rank0")
    # Of three runs of [8, 1024] by [1024, 256] one takes 2440.7 µs, the others 9.7 and 9.5; the last two gain nothing.
    assert "fp32_matmul" not in found
    assert found["slow_runs"].figures == {"runs": 1, "beyond_ns": 2440719 - 9696}
    assert found["slow_runs"].location == "aten::mm"
    assert "takes 2.44 ms, others of its sizes 9.70 µs" in found["slow_runs"].evidence


@needs_traces
def test_all_reduces_of_one_size_that_wait() -> None:
    # Of 80 of [2048, 4, 4096] 14 take 173.2 ms, the others 624 µs; of 3 of [4, 2048] one takes 13.7 ms, not 27 µs.
    (found,) = (item for item in whole("ranks/megatron_tp8_rank0").findings if item.id == "communication")
    assert found.figures["waiting_ns"] == pytest.approx(178.2e6, rel=0.001)
    assert "; 15 take 187 ms, others as large" in found.evidence


@needs_traces
@pytest.mark.parametrize(("rank", "waiting_ns"), [(0, 1926028 - 12288), (1, 4436398 + 4364942 + 716963 - 3 * 12321)])
def test_collectives_that_wait(rank: int, waiting_ns: int) -> None:
    # All 12 of a rank move 2,048 numbers each: 11 of rank 0 take 10.1 to 17.0 µs, 9 of rank 1 take 10.0 to 18.6.
    found = by_id(f"a100_moe_rank{rank}")["communication"]
    assert found.figures["waiting_ns"] == pytest.approx(waiting_ns, rel=0.001)
    assert found.fix.startswith("Find which rank comes late")


def collectives(*lengths: float, size: int = 1024) -> list[Event]:
    """All-reduces of float32 with so many numbers, of these lengths in µs."""
    args = {"Collective name": "allreduce", "In msg nelems": size, "Out msg nelems": size, "dtype": "Float"}
    events, start = [], 2000.0
    for number, length in enumerate(lengths):
        correlation = 1000 * size + number + 1
        call = slice_("cuda_runtime", "cudaLaunchKernel", 1000 + size + number, 0.5, correlation=correlation)
        kernel = work("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", start, length, correlation)
        kernel["args"] |= args
        events += [call, kernel]
        start += length + 1
    return events


def test_only_collectives_of_one_size_are_compared(tmp_path: Any) -> None:
    same = findings(tmp_path, plain(collectives(10, 10, 10, 900)))["communication"]
    assert same.figures["waiting_ns"] == 890_000
    assert "1 takes 900 µs, others as large 10.0 µs each: most of it moves no data" in same.evidence
    other = plain(collectives(10, 10, 10), collectives(900, size=4096))
    assert "waiting_ns" not in findings(tmp_path, other)["communication"].figures


def test_exposed_time_has_its_own_place(tmp_path: Any) -> None:
    # The longer all-reduce is hidden but for 100 µs, the shorter one not at all.
    events = [
        slice_("user_annotation", "hidden", 1000, 50), slice_("user_annotation", "alone", 1100, 50),
        slice_("cpu_op", "aten::mm", 1200, 50),
        *launch(1010, 1, 2000, 900, "ncclDevKernel_AllReduce", 9),
        *launch(1110, 2, 3000, 300, "ncclDevKernel_AllReduce", 9),
        *launch(1210, 3, 2100, 800, "sgemm", 7),
    ]  # fmt: skip
    found = findings(tmp_path, plain(events))["communication"]
    assert found.figures["exposed_ns"] == 400_000
    assert (found.location, found.location_ratio) == ("alone", 0.75)


def test_a_note_about_much_of_the_time_stays_on_the_screen(tmp_path: Any) -> None:
    # A product, and work queued with it that begins 30 ms later; then gaps before launches, syncs, copies and chains.
    events = [*launch(1000, 1, 1010, 1000, "sgemm")]
    start = 32_000.0
    for number in range(2, 200):
        name = ("sgemm", "direct_copy_kernel", "elementwise_kernel", "ncclDevKernel_AllReduce")[number % 4]
        call = 1005 + number * 3 if number < 100 else start - 60
        with_operator = [slice_("cpu_op", f"aten::operator_{number % 7}", call - 0.5, 3)]
        events += with_operator + launch(call, number, start, 200, name)
        start += 201 if number < 99 else 280
    report = api.report(tiny_trace.write(tmp_path / "whole.json", plain(events)))
    shown = screen(report)
    (note,) = (item for item in report.findings if item.id == "unknown_waits")
    assert note.time_ratio is not None
    assert note.time_ratio > 0.3
    assert len([item for item in report.findings if item.gain is not None]) >= 4
    assert shown.count("\n") <= 40
    assert "The GPU waits for something that is not recorded" in shown
    assert "evidence" in shown


def test_the_first_findings_keep_their_evidence_before_others_have_a_line(tmp_path: Any) -> None:
    events = []
    start = 2000.0
    for number in range(1, 200):
        name = ("sgemm", "direct_copy_kernel", "elementwise_kernel", "ncclDevKernel_AllReduce")[number % 4]
        events += launch(start - 60, number, start, 200, name)
        start += 280
    report = api.report(tiny_trace.write(tmp_path / "many.json", plain(events)))
    lines = screen(report).splitlines()
    assert len(lines) <= 40
    first = next(number for number, line in enumerate(lines) if line.startswith("  1 "))
    assert any(line.startswith("  evidence") for line in lines[first : first + 4])


def products(*lengths: float, rows: int = 8, recorded: bool = True) -> list[Event]:
    """Products of 32-bit numbers of these lengths in µs, one right after the other, with their sizes if recorded."""
    events, start = [], 2000.0 + 10_000 * rows
    sizes = {"Input Dims": [[rows, 64], [64, 32]], "Input type": ["float", "float"]} if recorded else {}
    for number, length in enumerate(lengths):
        ts = 10 + 100 * rows + 10 * number
        events.append(slice_("cpu_op", "aten::mm", ts, 8, **sizes))
        events += launch(ts + 1, 1000 * rows + number + 1, start, length, "ampere_sgemm_32x128_tn")
        start += length
    return events


def test_a_slow_run_gains_nothing_where_its_size_is_recorded(tmp_path: Any) -> None:
    found = findings(tmp_path, plain(products(10, 10, 10, 970)))
    # 4 x 10 of 1000 µs.
    assert found["fp32_matmul"].gain_ratio == pytest.approx(0.04)
    assert "takes 970 µs, others of its sizes 10.0 µs" in found["slow_runs"].evidence
    assert found["slow_runs"].figures == {"runs": 1, "beyond_ns": 960_000}
    assert found["slow_runs"].gain is None


@pytest.mark.parametrize(
    "events",
    [
        products(10, 10, 10, 970, recorded=False),
        products(10, 10, 10) + products(970, rows=9),  # of another size
        products(10, 970),  # what is usual is not known
    ],
)
def test_runs_that_nothing_says_are_slow(tmp_path: Any, events: list[Event]) -> None:
    assert "slow_runs" not in findings(tmp_path, plain(events))
