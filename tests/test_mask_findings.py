"""Findings on masks in engines: each fires on a trace built for it, and not just below its threshold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from decoding_trace import GEMM, Event, launched, op
from finding_cases import Case, plain
from tiny_trace import slice_


def served(*more: Event | list[Event], rows_tid: int = 100, rows: int = 4) -> dict[str, Any]:
    """A step of vLLM, 200 us: a forward, then the filling of masks, row after row or in another thread."""
    mine = "vllm/v1/structured_output/"
    return plain(
        slice_("user_annotation", "gpu_model_runner: forward", 0, 100),
        slice_("python_function", f"{mine}__init__.py(1): grammar_bitmask", 100, 100),
        *(
            slice_("python_function", f"{mine}backend_xgrammar.py(2): fill_bitmask", 105 + 20 * row, 20, tid=rows_tid)
            for row in range(rows)
        ),
        op("aten::argmax", 199, 1),
        *more,
    )


def decoded(*masked: Event | list[Event], fill_us: int = 40, rows: int = 2) -> list[Event]:
    """A decode step of vLLM with four sequences, 100 us: masks for some of them, what comes after, update."""
    mine = "vllm/v1/structured_output/"
    return [item for event in (
        op("aten::index", 0, 1),
        slice_("python_function", "vllm/v1/core/sched/scheduler.py(1): schedule", 0, 2),
        slice_("user_annotation", "execute_context_0(0)_generation_4(4)", 2, 20),
        slice_("user_annotation", "gpu_model_runner: forward", 3, 18),
        slice_("python_function", f"{mine}__init__.py(1): grammar_bitmask", 24, fill_us),
        *(slice_("python_function", f"{mine}backend_xgrammar.py(2): fill_bitmask", 24 + fill_us / rows * row,
                 fill_us / rows) for row in range(rows)),
        *masked,
        op("aten::argmax", 98, 2),
    ) for item in (event if isinstance(event, list) else [event])]  # fmt: skip


def many(steps: int, step: Callable[[int], list[Event]]) -> dict[str, Any]:
    """Steps one after the other, 100 us each."""
    return plain(*([{**event, "ts": event["ts"] + 100 * n} for event in step(n)] for n in range(steps)))


def applied(*inside: Event | list[Event]) -> list[Event | list[Event]]:
    """What happens while masks are applied, from 70 to 95, after a forward on the GPU up to 62."""
    utils = "vllm/v1/structured_output/utils.py(1): apply_grammar_bitmask"
    return [launched("kernel", GEMM, 4, 6, 56), slice_("python_function", utils, 70, 25), *inside]


BITMASK = launched("kernel", "apply_token_bitmask_inplace_kernel", 90, 92, 4)
PAGEABLE, PINNED = (f"Memcpy HtoD ({memory} -> Device)" for memory in ("Pageable", "Pinned"))
WAITING = slice_("cuda_runtime", "cudaStreamSynchronize", 75, 10)
LOGITS = launched("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 71, 73, 4, bytes=400_000)
ON_GPU = plain(decoded(*applied(BITMASK)))


def sglang(function: str, start: float, dur: float, tid: int = 100) -> Event:
    return slice_("python_function", f"/sglang/srt/constrained/{function}", start, dur, tid=tid)


CASES = [
    Case("constraint", served(), 0.5,
         {"fill_ns": 100_000, "accept_ns": 0, "forward_ns": 100_000, "row_p50_ns": 20_000},
         words=("; not recorded: applying masks",),
         quiet=(plain(slice_("user_annotation", "gpu_model_runner: forward", 0, 100)),)),
    # A GPU that works until 160 hides 60 us of the filling.
    Case("constraint", served(launched("kernel", GEMM, 90, 100, 60)), 0.2, {}),
    # A server's worker, without its scheduler.
    Case("constraint", plain(
        slice_("user_annotation", "gpu_model_runner: forward", 0, 60),
        slice_("python_function", "vllm/v1/structured_output/utils.py(1): apply_grammar_bitmask", 60, 40),
        op("aten::argmax", 98, 2),
    ), None, {"apply_ns": 40_000, "forward_ns": 60_000},
         words=("40.0 µs to apply masks, against 60.0 µs", "; not recorded: filling masks, accepting tokens")),
    Case("mask_fill_serial", served(), 80 * 3 / 4 / 200, {"rows_per_step": 4, "row_ns": 20_000, "fill_ns": 100_000},
         quiet=(served(rows_tid=101), served(rows=1))),
    Case("mask_fill_waits", served(), 0.5, {"fill_ns": 100_000, "forward_ns": 100_000}, words=("no longer than",)),
    # 40 us outside the 60 us of GPU work; none where the GPU works all the time.
    Case("mask_fill_waits", served(launched("kernel", GEMM, 90, 100, 60)), 0.2,
         {"fill_ns": 40_000, "forward_ns": 60_000}, quiet=(served(launched("kernel", GEMM, 90, 100, 100)),)),
    Case("masks_not_recorded", plain(slice_("user_annotation", "gpu_model_runner: forward", 0, 100)), None,
         {"phases": 9, "mask_kernels": 0}, words=("mask_fill",), quiet=(served(),)),
    Case("masks_not_recorded", plain(slice_("user_annotation", "gpu_model_runner: forward", 0, 100), BITMASK), None, {},
         words=("; 1 kernel that applies masks ran",)),
    # The GPU works until 62 and again from 92: filling ends at 64, applying begins at 70.
    Case("mask_idle", ON_GPU, (2 + 20) / 100, {"idle_ns": 22_000, "gaps": 1, "longest_ns": 22_000}, quiet=(
        served(), plain(decoded(launched("kernel", GEMM, 4, 6, 92))),
    )),
    # Of 40 us of filling, 2 are not hidden by this step's 56 us of work, which could hide all.
    Case("mask_fill_waits", ON_GPU, 0.02, {}, words=("a step of 95.0 µs takes 93.0 µs at least",)),
    Case("mask_copy_blocks", plain(decoded(*applied(
        launched("gpu_memcpy", PAGEABLE, 72, 76, 4, bytes=1000), WAITING, BITMASK,
    ))), 0.04 + (2 + 10) / 100, {
        "count": 1, "steps": 1, "bytes": 1000, "gpu_ns": 4000, "host_ns": 12_000, "gaps_ns": 26_000,
    }, quiet=(plain(decoded(*applied(launched("gpu_memcpy", PINNED, 72, 76, 4, bytes=1000), WAITING, BITMASK))),)),
    Case("mask_syncs", plain(decoded(*applied(WAITING, BITMASK))), 0.1, {"syncs": 1, "sync_ns": 10_000, "steps": 1},
         words=("mask_apply 1",), quiet=(ON_GPU, plain(decoded(*applied(
             launched("gpu_memcpy", PAGEABLE, 72, 76, 4, bytes=1000), WAITING, BITMASK))))),
    Case("mask_apply_on_host", plain(decoded(*applied(LOGITS, BITMASK))), 0.18, {},
         words=("400 kB of logits copied",), quiet=(ON_GPU, plain(decoded(*applied()[1:])))),
    Case("mask_apply_on_host", plain(decoded(*applied())), 0.25, {"launches": 0, "copies": 0},
         words=("no kernel launched",)),
    Case("unconstrained_wait", many(2, lambda n: decoded()), 0.4 * 0.5,
         {"steps": 2, "unconstrained": 2, "wait_ns": 40_000}, quiet=(many(2, lambda n: decoded(rows=4)), served())),
    Case("mask_fill_grows", many(16, lambda n: decoded(fill_us=20 + 2 * n)),
         2 * sum(max(0, n - 1.5) for n in range(16)) / 1600,
         {"slope_ns": 1000, "low_ns": 1000, "high_ns": 1000, "first_ns": 11_500, "last_ns": 23_500, "steps": 16},
         quiet=(
             many(16, lambda n: decoded(fill_us=20 if n < 8 else 50)), many(15, lambda n: decoded(fill_us=20 + 2 * n)),
             many(16, lambda n: decoded(fill_us=20 + n * 7 % 16)),
         )),
    # 30 us of compiling, 10 of them beside a forward.
    Case("grammar_compile_waits", plain(
        slice_("user_annotation", "gpu_model_runner: forward", 60, 40), op("aten::mm", 0, 100),
        slice_("python_function", "vllm/v1/structured_output/backend_xgrammar.py(3): compile_grammar", 40, 30, tid=101),
    ), 0.2, {"grammars": 1, "compile_ns": 30_000, "wait_ns": 0, "alone_ns": 20_000}, quiet=(served(),)),
    Case("grammar_compile_waits", plain(
        sglang("grammar_manager.py(1): get_ready_grammar_requests", 0, 50),
        sglang("base_grammar_backend.py(1): get_cached_or_future_value", 60, 2),
        sglang("base_grammar_backend.py(1): get_cached_or_future_value", 64, 2),
        sglang("xgrammar_backend.py(1): dispatch_json", 5, 40, tid=101),
        op("aten::mm", 0, 100),
    ), 0.5, {"grammars": 1, "alone_ns": 50_000}, words=("; 1 of 2 were found in the cache",)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{case.rule}" for n, case in enumerate(CASES)])
def test_a_rule(tmp_path: Path, case: Case) -> None:
    case.check(tmp_path)
