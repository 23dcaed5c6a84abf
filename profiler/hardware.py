"""The NVIDIA driver and its GPUs, asked without torch."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_TIME_LIMIT_S = 20


def driver_version() -> str | None:
    """The GPU driver's version: the kernel module says it on Linux, nvidia-smi elsewhere."""
    module = Path("/proc/driver/nvidia/version")
    if module.is_file() and (match := re.search(r"\s(\d{3,}\.\d+(?:\.\d+)?)\s", module.read_text())):
        return match.group(1)
    found = _nvidia_smi("driver_version")
    return found[0] if found else None


def gpu_names() -> list[str]:
    """The machine's GPUs as nvidia-smi names them; empty without one, or without nvidia-smi."""
    return _nvidia_smi("name")


def _nvidia_smi(field: str) -> list[str]:
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        out = subprocess.run(query, capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in out.splitlines() if line.strip()]
