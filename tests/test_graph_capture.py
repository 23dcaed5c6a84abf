"""Graphs are opened with the trace of their capture: literal ones here, a public pair in `tests/goldens`."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from origin_trace import python
from tiny_trace import slice_, work, write

from molprof import api
from molprof.analysis.origin.match import plain_name
from molprof.analysis.origin.opened import Opened
from molprof.analysis.origin.read import Origins
from molprof.analysis.origin.tree import build_tree
from molprof.common.errors import MolprofError

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
    tmp_path: Path,
    replay: list[dict[str, Any]],
    capture: list[dict[str, Any]] | None,
    run: list[dict[str, Any]] | None = None,
) -> tuple[Origins, Opened]:
    paths = [
        None if events is None else write(tmp_path / f"{name}.json", {"traceEvents": events})
        for name, events in (("replay", replay), ("capture", capture), ("run", run))
    ]
    assert paths[0] is not None
    return api.origins(paths[0], capture=paths[1], names_from=paths[2])[:2]


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


def compiled() -> list[dict[str, Any]]:
    """UNNAMED, but torch.compile tells the kernel of each addition with the operator, as for those of Triton."""
    events = copy.deepcopy(UNNAMED)
    for event in events:
        if event["name"] == "aten::add":
            event["args"]["kernel_name"] = "add"
    return events


@pytest.mark.parametrize(
    ("names", "capture", "certainty"),
    [
        # A layer that was not replayed leaves the number of layers open.
        (NAMES * 2, captured(0, "c", 3), "likely"),
        # Calls without names match by their order, if equal operators meet equal kernels.
        (NAMES * 2, UNNAMED, "likely"),
        # Operators tell some names, and between those no other place is left.
        (NAMES * 2, compiled(), "aligned"),
        # As many kernels in another order are another graph.
        (NAMES + NAMES[::-1], UNNAMED, None),
        # A run outside the capture tells the names.
        (NAMES * 2, [*UNNAMED, *warm_up()], "aligned"),
        # The replay has all names mangled, the capture none.
        ([f"_ZN3lib{len(name)}{name}Ev" for name in NAMES] * 2, captured(0, "c", 2), "likely"),
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


def test_what_kernels_of_a_graph_must_do(tmp_path: Path) -> None:
    capture = captured(0, "capture_8", 2, rows=8)
    for event in capture:
        if event["cat"] == "cpu_op":
            event["args"] |= {"Input Dims": [[8, 16], [16, 4]], "Input type": ["c10::BFloat16"] * 2}
    replay = [event for number in range(3) for event in replayed(100 * number, number + 1, NAMES * 2)]
    paths = [write(tmp_path / f"{name}.json", {"traceEvents": each}) for name, each in (("a", replay), ("b", capture))]
    found = api.roofline(paths[0], capture=paths[1])[0]
    products = [group for group in found.groups if group.operator == "aten::mm"]
    assert [(group.calls, group.kernels, group.work and group.work.flops) for group in products] == [
        (12, 12, 2 * 8 * 16 * 4)
    ]
    assert {group.family for group in api.roofline(paths[0])[0].groups} == {"in a graph"}


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


def eager(
    start: float,
    layers: int,
    *,
    around: str = "decode step 1",
    extra: Iterable[str] = (),
    renamed: dict[str, tuple[str, ...]] | None = None,
    **args: Any,
) -> list[dict[str, Any]]:
    """A step without graphs: LAYER times `layers`, then `extra`. renamed: kernels in place of one."""
    found = []
    for event in captured(start, around, layers, alone=extra):
        if "Capture" in event["name"]:
            continue
        found.append(event)
        kernels = event["args"].pop("kernel", None)
        if kernels:
            for place, kernel in enumerate((renamed or {}).get(kernels, (kernels,))):
                launch = event if place == 0 else slice_("cuda_runtime", "cudaLaunchKernel", event["ts"] + 0.1, 0.05)
                launch["args"]["correlation"] = number = int(1000 * event["ts"]) + place
                event["dur"] = 0.05
                found += [launch] if place else []
                found.append(work("kernel", kernel, event["ts"] + 50 + place / 10, 0.05, number, **args))
    return found


STEP = "decode step 5"


def test_names_from_a_run_without_graphs_are_those_of_the_capture(tmp_path: Path) -> None:
    replay = [event for number in range(2) for event in replayed(100 * number, number + 1, NAMES * 2, STEP)]
    grid: dict[str, Any] = {"grid": [8, 1, 1], "block": [64, 1, 1]}
    for event in replay:
        event["args"] |= grid if event["cat"] == "kernel" else {}
    origins, found = opened(tmp_path, replay, None, eager(0, 2, **grid) + eager(200, 2, **grid))
    _, of_capture = opened(tmp_path, replay, captured(0, "c", 2))
    assert places(found) == places(of_capture)
    assert {place[5] for place in places(found)} == {"aligned"}
    assert found.graphs[0].captures == ("decode step 1",)
    tree = build_tree(origins, "module")
    assert [item.name for _, item in tree.walk()] == ["all", "(no module)", "(graph)", "Layer"]
    # Without grids, and sizes in the names of steps, nothing tells that shapes are the same.
    _, found = opened(tmp_path, replayed(0, 1, NAMES * 2, STEP), None, eager(0, 2))
    assert [place[:2] for place in places(found)][:2] == [("aten::mm", None), ("aten::add", None)]


@pytest.mark.parametrize(
    ("replay", "run", "certainties", "difference"),
    [
        # One kernel of the graph for two of the other run, and the other way around: said, and not named.
        (["gemm", "fused_add_gemm_out"] * 2, {}, ["aligned", None] * 2, (("fused_add_gemm_out",), ("add", "gemm_out"))),
        (
            NAMES * 2,
            {"add": ("add_one", "add_two")},
            ["aligned", None, "aligned"] * 2,
            (("add",), ("add_one", "add_two")),
        ),
        (["gemm", "more", "add", "gemm_out"] * 2, {}, ["aligned", None, "aligned", "aligned"] * 2, (("more",), ())),
        (["gemm", "gemm_out"] * 2, {}, ["aligned", "aligned"] * 2, ((), ("add",))),
        # One product for another, between the same neighbours.
        (["gemm", "add", "cutlass_gemm_2"] * 2, {}, ["aligned", "aligned", "likely"] * 2, None),
    ],
)
def test_what_one_run_fuses_splits_or_adds_is_said(
    tmp_path: Path,
    replay: list[str],
    run: dict[str, tuple[str, ...]],
    certainties: list[str | None],
    difference: tuple[tuple[str, ...], tuple[str, ...]] | None,
) -> None:
    _, found = opened(tmp_path, replayed(0, 1, replay, STEP), None, eager(0, 2, renamed=run))
    assert [place[5] for place in places(found)] == certainties
    expected = [] if difference is None else [(0, *difference, 2)]
    assert [tuple(item) for item in found.differences] == expected
    for name, place in zip(replay, places(found), strict=True):
        asked = {kernel: operator for operator, kernel, _ in LAYER} | {"cutlass_gemm_2": "aten::mm"}
        assert place[0] in (None, asked.get(name))


@pytest.mark.parametrize(
    ("step", "grid", "doubt"),
    [
        ("step[DECODE bs=8]", 8, None),
        (
            "step[DECODE bs=4]",
            8,
            "another size: the other run has a decode of 8 new tokens, this one a decode of 4 new tokens",
        ),
        (STEP, 4, "6 of 6 kernels of equal name have another grid or block size: another batch, or another model"),
    ],
)
def test_another_batch_is_said(tmp_path: Path, step: str, grid: int, doubt: str | None) -> None:
    around = "step[DECODE bs=8]" if "bs" in step else "decode step 1"
    replay = replayed(0, 1, NAMES * 2, step, grid=[grid, 1, 1], block=[64, 1, 1])
    _, found = opened(tmp_path, replay, None, eager(0, 2, around=around, grid=[8, 1, 1], block=[64, 1, 1]))
    assert found.graphs[0].doubts == ((doubt,) if doubt else ())
    assert {(place[0] is not None, place[1] is not None, place[5]) for place in places(found)} == {
        (True, doubt is None, "likely" if doubt else "aligned")
    }


@pytest.mark.parametrize(
    ("replay", "run", "problem"),
    [
        (replayed(0, 1, ["a", "b", "c"], STEP), eager(0, 2), "names no graph of .*: at most 0 % of a graph's kernels"),
        (replayed(0, 1, NAMES * 6, STEP), eager(0, 4), "its layer of 3 kernels runs 4 times, here 6 times"),
        (replayed(0, 1, NAMES), replayed(0, 1, NAMES), "run.json replays graphs itself: 3 of 3 pieces of work"),
        (replayed(0, 1, NAMES), [work("kernel", "gemm", 0, 1, 1)], "has no operator that starts GPU work"),
        (replayed(0, 1, NAMES), warm_up(), "marks neither steps nor modules"),
        (eager(0, 2), eager(0, 2), "replays no graph"),
    ],
)  # fmt: skip
def test_a_run_that_does_not_fit_is_refused(
    tmp_path: Path, replay: list[dict[str, Any]], run: list[dict[str, Any]], problem: str
) -> None:
    with pytest.raises(MolprofError, match=problem):
        opened(tmp_path, replay, None, run)


def test_pieces_of_a_step_are_named_by_their_place_in_it(tmp_path: Path) -> None:
    # Of each layer a graph, which is the same one without graph ids; work between them is the same in both runs.
    replay = [slice_("user_annotation", "decode step 3", 0, 90)]
    for layer in range(2):
        piece = replayed(40 * layer, layer + 1, NAMES)[1:]
        replay += [*piece, slice_("cpu_op", "aten::add", 40 * layer + 5, 3)]
        replay.append(slice_("cuda_runtime", "cudaLaunchKernel", 40 * layer + 6, 1, correlation=50 + layer))
        replay.append(work("kernel", "between", 40 * layer + 30, 1, 50 + layer))
    run = eager(0, 2)
    for layer, ts in enumerate((4.92, 7.92)):
        run.append(slice_("cpu_op", "aten::add", ts, 0.06))
        run.append(slice_("cuda_runtime", "cudaLaunchKernel", ts + 0.01, 0.04, correlation=layer + 1))
        run.append(work("kernel", "between", ts + 60, 1, layer + 1))
    _, found = opened(tmp_path, replay, None, run)
    assert [place[2] for place in places(found)] == ["Layer_0"] * 3 + ["Layer_1"] * 3
    assert found.agreeing == (2, 2)
