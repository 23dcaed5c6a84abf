"""The origin of GPU work equals a plain recount and SQL: trees and locations of literal events and captured stacks."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from captures import captured, events, of, settings
from origin_trace import EVENTS, origins_in
from tiny_trace import document, write

from molprof import api
from molprof.analysis.facts.stacks import Stacks
from molprof.analysis.findings import around
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.origin.read import Origins, places_of
from molprof.analysis.origin.tree import AMOUNTS, BYS, OUTSIDE, Tree, build_tree, speedscope_text
from molprof.analysis.reader.open import open_trace

CORPUS = os.environ.get("MOLPROF_CORPUS")
NAMES = ("h100_qwen1.5_0.5b", "b200_vllm_eager")
needs_traces = pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")

Paths = dict[tuple[str, ...], list[int]]


@pytest.fixture(scope="module", params=NAMES)
def real(request: pytest.FixtureRequest) -> tuple[Path, Origins]:
    path = Path(str(CORPUS), "traces", f"{request.param}.json.gz")
    return path, origins_in(path)


def ns(us: Any) -> int:
    return int((Decimal(us) * 1000).to_integral_value())


def recount(path: Path, is_frame: Any) -> Paths:
    """GPU time, kernels and launches by path of frames, without the engine: all that is open when a call begins."""
    raw = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    done = [event for event in raw if event.get("ph") == "X"]
    calls = [event for event in done if event["cat"] in ("cuda_runtime", "cuda_driver")]
    started = defaultdict(list)
    for event in done:
        if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            started[event["args"]["correlation"]].append(event)
    open_frames: dict[tuple[Any, Any], list[Any]] = defaultdict(list)
    found: Paths = defaultdict(lambda: [0, 0, 0])
    frames = [event for event in done if is_frame(event)]
    order = sorted(frames + calls, key=lambda event: (ns(event["ts"]), -ns(event["dur"])))
    for event in order:
        stack = open_frames[event["pid"], event["tid"]]
        stack[:] = [item for item in stack if ns(item["ts"]) + ns(item["dur"]) > ns(event["ts"])]
        if is_frame(event):
            stack.append(event)
            continue
        mine = started.pop(event["args"]["correlation"], [])
        amounts = (
            sum(ns(item["dur"]) for item in mine),
            sum(item["cat"] == "kernel" for item in mine),
            int("Launch" in event["name"] and "Kernel" in event["name"]),
        )
        names = [item["name"].removeprefix("nn.Module: ") for item in stack] or ["(none)"]
        for length in range(len(names) + 1):
            for place, amount in enumerate(amounts):
                found[tuple(names[:length])][place] += amount
    for rest in started.values():
        for item in rest:
            for name in ((), ("(launch not recorded)",)):
                found[name][0] += ns(item["dur"])
                found[name][1] += item["cat"] == "kernel"
    return found


def tree_paths(tree: Tree) -> Paths:
    """What each path of frames holds, in all phases together."""
    found: Paths = defaultdict(lambda: [0, 0, 0])
    path: list[str] = []
    for depth, node in tree.walk():
        if node.kind == "phase" or node.name == OUTSIDE:
            path[depth:] = [""]
            continue
        path[depth:] = ["(none)" if node.kind == "none" and node.name != "(launch not recorded)" else node.name]
        for place, name in enumerate(("gpu_ns", "kernels", "launches")):
            found[tuple(filter(None, path[1:]))][place] += node.amount(name)
    return found


def some(paths: Paths) -> Paths:
    return {path: amounts for path, amounts in paths.items() if any(amounts)}


def is_module(event: dict[str, Any]) -> bool:
    steps = ("ProfilerStep#", "execute_context_")
    named = event["cat"] == "user_annotation" and not event["name"].startswith(steps)
    return named or event["name"].startswith("nn.Module: ")


def is_function(event: dict[str, Any]) -> bool:
    name = event["name"]
    others = (
        "nn.Module: ",
        "<",
        "torch/",
        "triton/",
        "contextlib.py(",
        "functools.py(",
        "enum.py(",
        "threading.py(",
        "jit/",
    )
    if event["cat"] != "python_function" or name.startswith(others):
        return False
    if re.search(r"/torchinductor_|/triton/(runtime|backends)/|/jit/core\.py\(|^typing\w*\.py\(", name):
        return False
    return "): " in name and not re.search(
        r": (wrapper|wrapped(_.*)?|_wrapper|decorate_context|__torch_function__)$", name
    )


@needs_traces
@pytest.mark.parametrize("by", BYS)
def test_trees_of_real_traces_add_up_and_equal_a_plain_recount(real: tuple[Path, Origins], by: str) -> None:
    path, origins = real
    folded, whole = (build_tree(origins, by, fold=fold) for fold in (True, False))
    assert folded.inclusive == whole.inclusive
    for tree in (folded, whole):
        for _, node in tree.walk():
            parts = [node.own, *(child.inclusive for child in node.children)]
            assert node.inclusive == tuple(map(sum, zip(*parts, strict=True))), node.name
    if is_frame := {"module": is_module, "source": is_function}.get(by):
        assert some(tree_paths(whole)) == some(recount(path, is_frame))


_WORK = """
INCLUDE PERFETTO MODULE molprof.call_locations;
SELECT launched.count, launched.time_ns, place.operator, place.source, place.module
FROM molprof_launched_work AS launched JOIN molprof_call_location AS place USING (location_id)
"""
_IDLE = """
INCLUDE PERFETTO MODULE molprof.idle_locations;
SELECT idle.count, idle.time_ns, place.operator, place.source, place.module
FROM molprof_idle_time AS idle LEFT JOIN slice ON slice.id = idle.location_id
LEFT JOIN molprof_idle_location AS place USING (location_id)
WHERE (idle.location_id IS NULL OR place.location_id IS NOT NULL)
  AND (IFNULL(slice.category, '') NOT IN ('cuda_runtime', 'cuda_driver') OR slice.dur < 100000)
