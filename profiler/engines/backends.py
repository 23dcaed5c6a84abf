"""Settings of torch (attention kernels, the compiled forward), and errors for the failures that they cause."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend
from transformers import CompileConfig

from molprof.common.engine_settings import AUTO
from molprof.common.errors import RunError, UnsupportedError
from molprof.common.settings import STATIC_CACHES, CaptureSettings
from molprof.profiler.engines import BatchPlan
from molprof.profiler.environment import warned

# torch's kernels of scaled-dot-product attention by the names of `sdpa-NAME`.
KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# torch's message where no token of a row can be sampled.
_NO_CHOICE = "probability tensor contains"
# torch's messages, on a GPU and on a CPU, where none of the attention kernels that it may use can run.
NO_KERNEL = ("No available kernel", "No viable backend")


@contextmanager
def explained(plan: BatchPlan, attention: str) -> Iterator[None]:
    """Turn failures that a setting causes into errors that name the setting."""
    try:
        yield
    except torch.OutOfMemoryError as problem:
        raise RunError(
            f"out of GPU memory: {plan.rows} x ({plan.prompt_width} + {plan.max_new_tokens}) tokens",
            hint="a smaller --batch-size",
        ) from problem
    except RuntimeError as problem:
        if _NO_CHOICE in str(problem):
            raise RunError(
                "no token can be sampled: the scores of a row contain NaN or +inf, or are all -inf",
                hint="the cause may be the processor, a temperature near 0, or --dtype float16",
            ) from problem
        if not any(words in str(problem) for words in NO_KERNEL):
            raise
        raise RunError(
            f"the attention {attention!r} has no kernel for this model, mask, dtype and device: {problem}",
            hint="--attention sdpa lets torch choose",
        ) from problem


@contextmanager
def kernels_told() -> Iterator[None]:
    """Raise UnsupportedError, with torch's reasons, if an attention of the block has no kernel."""
    said: list[str] = []
    try:
        with warned() as said:
            yield
    except RunError as problem:
        if not any(words in str(problem.__cause__) for words in NO_KERNEL):
            raise
        reasons = [text for text in dict.fromkeys(said) if "attention" in text.lower() or "kernel" in text.lower()]
        raise UnsupportedError(" ".join([*reasons, str(problem.__cause__)])) from problem


def held_bytes(cache: Any) -> int:
    """Return the bytes of all tensors of a cache, each storage once; quantized tensors as stored."""
    storages: dict[int, int] = {}
    for layer in getattr(cache, "layers", None) or ():
        for value in vars(layer).values():
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor) and tensor.ndim > 1:
                    inner = tensor.untyped_storage()
                    storages[inner.data_ptr()] = inner.nbytes()
    return sum(storages.values())


def graph_breaks() -> int:
    """Return the number of graph breaks of torch.compile in this process; 0 without compiling."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return sum(counters.get("graph_break", {}).values())


def compile_config(mode: str) -> CompileConfig | None:
    """Return the compile config of a mode of `settings.COMPILE`; None leaves it to transformers.

    `dynamic=False`: all batches have one shape, and another shape should show as a recompile, not as a slower graph.
    """
    if mode in (AUTO, "off"):
        return None
    backend = "eager" if mode == "eager" else "inductor"
    config: Any = CompileConfig(backend=backend, mode="default" if mode == "eager" else mode, dynamic=False)
    config._compile_all_devices = True  # transformers compiles on GPUs only, unless this is set
    return config  # type: ignore[no-any-return]


def is_compiled(settings: CaptureSettings, gpu: bool) -> bool:
    """Return True if the forward of a decode step is compiled."""
    if settings.drop_finished or settings.kv_cache not in STATIC_CACHES:
        return False
    return gpu if settings.compile == AUTO else settings.compile != "off"


@dataclass(frozen=True)
class Compiles:
    """Number of compiled frames and the time to compile them; None if this torch does not report it."""

    count: int | None
    time_ns: int | None

    def since(self, before: Compiles) -> Compiles:
        """Return the difference; None if either is, or if torch's counts were reset in between."""
        if self.count is None or before.count is None or self.count < before.count:
            return Compiles(None, None)
        return Compiles(self.count - before.count, (self.time_ns or 0) - (before.time_ns or 0))


def compiles_so_far() -> Compiles:
    """Return the compiles of this process. Imports nothing: if torch's compiler is not loaded, there are none."""
    utilities = sys.modules.get("torch._dynamo.utils")
    if utilities is None:
        return Compiles(0, 0)
    times = getattr(utilities, "compilation_time_metrics", None)
    if not isinstance(times, dict):
        return Compiles(None, None)
    # torch keeps the times of its functions by name; this one runs once per compiled frame, the first time or again.
    seconds = times.get("_compile.compile_inner", [])
    return Compiles(len(seconds), round(1e9 * sum(seconds)))
