"""The device of a model: its name, numeric types, memory, and synchronization."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from molprof.common.engine_settings import AUTO
from molprof.common.errors import UsageError
from molprof.common.memory import available_bytes, numbers
from molprof.common.settings import CaptureSettings

_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs


def on_gpu(device: torch.device) -> bool:
    """Return True for a GPU. All code that depends on that asks here."""
    return device.type == "cuda"


def resolve_device(name: str) -> torch.device:
    """Return the device `auto`, `cpu`, `cuda` or `cuda:N`. Raises UsageError if there is none."""
    if name == AUTO:
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    kind, _, number = name.partition(":")
    if kind == "cpu" and not number:
        return torch.device("cpu")
    if kind != "cuda" or (number and not number.isdigit()):
        raise UsageError(f"no device {name!r}", hint="use auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise UsageError(
            f"the device {name!r} is not available: torch {torch.__version__} finds no GPU", "--device cpu"
        )
    index = int(number or 0)
    if index >= torch.cuda.device_count():
        raise UsageError(f"no GPU {index}; torch finds {torch.cuda.device_count()}", hint="use cuda:0")
    return torch.device("cuda", index)


def capability(device: torch.device) -> tuple[int, int] | None:
    """Return the compute capability of a GPU, major and minor; None on a CPU."""
    return torch.cuda.get_device_capability(device) if on_gpu(device) else None


def set_arithmetic(settings: CaptureSettings) -> None:
    """Set torch's global float32 precision of matrix products and cuDNN's choice of kernels."""
    torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = settings.tf32
    torch.backends.cudnn.benchmark = settings.cudnn_benchmark


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return one of `DTYPES`; `auto` is bfloat16 on a GPU and float32 on a CPU."""
    if name == AUTO:
        return torch.bfloat16 if on_gpu(device) else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def synchronize(device: torch.device) -> None:
    """Wait for the GPU, if it is one."""
    if on_gpu(device):
        torch.cuda.synchronize(device)


def settled_ns(device: torch.device) -> int:
    """Return the clock in ns, after the device has finished all its work."""
    synchronize(device)
    return time.perf_counter_ns()


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the host's tensor, in page-locked memory if it will go to a GPU: only then is its copy asynchronous."""
    return tensor.pin_memory() if on_gpu(device) else tensor


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of the GPU, else of the host; None if unknown."""
    return torch.cuda.mem_get_info(device)[0] if on_gpu(device) else available_bytes()


def peak_bytes(device: torch.device) -> int | None:
    """Return the most memory that torch has allocated on the GPU; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if on_gpu(device) else None


class Peak:
    """Peak memory since this was created: allocated by torch on a GPU, or resident on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._reset = True
        if on_gpu(device):
            torch.cuda.reset_peak_memory_stats(device)
            return
        try:
            _CLEAR.write_text(_RESET_PEAK)
        except OSError:
            self._reset = False

    def read(self) -> dict[str, Any]:
        """Return `peak_memory_bytes`, and in `peak_memory_of` which memory it is."""
        if on_gpu(self._device):
            return {
                "peak_memory_bytes": peak_bytes(self._device),
                "peak_memory_of": "GPU memory that torch allocated in the timed passes",
            }
        since = "in the timed passes" if self._reset else "since the process began"
        highest = None
        with contextlib.suppress(OSError):
            highest = numbers(Path("/proc/self/status")).get("VmHWM", 0) * 1024 or None
        return {"peak_memory_bytes": highest, "peak_memory_of": f"resident memory of the process {since}"}