"""


@needs_traces
@pytest.mark.parametrize("name", ["traces/b200_vllm_eager", "pairs/h100_vit_base"])
def test_places_of_findings_are_those_of_sql(name: str) -> None:
    """With the stacks beside the trace processor, and with the stacks in it."""

    def added(rows: Iterable[Mapping[str, Any]]) -> tuple[Counter[Any], Counter[Any]]:
        counts, times = Counter[Any](), Counter[Any]()
        for row in rows:
            place = row["operator"], row["source"], row["module"]
            counts[place] += row["count"]
            times[place] += row["time_ns"]
        return counts, times

    path = Path(str(CORPUS), f"{name}.json.gz")
    stacks: list[Stacks] = []
    with open_trace(path, stacks=False, all_args=False, beside=stacks) as (engine, _):
        known = TraceFacts(engine, stacks=stacks[0])
        classes = {name.work_class for name in known.facts.names}
        found = [added(around.of_work(known, classes)), added(around.of_idle_time(known))]
    with open_trace(path, stacks=True, all_args=False) as (engine, _):
        for sql, sums in zip((_WORK, _IDLE), found, strict=True):
            columns = {name: column.tolist() for name, column in engine.query(sql).items()}
            assert sums == added(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
            assert any(sums[0]) or (sql, name) == (_IDLE, "pairs/h100_vit_base")  # which has no gap of 1 ms


def test_a_tree_by_module(tmp_path: Path) -> None:
    origins = origins_in(write(tmp_path / "trace.json", {"traceEvents": EVENTS}))
    nodes = [
        (depth, node.name, node.count, node.amount("gpu_ns"), node.amount("launches"), node.amount("operator_ns"))
        for depth, node in build_tree(origins, "module").walk()
    ]
    assert nodes == [
        (0, "all", 1, 33_000, 4, 27_000),
        (1, "Model_0", 1, 20_000, 3, 17_000),
        (2, "Layer", 2, 11_000, 2, 12_000),
        (3, "Linear", 2, 11_000, 2, 12_000),
        (2, "cast", 1, 2_000, 1, 5_000),
        (2, "(graph)", 1, 7_000, 0, 0),
        (1, "(backward)", 1, 6_000, 1, 10_000),
        (1, "(launch not recorded)", 1, 7_000, 0, 0),
        (1, "(no module)", 1, 0, 0, 0),
    ]
    waits = [(node.name, node.amount("wait_ns", own=True)) for _, node in build_tree(origins, "module").walk()]
    # Up to the first call, at 7 us.
    first = [("Model_0", 1_000), ("Layer", 1_500), ("Linear", 2_500), ("(no module)", 2_000)]
    assert [(name, wait) for name, wait in waits if wait] == first
    syncs = places_of(origins, "syncs")
    assert [(place.module, place.source, place.count, place.time_ns) for place in syncs] == [
        ("(no module)", "main.py(3): main", 1, 10_000)
    ]
    assert sum(place.count for place in places_of(origins, "launches")) == 5


def test_a_captured_run_is_split_by_phase(tmp_path: Path) -> None:
    origins = origins_in(write(tmp_path / "trace.json", document()))
    tree = build_tree(origins, "operator")
    assert [(node.name, node.kind, node.amount("launches")) for node in tree.children] == [
        ("forward", "phase", 2),
        ("processor", "phase", 1),
        ("sampling", "phase", 0),
        ("(launch not recorded)", "none", 0),
        ("bookkeeping", "phase", 1),
    ]
    assert tree.amount("step_launches") == 4
    assert len(tree.own) == len(AMOUNTS)


def test_speedscope_holds_all_gpu_time(tmp_path: Path) -> None:
    """In the form that the viewer's importer requires of sampled profiles."""
    origins = origins_in(write(tmp_path / "trace.json", {"traceEvents": EVENTS}))
    for by in BYS:
        content = json.loads(speedscope_text(origins, by, "molprof"))
        assert content["$schema"] == "https://www.speedscope.app/file-format-schema.json"
        frames = content["shared"]["frames"]
        assert all(frame["name"] for frame in frames)
        assert 0 <= content["activeProfileIndex"] < len(content["profiles"])
        for profile in content["profiles"]:
            assert (profile["type"], profile["unit"] in ("none", "nanoseconds")) == ("sampled", True)
            assert len(profile["samples"]) == len(profile["weights"])
            assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
            assert all(0 <= number < len(frames) for sample in profile["samples"] for number in sample)
            assert all(weight >= 0 for weight in profile["weights"])
        totals = {profile["name"]: profile["endValue"] for profile in content["profiles"]}
        assert totals["GPU time, layers together"] == totals["GPU time, each layer"] == 33_000
        assert totals["launches"] == 5
        if by == "source":
            assert {"name": "main.py(3): main", "file": "main.py", "line": 3} in frames


