"""The certificate of changed real traces names each doubt, and its bounds contain the truth."""

from __future__ import annotations

import fnmatch
import json
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import tiny_trace
from certificate_data import (
    CALLS,
    DDP,
    GPU,
    GRAPHS,
    TRITON,
    Content,
    Event,
    certified,
    changed,
    correlation,
    found,
    needs_traces,
    real,
    text_of,
    whole,
    with_events,
    without,
)
from msgspec.structs import replace
from tiny_trace import slice_, work

from molprof.analysis.compare import compare
from molprof.analysis.compare.thresholds import judge_report, judge_rows, parse_threshold
from molprof.analysis.documents.report import report_document
from molprof.analysis.figures import Report
from molprof.analysis.figures.certificate import CHECKS
from molprof.analysis.figures.model import Bound, combined
from molprof.analysis.render import render
from molprof.analysis.reports import read_stored

DECODE = "traces/mi300x_sglang_qwen3_8b_decode"
UNCERTAIN = parse_threshold("uncertain", relative=False)
Limits = tuple[float | None, float | None]


def bound(report: Report, figure: str) -> Limits:
    (item,) = (item for group in certified(report).groups for item in group.bounds if item.figure == figure)
    return item.low, item.high


def is_within(true: float, limits: Limits) -> bool:
    return limits[0] is not None and limits[0] <= true <= (math.inf if limits[1] is None else limits[1])


def launches(content: Content, pattern: str = "*Launch*Kernel*") -> list[Event]:
    calls = [event for event in content["traceEvents"] if event.get("cat") in CALLS]
    return sorted((e for e in calls if fnmatch.fnmatchcase(e["name"], pattern)), key=lambda e: float(e["ts"]))


def numbers(events: list[Event]) -> set[int | None]:
    return set(map(correlation, events))


def without_numbers(content: Content, gone: set[int | None], *categories: str) -> Content:
    return without(content, lambda event: event.get("cat") in categories and correlation(event) in gone)


def no_work_of(chosen: slice, pattern: str = "*Launch*Kernel*") -> Callable[[Content], Content]:
    return lambda content: without_numbers(content, numbers(launches(content, pattern)[chosen]), *GPU)


def no(*categories: str) -> Callable[[Content], Content]:
    return lambda content: without(content, lambda event: event.get("cat") in categories)


def lost_call(**keys: Any) -> Callable[[Content], Content]:
    return lambda content: {**without_numbers(content, numbers(launches(content)[4:5]), *CALLS), **keys}


def no_first_calls(content: Content) -> Content:
    first = correlation(launches(content)[0]) or 0
    return without(content, lambda event: event.get("cat") in CALLS and (correlation(event) or 0) <= first)


def step_without_work(content: Content) -> Content:
    events = content["traceEvents"]
    (step,) = (event for event in events if event["name"] == "ProfilerStep#103" and event["ph"] == "X")
    start, end = float(step["ts"]), float(step["ts"]) + float(step["dur"])
    calls = [event for event in events if event.get("cat") in CALLS and start <= float(event["ts"]) < end]
    return without_numbers(content, numbers(calls), *GPU, *CALLS)


def long_kernel(content: Content) -> Content:
    """A kernel that ends 7 us after the next one began."""
    kernels = sorted((e for e in content["traceEvents"] if e.get("cat") == "kernel"), key=lambda e: float(e["ts"]))
    kernels[4]["dur"] = round(float(kernels[5]["ts"]) - float(kernels[4]["ts"]) + 7, 3)
    return content


def moved(by_us: float, *categories: str, begin: float = -math.inf) -> Callable[[Content], Content]:
    """Events of these categories, or all, that begin so late: moved."""

    def move(event: Event) -> Event:
        is_moved = "ts" in event and event["ts"] >= begin and (not categories or event.get("cat") in categories)
        return {**event, "ts": event["ts"] + by_us} if is_moved else event

    return lambda content: with_events(content, [move(event) for event in content["traceEvents"]])


def merged_ranks(told: bool) -> Callable[[Content], Content]:
    """Two ranks with equal device numbers: processes named by rank, or calls numbered apart."""

    def merge(_: Content) -> Content:
        parts = [json.loads(text_of(f"ranks/megatron_tp8_rank{rank}")) for rank in (0, 1)]
        for rank, part in enumerate(parts):
            for event in part["traceEvents"]:
                if told:
                    event["pid"] = f"rank{rank}_{event['pid']}"
                elif correlation(event) is not None:
                    event["args"]["correlation"] += 1_000_000 * rank
                if event.get("args", {}).get("device") == 1:
                    event["args"]["device"] = 0
        return with_events(parts[0], [event for part in parts for event in part["traceEvents"]])

    return merge


