"""Where GPU work comes from: trees against a plain recount with json, and literal events."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from origin_trace import EVENTS, origins_in
from tiny_trace import document, write

from molprof.analysis.origin.read import Origins, places_of
from molprof.analysis.origin.tree import AMOUNTS, BYS, Tree, build_tree

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
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    done = [event for event in events if event.get("ph") == "X"]
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
    found: Paths = {}
    path: list[str] = []
    for depth, node in tree.walk():
        path[depth:] = ["(none)" if node.kind == "none" and node.name != "(launch not recorded)" else node.name]
        found[tuple(path[1:])] = [node.amount(name) for name in ("gpu_ns", "kernels", "launches")]
    return found


def some(paths: Paths) -> Paths:
    return {path: amounts for path, amounts in paths.items() if any(amounts)}


def is_module(event: dict[str, Any]) -> bool:
    steps = ("ProfilerStep#", "execute_context_")
    named = event["cat"] == "user_annotation" and not event["name"].startswith(steps)
    return named or event["name"].startswith("nn.Module: ")


def is_function(event: dict[str, Any]) -> bool:
    name = event["name"]
    if event["cat"] != "python_function" or name.startswith(
        (
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
    ):
        return False
    if re.search(r"/torchinductor_|/triton/(runtime|backends)/|/jit/core\.py\(|^typing\w*\.py\(", name):
        return False
    return "): " in name and not re.search(
        r": (wrapper|wrapped(_.*)?|_wrapper|decorate_context|__torch_function__)$", name
    )


@needs_traces
@pytest.mark.parametrize(("by", "is_frame"), [("module", is_module), ("source", is_function)])
def test_trees_equal_a_plain_recount(real: tuple[Path, Origins], by: str, is_frame: Any) -> None:
    path, origins = real
    assert some(tree_paths(build_tree(origins, by, fold=False))) == some(recount(path, is_frame))


@needs_traces
@pytest.mark.parametrize("by", BYS)
def test_parts_add_up(real: tuple[Path, Origins], by: str) -> None:
    whole = [build_tree(real[1], by, fold=fold) for fold in (True, False)]
    assert whole[0].inclusive == whole[1].inclusive
    for tree in whole:
        for _, node in tree.walk():
            parts = [node.own, *(child.inclusive for child in node.children)]
            assert node.inclusive == tuple(map(sum, zip(*parts, strict=True))), node.name


@needs_traces
def test_layers_fold_and_places_are_named() -> None:
    origins = origins_in(Path(str(CORPUS), "traces", f"{NAMES[0]}.json.gz"))
    tree = build_tree(origins, "module")
    layer = next(node for _, node in tree.walk() if node.name == "Qwen2DecoderLayer")
    assert (layer.count, layer.amount("launches"), layer.amount("launches", own=True)) == (24, 1008, 48)
    assert [(node.name, node.count) for node in layer.children] == [
        ("Qwen2RMSNorm", 48),
        ("Qwen2Attention", 24),
        ("Qwen2MLP", 24),
    ]
    copies = places_of(origins, "copies")
    assert (copies[1].operator, copies[1].count, len(copies[1].modules)) == ("aten::contiguous > aten::copy_", 96, 24)
    assert copies[1].source == "transformers/integrations/sdpa_attention.py(18): sdpa_attention_forward"
    assert places_of(origins, "syncs")[1].module == "Qwen2Model"


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
