"""Least work of operators: FLOPs equal torch's own counter, bytes a count by hand; the parts up to the trace add up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from molprof import api
from molprof.analysis.origin.tree import BYS, build_tree
from molprof.analysis.roofline.formulas import FORMULAS, LeastWork, work_of
from molprof.analysis.roofline.operands import Operand
from molprof.analysis.roofline.peaks import DEVICES, peaks_of

CORPUS = os.environ.get("MOLPROF_CORPUS")
aten = torch.ops.aten
BF16, FLOAT = "c10::BFloat16", "float"


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta", dtype=torch.bfloat16)


def operand(value: Any) -> Operand:
    """What the profiler records of an argument."""
    if isinstance(value, torch.Tensor):
        return Operand(BF16, tuple(value.shape), value.stride())
    return Operand() if value is None else Operand("Scalar", value=str(value))


# An operator, its arguments, and what torch counts for it where the operator itself runs on GPUs alone.
CALLS: list[tuple[str, tuple[Any, ...], Callable[..., Any]]] = [
    ("mm", (meta(7, 32), meta(32, 5)), aten.mm),
    ("addmm", (meta(5), meta(7, 32), meta(32, 5)), aten.addmm),
    ("bmm", (meta(3, 7, 32), meta(3, 32, 5)), aten.bmm),
    ("baddbmm", (meta(3, 7, 5), meta(3, 7, 32), meta(3, 32, 5)), aten.baddbmm),
    ("linear", (meta(2, 7, 32), meta(5, 32), meta(5)), torch.nn.functional.linear),
    (
        "cudnn_convolution",
        (meta(2, 6, 17, 9), meta(8, 3, 3, 2), [1, 0], [2, 1], [1, 2], 2, False, False, True),
        lambda x, w, padding, stride, dilation, groups, *_: torch.conv2d(x, w, None, stride, padding, dilation, groups),
    ),
    (
        "miopen_convolution",
        (meta(2, 4, 17), meta(8, 4, 3), meta(8), [1], [1], [1], 1, False, False),
        lambda x, w, b, padding, stride, dilation, groups, *_: torch.conv1d(x, w, b, stride, padding, dilation, groups),
    ),
    (
        "convolution_backward",
        (meta(2, 8, 9), meta(2, 4, 9), meta(8, 4, 3), None, [1], [1], [1], False, [0], 1, [True, True, False]),
        aten.convolution_backward,
    ),
    (
        "_scaled_dot_product_flash_attention",
        (meta(2, 4, 9, 16), meta(2, 4, 13, 16), meta(2, 4, 13, 16), 0.0, False, False),
        aten._scaled_dot_product_flash_attention,
    ),
    (
        "_flash_attention_forward",
        (meta(2, 9, 4, 16), meta(2, 13, 4, 16), meta(2, 13, 4, 16), None, None, 9, 13, 0.0, False, False),
        lambda q, k, v, *_: aten._scaled_dot_product_flash_attention(*(x.transpose(1, 2) for x in (q, k, v))),
    ),
]


@pytest.mark.parametrize(("name", "arguments", "call"), CALLS, ids=[name for name, *_ in CALLS])
def test_flops_are_those_of_torch(name: str, arguments: tuple[Any, ...], call: Callable[..., Any]) -> None:
    with FlopCounterMode(display=False) as counter:
        call(*arguments)
    found = work_of(f"aten::{name}", tuple(map(operand, arguments)))
    assert found is not None
    assert found.flops == counter.get_total_flops() > 0


def tensor(kind: str, *shape: int, strides: tuple[int, ...] = ()) -> Operand:
    return Operand(kind, shape, strides)


def number(value: object) -> Operand:
    return Operand("Scalar", value=str(value))


NONE = Operand()
X, WIDE, INDEX = tensor(BF16, 4, 10), tensor(FLOAT, 4, 10), tensor("long int", 4)
# Operator, arguments, then FLOPs, bytes read and written, and those that nothing spares.
WORK: list[tuple[str, tuple[Operand, ...], tuple[int | None, int, int, int]]] = [
    ("aten::mm", (X, tensor(BF16, 10, 3)), (240, 80 + 60, 24, 60)),
    ("aten::addmm", (tensor(BF16, 3), X, tensor(BF16, 10, 3)), (240, 6 + 80 + 60, 24, 60)),
    ("aten::mul", (X, tensor(BF16, 10)), (40, 80 + 20, 80, 0)),
    ("aten::mul", (X, Operand("double")), (40, 80 + 8, 80, 0)),
    ("aten::mul", (X, WIDE), (40, 80 + 160, 160, 0)),
    ("aten::add_", (X, WIDE, number(1)), (40, 80 + 160, 80, 0)),
    ("aten::div", (INDEX, INDEX), (4, 64, 16, 0)),
    ("aten::mul", (INDEX, Operand("double")), (4, 32 + 8, 16, 0)),
    ("aten::eq", (X, X), (40, 160, 40, 0)),
    # Of a row that stands for four, only one is read.
    ("aten::add", (WIDE, tensor(FLOAT, 4, 10, strides=(0, 1)), number(1)), (40, 160 + 40, 160, 0)),
    ("aten::copy_", (WIDE, X, number(False)), (None, 80, 160, 0)),
    ("aten::where", (tensor("bool", 4, 1), X, X), (40, 4 + 160, 80, 0)),
    ("aten::sum", (WIDE, Operand("ScalarList", value="[-1]"), number(True)), (40, 160, 16, 0)),
    ("aten::sum", (WIDE, NONE), (40, 160, 4, 0)),
    ("aten::argmax", (X, number(1), number(False)), (40, 80, 32, 0)),
    ("aten::max", (X, number(-1), number(False)), (40, 80, 4 * 10, 0)),
    ("aten::_softmax", (X, number(-1), number("True")), (None, 80, 160, 0)),
    ("aten::native_layer_norm", (X, Operand("ScalarList", value="[10]"), *[tensor(BF16, 10)] * 2, number(1e-5)),
     (None, 80 + 40, 80, 40)),
    ("aten::index_select", (tensor(BF16, 99, 10), number(0), INDEX), (None, 80 + 32, 80, 80)),
    ("aten::embedding", (tensor(BF16, 99, 10), tensor("long int", 2, 3)), (None, 120 + 48, 120, 120)),
    ("aten::gather", (X, number(1), tensor("long int", 4, 2)), (None, 16 + 64, 16, 0)),
    ("aten::topk", (X, number(3), number(-1), number(True), number(True)), (None, 80, 12 * 10, 0)),
    ("aten::cumsum", (tensor("int", 5), number(0), NONE), (None, 20, 40, 0)),
    ("aten::fill_", (X, number(0)), (None, 0, 80, 0)),
    # A causal square is half of one.
    ("aten::_scaled_dot_product_flash_attention",
     (*[tensor(BF16, 1, 2, 8, 16)] * 3, number(0.0), number("True"), number("False")),
     (4 * 2 * 8 * 8 * 16 // 2, 3 * 512, 512, 1024)),
    # A query of one position sees all of the cache; two heads of queries share one of keys.
    ("aten::_scaled_dot_product_flash_attention",
     (tensor(BF16, 1, 2, 1, 16), *[tensor(BF16, 1, 1, 8, 16)] * 2, number(0.0), number("True"), number("False")),
     (4 * 2 * 8 * 16, 64 + 512, 64, 512)),
    ("_C::fused_add_rms_norm", (X, X, tensor(BF16, 10), number(1e-5)), (None, 160 + 20, 160, 20)),
    ("_C::silu_and_mul", (X, tensor(BF16, 4, 20)), (None, 160, 80, 0)),
    ("_C_cache_ops::reshape_and_cache_flash", (X, X, *[tensor("unsigned char", 999, 10)] * 2, INDEX),
     (None, 160, 80, 0)),
    ("triton_poi_fused_add_0", (X, WIDE, number(40)), (None, 80 + 160, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "expected"), WORK)
def test_flops_and_least_bytes(name: str, operands: tuple[Operand, ...], expected: tuple[Any, ...]) -> None:
    found = work_of(name, operands)
    assert found is not None
    assert (found.flops, found.read_bytes, found.written_bytes, found.must_bytes) == expected


def test_listed_tensors_need_the_size_of_an_element() -> None:
    parts = (Operand("TensorList", parts=((4, 10), (4, 5))), number(1))
    assert work_of("aten::cat", parts) is None
    assert work_of("aten::cat", parts, 2) == LeastWork("copy", None, 120, 120)


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_arguments_that_do_not_fit_have_no_figures(name: str) -> None:
    """Formulas get what a trace holds, which may be anything."""
    odd = tensor("no type", 4, 10)
    for operands in ((), (odd,), (NONE,) * 12, (tensor(BF16, 0, 3), tensor(BF16, 7, 0)) * 5, (number("x"),) * 12):
        found = work_of(name, operands, 2)
        assert found is None or min(found.flops or 0, found.read_bytes, found.written_bytes) >= 0


def test_what_is_given_counts_in_place_of_what_is_known() -> None:
    found = peaks_of("NVIDIA H100 80GB HBM3", ("bf16=800", "memory=3"))
    assert (found.tflops["bf16"], found.tflops["fp16"], found.memory_tbps) == (800, 989, 3)
    assert (found.flops_ns("bf16", 8 * 10**14), found.bytes_ns(3 * 10**12)) == (1e9, 1e9)
    assert peaks_of("NVIDIA H100 PCIe").memory_tbps == 2.0
    assert peaks_of("another").flops_ns("bf16", 1) is None
    assert all(peaks.source and peaks.memory_tbps and peaks.tflops for _, peaks in DEVICES)


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
@pytest.mark.parametrize(("trace", "covered"), [("traces/h100_qwen1.5_0.5b", 0.69), ("pairs/mi300_vit_base", 0.999)])
def test_the_way_from_the_speed_of_light_adds_up(trace: str, covered: float) -> None:
    found, _ = api.roofline(Path(str(CORPUS), f"{trace}.json.gz"))
    assert sum(part.ns for part in found.parts) == pytest.approx(found.span_ns)
    assert sum(group.gpu_ns for group in found.groups) == found.gpu_ns
    assert found.covered_ns >= covered * found.gpu_ns
    reached = [group.reached_ratio for group in found.groups if group.reached_ratio is not None]
    assert 0.2 < max(reached) < 1
    # The trees hold the same work, times of a call shared by its kernels and rounded.
    origins = api.origins(found.info.path)[0]
    least = sum((group.least_ns or 0) * group.calls for group in found.groups)
    moved = sum(group.work.bytes * group.calls for group in found.groups if group.work)
    for by in BYS:
        tree = build_tree(origins, by)
        assert tree.amount("known_ns") == found.covered_ns
        assert tree.amount("least_ns") == pytest.approx(least, abs=len(origins.work))
        assert tree.amount("moved_bytes") == pytest.approx(moved, abs=len(origins.work))


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
def test_figures_of_another_tool() -> None:
    """The rows of TraceLens' reference report of this trace; of addmm without the addition of the bias."""
    expected = {
        ("aten::addmm", "512, 141x512, 512x512"): (17, 73_996_800 - 141 * 512, 814_080),
        ("aten::addmm", "30522, 141x512, 512x30522"): (1, 4_411_192_050 - 141 * 30_522, 40_067_160),
        ("aten::addmm", "2048, 141x512, 512x2048"): (4, 295_987_200 - 141 * 2048, 2_823_168),
        ("aten::_flash_attention_forward", "1x141x8x64, 1x141x8x64, 1x141x8x64"): (4, 40_716_288, 577_536),
        ("aten::add", "1x141x512, 1x141x512"): (9, 72_192, 433_152),
    }
    found, _ = api.roofline(Path(str(CORPUS), "pairs", "h100_bert_small.json.gz"))
    rows = {(group.operator, group.arguments): group for group in found.groups if group.work}
    for key, (calls, flops, moved) in expected.items():
        group = next(row for (name, given), row in rows.items() if name == key[0] and given.startswith(key[1]))
        assert group.work is not None
        assert (group.calls, group.work.flops, group.work.bytes) == (calls, flops, moved)


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
def test_the_way_needs_the_peaks_of_products_and_memory_alone() -> None:
    path = Path(str(CORPUS), "traces", "mi300x_vllm_decode_graph.json.gz")  # of a GPU without a name
    assert api.roofline(path)[0].parts == api.roofline(path, peaks=["bf16=1307"])[0].parts == ()
    found, _ = api.roofline(path, peaks=["memory=5.3", "bf16=1307"])
    assert sum(part.ns for part in found.parts) == pytest.approx(found.span_ns)


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
def test_peaks_that_are_given_count_in_trees() -> None:
    path = Path(str(CORPUS), "pairs", "h100_bert_small.json.gz")
    slow, fast = (api.origins(path, peaks=[f"memory={number}"])[0].pieces for number in (1e-3, 2e-3))
    assert slow is not None
    assert fast is not None
    # So slow a memory, 1 GB/s, bounds all of them.
    known, least, memory, _, moved = slow.T
    assert known.any()
    assert (memory == least).all()
    assert least == pytest.approx(moved, abs=1)
    assert fast[:, 1] == pytest.approx(least / 2, abs=1)
