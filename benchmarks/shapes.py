#!/usr/bin/env python3
"""Traces of one shape and any size, which show how the cost of reading grows.

python benchmarks/shapes.py SHAPE EVENTS OUT.json writes one; without arguments it lists the shapes.

A shape has much of one thing: streams, names, steps, graph replays. Most are calls: every 20 µs an operator that
launches a kernel.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec
from trace_events import (
    ADD,
    STREAM,
    Event,
    call,
    function,
    marked,
    memory,
    operator,
    other,
    piece,
    runtime,
    step,
    work,
)

Shape = Callable[[int], Iterator[Event]]

START_US = 1e9
LONG = "std::tuple<float, int>, " * 40
RANKS = 2
ALLREDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALLREDUCE_ARGS: Event = {
    "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": RANKS,
    "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
}  # fmt: skip


def varied(vary: Callable[[int, int], dict[str, Any]], events: int) -> Iterator[Event]:
    """Yield calls, each with what `vary` says of its number and of how many they are."""
    calls = events // 3
    for number in range(calls):
        yield from call(number, **vary(number, calls))


def _chain(number: int) -> dict[str, Any]:
    """Short kernels of the elementwise operators that one kernel could compute."""
    kind = random.Random(number).choice(("mul", "add", "pow", "rsqrt", "neg", "cos", "sin", "copy"))
    kernel = f"void at::native::vectorized_elementwise_kernel<4, at::native::{kind}>"
    how = {"every": 5, "dur": 4, "launch_us": 2, "after": 4, "gpu_us": 4.5}
    return {**how, "name": f"aten::{kind}", "dims": [[16, 64, 1024]], "kernel": kernel}


def _many(calls: int, each: int = 10) -> int:
    """How many of a thing `calls` calls have where each has a few of them."""
    return max(1, calls // each)


CALLS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "one_stream": lambda i, calls: {"dims": [[64, 64], [64, 64]]},
    "streams": lambda i, calls: {"stream": STREAM + i % _many(calls)},
    "threads": lambda i, calls: {"tid": 200 + i % _many(calls)},
    "two_threads": lambda i, calls: {"tid": 200 + i % 2},
    "processes": lambda i, calls: {"pid": 1000 + i % _many(calls)},
    "devices": lambda i, calls: {"device": i % _many(calls, 30)},
    "devices_at_once": lambda i, calls: {"device": i % _many(calls, 30), "gpu_us": 6 + 20 * _many(calls, 30)},
    "operator_names": lambda i, calls: {"name": f"my::operator_{i}"},
    "kernel_names": lambda i, calls: {"kernel": f"void my_kernel_{i}<float>(int)"},
    "long_kernel_names": lambda i, calls: {"kernel": f"void k<{LONG}{i}>(int)"},
    "long_operator_names": lambda i, calls: {"name": f"x::{LONG}{i}"},
    "argument_shapes": lambda i, calls: {"name": "aten::mm", "dims": [[64, i + 1], [i + 1, 64]], "kernel": "gemm"},
    "queue": lambda i, calls: {"every": 10, "dur": 9, "after": calls * 10, "gpu_us": 9},
    "kernels_overlap_all": lambda i, calls: {"gpu_us": calls * 20},
    "operators_overlap_all": lambda i, calls: {"dur": calls * 20},
    "one_correlation": lambda i, calls: {"correlation": 7},
    "one_time": lambda i, calls: {"ts": 0},
    "no_length": lambda i, calls: {"dur": 0, "gpu_us": 0, "after": 0},
    "short_kernels": lambda i, calls: {"every": 5, "dur": 4, "launch_us": 2, "after": 4, "gpu_us": 0.5},
    "chains": lambda i, calls: _chain(i),
}
SHAPES: dict[str, Shape] = {name: partial(varied, vary) for name, vary in CALLS.items()}


def shape(make: Shape) -> Shape:
    """Add a shape by the name of the function."""
    SHAPES[make.__name__] = make
    return make


@shape
def no_kernels(events: int) -> Iterator[Event]:
    for i in range(events // 2):
        yield from islice(call(i), 2)


@shape
def nested_operators(events: int) -> Iterator[Event]:
    """78 deep, around one launch."""
    depth = 78
    for i in range(max(1, events // (depth + 2))):
        ts = i * 2000
        yield from (operator(f"op{level}", ts + level, 1900 - 2 * level, i + 1) for level in range(depth))
        yield from islice(call(i, ts=ts + depth + 5, dur=20), 1, None)


@shape
def nested_operators_all(events: int) -> Iterator[Event]:
    """Each inside the one before, around all launches."""
    depth = events // 3
    yield from (operator(f"op{i % 50}", i, events - 2 * i, i + 1) for i in range(depth))
    for i in range(depth):
        yield runtime("cudaLaunchKernel", depth + i * 0.02, 0.01, i + 1)
        yield work(ADD, events / 2 + i * 10, 6, i + 1)


@shape
def nested_functions_all(events: int) -> Iterator[Event]:
    """Python functions, each inside the one before, around all launches."""
    depth, calls = 2 * events // 3, events // 6
    for i in range(depth):
        yield function(f"m.py({i % 500}): f{i % 500}", i, 2 * depth - 2 * i, i + 1, **{"Python parent id": i})
    for i in range(calls):
        yield runtime("cudaLaunchKernel", depth + i * 0.02, 0.01, i + 1)
        yield work(ADD, depth + i * 10, 6, i + 1)


@shape
def nested_ranges(events: int) -> Iterator[Event]:
    """20 annotations around each launch."""
    for i in range(events // 23):
        yield from (marked(f"range{level}", i * 200 + level, 180 - 2 * level) for level in range(20))
        yield from call(i, ts=i * 200 + 40, dur=20, gpu_us=40)


@shape
def range_names(events: int) -> Iterator[Event]:
    for i in range(events // 3):
        yield marked(f"range {i}", i * 20, 15)
        yield from islice(call(i), 1, None)


def _functions(events: int, name: Callable[[int, int], str], *keys: str) -> Iterator[Event]:
    """30 Python functions around each launch."""
    for i in range(events // 33):
        for level in range(30):
            numbers = {"Python parent id": level, **dict.fromkeys(keys, i * 30 + level)}
            yield function(name(i, level), i * 200 + level, 180 - 2 * level, i * 30 + level, **numbers)
        yield from call(i, ts=i * 200 + 40, dur=20, gpu_us=40)


@shape
def generate_with_stacks(events: int) -> Iterator[Event]:
    """Yield the decode steps of transformers' generate, as its Python functions show them."""
    folder, steps = "transformers/generation", events // 12
    yield function(f"{folder}/utils.py(2000): generate", 0, steps * 300 + 15, 1)
    yield function(f"{folder}/utils.py(2800): _sample", 1, steps * 300 + 12, 2)
    for i in range(steps):
        ts = i * 300 + 10
        yield function(f"{folder}/utils.py(500): prepare_inputs_for_generation", ts, 10, 3)
        yield function("nn.Module: LlamaForCausalLM_0", ts + 12, 150, 4)
        yield from call(2 * i, ts=ts + 20, name="aten::mm", dur=20, gpu_us=40)
        yield function(f"{folder}/logits_process.py(90): __call__", ts + 170, 50, 5)
        yield from call(2 * i + 1, ts=ts + 175, dur=20, gpu_us=40)
        yield operator("aten::argmax", ts + 225, 10, 10**7 + i, [[4, 1000]])
        yield function(f"{folder}/stopping_criteria.py(500): __call__", ts + 240, 20, 6)
        yield runtime("cudaStreamSynchronize", ts + 250, 3, 10**7 + i)


