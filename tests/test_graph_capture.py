"""Graphs opened with the trace of their capture: literal captures and replays. `tests/goldens` has a public pair."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from origin_trace import python
from tiny_trace import slice_, work, write

from molprof import api
from molprof.analysis.origin.opened import Opened, plain_name
from molprof.analysis.origin.read import Origins
from molprof.analysis.origin.tree import build_tree

# One layer: operator, kernel, sizes of its input.
LAYER = (("aten::mm", "gemm", 8), ("aten::add", "add", 8), ("aten::mm", "gemm_out", 4))


def captured(
    start: float, name: str, layers: int, *, rows: int = 1, named: bool = True, alone: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """A capture of LAYER times `layers` in a range, then of `alone`; the calls of CUDA name no kernel."""
    events = [slice_("cuda_runtime", "cudaStreamBeginCapture", start + 1, 0.5)]
    ts = start + 2
    for layer, (operator, kernel, size) in [
        *itertools.product(range(layers), LAYER),
        *((None, (f"aten::{n}", n, 2)) for n in alone),
    ]:
        if layer is not None:
            events.append(python(f"nn.Module: Layer_{layer}", ts, 0.9))
            events.append(python("model.py(7): forward", ts + 0.1, 0.7))
        events.append(slice_("cpu_op", operator, ts + 0.2, 0.5, **{"Input Dims": [[rows, size], []]}))
        call = {"kernel": kernel} if named else {}
        events.append(slice_("cuda_runtime", "cudaLaunchKernel", ts + 0.3, 0.2, correlation=int(1000 * ts), **call))
        ts += 1
    events.append(slice_("cuda_runtime", "cudaStreamEndCapture", ts, 0.5))
    return [slice_("user_annotation", name, start, ts + 2 - start), *events]


def replayed(
    start: float, correlation: int, names: Iterable[str], around: str = "replay", **args: Any
) -> list[dict[str, Any]]:
    kernels = [work("kernel", name, start + 20 + 2 * place, 1, correlation, **args) for place, name in enumerate(names)]
    launch = slice_("cuda_runtime", "cudaGraphLaunch", start + 1, 1, correlation=correlation)
    return [slice_("user_annotation", around, start, 5), launch, *kernels]


NAMES = [kernel for _, kernel, _ in LAYER]


def opened(
    tmp_path: Path, replay: list[dict[str, Any]], capture: list[dict[str, Any]] | None
) -> tuple[Origins, Opened]:
    paths = [
        None if events is None else write(tmp_path / f"{name}.json", {"traceEvents": events})
        for name, events in (("replay", replay), ("capture", capture))
    ]
    assert paths[0] is not None
    return api.origins(paths[0], capture=paths[1])[:2]


def places(found: Opened) -> list[tuple[Any, ...]]:
    return [found.places[item.id][:6] for graph in found.graphs for item in graph.work]


def test_names_in_order(tmp_path: Path) -> None:
    origins, found = opened(tmp_path, replayed(0, 1, NAMES * 2), captured(0, "capture_8", 2, rows=8))
    assert places(found) == [
        (operator, ((8, size),), f"Layer_{layer}", "model.py(7): forward", None, "aligned")
        for layer in range(2)
        for operator, _, size in LAYER
    ]
    assert found.graphs[0].captures == ("capture_8",)
    tree = build_tree(origins, "module")
    assert [(item.name, item.count, item.amount("kernels")) for _, item in tree.walk()] == [
        ("all", 1, 6), ("replay", 1, 6), ("(graph)", 1, 6), ("Layer", 2, 6),
    ]  # fmt: skip


def test_the_capture_of_the_same_batch_size(tmp_path: Path) -> None:
    capture = captured(0, "capture 4", 2, rows=4) + captured(100, "capture 8", 2, rows=8) + captured(200, "other", 3)
    _, found = opened(tmp_path, replayed(0, 1, NAMES * 2, around="decode 8"), capture)
    assert found.graphs[0].captures == ("capture 8",)
    assert {place[1][0][0] for place in places(found)} == {8}
    # Nothing tells which one it is: sizes that differ are left out.
    _, found = opened(tmp_path, replayed(0, 1, NAMES * 2), capture)
    assert found.graphs[0].captures == ("capture 4", "capture 8")
    assert [place[:3] for place in places(found)][:2] == [("aten::mm", None, "Layer_0"), ("aten::add", None, "Layer_0")]
    assert {place[5] for place in places(found)} == {"likely"}


def test_what_does_not_match_is_listed(tmp_path: Path) -> None:
    replay = replayed(0, 1, ["before", *NAMES, "gemm", "renamed", "gemm_out", "after", "after"])
    _, found = opened(tmp_path, replay, captured(0, "c", 2, alone=["never"]))
    unmatched = "1 captured node without a match: not recorded, or of another graph"
    assert [place[5] for place in places(found)] == [None, *["likely"] * 6, None, None]
    assert places(found)[5][0] == "aten::add"
    assert [node.name for node in found.graphs[0].unused] == ["never"]
    assert found.graphs[0].doubts == (unmatched,)
    # Without that node all is sure but what was renamed.
    _, found = opened(tmp_path, replay, captured(0, "c", 2))
    assert [place[5] for place in places(found)] == [None, *["aligned"] * 4, "likely", "aligned", None, None]


def test_a_capture_of_another_size_is_not_sure(tmp_path: Path) -> None:
    def of(around: str, name: str) -> tuple[set[Any], tuple[str, ...]]:
        _, found = opened(tmp_path, replayed(0, 1, NAMES * 2, around=around), captured(0, name, 2, rows=32))
        return {(place[1] is not None, place[5]) for place in places(found)}, found.graphs[0].doubts

    other = ("capture_32_FULL is of another size than the replay (8192)",)
    assert of("execute_8192_context", "capture_32_FULL") == ({(False, "likely")}, other)
    assert of("execute_32_context", "capture_32_FULL") == ({(True, "aligned")}, ())
    # Numbers of steps, of hashes and of captures without a name are no sizes.
    for around, name in (("ProfilerStep#7", "capture_32"), ("of sq8155", "capture_32"), ("execute_8192", "ranges 7")):
        assert of(around, name) == ({(True, "aligned")}, ())


@pytest.mark.parametrize(("grid", "certainty"), [(8, "aligned"), (4, "likely")])
def test_a_capture_with_other_grids_is_not_sure(tmp_path: Path, grid: int, certainty: str) -> None:
    size: dict[str, Any] = {"grid": [8, 1, 1], "block": [64, 1, 1]}
    capture = captured(0, "c", 2)
    for event in capture:
        if event["name"] == "cudaLaunchKernel":
            event["args"] |= {**size, "grid": [grid, 1, 1]}
    _, found = opened(tmp_path, replayed(0, 1, NAMES * 2, **size), capture)
    assert {place[5] for place in places(found)} == {certainty}
    differ = ("6 kernels of another grid or block size than captured",)
    assert found.graphs[0].doubts == (differ if certainty == "likely" else ())
    # CUDA's calls record neither name nor size: the warm-up does.
    capture = [*captured(200, "c", 2, named=False), *warm_up(block=size["block"], grid=[grid, 1, 1])]
    _, found = opened(tmp_path, replayed(0, 1, NAMES * 2, **size), capture)
    assert {place[5] for place in places(found)} == {certainty}


def warm_up(**args: Any) -> list[dict[str, Any]]:
    """A run of the layer outside the capture, which records the names of its kernels."""
    events = []
    for place, (operator, kernel, size) in enumerate(LAYER):
        ts = 10.0 * place
        events.append(slice_("cpu_op", operator, ts, 5, **{"Input Dims": [[1, size], []]}))
        events.append(slice_("cuda_runtime", "cudaLaunchKernel", ts + 1, 1, correlation=place + 1))
        events.append(work("kernel", kernel, ts + 6, 1, place + 1, **args))
    return events


UNNAMED = captured(200, "c", 2, named=False)


@pytest.mark.parametrize(
    ("names", "capture", "certainty"),
    [
        # A layer that was not replayed leaves the number of layers open.
        (NAMES * 2, captured(0, "c", 3), "likely"),
        # Calls without names match by their order, if equal operators meet equal kernels.
        (NAMES * 2, UNNAMED, "likely"),
        # As many kernels in another order are another graph.
        (NAMES + NAMES[::-1], UNNAMED, None),
        # A run outside the capture tells the names.
        (NAMES * 2, [*UNNAMED, *warm_up()], "aligned"),
    ],
)
def test_how_sure_a_match_is(
    tmp_path: Path, names: list[str], capture: list[dict[str, Any]], certainty: str | None
) -> None:
    _, found = opened(tmp_path, replayed(0, 1, names), capture)
    assert {place[5] for place in places(found)} == {certainty}
    operators = [operator for operator, _, _ in LAYER] * 2
    assert [place[0] for place in places(found)] == (operators if certainty else [None] * 6)
    assert found.graphs[0].captures == (("c",) if certainty else ())
    if capture is UNNAMED and certainty:
        assert found.graphs[0].consistent_ratio == 1


def test_pieces_of_a_model_take_turns(tmp_path: Path) -> None:
    first, second = captured(1, "", 1)[1:], captured(101, "", 1)[1:]
    for event in second:
        event["name"] = event["name"].replace("Layer_0", "Layer_1")
    capture = [slice_("user_annotation", "capture_8", 0, 500), *first, *second]
    replay = [event for number in range(4) for event in replayed(100 * number, number + 1, NAMES)]
    _, found = opened(tmp_path, replay, capture)
    assert [(place[2], place[5]) for place in places(found)][::3] == [("Layer_0", "likely"), ("Layer_1", "likely")] * 2


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<long> >(int)",
            "vectorized_elementwise_kernel",
        ),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256EEEvPT0_", "add_rmsnorm_quant_kernel"),
        ("void aiter::add_rmsnorm_quant_kernel<__bf16, 256>(__bf16*)", "add_rmsnorm_quant_kernel"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("_ZN", "_ZN"),
    ],
)
def test_names_mangled_or_not(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_annotations_of_nodes_are_exact(tmp_path: Path) -> None:
    replay = replayed(0, 1, ["a", "b"], annotation=[{"name": "block"}, {"name": "attention"}], **{"graph node id": 4})
    replay[-1]["args"].update({"annotation": "plain", "graph node id": 5})
    origins, found = opened(tmp_path, replay, None)
    assert [(place[2], place[5]) for place in places(found)] == [("block/attention", "exact"), ("plain", "exact")]
    names = [item.name for _, item in build_tree(origins, "module").walk()]
    assert names == ["all", "replay", "(graph)", "block", "attention", "plain"]
