"""`molprof doctor --peaks`: rates of matrix products and memory copies that this machine reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from molprof.common.process import OK
from molprof.common.process.guarded import Limits, call
from molprof.common.values import number_text
from molprof.profiler.doctor.checks import ABSENT, BROKEN, DoctorCheck

_CALLS, _LONGEST_S = 10, 2.0
# Rows of square matrices, and bytes that are copied: enough to keep a GPU busy, and a CPU not for long.
_ROWS, _BYTES = {"cuda": 8192, "cpu": 512}, {"cuda": 1 << 30, "cpu": 1 << 28}


def peak_checks(limit_s: float, stated: Callable[[str], Any]) -> list[DoctorCheck]:
    """Measure in a separate process, and compare with the `Peaks` that `stated` gives for a device's name."""
    answer = call(f"{__name__}:measured", limits=Limits(limit_s))
    if answer.value is None:
        return [DoctorCheck("peaks", answer.message, ABSENT if answer.missing else BROKEN)]
    device, tflops, memory = (answer.value[name] for name in ("device", "tflops", "memory"))
    sheet = stated(device)
    rows = [
        (f"peak {kind}", f"{number_text(one)} TFLOP/s", one, sheet.tflops.get(kind)) for kind, one in tflops.items()
    ]
    rows.append(("peak memory", f"{number_text(memory)} TB/s", memory, sheet.memory_tbps))
    options = " ".join(
        f"--peak {name}={number_text(value).replace(',', '')}" for name, value in (*tflops.items(), ("memory", memory))
    )
    checks = [
        DoctorCheck(
            name, text + (f", {one / most:.0%} of {most:,.5g} ({sheet.source})" if most else ""), OK, measured=one
        )
        for name, text, one, most in rows
    ]
    return [*checks, DoctorCheck("peaks", f"for report by shape: {options}", OK)]


def measured() -> dict[str, Any]:
    """Return the name of the first GPU, else of the CPU, and its measured rates.

    `tflops`: 10^12 operations per second by kind of number, of products of square matrices of random numbers; kinds
    that torch cannot multiply here are left out. `memory`: 10^12 bytes per second, read and written, of a copy. Each is
    the median of up to ten calls after one, on a GPU by its events.
    """
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = _ROWS[device.type]
    tflops: dict[str, float] = {}
    for kind, product in _products(torch, device, rows).items():
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        try:
            tflops[kind] = 2 * rows**3 / _seconds(torch, device, product()) / 1e12
        except (RuntimeError, NotImplementedError, ValueError):  # no such product here
            continue
    source = torch.empty(_BYTES[device.type], dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    moved = 2 * source.nbytes / _seconds(torch, device, lambda: target.copy_(source)) / 1e12
    on_gpu = device.type == "cuda"
    return {"device": torch.cuda.get_device_name(0) if on_gpu else "CPU", "tflops": tflops, "memory": moved}


def _products(torch: Any, device: Any, rows: int) -> dict[str, Callable[[], Callable[[], object]]]:
    """Return, by number type, a function that makes operands and returns the function of their product."""

    def plain(dtype: Any) -> Callable[[], object]:
        one, other = (torch.randn(rows, rows, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
        return lambda: one @ other

    def eight() -> Callable[[], object]:
        one, other = (torch.randn(rows, rows, device=device).to(torch.float8_e4m3fn) for _ in range(2))
        scale = torch.ones((), device=device)
        return lambda: torch._scaled_mm(one, other.t(), scale, scale, out_dtype=torch.bfloat16)

    def whole() -> Callable[[], object]:
        one, other = (torch.randint(-9, 9, (rows, rows), device=device, dtype=torch.int8) for _ in range(2))
        return lambda: torch._int_mm(one, other.t())

    kinds: dict[str, Callable[[], Callable[[], object]]] = {
        "bf16": lambda: plain(torch.bfloat16),
        "fp32": lambda: plain(torch.float32),
        "fp64": lambda: plain(torch.float64),
    }
    if device.type == "cuda":
        kinds |= {"fp16": lambda: plain(torch.float16), "tf32": kinds["fp32"], "fp8": eight, "int8": whole}
    return kinds


def _seconds(torch: Any, device: Any, run: Callable[[], object]) -> float:
    run()
    times: list[float] = []
    while len(times) < _CALLS and sum(times) < _LONGEST_S:
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
    return median(times)
