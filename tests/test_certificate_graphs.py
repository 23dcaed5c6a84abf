"""The certificate of graphs that lost work: replays of real traces without some of their kernels."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from certificate_data import GRAPHS, bound, certified, changed, found, needs_traces, real, whole
from tiny_trace import slice_, work

DECODE = "traces/mi300x_sglang_qwen3_8b_decode"
GROUPS = {("graph_parts", group, "bounded") for group in ("gpu_work", "gpu_time", "gpu_idle", "graphs", "steps")}


def kernels(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that graph launches started, in order."""
    events = content["traceEvents"]
    launched = {event["args"]["correlation"] for event in events if "GraphLaunch" in event["name"] and "dur" in event}
    started = [event for event in events if event.get("cat") == "kernel" and event["args"]["correlation"] in launched]
    return sorted(started, key=lambda event: float(event["ts"]))


def part_of(content: dict[str, Any], lost: list[dict[str, Any]]) -> dict[str, Any]:
    gone = set(map(id, lost))
    return {**content, "traceEvents": [event for event in content["traceEvents"] if id(event) not in gone]}


@needs_traces
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("trace", [DECODE, GRAPHS])
@pytest.mark.parametrize("how", ["three", "tenth", "row"])
def test_replays_that_lost_kernels(tmp_path: Path, trace: str, how: str, seed: int) -> None:
    content, truth, chance = real(trace), whole(trace), random.Random(seed)
    all_of = kernels(content)
    if how == "row":
        first = chance.randrange(20, len(all_of) - 40)
        lost = all_of[first : first + 20]
    else:
        lost = chance.sample(all_of[4:-13], 3 if how == "three" else len(all_of) // 10)
    report = changed(tmp_path, part_of(content, lost))
    assert found(report) >= GROUPS
    for figure, true in (
        ("counts.kernels", truth.counts.kernels),
        ("counts.kernel_time_ns", truth.counts.kernel_time_ns),
        *((f"devices.{name}.idle_ns", device.idle_ns) for name, device in truth.devices.items()),
    ):
        low, high = bound(report, figure)
        assert low is not None
        assert low <= true
        assert high is None or true <= high
    assert not {doubt for doubt in found(truth) if doubt[0] == "graph_parts"}


def replay(number: int, names: str, **args: Any) -> list[dict[str, Any]]:
    """A graph launch and its kernels, one after the other, named by letters; a point is one that is not recorded."""
    starts = [1000.003 * number + 10.007 * place + 0.001 * place**2 for place in range(len(names) + 2)]
    started = [
        work(
            "kernel",
            f"kernel_{name}",
            starts[place],
            starts[place + 1] - starts[place],
            number,
            **args,
            **{"graph node id": place},
        )
        for place, name in enumerate(names, 1)
        if name != "."
    ]
    for event in started:
        if "graph id" not in args:
            del event["args"]["graph node id"]
    return [slice_("cuda_runtime", "cudaGraphLaunch", starts[0], 1.001, correlation=number), *started]


@pytest.mark.parametrize(
    ("replays", "ids", "absent"),
    [
        (["abcd", "abcd", "ab.d"], True, 1),
        (["abcd", "abcd", "abc.", "a..."], True, 4),  # at its end, which no gap tells
        (["abcdbcdbcd"], True, None),  # one alone, whole
        (["abcdb.dbcd"], True, 0),
        (["abcd", "abcd", "abcd", "ab.d"], False, 0),  # by the gap
        (["abcdbcdbcdbcdb.d"], False, 0),
        (["abcd", "abcd", "abd"], False, None),  # another graph: no time for what it lacks
        (["ab.cd", "ab.cd", "ab.cd"], False, None),  # a gap that all have
        (["abc.", "abcd", "abcd"], False, None),  # nothing tells
    ],
)
def test_what_tells_that_work_is_absent(tmp_path: Path, replays: list[str], ids: bool, absent: int | None) -> None:
    events = [
        event
        for number, names in enumerate(replays, 1)
        for event in replay(number, names, **({"graph id": 7} if ids else {}))
    ]
    report = changed(tmp_path, {"traceEvents": events})
    if absent is None:
        assert not found(report)
        return
    assert {doubt[0] for doubt in found(report)} == {"graph_parts"}
    count = report.counts.kernels
    assert bound(report, "counts.kernels") == (count, count + absent if absent else None)
    assert bound(report, "devices.0.idle_ns") == (0, None)
    assert certified(report).verdict == "bounded"
