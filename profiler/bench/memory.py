"""Memory of a run: its peak in the timed passes, and the size of its KV cache."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs


class Peak:
    """Peak memory since its creation: what torch allocated on a GPU, or resident memory on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._reset = True
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        try:
            _CLEAR.write_text(_RESET_PEAK)
        except OSError:
            self._reset = False

    def read(self) -> dict[str, Any]:
        """Return `peak_memory_bytes`, and in `peak_memory_of` which memory that is."""
        if self._device.type == "cuda":
            return {
                "peak_memory_bytes": torch.cuda.max_memory_allocated(self._device),
                "peak_memory_of": "GPU memory that torch allocated in the timed passes",
            }
        since = "in the timed passes" if self._reset else "since the process began"
        return {"peak_memory_bytes": _high_water(), "peak_memory_of": f"resident memory of the process {since}"}


def _high_water() -> int | None:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


class CacheSize:
    """The largest KV cache of any batch, in bytes, as it was before a forward; None if no cache was seen.

    The last forward adds one more token to a cache that grows.
    """

    largest_bytes: int | None = None

    @contextlib.contextmanager
    def watch(self, model: PreTrainedModel) -> Iterator[None]:
        """Measure the cache of each forward inside the block; not for timed passes.

        It shadows `prepare_inputs_for_generation` on the instance, as `marks.marked` does.
        """
        original: Callable[..., Any] = model.prepare_inputs_for_generation  # type: ignore[assignment]

        @functools.wraps(original)
        def prepare(*args: Any, **kwargs: Any) -> Any:
            size = held_bytes(kwargs.get("past_key_values"))
            if size:
                self.largest_bytes = max(size, self.largest_bytes or 0)
            return original(*args, **kwargs)

        model.__dict__["prepare_inputs_for_generation"] = prepare
        try:
            yield
        finally:
            del model.__dict__["prepare_inputs_for_generation"]


def held_bytes(cache: Any) -> int:
    """Return the bytes of all tensors of a cache, each storage once; quantized tensors as stored."""
    storages: dict[int, int] = {}
    for layer in getattr(cache, "layers", None) or ():
        for value in vars(layer).values():
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, Tensor) and tensor.ndim > 1:
                    inner = tensor.untyped_storage()
                    storages[inner.data_ptr()] = inner.nbytes()
    return sum(storages.values())
