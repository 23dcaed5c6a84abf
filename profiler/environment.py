"""What a run ran on: hardware and software versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path

import torch
import transformers

from molprof.common.manifest import Environment
from molprof.profiler.hardware import driver_version


def environment(device: torch.device) -> Environment:
    """The machine and the versions, as far as they matter for timings on `device`."""
    gpu = memory = cuda = cudnn = None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        gpu, memory, cuda = (
            properties.name,
            int(properties.total_memory),
            torch.version.cuda or torch.version.hip,
        )
        version = torch.backends.cudnn.version()
        cudnn = None if version is None else str(version)
    return Environment(
        gpu=gpu,
        gpu_memory_bytes=memory,
        driver=driver_version() if gpu else None,
        cuda=cuda,
        cudnn=cudnn,
        torch=torch.__version__,
        transformers=transformers.__version__,
        flash_attn=_version("flash-attn"),
        molprof=_version("molprof") or "not installed",
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=_cpu(),
        cores=_cores(),
        threads=torch.get_num_threads(),
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file() and (match := re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)):
        return match.group(1).strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    """Cores that this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
