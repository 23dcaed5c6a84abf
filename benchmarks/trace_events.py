"""Events as torch.profiler writes them, made to order. Times are in µs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]

HOST, THREAD, STREAM = 100, 100, 7
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"


def piece(
    category: str, name: str, ts: float, dur: float, pid: int | str = HOST, tid: int | str = THREAD, **args: Any
) -> Event:
    """Return a complete event."""
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def marked(name: str, ts: float, dur: float, tid: int = THREAD) -> Event:
    """Return a range of record_function."""
    return piece("user_annotation", name, ts, dur, tid=tid)


def step(number: int, ts: float, dur: float) -> Event:
    return marked(f"ProfilerStep#{number}", ts, dur)


def function(name: str, ts: float, dur: float, number: int = 1, tid: int = THREAD, **args: Any) -> Event:
    """Return a call of a Python function, or of a module."""
    return piece("python_function", name, ts, dur, tid=tid, **{"Python id": number, "Python parent id": 0, **args})


def operator(name: str, ts: float, dur: float, number: int, dims: Any = None, **where: Any) -> Event:
    args: Event = {"External id": number}
    if dims is not None:
        args |= {"Input Dims": dims, "Input type": ["float"] * len(dims), "Input Strides": [[1]] * len(dims)}
        args |= {"Concrete Inputs": [""] * len(dims)}
    return piece("cpu_op", name, ts, dur, **where, **args)


def runtime(name: str, ts: float, dur: float, number: int, **args: Any) -> Event:
    """Return a call of the CUDA runtime."""
    return piece("cuda_runtime", name, ts, dur, **{"External id": number, "correlation": number, **args})


def work(name: str, ts: float, dur: float, number: int, **args: Any) -> Event:
    """Return a kernel, or a copy where args have bytes."""
    category = "gpu_memcpy" if "bytes" in args else "kernel"
    args = {"device": 0, "stream": STREAM, **args}
    given = {"External id": number, "correlation": number, "context": 1, "grid": [10, 1, 1], "block": [128, 1, 1]}
    return piece(category, name, ts, dur, args["device"], args["stream"], **{**given, **args})


def memory(size: int, ts: float, address: int, total: int, device: int = 0) -> Event:
    """Return an allocation, or with a negative size a free."""
    args = {"Bytes": size, "Addr": address, "Total Allocated": total, "Total Reserved": 2 * total}
    event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": HOST, "tid": THREAD, "ts": ts}
    return {**event, "args": {**args, "Device Type": 1, "Device Id": device}}


def other(phase: str, category: str, name: str, ts: float, tid: int = THREAD, **fields: Any) -> Event:
    """Return an event that is not complete: an end of a flow, a counter, half a slice."""
    return {"ph": phase, "cat": category, "name": name, "pid": HOST, "tid": tid, "ts": ts, **fields}


@dataclass(frozen=True, kw_only=True)
class Call:
    """An operator that launches a kernel, every 20 µs by default."""

    every: float = 20
    ts: float | None = None  # where it is not by its number
    name: str = "aten::add"
    dur: float = 15
    dims: Any = None
    launch: str = "cudaLaunchKernel"
    launch_us: float = 5
    kernel: str = ADD
    after: float = 12  # the start of the kernel from that of the operator
    gpu_us: float = 6
    device: int = 0
    stream: int = STREAM
    pid: int = HOST
    tid: int = THREAD
    correlation: int | None = None  # where it is not the number, from 1
    work_args: Event = field(default_factory=dict)

    def events(self, number: int) -> Iterator[Event]:
        """Yield the operator, its launch, and the kernel; numbers count from 0."""
        ts = number * self.every if self.ts is None else self.ts
        number = number + 1 if self.correlation is None else self.correlation
        launch_ts, launch_us = ts + min(5, self.dur / 3), min(self.launch_us, self.dur / 2)
        yield operator(self.name, ts, self.dur, number, self.dims, pid=self.pid, tid=self.tid)
        yield runtime(self.launch, launch_ts, launch_us, number, pid=self.pid, tid=self.tid)
        track = {"device": self.device, "stream": self.stream, **self.work_args}
        yield work(self.kernel, ts + self.after, self.gpu_us, number, **track)


def call(number: int, **how: Any) -> Iterator[Event]:
    """Yield the events of a call; `how` are fields of Call."""
    return Call(**how).events(number)
