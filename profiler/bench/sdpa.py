"""Measure the attention kernel alone, or return torch's reason why it cannot run.

Floating-point operations: 4 x batch x heads x pairs x head size, for two matrix products of a multiplication and an
addition each. Pairs are queries x keys, or n (n + 1) / 2 with a causal mask; a padding mask hides none, because kernels
compute what it hides. Bytes are the least that can move: queries, keys, values and mask read once, the result written
once.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional
from msgspec import to_builtins
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from molprof.common.errors import UnsupportedError
from molprof.common.manifest import Machine
from molprof.common.memory import processors
from molprof.profiler.bench.cases import SdpaCase
from molprof.profiler.engines.backends import KERNELS, NO_KERNEL, compiles_so_far
from molprof.profiler.environment import environment, warned
from molprof.profiler.machine import Watch
from molprof.profiler.models.device import on_gpu, peak_bytes, resolve_device, resolve_dtype, synchronize

# Query, key, value: (batch, heads, tokens, head size); mask: see `padding_mask`.
Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None]
_WARMUP_NS, _MEASURE_NS = 200_000_000, 1_000_000_000
_LEAST, _MOST = 5, 200
# Written before each timed call, so that its input is not in the GPU's cache: more than any cache has.
_FLUSH_BYTES = 256 << 20
# The reference in float32 needs all scores at once.
_MOST_SCORES = 1 << 28


def measure_sdpa(case: SdpaCase) -> dict[str, Any]:
    """Return the figures of one case, and its environment; UnsupportedError if the kernel refuses its input."""
    if case.threads is not None:
        torch.set_num_threads(case.threads)
    device = resolve_device(case.device)
    dtype = resolve_dtype(case.dtype, device)
    torch.manual_seed(0)
    query = torch.randn(case.batch, case.heads, case.queries, case.head_dim, device=device, dtype=dtype)
    key, value = (
        torch.randn(case.batch, case.kv_heads, case.keys, case.head_dim, device=device, dtype=dtype) for _ in "kv"
    )
    inputs = query, key, value, padding_mask(case, device) if case.mask == "padding" else None
    with torch.inference_mode():
        call = _call(case, inputs)
        with sdpa_kernel(KERNELS[case.backend]) if case.backend in KERNELS else nullcontext():
            began = time.perf_counter_ns()
            result = _first(case, call, device)
            first_ns = time.perf_counter_ns() - began
            watch = Watch(device)
            times_ns = _times(call, device)
            machine = Machine(processors(), None, [watch.end()])
        figures: dict[str, Any] = {
            "times_ns": times_ns,
            "first_call_ns": first_ns,
            "compiles": compiles_so_far().count,
            "flops": flops(case),
            "bytes": least_bytes(case, dtype.itemsize),
            "dtype": str(dtype).removeprefix("torch."),
            "chosen": _chosen(case, inputs),
            "largest_error": _error(case, result, inputs),
            "machine": to_builtins(machine),
        }
    if (peak := peak_bytes(device)) is not None:
        figures["peak_memory_bytes"] = peak
    return {"figures": figures, "environment": to_builtins(environment(device))}


def flops(case: SdpaCase) -> int:
    """Return the FLOPs of an attention."""
    pairs = case.queries * (case.queries + 1) // 2 if case.mask == "causal" else case.queries * case.keys
    return 4 * case.batch * case.heads * pairs * case.head_dim


def least_bytes(case: SdpaCase, item_bytes: int) -> int:
    """Return the least bytes that an attention moves."""
    queries = 2 * case.batch * case.heads * case.queries * case.head_dim
    keys = 2 * case.batch * case.kv_heads * case.keys * case.head_dim
    mask = case.batch * case.queries * case.keys if case.mask == "padding" else 0
    return (queries + keys) * item_bytes + mask


def padding_mask(case: SdpaCase, device: torch.device) -> Tensor:
    """Return a causal mask of rows with none to 3/16 padding on the left: bool (batch, 1, queries, keys)."""
    columns = torch.arange(case.keys, device=device)
    padded = torch.arange(case.batch, device=device) % 4 * case.keys // 16
    queries = torch.arange(case.keys - case.queries, case.keys, device=device)
    seen = (columns >= padded[:, None])[:, None, None, :] & (columns <= queries[:, None])[None, None]
    # A query that sees no key has no defined result, so each sees itself, as in transformers.
    return seen | (columns == queries[:, None])[None, None]


def _torchs(case: SdpaCase, inputs: Inputs) -> Callable[[], Tensor]:
    causal, grouped = case.mask == "causal", case.kv_heads != case.heads
    return partial(functional.scaled_dot_product_attention, *inputs, is_causal=causal, enable_gqa=grouped)


def _call(case: SdpaCase, inputs: Inputs) -> Callable[[], Tensor]:
    if case.backend in ("flash-attn", "flash-attn-3"):
        return _flash_attn(case, inputs)
    return _flex(case, inputs) if case.backend == "flex" else _torchs(case, inputs)


def _flash_attn(case: SdpaCase, inputs: Inputs) -> Callable[[], Tensor]:
    module = importlib.import_module("flash_attn" if case.backend == "flash-attn" else "flash_attn_interface")
    function, causal = module.flash_attn_func, case.mask == "causal"
    # (batch, tokens, heads, head size)
    transposed = [tensor.transpose(1, 2).contiguous() for tensor in inputs[:3]]

    def call() -> Tensor:
        output = function(*transposed, causal=causal)
        result: Tensor = output[0] if isinstance(output, tuple) else output
        return result.transpose(1, 2)

    return call


def _flex(case: SdpaCase, inputs: Inputs) -> Callable[[], Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    query, key, value, mask = inputs

    def seen(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        if mask is not None:
            return mask[batch, 0, row, column]
        return row >= column

    block_mask = None
    if case.mask != "none":
        block_mask = create_block_mask(seen, case.batch, None, case.queries, case.keys, device=str(query.device))
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    grouped = case.kv_heads != case.heads

    def call() -> Tensor:
        result: Tensor = compiled(query, key, value, block_mask=block_mask, enable_gqa=grouped)
        return result

    return call


def _first(case: SdpaCase, call: Callable[[], Tensor], device: torch.device) -> Tensor:
    """Return the first call. If the kernel does not accept the input, torch warns with its reasons before it fails."""
    said: list[str] = []
    try:
        with warned() as said:
            result = call()
            synchronize(device)
    except RuntimeError as problem:
        if not any(words in str(problem) for words in NO_KERNEL):
            raise
        raise UnsupportedError(" ".join([*said, str(problem)]) + f" (on {device.type})") from problem
    return result


def _times(call: Callable[[], Tensor], device: torch.device) -> list[int]:
    """Return the time of each call in ns, by device events, or by the clock on a CPU."""
    until = time.perf_counter_ns() + _WARMUP_NS
    while time.perf_counter_ns() < until:
        call()
        synchronize(device)
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device) if on_gpu(device) else None
    times: list[int] = []
    until = time.perf_counter_ns() + _MEASURE_NS
    while len(times) < _LEAST or (time.perf_counter_ns() < until and len(times) < _MOST):
        if flush is None:
            began = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - began)
            continue
        flush.zero_()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(round(1e6 * start.elapsed_time(stop)))
    return times


def _chosen(case: SdpaCase, inputs: Inputs) -> str | None:
    """Return the kernel that torch chose for `auto`; None: not `auto`, or unknown."""
    choose = getattr(torch, "_fused_sdp_choice", None)
    if case.backend != "auto" or choose is None:
        return None
    grouped = case.kv_heads != case.heads
    chosen = choose(*inputs, 0.0, case.mask == "causal", enable_gqa=grouped)
    return next((name for name, kernel in KERNELS.items() if kernel.value == int(chosen)), None)


def _error(case: SdpaCase, result: Tensor, inputs: Inputs) -> float | None:
    """Return the largest difference to the math kernel in float32; None if that takes too much memory."""
    if case.batch * case.heads * case.queries * case.keys > _MOST_SCORES:
        return None
    query, key, value, mask = inputs
    with sdpa_kernel(KERNELS["math"]):
        exact = _torchs(case, (query.float(), key.float(), value.float(), mask))()
    return float((result.float() - exact).abs().max())
