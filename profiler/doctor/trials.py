"""Trials of the doctor, each in a process with a time limit, so that a crash or hang does no harm."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from molprof.common.engine_settings import AUTO
from molprof.profiler.environment import driver_version, gpu_names, warned


def driver() -> dict[str, Any]:
    """Return the version of NVIDIA's driver, and the names of its GPUs."""
    return {"version": driver_version(), "gpus": gpu_names()}


def torch_build() -> dict[str, Any]:
    """Return torch's version, its build target, and the GPUs that it sees."""
    with warned() as said:
        import torch

        seen = torch.cuda.is_available()
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if seen else None,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if seen else [],
        "warnings": said,
    }


def imported(module: str, *names: str) -> dict[str, Any]:
    """Import a module with its compiled parts, and return its own version, if it has one.

    names: what of it is imported too, where it imports its parts when they are asked for.
    """
    package = import_module(module)
    for name in names:
        getattr(package, name)
    return {"version": getattr(package, "__version__", None)}


def attention(*backends: str) -> dict[str, dict[str, Any]]:
    """Run the kernel of each `torch.nn.attention.SDPBackend`, on the first GPU, else on the CPU.

    Returns the `device` by backend, or the `problem`.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from molprof.profiler.models.device import resolve_device, resolve_dtype

    device = resolve_device(AUTO)
    dtype = resolve_dtype(AUTO, device)
    query = torch.ones(1, 4, 16, 64, device=device, dtype=dtype)  # batch, heads, positions, head size
    outcomes: dict[str, dict[str, Any]] = {}
    for backend in backends:
        said: list[str] = []
        try:
            with warned() as said, sdpa_kernel(getattr(SDPBackend, backend)):
                result = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
        except RuntimeError as problem:  # torch warns of each reason before it
            outcomes[backend] = {"problem": "; ".join(said) or " ".join(str(problem).split())}
            continue
        # Every value is one, and so is any weighted mean of them.
        good = torch.allclose(result.float().cpu(), torch.ones(1, 4, 16, 64), atol=1e-2)
        outcomes[backend] = {"device": device.type} if good else {"problem": "its results are wrong"}
    return outcomes


def preset(name: str) -> dict[str, Any]:
    """Read a preset's checkpoint and its tokenizer, without torch."""
    from molprof.profiler.models.checkpoint import checkpoint_path, read_header
    from molprof.profiler.models.tokenizers import load_backend

    read_header(checkpoint_path(name))
    return {"tokens": load_backend(name).get_vocab_size()}