def no_memory_events(**keys: Any) -> Callable[[Content], Content]:
    return lambda content: {**without(content, lambda event: event.get("name") == "[memory]"), **keys}


class Loss(NamedTuple):
    """A change of a trace, and what the certificate says then."""

    trace: str
    do: Callable[[Content], Content]
    doubts: set[tuple[str, str, str]]  # check, group, verdict: all of these checks
    bounds: Mapping[str, Limits] = MappingProxyType({})


def doubts(check: str, *groups: str, verdict: str = "bounded") -> set[tuple[str, str, str]]:
    return {(check, group, verdict) for group in groups}


WORK = ("gpu_work", "gpu_time", "gpu_idle")
# Rank 1 of them ends with a device sync that goes on for 18 ms after all recorded work.
LONG_SYNC = doubts("long_syncs", "gpu_time", "gpu_idle")
LOSSES = {
    "no work of the first calls": Loss(
        TRITON, no_work_of(slice(2)), doubts("started_late", *WORK, "links"), {"counts.kernels": (10, 12)}),
    "no work of the last calls": Loss(
        TRITON, no_work_of(slice(-2, None)), doubts("cut_end", *WORK, "links"), {"counts.kernels": (10, 12)}),
    "no work of some calls": Loss(
        DDP, no_work_of(slice(1000, 1020)), doubts("dropped", *WORK, "links", "steps"),
        {"counts.kernels": (4330, 4350), "counts.launches_without_gpu_work": (0, 20),
         "steps.kernels_per_step": (866, 870)}),
    "no work at all": Loss(TRITON, no(*GPU), doubts("no_work", *WORK, "links", verdict="not_to_be_had")),
    "no calls at all": Loss(TRITON, no(*CALLS), doubts("earlier_work", "launches", "links", verdict="not_to_be_had")),
    "a call is lost, as the log says": Loss(
        TRITON, lost_call(WARNING=["WARNING: CuptiActivityApi.cpp:160] Exceeded max GPU buffer count (33 >= 33)"]),
        doubts("dropped", "launches", "links", "gpu_work"),
        {"counts.launches": (11, 12), "counts.kernels_without_call": (0, 1), "counts.kernels": (12, None)}),
    "a call is lost, and the log is harmless": Loss(
        TRITON, lost_call(INFO=["Record counts: Out-of-range = 3, GPU stopped early? = 0"]),
        doubts("dropped", "launches", "links"), {"counts.launches": (11, 12)}),
    "no calls of the first work": Loss(
        TRITON, no_first_calls, doubts("earlier_work", "gpu_work", "gpu_time"), {"counts.kernels": (11, 12)}),
    "a step without work": Loss(
        DDP, step_without_work, doubts("steps", "steps"), {"steps.profiler.kernels_per_step": (4 * 870 / 5, 870)}),
    "a kernel that is too long": Loss(TRITON, long_kernel, doubts("overlap", "gpu_time")),
    "the GPU's clock is behind": Loss(TRITON, moved(-20, *GPU), doubts("clocks", "links")),
    "the GPU's clock is far behind": Loss(
        TRITON, moved(-5000, *GPU), doubts("clocks", "links", "gpu_idle", verdict="not_to_be_had")),
    "the GPU's clock is ahead": Loss(
        TRITON, moved(5000, *GPU), doubts("clocks", "links", "gpu_idle", verdict="not_to_be_had")),
    "ranks that are told apart": Loss("", merged_ranks(True), doubts("ranks", "host_time") | LONG_SYNC),
    "ranks that are not told apart": Loss(
        "", merged_ranks(False),
        doubts("ranks", "gpu_time", "gpu_idle", verdict="not_to_be_had") | doubts("ranks", "host_time")
        | doubts("overlap", "gpu_time") | LONG_SYNC),
    "graphs without work": Loss(
        GRAPHS, no_work_of(slice(3, 8), "*GraphLaunch*"), doubts("graphs", "graphs", *WORK, "steps")),
    "no graph has work": Loss(
        GRAPHS, no_work_of(slice(None), "*GraphLaunch*"),
        doubts("graphs", "graphs", verdict="not_to_be_had") | doubts("graphs", *WORK, "steps")),
    "no memory events": Loss(
        "pairs/h100_bert_small", no_memory_events(), doubts("memory", "allocations", verdict="not_to_be_had")),
    "memory events were not wanted": Loss("pairs/h100_bert_small", no_memory_events(profile_memory=0), set()),
    "parts of steps were trimmed": Loss(
        GRAPHS, lambda content: {
            **content, "molprof_trimmed": {"source": "a.json", "whole_steps": False, "without": ["kernel"]}},
        doubts("file", "steps", verdict="not_to_be_had")),
}  # fmt: skip


