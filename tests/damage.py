"""Kinds of damage after which a trace can still be read, and which groups of figures the certificate must doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, NamedTuple

import numpy as np
from certificate_data import CALLS, GPU, Event

Content = dict[str, Any]
_TIMES = {"X": ("ts", "dur")}


class Damage(NamedTuple):
    """What is done to a trace, and what of it must not be called exact, where the trace records it."""

    do: Callable[[Content, Random], Content]
    doubted: tuple[str, ...]
    text: str  # part of the reason


def _with(content: Content, events: Iterable[Event]) -> Content:
    return {**content, "traceEvents": list(events)}


def _twice(chosen: Callable[[Event, Random], bool]) -> Callable[[Content, Random], Content]:
    def do(content: Content, chance: Random) -> Content:
        events = content["traceEvents"]
        return _with(content, (again for event in events for again in [event] * (1 + chosen(event, chance))))

    return do


def _changed(change: Callable[[Event, Random], Event]) -> Callable[[Content, Random], Content]:
    return lambda content, chance: _with(content, (change(event, chance) for event in content["traceEvents"]))


def _is(event: Event, *categories: str) -> bool:
    return event.get("ph") == "X" and event.get("cat") in categories


def _some_as(phase: str, *categories: str) -> Callable[[Content, Random], Content]:
    def change(event: Event, chance: Random) -> Event:
        return {**event, "ph": phase} if _is(event, *categories) and chance.random() < 0.3 else event

    return _changed(change)


def _as(category: str, *categories: str) -> Callable[[Content, Random], Content]:
    return _changed(lambda event, _: {**event, "cat": category} if _is(event, *categories) else event)


def _cut(part: float) -> Callable[[Content, Random], Content]:
    """The text cut behind a part of the events, and closed again: of the keys, those ahead of the events are left."""

    def do(content: Content, _: Random) -> Content:
        keys = list(content)
        ahead = {key: content[key] for key in keys[: keys.index("traceEvents")]}
        events = content["traceEvents"]
        return {**ahead, "traceEvents": events[: int(part * len(events))]}

    return do


def _timed(change: Callable[[float, str], float]) -> Callable[[Content, Random], Content]:
    def each(event: Event, _: Random) -> Event:
        return {**event, **{key: change(event[key], key) for key in _TIMES.get(event["ph"], ()) if key in event}}

    return _changed(each)


def _same_number(content: Content, chance: Random) -> Content:
    """One piece of work of each launch stands again, a microsecond later."""
    later = [
        {**event, "ts": event["ts"] + event["dur"] + 1}
        for event in content["traceEvents"]
        if _is(event, "kernel") and chance.random() < 0.5
    ]
    return _with(content, [*content["traceEvents"], *later])


def _nested(content: Content, _: Random) -> Content:
    """All host work below 600 operators."""
    host = [event for event in content["traceEvents"] if _is(event, "cpu_op", *CALLS)]
    first, last = min(event["ts"] for event in host), max(event["ts"] + event["dur"] for event in host)
    tracks = {(event["pid"], event["tid"]) for event in host}
    around = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "outer",
            "pid": pid,
            "tid": tid,
            "ts": first - n,
            "dur": last - first + 2 * n,
        }
        for pid, tid in sorted(tracks)
        for n in range(1, 601)
    ]
    return _with(content, [*content["traceEvents"], *around])


def cut_out(content: Content) -> Content:
    """What began in the middle third of a trace and ended there: one step of a longer recording. Its keys are left."""
    events = [event for event in content["traceEvents"] if event.get("ph") == "X" and event.get("cat") != "Trace"]
    times = sorted(event["ts"] for event in events)
    begin, end = times[len(times) // 3], times[2 * len(times) // 3]
    return _with(content, (event for event in events if begin <= event["ts"] and event["ts"] + event["dur"] <= end))


_WORK = ("gpu_work", "gpu_time", "links")
_GPU = ("gpu_work", "gpu_time", "gpu_idle", "launches", "links")
DAMAGE = {
    "half of all events twice": Damage(
        _twice(lambda event, chance: _is(event, *GPU, *CALLS, "cpu_op") and chance.random() < 0.5),
        (*_WORK, "launches", "host_time"),
        "stand twice",
    ),
    "kernels twice": Damage(_twice(lambda event, _: _is(event, "kernel")), _WORK, "stand twice"),
    "calls twice": Damage(_twice(lambda event, _: _is(event, *CALLS)), ("launches", "links"), "stand twice"),
    "operators twice": Damage(_twice(lambda event, _: _is(event, "cpu_op")), ("host_time",), "stand twice"),
    "the trace behind itself": Damage(
        lambda content, _: _with(content, content["traceEvents"] * 2), (*_WORK, "launches", "host_time"), "stand twice"
    ),
    "work again under its number": Damage(_same_number, ("gpu_work", "gpu_time", "links"), "more than one piece"),
    "cut at 30 %": Damage(_cut(0.3), (*_GPU, "host_time"), "ends early"),
    "cut at 60 %": Damage(_cut(0.6), (*_GPU, "host_time"), "ends early"),
    "cut at 90 %": Damage(_cut(0.9), (*_GPU, "host_time"), "ends early"),
    "whole microseconds": Damage(
        _timed(lambda time, _: float(int(time))), ("gpu_time", "gpu_idle", "links", "host_time"), "multiples of 1.00 µs"
    ),
    "32-bit times": Damage(
        _timed(lambda time, key: float(np.float32(time + 1e6 * (key == "ts")))),
        ("gpu_time", "gpu_idle", "host_time"),
        "multiples of",
    ),
    "no kernel has a length": Damage(
        _changed(lambda event, _: {**event, "dur": 0} if _is(event, *GPU) else event),
        ("gpu_time", "gpu_idle"),
        "no GPU work has a length",
    ),
    "some kernels have no length": Damage(
        _changed(
            lambda event, chance: {**event, "dur": 0} if _is(event, "kernel") and chance.random() < 0.3 else event
        ),
        ("gpu_time", "gpu_idle"),
        "without length",
    ),
    "below 600 operators": Damage(_nested, ("host_time",), "below 500 others"),
    "instants for kernels": Damage(_some_as("i", "kernel"), _WORK, "not read"),
    "begins for kernels": Damage(_some_as("B", "kernel"), _WORK, "not read"),
    "kernels of an unknown category": Damage(_as("npu_kernel", "kernel"), (*_GPU, "host_time"), "not read"),
    "calls of an unknown category": Damage(_as("npu_calls", *CALLS), (*_GPU, "host_time"), "not read"),
    "work without category": Damage(_as("", "gpu_memcpy", "kernel"), (*_GPU, "host_time"), "not read"),
    "instants for calls": Damage(_some_as("i", *CALLS), ("launches", "links"), "not read"),
}
# Small traces of several kinds: eager, compiled, graphs; CUDA and HIP; keys ahead of the events, and behind them.
TRACES = (
    "traces/torch_compile_triton",
    "traces/mi300x_sglang_qwen3_8b_decode",
    "traces/mi300x_vllm_decode_graph",
    "pairs/h100_bert_small",
    "pairs/mi300_vit_base",
)
