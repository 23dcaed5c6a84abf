"""The step of median duration: exact rows of literal events, and short ones drawn together without a loss."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from sql_rows import events_loaded, rows
from tiny_trace import slice_, work

from molprof.analysis.figures.build import read_typical_step
from molprof.analysis.figures.model import SLOTS, Interval, IntervalTotal, TypicalStep
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import open_engine
from molprof.queries import PACKAGE, modules

CORPUS = os.environ.get("MOLPROF_CORPUS")
TRACES = sorted(Path(CORPUS, "traces").glob("*.json.gz")) if CORPUS else []
STEP = "SELECT dur, name, source, kind, steps FROM molprof_typical_step"
INTERVALS = "SELECT kind, lane, name, class, start_ns, dur, own FROM molprof_step_interval"


def annotation(name: str, ts: float, dur: float) -> dict[str, Any]:
    return slice_("user_annotation", name, ts, dur)


def typical_step(path: Path) -> TypicalStep | None:
    with open_engine() as engine:
        load_trace(path, engine, stacks=False)
        engine.register_package(PACKAGE, modules())
        return read_typical_step(engine)


def test_the_shorter_of_two_decode_steps(tmp_path: Path) -> None:
    with open_engine() as engine:
        load_trace(tiny_trace.write(tmp_path / "tiny.json", tiny_trace.document()), engine)
        engine.register_package(PACKAGE, modules())
        assert rows(engine, "typical_step", STEP) == [(80_000, "molprof.step batch=0 step=2", "molprof", "decode", 2)]
        assert rows(engine, "typical_step", INTERVALS) == [
            ("phase", None, "forward", None, 0, 50_000, 1),
            ("launch", None, "cudaGraphLaunch", None, 5_000, 5_000, 1),
            ("gpu", "0/7", tiny_trace.COPY, "copy", 15_000, 10_000, 1),
            ("gpu", "0/8", tiny_trace.CAT, "cat", 20_000, 10_000, 1),
            ("phase", None, "processor", None, 50_000, 10_000, 1),
            ("phase", None, "sampling", None, 60_000, 15_000, 1),
            ("phase", None, "bookkeeping", None, 75_000, 5_000, 1),
            ("launch", None, "cuLaunchKernel", None, 76_000, 1_000, 1),
            # Its call is not recorded, so no step is known to have started it.
            ("gpu", "0/7", "mystery", "other", 78_000, 1_000, 0),
        ]


def test_decode_steps_go_before_others_and_the_middle_one_counts(tmp_path: Path) -> None:
    events = [
        annotation("step[EXTEND bs=1 toks=7]", 0, 15),
        annotation("step[DECODE bs=1]", 20, 10),
        annotation("step[DECODE bs=2]", 40, 30),
        annotation("step[DECODE bs=3]", 80, 20),
    ]
    with events_loaded(tmp_path, events) as query:
        assert query("typical_step", STEP) == [(20_000, "step[DECODE bs=3]", "sglang", "decode", 3)]


def test_work_of_other_steps_and_work_after_the_end(tmp_path: Path) -> None:
    events = [
        annotation("ProfilerStep#1", 100, 50),
        slice_("cuda_runtime", "cudaLaunchKernel", 90, 5, correlation=1),
        slice_("cuda_runtime", "cudaLaunchKernel", 140, 5, correlation=2),
        slice_("cuda_runtime", "cudaStreamSynchronize", 110, 20),
        work("kernel", "gemm_earlier", 95, 15, 1),
        work("kernel", "gemm_own", 160, 10, 2),
        work("kernel", "gemm_after", 155, 5, 3),
    ]
    with events_loaded(tmp_path, events) as query:
        assert query("typical_step", INTERVALS) == [
            ("gpu", "0/7", "gemm_earlier", "matmul", -5_000, 15_000, 0),
            ("wait", None, "cudaStreamSynchronize", None, 10_000, 20_000, 1),
            ("launch", None, "cudaLaunchKernel", None, 40_000, 5_000, 1),
            ("gpu", "0/7", "gemm_own", "matmul", 60_000, 10_000, 1),
        ]


def test_outermost_operators_where_no_calls_are_recorded(tmp_path: Path) -> None:
    events = [
        annotation("ProfilerStep#1", 0, 100),
        slice_("cpu_op", "aten::linear", 10, 50),
        slice_("cpu_op", "aten::addmm", 20, 30),
        slice_("cpu_op", "aten::expand", 22, 3),
        slice_("cpu_op", "aten::copy_", 26, 3),
        slice_("cpu_op", "aten::relu", 70, 5),
    ]
    with events_loaded(tmp_path, events) as query:
        assert query("typical_step", INTERVALS) == [
            ("operator", None, "aten::linear", "aten::linear", 10_000, 50_000, 1),
            ("operator", None, "aten::relu", "aten::relu", 70_000, 5_000, 1),
        ]


def test_without_steps_there_is_none(tmp_path: Path) -> None:
    assert typical_step(tiny_trace.write(tmp_path / "a.json", {"traceEvents": [work("kernel", "k", 1, 1, 1)]})) is None


def test_short_ones_of_a_slot_become_one(tmp_path: Path) -> None:
    events = [
        annotation("ProfilerStep#1", 0, SLOTS * 10),  # slots of 10 µs
        slice_("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1),
        slice_("cuda_runtime", "cudaLaunchKernel", 12, 1, correlation=2),
        slice_("cuda_runtime", "cudaLaunchKernel", 15, 3, correlation=3),
        slice_("cuda_runtime", "cudaLaunchKernel", 19, 2, correlation=4),
        work("kernel", "gemm", 21, 3, 1),
        work("kernel", "fmha", 25, 4, 2),
        work("kernel", "gemm", 29, 2, 3),
        work("kernel", "gemm", 32, 40, 4),
    ]
    step = typical_step(tiny_trace.write(tmp_path / "short.json", {"traceEvents": events}))
    assert step is not None
    assert (step.dur_ns, step.steps, step.kind) == (SLOTS * 10_000, 1, None)
    assert step.intervals == (
        Interval("launch", None, "cudaLaunchKernel", None, 0, 1_000, 1, True),
        Interval("launch", None, "cudaLaunchKernel", None, 12_000, 9_000, 3, True),
        # More of its time is matmul than attention.
        Interval("gpu", "0/7", "gemm", "matmul", 21_000, 10_000, 3, True),
        Interval("gpu", "0/7", "gemm", "matmul", 32_000, 40_000, 1, True),
    )
    assert step.totals == (
        IntervalTotal("gpu", "0/7", "matmul", 3, 45_000),
        IntervalTotal("gpu", "0/7", "attention", 1, 4_000),
        IntervalTotal("launch", None, None, 4, 7_000),
    )


@pytest.mark.skipif(not TRACES, reason="MOLPROF_CORPUS is not set: no real traces to read")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_nothing_of_a_real_step_is_left_out_and_little_is_kept(path: Path) -> None:
    step = typical_step(path)
    if step is None:
        pytest.skip("no steps are annotated in it")
    for kind in {total.kind for total in step.totals}:
        kept = [interval for interval in step.intervals if interval.kind == kind]
        totals = [total for total in step.totals if total.kind == kind]
        assert sum(interval.count for interval in kept) == sum(total.count for total in totals)
        lanes = {(interval.lane, interval.own) for interval in kept}
        # Within a lane nothing overlaps much, so there are at most as many long ones as slots, and as many short.
        assert len(kept) <= 2 * (SLOTS + 1) * len(lanes)
