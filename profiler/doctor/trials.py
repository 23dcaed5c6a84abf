"""What the doctor tries, each in a process of its own: imports that may crash, kernels that may not run."""

from __future__ import annotations

from typing import Any


def torch_build() -> dict[str, Any]:
    """torch's version and what it was built for; the GPUs that it sees."""
    import torch

    seen = torch.cuda.is_available()
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if seen else None,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if seen else [],
    }


def imported(module: str) -> dict[str, Any]:
    """A module that is there and loads, with all its compiled parts; its own version where it has one."""
    import importlib

    found = importlib.import_module(module)
    return {"version": getattr(found, "__version__", None)}


def attention(backend: str) -> dict[str, Any]:
    """Runs one of torch's attention kernels, on the first GPU, or where there is none on the CPU.

    Args:
        backend: name of a `torch.nn.attention.SDPBackend`.

    Raises:
        RuntimeError: torch has no kernel of this kind for the device; the warnings say why.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    query = torch.ones(1, 4, 16, 64, device=device, dtype=dtype)  # batch, heads, positions, head size
    with sdpa_kernel(getattr(SDPBackend, backend)):
        result = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    # Every value is one, so that any weighted mean is.
    if not torch.allclose(result.float().cpu(), torch.ones(1, 4, 16, 64), atol=1e-2):
        raise RuntimeError("its results are wrong")
    return {"device": device}


def preset(name: str) -> dict[str, Any]:
    """A preset's checkpoint and its tokenizer, without torch.

    Raises:
        MolprofError: the checkpoint is damaged, or the vocabulary's package is not installed.
    """
    from molprof.profiler.models.backends import load_backend
    from molprof.profiler.models.checkpoint import checkpoint_path, read_header

    read_header(checkpoint_path(name))
    return {"tokens": load_backend(name).get_vocab_size()}