@needs_traces
@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_named_and_bounded(tmp_path: Path, name: str) -> None:
    loss = LOSSES[name]
    report = changed(tmp_path, loss.do(real(loss.trace) if loss.trace else {}))
    before = found(whole(loss.trace)) if loss.trace else set()
    assert found(report) - before == loss.doubts
    groups = {check.id: check.groups for check in CHECKS}
    assert all(group in groups[check] for check, group, _ in found(report))
    for figure, limits in loss.bounds.items():
        assert bound(report, figure) == limits


def bounds(report: Report) -> dict[str, Limits]:
    return {item.figure: (item.low, item.high) for group in certified(report).groups for item in group.bounds}


@needs_traces
def test_bounds_of_times(tmp_path: Path) -> None:
    """Where the truth is known by what was done."""
    truth = whole(TRITON)
    kernel_ns = truth.counts.kernel_time_ns
    low, high = bound(changed(tmp_path, no_first_calls(real(TRITON))), "counts.kernel_time_ns")
    assert (low or 0) < kernel_ns == high
    low, high = bound(changed(tmp_path, long_kernel(real(TRITON))), "counts.kernel_time_ns")
    assert kernel_ns < (high or 0) == pytest.approx((low or 0) + 7000, abs=300)  # floats of 250 ns
    rows = truth.table("launch_calls").to_json()
    mean_ns = sum(row["mean_delay_ns"] * row["count"] for row in rows) / sum(row["count"] for row in rows)
    assert is_within(mean_ns, bound(changed(tmp_path, moved(-20, *GPU)(real(TRITON))), "mean_delay_ns"))


@needs_traces
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_removed_the_truth_is_within_the_bounds(tmp_path: Path, seed: int) -> None:
    content, truth, chance = real(TRITON), whole(TRITON), random.Random(seed)
    lost = launches(content)
    chance.shuffle(lost)
    content = without_numbers(content, numbers(lost[: chance.randint(1, 6)]), *GPU)
    report = changed(tmp_path, without_numbers(content, numbers(lost[6 : 6 + chance.randint(0, 3)]), *CALLS))
    limits = bounds(report)
    for get in (
        lambda report: ("counts.kernels", report.counts.kernels),
        lambda report: ("counts.launches", report.counts.launches),
        lambda report: ("devices.2.busy_ns", report.devices["2"].busy_ns),
        lambda report: ("devices.2.idle_ns", report.devices["2"].idle_ns),
    ):
        (figure, reported), (_, true) = get(report), get(truth)
        assert is_within(true, limits.get(figure, (reported, reported))), figure
        assert is_within(reported, limits.get(figure, (reported, reported))), figure


