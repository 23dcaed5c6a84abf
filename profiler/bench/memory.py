"""Memory of a run: the most that was taken while it was timed, and what its KV cache held."""

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
    """The most memory since it was made: allocated by torch on a GPU, resident in the process on a CPU."""

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
        """`peak_memory_bytes`, and `peak_memory_of`: what it is of."""
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
    """The most bytes that the KV cache of a batch held before any of its forwards.

    A cache that grows takes one more token by the last forward. None where no cache was seen.
    """

    largest_bytes: int | None = None

    @contextlib.contextmanager
    def watch(self, model: PreTrainedModel) -> Iterator[None]:
        """Looks at what `generate` hands to each forward; for passes whose time does not count.

        It shadows `prepare_inputs_for_generation` on the instance, as `marks.marked` does, and keeps no reference.
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
    """Bytes of all tensors of a cache's layers, each storage once; quantized ones by what they are stored in."""
    storages: dict[int, int] = {}
    for layer in getattr(cache, "layers", None) or ():
        for value in vars(layer).values():
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, Tensor) and tensor.ndim > 1:
                    inner = tensor.untyped_storage()
                    storages[inner.data_ptr()] = inner.nbytes()
    return sum(storages.values())
