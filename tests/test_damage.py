"""Damage that leaves a trace readable: figures that it makes uncertain are never called exact, and are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from certificate_data import CALLS, GPU, Content, Event, certified, needs_traces, real, whole, with_events

from molprof import api

# Small traces of several kinds: eager, compiled, graphs; CUDA and HIP; keys ahead of the events, and behind them.
TRACES = (
    "traces/torch_compile_triton",
    "traces/mi300x_sglang_qwen3_8b_decode",
    "traces/mi300x_vllm_decode_graph",
    "pairs/h100_bert_small",
    "pairs/mi300_vit_base",
)
Change = Callable[[Content, Random], Content]


def _is(event: Event, *categories: str) -> bool:
    return event.get("ph") == "X" and event.get("cat") in categories


def _each(change: Callable[[Event, Random], Event | list[Event]]) -> Change:
    """Every event becomes what `change` makes of it."""

    def do(content: Content, chance: Random) -> Content:
        made = (change(event, chance) for event in content["traceEvents"])
        return with_events(content, [one for some in made for one in (some if isinstance(some, list) else [some])])

    return do


def _with(share: float, categories: tuple[str, ...], **fields: object) -> Change:
    """Some events with other fields."""
    return _each(lambda event, chance: event | (fields if _is(event, *categories) and chance.random() < share else {}))


def _timed(change: Callable[[float, str], float]) -> Change:
    keys = ("ts", "dur")
    return _each(
        lambda event, _: event | {k: change(event[k], k) for k in keys if k in event and event.get("ph") == "X"}
    )


def _again(event: Event, chance: Random) -> Event | list[Event]:
    later = {**event, "ts": event["ts"] + event["dur"] + 1} if _is(event, "kernel") and chance.random() < 0.5 else None
    return [event, later] if later else event


def _nested(content: Content, _: Random) -> Content:
    """All host work below 600 operators."""
    host = [event for event in content["traceEvents"] if _is(event, "cpu_op", *CALLS)]
    first, last = min(event["ts"] for event in host), max(event["ts"] + event["dur"] for event in host)
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
        for pid, tid in sorted({(event["pid"], event["tid"]) for event in host})
        for n in range(1, 601)
    ]
    return with_events(content, [*content["traceEvents"], *around])


_WORK = ("gpu_work", "gpu_time", "links")
_ALL = ("gpu_work", "gpu_time", "gpu_idle", "launches", "links", "host_time")
_TIMES = ("gpu_time", "gpu_idle", "host_time")
# What is done to a trace, what of it must not be called exact where the trace records it, and a part of the reason.
DAMAGE: dict[str, tuple[Change, tuple[str, ...], str]] = {
    "work again under its number, a microsecond later": (_each(_again), _WORK, "more than one piece"),
    "whole microseconds": (_timed(lambda us, _: float(int(us))), (*_TIMES, "links"), "multiples of 1.00 µs"),
    "32-bit times": (_timed(lambda us, key: float(np.float32(us + 1e6 * (key == "ts")))), _TIMES, "multiples of"),
    "no kernel has a length": (_with(1, GPU, dur=0), ("gpu_time", "gpu_idle"), "no GPU work has a length"),
    "some kernels have no length": (_with(0.3, ("kernel",), dur=0), ("gpu_time", "gpu_idle"), "without length"),
    "below 600 operators": (_nested, ("host_time",), "below 500 others"),
    "instants for kernels": (_with(0.3, ("kernel",), ph="i"), _WORK, "not read"),
    "begins for kernels": (_with(0.3, ("kernel",), ph="B"), _WORK, "not read"),
    "instants for calls": (_with(0.3, CALLS, ph="i"), ("launches", "links"), "not read"),
    "kernels of an unknown category": (_with(1, ("kernel",), cat="npu_kernel"), _ALL, "not read"),
    "calls of an unknown category": (_with(1, CALLS, cat="npu_calls"), _ALL, "not read"),
    "work without category": (_with(1, ("gpu_memcpy", "kernel"), cat=""), _ALL, "not read"),
}  # fmt: skip


@needs_traces
@pytest.mark.parametrize(("name", "number"), [(name, number) for number, name in enumerate(DAMAGE)])
def test_damage_is_named(tmp_path: Path, name: str, number: int) -> None:
    (change, doubted, text), path = DAMAGE[name], tmp_path / "damaged.json"
    for trace in (TRACES[0], TRACES[1 + number % 4]):
        path.write_text(json.dumps(change(real(trace), Random(1))))
        groups = {group.group: group for group in certified(api.report(path)).groups}
        undamaged = {group.group: group.verdict for group in certified(whole(trace)).groups}
        for group in doubted:
            if undamaged[group] != "not_to_be_had":
                assert groups[group].verdict != "exact", group
                assert groups[group].doubts, group
        assert any(text in (group.reason or "") for group in groups.values())


@needs_traces
def test_what_ran_around_a_step_that_was_cut_out_is_not_idle(tmp_path: Path) -> None:
    """What began in the middle third of a trace and ended there. Its keys are left."""
    trace, path = "pairs/h100_bert_small", tmp_path / "step.json"
    events = [e for e in real(trace)["traceEvents"] if e.get("ph") == "X" and e.get("cat") != "Trace"]
    times = sorted(event["ts"] for event in events)
    begin, end = times[len(times) // 3], times[2 * len(times) // 3]
    inside = [event for event in events if begin <= event["ts"] and event["ts"] + event["dur"] <= end]
    path.write_text(json.dumps(with_events(real(trace), inside)))
    report = api.report(path)
    assert (report.trace.cut_out, whole(trace).trace.cut_out) == (True, False)
    (parts,) = (finding.figures for finding in report.findings if finding.id == "limits")
    assert sum(parts.values()) == sum(device.span_ns for device in report.devices.values())