@needs_traces
@pytest.mark.parametrize(("trace", "how"), [(DECODE, "three"), (DECODE, "row"), (GRAPHS, "tenth"), (GRAPHS, "row")])
def test_replays_that_lost_kernels(tmp_path: Path, trace: str, how: str) -> None:
    content, truth, chance = real(trace), whole(trace), random.Random(how)
    events = content["traceEvents"]
    launched = {event["args"]["correlation"] for event in events if "GraphLaunch" in event["name"] and "dur" in event}
    kernels = [event for event in events if event.get("cat") == "kernel" and event["args"]["correlation"] in launched]
    kernels.sort(key=lambda event: float(event["ts"]))
    first = chance.randrange(20, len(kernels) - 40)
    some = chance.sample(kernels[4:-13], 3 if how == "three" else len(kernels) // 10)
    gone = set(map(id, kernels[first : first + 20] if how == "row" else some))
    report = changed(tmp_path, without(content, lambda event: id(event) in gone))
    assert found(report) >= doubts("graph_parts", *WORK, "graphs", "steps")
    assert not {doubt for doubt in found(truth) if doubt[0] == "graph_parts"}
    assert is_within(truth.counts.kernels, bound(report, "counts.kernels"))
    assert is_within(truth.counts.kernel_time_ns, bound(report, "counts.kernel_time_ns"))
    for name, device in truth.devices.items():
        assert is_within(device.idle_ns, bound(report, f"devices.{name}.idle_ns"))


def replay(number: int, names: str, **args: Any) -> list[Event]:
    """A graph launch and its kernels, one after the other, named by letters; a point is one that is not recorded."""
    starts = [1000.003 * number + 10.007 * place + 0.001 * place**2 for place in range(len(names) + 2)]
    started = []
    for place, name in enumerate(names, 1):
        node = {"graph node id": place, **args} if args else {}
        event = work("kernel", f"kernel_{name}", starts[place], starts[place + 1] - starts[place], number, **node)
        started += [event] if name != "." else []
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
    args = {"graph id": 7} if ids else {}
    events = [event for number, names in enumerate(replays, 1) for event in replay(number, names, **args)]
    report = changed(tmp_path, {"traceEvents": events})
    if absent is None:
        assert not found(report)
        return
    assert {doubt[0] for doubt in found(report)} == {"graph_parts"}
    count = report.counts.kernels
    assert bound(report, "counts.kernels") == (count, count + absent if absent else None)
    assert bound(report, "devices.0.idle_ns") == (0, None)
    assert certified(report).verdict == "bounded"


def test_bounds_of_several_doubts_add_up() -> None:
    both = combined(iter([Bound("kernels", 10, 10, 12), Bound("kernels", 7, 10, 11), Bound("x_ns", 1, 2, None)]))
    assert both == (Bound("kernels", 7, 10, 13), Bound("x_ns", 1, 2, None))
    assert combined(iter([both[0], Bound("kernels", 10, 10, None)])) == (Bound("kernels", 7, 10, None),)
    assert Bound("a", None, 1, 1).off_ratio == Bound("a", 0, 0, 1).off_ratio == math.inf
    assert Bound("a", 0, 0, 0).off_ratio == 0
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert all(check.find.__doc__ for check in CHECKS)  # which names a trace or a report


def test_a_run_without_a_gpu_is_exact(tmp_path: Path) -> None:
    report = tiny_trace.report(tmp_path / "cpu.json", tiny_trace.fine(tiny_trace.cpu_document()))
    assert (certified(report).verdict, certified(report).uncertain) == ("exact", ())
    verdicts = {item.group: item.verdict for item in certified(report).groups}
    assert (verdicts["gpu_work"], verdicts["host_time"]) == ("not_to_be_had", "exact")
    assert replace(report, certificate=None).to_json()["certificate"] is None


def test_limits_on_how_far_figures_may_be_off(tmp_path: Path) -> None:
    """The tiny run is busy for 67 to 70 µs, said to be 67, and idle for 80 to 83 µs, said to be 82."""
    report = tiny_trace.report(tmp_path / "tiny.json", tiny_trace.document())
    off = {item.group: item.off_ratio for item in certified(report).uncertain}
    assert (off["gpu_time"], off["gpu_idle"], off["gpu_work"]) == (3 / 67, 2 / 82, 1 / 6)
    failed = {text: judge_report(report, [parse_threshold(text)]).failed for text in
              ("uncertain>4%", "uncertain > 20%", "uncertain>100%")}  # fmt: skip
    assert "GPU time (bounded by 4.48 %)" in failed["uncertain>4%"][0]
    assert "GPU idle time" not in failed["uncertain>4%"][0]
    assert failed["uncertain > 20%"] == (
        "uncertain > 20%: launches (bounded by 25 %), launch to work (bounded by 100 %), steps (bounded by 40 %)",
    )
    assert failed["uncertain>100%"] == ()
    exact = tiny_trace.report(tmp_path / "cpu.json", tiny_trace.fine(tiny_trace.cpu_document()))
    for first, count in ((report, 1), (exact, 0)):
        compared = compare([first, exact], anyway=True)
        assert len(judge_rows(compared.labels, compared.runs, compared.rows, [UNCERTAIN]).failed) == count


def test_stored_reports_keep_the_certificate(tmp_path: Path) -> None:
    report = tiny_trace.report(tmp_path / "tiny.json", tiny_trace.document())
    path = tmp_path / "report.json"
    path.write_text(render(report_document(report), "json"))
    stored = read_stored(path)
    assert stored is not None
    assert stored.certificate == report.certificate
    content = json.loads(path.read_text())
    del content["certificate"]
    path.write_text(json.dumps(content))
    older = read_stored(path)
    assert older is not None
    assert judge_report(older, [UNCERTAIN]).undecided == ("uncertain: uncertain is not recorded",)
    assert "Certificate" not in render(report_document(older), "table").splitlines()


def test_graphs_of_a_trace_without_gpu_work(tmp_path: Path) -> None:
    graph = slice_("cuda_runtime", "cudaGraphLaunch", 1, 2, correlation=1)
    report = changed(tmp_path, {"traceEvents": [graph, slice_("cpu_op", "aten::mm", 0, 9)]})
    assert found(report) >= doubts("graphs", *WORK, verdict="not_to_be_had")
    assert {item.off_ratio for item in certified(report).groups if item.group in WORK} == {math.inf}
