"""Small traces in the shapes of common programs get the right first findings, verdicts and gains."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from tiny_trace import slice_, work

from molprof import api
from molprof.analysis.documents.headline import report_verdict
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import Finding

Event = dict[str, Any]
HTOD, DTOH = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"


class Program:
    """A thread that launches work, and the streams that run it one after the other; times in µs on a clock of ns."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now, self.numbers = 10.001, count(1)
        self.free: dict[tuple[int, int], float] = {}

    def record(self, category: str, name: str, ts: float, dur: float, **args: Any) -> None:
        self.events.append(slice_(category, name, round(ts, 3), round(dur, 3), **args))

    def host(self, category: str, name: str, dur: float) -> None:
        self.record(category, name, self.now, dur)
        self.now += dur

    def launch(
        self, name: str, dur: float, *, stream: int = 7, device: int = 0, after: float = 0, call: str = ""
    ) -> float:
        number, kind = next(self.numbers), "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        call = call or ("cudaMemcpyAsync" if kind == "gpu_memcpy" else "cudaLaunchKernel")
        self.record("cuda_runtime", call, self.now, 4, correlation=number)
        self.now += 4.001
        ts = round(max(self.now, self.free.get((device, stream), 0) + 0.501, after), 3)
        event = work(kind, name, ts, round(dur + 0.003, 3), number, stream)
        event["pid"] = event["args"]["device"] = device
        self.events.append(event)
        self.free[device, stream] = ts + dur + 0.003
        return self.free[device, stream]

    def sync(self) -> None:
        end = max(self.now, *self.free.values()) + 1
        self.record("cuda_runtime", "cudaStreamSynchronize", self.now, end - self.now, correlation=next(self.numbers))
        self.now = end

    def report(self, tmp_path: Path) -> Report:
        return api.report(tiny_trace.write(tmp_path / "a.json", {"traceEvents": self.events}))


def findings(report: Report) -> dict[str, Finding]:
    return {finding.id: finding for finding in report.findings}


def gain_of(finding: Finding) -> float:
    assert finding.gain is not None
    return finding.gain.high


def gain_ns(finding: Finding) -> float:
    assert finding.gain is not None
    assert finding.gain.of_ns is not None
    return finding.gain.high * finding.gain.of_ns


def in_function(program: Program, names: Sequence[str], start: float) -> None:
    for name in names:
        program.record("python_function", name, start, program.now - start)


def test_an_idle_server_has_nothing_to_gain(tmp_path: Path) -> None:
    program = Program()
    for _ in range(5):
        start = program.now
        for _ in range(20):
            program.launch("gemm", 100)
        program.sync()
        in_function(program, ["server.py(80): handle"], start)
        start = program.now
        program.now += 10_000
        in_function(program, ["asyncio/base_events.py(1900): _run_once", "selectors.py(435): select"], start)
    report = program.report(tmp_path)
    found = findings(report)
    assert "bound by waits (the CPU waits in a queue, lock or socket: " in report_verdict(report)[0]
    assert not {"host_work", "host_syncs"} & found.keys()
    assert found["waiting_threads"].note
    assert found["waiting_threads"].location == "selectors.py(435): select"
    assert found["waiting_threads"].figures["idle_ns"] == pytest.approx(40e6, rel=0.01)


def test_a_loader_whose_workers_are_slow_is_no_idle_server(tmp_path: Path) -> None:
    program = Program()
    for _ in range(5):
        start = program.now
        program.host("python_function", "multiprocessing/queues.py(101): get", 8000)
        program.record("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter", start, 8000)
        for _ in range(20):
            program.launch("gemm", 100)
        program.sync()
    report = program.report(tmp_path)
    assert "input-bound (waiting for the data loader: " in report_verdict(report)[0]
    assert "waiting_threads" not in findings(report)
    assert report.findings[0].id == "host_work"


def test_gpus_in_turn(tmp_path: Path) -> None:
    program = Program()
    end = 0.0
    for _ in range(4):
        for device in (0, 1):
            program.free[device, 7] = max(program.free.get((device, 7), 0), end)
            for _ in range(20):
                end = program.launch("gemm", 100, device=device)
        program.sync()
    report = program.report(tmp_path)
    first = report.findings[0]
    assert first.id == "devices_in_turn"
    assert first.evidence.endswith("0 % of it at once")
    assert gain_of(first) == pytest.approx(0.5, abs=0.01)
    assert "bound by waits (waiting for another GPU: " in report_verdict(report)[0]


def test_gpus_at_once_are_not_in_turn(tmp_path: Path) -> None:
    program = Program()
    for _ in range(20):
        program.launch("gemm", 100, device=0)
        program.launch("gemm", 100, device=1)
    assert "devices_in_turn" not in findings(program.report(tmp_path))


def test_compiling_is_one_finding(tmp_path: Path) -> None:
    program = Program()
    for step in range(6):
        if step == 3:
            program.host("cpu_op", "_compile.compile_inner (dynamo_timed)", 50_000)
        start = program.now
        for _ in range(20):
            program.launch("gemm", 100)
        program.record("user_annotation", f"Torch-Compiled Region: 0/{step // 3}", start, program.now - start)
        program.sync()
    report = program.report(tmp_path)
    first = report.findings[0] if not report.findings[0].warning else report.findings[1]
    assert first.id == "compiling"
    assert first.evidence.endswith("code that was compiled is compiled again: Torch-Compiled Region: 0/1")
    assert "dynamic" in first.fix
    assert not {"host_work", "host_syncs"} & findings(report).keys()