@pytest.mark.parametrize("stacks", [True, False])
def test_captures_with_stacks_or_modules(tmp_path: Path, stacks: bool) -> None:
    path = tmp_path / "run.json.gz"
    what = {"stacks": True} if stacks else {"modules": True}
    result = captured(path, settings(processor="generic", repeats=1, warmup=0, window=(1, 2), **what))
    names = {event["name"] for event in of(events(path)[1], "python_function")}
    assert "nn.Module: LlamaForCausalLM_0" in names
    assert all(name.startswith("nn.Module: ") for name in names) is not stacks
    cost = "with Python stacks" if stacks else "with modules"
    assert [note for note in result.notes if note.startswith(f"{cost}, the recorded steps took")]
    report = api.report(path)
    # What is outside all phases takes a share of so short a pass where others use the machine.
    assert {check.id for check in report.checks if not check.holds} <= {"wall_time"}
    assert report.trace.lost_events == 0
    origins = origins_in(path)
    tree = build_tree(origins, "module")
    assert {node.name for node in tree.children} >= {"forward", "processor", "sampling"}
    forward, processor = (
        next(node for node in tree.children if node.name == name) for name in ("forward", "processor")
    )
    (layer,) = (node for _, node in forward.walk() if node.name == "LlamaDecoderLayer_0")  # the tiny model has one
    assert {node.name for node in layer.children} == {"LlamaRMSNorm", "LlamaAttention_0", "LlamaMLP_0"}
    (model,) = (node for _, node in forward.walk() if node.name == "LlamaForCausalLM_0")
    assert model.amount("operators") > 0.8 * forward.amount("operators")
    assert all(node.kind != "module" for _, node in processor.walk())  # modules run in forward alone
    if stacks:
        places = places_of(origins, "operators")
        assert any("constraints/" in place.source for place in places)
        assert sum(place.time_ns for place in places) == build_tree(origins, "operator").amount("operator_ns")
