"""Literal events with modules, functions, a named range, a graph, a backward thread, and a kernel without its call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_trace import slice_, work

from molprof import api
from molprof.analysis.origin.read import Origins, origins_of


def origins_in(path: Path) -> Origins:
    with api.load(path) as trace:
        return trace.read(origins_of, stacks=True)


def python(name: str, ts: float, dur: float, tid: int = 100) -> dict[str, Any]:
    return slice_("python_function", name, ts, dur, tid=tid)


def launch(ts: float, correlation: int, name: str = "cudaLaunchKernel", tid: int = 100) -> dict[str, Any]:
    return slice_("cuda_runtime", name, ts, 1, tid=tid, correlation=correlation)


# Two layers, a named range that begins inside the function that enters it, a graph, a backward thread, a kernel alone.
EVENTS = [
    slice_("user_annotation", "ProfilerStep#1", 0, 100),
    python("main.py(3): main", 1, 98),
    python("nn.Module: Model_0", 2, 60),
    *(
        event
        for number, start in enumerate((3, 13))
        for event in (
            python(f"nn.Module: Layer_{number}", start, 9),
            python("torch/nn/modules/linear.py(9): forward", start + 1, 8),
            python(f"nn.Module: Linear_{number}", start + 1.5, 7),
            slice_("cpu_op", "aten::linear", start + 2, 6),
            slice_("cpu_op", "aten::mm", start + 3, 4),
            launch(start + 4, 10 + number),
            work("kernel", "gemm", start + 20, 5 + number, 10 + number),
        )
    ),
    python("<built-in function enter>", 30, 2),
    slice_("user_annotation", "cast", 31, 14),
    slice_("cpu_op", "aten::copy_", 33, 5),
    launch(34, 20),
    work("kernel", "void at::native::direct_copy_kernel_cuda(int)", 60, 2, 20),
    python("<built-in function exit>", 44, 2),
    launch(50, 30, "cudaGraphLaunch"),
    work("kernel", "in_graph", 70, 3, 30),
    work("kernel", "in_graph", 74, 4, 30),
    slice_("cuda_runtime", "cudaStreamSynchronize", 65, 10, correlation=31),
    slice_("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 40, 10, tid=200),
    slice_("cpu_op", "aten::mm", 41, 8, tid=200),
    launch(42, 40, tid=200),
    work("kernel", "gemm", 80, 6, 40),
    work("kernel", "alone", 90, 7, 99),
]