def test_what_the_profiler_does_is_not_the_programs(tmp_path: Path) -> None:
    program = Program()
    for _ in range(4):
        for _ in range(10):
            program.launch("gemm", 50)
        program.sync()
        start = program.now
        program.host("overhead", "Activity Buffer Request", 1500)
        program.record("cpu_op", "aten::mm", start, 1500)
    for _ in range(10):
        program.launch("gemm", 50)
    report = program.report(tmp_path)
    found = findings(report)
    assert "host_work" not in found
    assert found["profiler_holds_up"].note
    assert found["profiler_holds_up"].figures["idle_ns"] == pytest.approx(6e6, rel=0.01)
    assert report.bottleneck is not None
    assert report.bottleneck.parts["profiler"] == pytest.approx(6e6, rel=0.01)
    assert report.bottleneck.bound != "host"


@pytest.mark.parametrize(("name", "where"), [(HTOD, "from the host"), (DTOH, "to the host")])
def test_copies_that_nothing_runs_beside(tmp_path: Path, name: str, where: str) -> None:
    program = Program()
    for _ in range(5):
        program.launch(name, 3000)
        program.sync()
        for _ in range(10):
            program.launch("gemm", 100)
    report = program.report(tmp_path)
    first = report.findings[0]
    assert first.id == "host_transfers"
    assert first.evidence.startswith(f"5 times {where} (15.0 ms), 15.0 ms of it with nothing else on the GPU")
    assert gain_ns(first) == pytest.approx(15e6, rel=0.01)
    assert "transfer-bound (exposed copies between host and GPU: " in report_verdict(report)[0]
    assert "pinned memory" in first.fix


def test_copies_beside_computing_are_no_finding(tmp_path: Path) -> None:
    program = Program()
    for _ in range(5):
        program.launch(HTOD.replace("Pageable", "Pinned"), 900, stream=14)
        for _ in range(10):
            program.launch("gemm", 100)
        program.sync()
    report = program.report(tmp_path)
    assert "host_transfers" not in findings(report)
    assert report.bottleneck is not None
    assert report.bottleneck.bound == "gpu"


def test_allocations_in_short_gaps_are_no_launches(tmp_path: Path) -> None:
    program = Program()
    for _ in range(20):
        program.host("cuda_runtime", "cudaMalloc", 800)
        for _ in range(4):
            program.launch("gemm", 30)
    found = findings(program.report(tmp_path))["launch_bound"]
    assert " of it in cudaMalloc (" in found.evidence
    assert found.fix.startswith("Keep memory instead of asking for it again")


def test_gaps_after_syncs_are_not_mended_by_fewer_launches(tmp_path: Path) -> None:
    program = Program()
    for _ in range(20):
        program.launch("gemm", 300)
        program.sync()
        program.now += 150
    found = findings(program.report(tmp_path))
    assert found["launch_bound"].fix.startswith("Most of these gaps begin in a host sync")
    # 19 gaps of about 155 µs: none gains more than itself.
    syncs = found["host_syncs"]
    assert gain_of(syncs) <= gain_of(found["launch_bound"]) + 0.01


def test_what_syncs_gain_is_bounded_gap_by_gap(tmp_path: Path) -> None:
    program = Program()
    # A short sync before a long gap, and long syncs before short gaps.
    program.launch("gemm", 20)
    program.sync()
    program.now += 900
    for _ in range(10):
        program.launch("gemm", 500)
        program.sync()
    assert gain_ns(findings(program.report(tmp_path))["host_syncs"]) < 10 * 10_000 + 30_000


def test_a_softmax_between_layers_is_no_attention(tmp_path: Path) -> None:
    gelu = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>()"
    scale = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>()"

    def of(between: str) -> dict[str, Finding]:
        program = Program()
        for _ in range(20):
            for name in ("gemm", between, "softmax_warp_forward"):
                program.launch(name, 50)
        return findings(program.report(tmp_path))

    assert "unfused_attention" in of(scale)
    assert "unfused_attention" not in of(gelu)


def test_a_kernel_on_two_streams_takes_no_more_than_the_time(tmp_path: Path) -> None:
    program = Program()
    for _ in range(20):
        program.launch("gemm", 100, stream=7)
        program.launch("gemm", 100, stream=8)
    found = findings(program.report(tmp_path))["dominant_kernel"]
    assert "where those on several streams count once" in found.evidence
    assert "100 % of the time" not in found.evidence


def test_communication_that_fits_beside_nothing(tmp_path: Path) -> None:
    program = Program()
    for _ in range(20):
        end = program.launch("gemm", 20)
        program.free[0, 7] = program.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 200, stream=20, after=end)
    found = findings(program.report(tmp_path))["communication"]
    assert "exchange less" in found.fix
    assert "Overlap" not in found.fix