def _graphs(replays: int, kernels: int, node: Callable[[int, int], dict[str, int]]) -> Iterator[Event]:
    """Replays of graphs; `node`: what is recorded of the graph at a replay and of its kernel, if anything."""
    for i in range(replays):
        ts = i * (kernels * 10 + 100)
        graph = {key: value for key, value in node(i, 0).items() if key == "graph id"}
        yield operator("aten::replay", ts, 40, i + 1)
        yield runtime("cudaGraphLaunch", ts + 2, 20, i + 1, **graph)
        yield from (work(f"k{k % 40}", ts + 30 + k * 10, 8, i + 1, **node(i, k)) for k in range(kernels))


@shape
def steps(events: int) -> Iterator[Event]:
    for i in range(events // 7):
        yield step(i, i * 60, 59)
        for k in range(2):
            yield from call(2 * i + k, ts=i * 60 + 1 + k * 25, name="aten::mm", dims=[[64, 64], [64, 64]])


@shape
def steps_on_the_gpu(events: int) -> Iterator[Event]:
    """Yield steps that are marked on the GPU's track too."""
    for i in range(events // 5):
        yield step(i, i * 60, 59)
        yield piece("gpu_user_annotation", f"ProfilerStep#{i}", i * 60 + 12, 30, 0, STREAM)
        yield from call(i, ts=i * 60 + 1, name="aten::mm")


@shape
def steps_with_threads(events: int) -> Iterator[Event]:
    """Yield a backward pass on another thread in each step."""
    passes = events // 8
    for i in range(passes):
        yield step(i, i * 60, 59)
        yield marked("forward", i * 60 + 1, 20)
        yield from call(2 * i, ts=i * 60 + 1, name="aten::mm")
        name = "autograd::engine::evaluate_function: AddBackward0"
        yield from call(2 * i + 1, ts=i * 60 + 26, name=name, tid=5000 + i % _many(passes, 8))


@shape
def serving_steps(events: int) -> Iterator[Event]:
    """Yield steps as vLLM names them."""
    for i in range(events // 4):
        rows = i % 4 + 1
        yield marked(f"execute_context_0(0)_generation_{rows}({rows})", i * 60, 59)
        yield from call(i, ts=i * 60 + 1, name="aten::mm")


@shape
def collectives(events: int) -> Iterator[Event]:
    for i in range(events // 4):
        ts = i * 50
        args: Event = {"Input Dims": [[1024]], "Input type": ["float"]}
        yield piece("user_annotation", "nccl:all_reduce", ts + 1, 13, **args)
        yield from call(
            i, ts=ts, name="c10d::allreduce_", dims=[[1024]], launch="cudaLaunchKernelExC", kernel=ALLREDUCE,
            after=15, gpu_us=30, stream=20, work_args={**ALLREDUCE_ARGS, "Seq": i},
        )  # fmt: skip


@shape
def allocations(events: int) -> Iterator[Event]:
    """All of them live to the end."""
    for i in range(events // 4):
        yield from call(i, name="aten::empty")
        yield memory(512, i * 20 + 2, 10**6 + 512 * i, 512 * (i + 1))


@shape
def allocations_in_ranges(events: int) -> Iterator[Event]:
    """Each by an operator of its own, in a range of its own."""
    for i in range(events // 5):
        yield marked(f"range {i}", i * 20, 17)
        yield from call(i, ts=i * 20 + 1, name=f"aten::empty_{i}")
        yield memory(512, i * 20 + 2, 10**6 + 512 * i, 512 * (i + 1))


@shape
def allocations_of_devices(events: int) -> Iterator[Event]:
    calls = events // 2
    devices = _many(calls, 15)
    for i in range(calls):
        yield operator("aten::empty", i * 20, 15, i + 1)
        yield memory(512, i * 20 + 2, 10**6 + 512 * i, 512 * (i // devices + 1), i % devices)


@shape
def allocations_of_steps(events: int) -> Iterator[Event]:
    """Freed in the step."""
    for i in range(events // 6):
        yield step(i, i * 60, 59)
        yield from call(i, ts=i * 60 + 1, name="aten::mm")
        yield memory(512, i * 60 + 2, 10**6 + 512 * i, 512)
        yield memory(-512, i * 60 + 3, 10**6 + 512 * i, 0)


@shape
def allocations_of_one_address(events: int) -> Iterator[Event]:
    for i in range(events // 5):
        yield from call(i, name="aten::empty")
        yield memory(512, i * 20 + 2, 10**6, 512)
        yield memory(-512, i * 20 + 14, 10**6, 0)


@shape
def allocations_freed_in_reverse(events: int) -> Iterator[Event]:
    half = events // 2
    for i in range(2 * half):
        size, live = (512, i + 1) if i < half else (-512, 2 * half - i - 1)
        yield memory(size, i * 2, 10**6 + 512 * min(i, 2 * half - 1 - i), 512 * live)


def _flows(events: int, number: Callable[[int], int]) -> Iterator[Event]:
    """Yield calls with an arrow from launch to kernel."""
    for i in range(events // 5):
        yield from call(i)
        yield other("s", "ac2g", "ac2g", i * 20 + 5, id=number(i))
        yield {**other("f", "ac2g", "ac2g", i * 20 + 12, STREAM, id=number(i), bp="e"), "pid": 0}


@shape
def counters(events: int) -> Iterator[Event]:
    for i in range(events // 3):
        yield operator("aten::add", i * 20, 15, i + 1)
        yield other("C", "", "GPU power", i * 20, args={"watts": i % 300})
        yield other("C", "", f"counter {i % 50}", i * 20, args={"value": i % 300})


@shape
def counter_names(events: int) -> Iterator[Event]:
    for i in range(events // 2):
        yield operator("aten::add", i * 20, 15, i + 1)
        yield other("C", "", f"counter {i}", i * 20, args={"value": i % 300})


@shape
def asynchronous(events: int) -> Iterator[Event]:
    for i in range(events // 2):
        yield other("b", "async", f"a{i % 50}", i * 20, id=i)
        yield other("e", "async", f"a{i % 50}", i * 20 + 2000, id=i)


@shape
def begins_and_ends(events: int) -> Iterator[Event]:
    for i in range(events // 2):
        yield other("B", "cpu_op", "aten::add", i * 20)
        yield other("E", "cpu_op", "aten::add", i * 20 + 10)


@shape
def thread_names(events: int) -> Iterator[Event]:
    for i in range(events // 2):
        yield other("M", "", "thread_name", 0, i, args={"name": f"t{i}"})
        yield operator("aten::add", i * 20, 15, i + 1)


@shape
def syncs(events: int) -> Iterator[Event]:
    for i in range(events // 4):
        yield from call(i, every=30, name="aten::item", dur=28)
        yield runtime("cudaStreamSynchronize", i * 30 + 12, 10, 10**7 + i)


@shape
def syncs_behind_a_queue(events: int) -> Iterator[Event]:
    """Short waits of the device, while kernels that were launched long before still run."""
    calls = events // 6
    for i in range(calls):
        yield from call(i, every=30, dur=28, after=i * 60 + 10, gpu_us=80)
    for i in range(3 * calls):
        yield runtime("cudaDeviceSynchronize", calls * 30 + i, 0.5, 10**7 + i)


@shape
def syncs_of_streams(events: int) -> Iterator[Event]:
    calls = events // 4
    for i in range(calls):
        yield from call(i, every=30, name="aten::item", dur=28, stream=STREAM + i % _many(calls, 4))
        yield runtime("cudaDeviceSynchronize", i * 30 + 12, 10, 10**7 + i)


@shape
def stream_waits(events: int) -> Iterator[Event]:
    """Yield a stream that waits for an event of another."""
    numbers = count()
    for i in range(events // 8):
        yield from call(next(numbers), ts=i * 60, dur=10, gpu_us=16)
        yield runtime("cudaEventRecord", i * 60 + 11, 1, 10**7 + 2 * i)
        yield runtime("cudaStreamWaitEvent", i * 60 + 13, 1, 10**7 + 2 * i + 1)
        yield from call(next(numbers), ts=i * 60 + 15, after=15, gpu_us=10, stream=STREAM + 1)


@shape
def copies(events: int) -> Iterator[Event]:
    """Of a few bytes to the host, each waited for."""
    name, kernel = "aten::copy_", "Memcpy DtoH (Device -> Pageable)"
    for i in range(events // 4):
        yield from call(i, every=30, name=name, dur=28, launch="cudaMemcpyAsync", kernel=kernel, work_args={"bytes": 8})
        yield runtime("cudaStreamSynchronize", i * 30 + 12, 10, 10**7 + i)


@shape
def idle_threads(events: int) -> Iterator[Event]:
    """Gaps in which threads of their own run functions and ranges."""
    calls = events // 5
    for i in range(calls):
        tid = 200 + i % _many(calls)
        yield function(f"f.py({i % 50}): g", i * 40, 35, i + 1, tid)
        yield marked("work", i * 40, 35, tid)
        yield from call(i, every=40, tid=tid)


SHAPES |= {
    "functions": lambda events: _functions(events, lambda i, level: f"mod{level % 7}.py({level}): fn{level + i % 13}"),
    "function_names": lambda events: _functions(events, lambda i, level: f"mod{i}.py({level}): fn{level * 1000 + i}"),
    "module_names": lambda events: _functions(
        events, lambda i, level: f"nn.Module: Layer_{i * 30 + level}", "Python module id"
    ),
    "graph_replays": lambda events: _graphs(events // 22, 20, lambda i, k: {"graph id": 5, "graph node id": k + 1}),
    "graph_replays_without_numbers": lambda events: _graphs(events // 22, 20, lambda i, k: {}),
    "large_graphs": lambda events: _graphs(8, events // 8, lambda i, k: {"graph id": 5, "graph node id": k + 1}),
    "graphs_replayed_once": lambda events: _graphs(
        events // 6, 4, lambda i, k: {"graph id": i + 1, "graph node id": 4 * i + k + 1}
    ),
    "flows": lambda events: _flows(events, lambda i: i + 1),
    "flows_of_one_number": lambda events: _flows(events, lambda i: 7),
}


# Numbers in args that are of one shape among several.
_NUMBERS = {"External id", "correlation", "Python id", "Python parent id", "Python module id", "graph id", "Seq"}


def _in_turn(names: str, events: int) -> Iterator[Event]:
    """Yield the events of each of the shapes `a+b`, one after the other, with numbers of their own."""
    start = START_US
    for place, name in enumerate(names.split("+")):
        made = list(SHAPES[name](events))
        for event in made:
            numbers = {key: event["args"][key] + place * 10**8 for key in _NUMBERS & event.get("args", {}).keys()}
            args = {**event.get("args", {}), **numbers}
            yield {**event, "ts": start + event["ts"], **({"args": args} if args else {})}
        start += 1000 + max(event["ts"] + event.get("dur", 0) for event in made)


def write(path: Path, name: str, events: int, rank: int = 0) -> int:
    """Write a rank's trace of this shape, or of several (`a+b`), each with about so many events; returns how many."""
    made = list(_in_turn(name, events))
    span = piece("Trace", "PyTorch Profiler (0)", START_US, 1e9, "Spans", "PyTorch Profiler", **{"Op count": 0})
    device = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936, "computeMajor": 9}
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{**device, "computeMinor": 0, "numSms": 132}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS},
        "traceEvents": [*made, span],
    }
    path.write_bytes(msgspec.json.encode(document))
    return len(made)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", nargs="?", choices=SHAPES)
    parser.add_argument("events", nargs="?", type=int, default=10_000)
    parser.add_argument("out", nargs="?", type=Path)
    given = parser.parse_args()
    print(write(given.out, given.shape, given.events) if given.out else "\n".join(SHAPES))
