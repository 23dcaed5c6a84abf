"""What a machine can run, found out by a process of its own, and what is unsupported there before it starts."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from molprof.common.settings import AUTO
from molprof.profiler.bench.cases import Case, GenerateCase, SdpaCase

# Import name -> what pip calls it.
_PACKAGES = {
    "flash_attn": "flash-attn",
    "flash_attn_interface": "flash-attn 3",
    "optimum.quanto": "optimum-quanto",
    "xgrammar": "xgrammar",
    "llguidance": "llguidance",
    "triton": "triton",
}
_ATTENTION_PACKAGES = {
    "flash_attention_2": "flash_attn",
    "flash_attention_3": "flash_attn_interface",
    "flash-attn": "flash_attn",
    "flash-attn-3": "flash_attn_interface",
}
_GPU_KERNELS = ("efficient", "cudnn")


@dataclass(frozen=True)
class Facts:
    """What decides whether a case can run here.

    Attributes:
        device: as torch names it, `cpu` or `cuda:N`.
        capability: of the GPU, major and minor; None on a CPU.
        compiler: something is there that torch.compile can make code with.
        packages: import names of the optional packages that are installed.
        environment: hardware and versions, as in a capture's manifest.
    """

    device: str
    capability: tuple[int, int] | None
    compiler: bool
    packages: tuple[str, ...]
    environment: dict[str, Any]

    @property
    def gpu(self) -> bool:
        """Cases run on a GPU."""
        return self.capability is not None


def read_facts(device: str, threads: int | None, names: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """`Facts` as a JSON object. Imports torch: for a process of its own.

    Args:
        names: of models and tokenizers that must be there: `model` or `tokenizer`, and its name.

    Raises:
        UsageError: no such device, or no such model or tokenizer.
    """
    import torch

    from molprof.profiler.environment import environment
    from molprof.profiler.models.hub import check_exists
    from molprof.profiler.models.load import resolve_device

    for what, name in names:
        check_exists(what, name)

    if threads is not None:
        torch.set_num_threads(threads)
    where = resolve_device(device)
    on_gpu = where.type == "cuda"
    packages = tuple(name for name in _PACKAGES if _installed(name))
    return {
        "device": str(where),
        "capability": torch.cuda.get_device_capability(where) if on_gpu else None,
        "compiler": "triton" in packages if on_gpu else _cpp_compiler(),
        "packages": packages,
        "environment": asdict(environment(where)),
    }


def named(cases: Iterable[Case]) -> tuple[tuple[str, str], ...]:
    """The models and tokenizers of cases, each once: what `read_facts` looks for."""
    found = [("model", case.model) for case in cases if isinstance(case, GenerateCase)]
    found += [("tokenizer", case.tokenizer) for case in cases if isinstance(case, GenerateCase) and case.tokenizer]
    return tuple(dict.fromkeys(found))


def facts_from(raw: dict[str, Any]) -> Facts:
    """`Facts` from what `read_facts` gave, through JSON."""
    capability = None if raw["capability"] is None else (int(raw["capability"][0]), int(raw["capability"][1]))
    return Facts(raw["device"], capability, bool(raw["compiler"]), tuple(raw["packages"]), dict(raw["environment"]))


def unsupported(case: Case, facts: Facts) -> str | None:
    """Why the case cannot run here; None where nothing is known against it."""
    return _sdpa(case, facts) if isinstance(case, SdpaCase) else _generate(case, facts)


def _sdpa(case: SdpaCase, facts: Facts) -> str | None:
    if case.backend in _ATTENTION_PACKAGES:
        return _flash_attn(case.backend, case.dtype, facts) or (
            "flash-attn takes no mask but the causal one" if case.mask == "padding" else None
        )
    if case.backend == "flex" and not facts.compiler:
        return _no_compiler("flex attention", facts)
    return None


def _generate(case: GenerateCase, facts: Facts) -> str | None:
    attention = case.attention
    if attention in _ATTENTION_PACKAGES and (reason := _flash_attn(attention, case.dtype, facts)):
        return reason
    if attention.startswith("sdpa-") and attention.removeprefix("sdpa-") in _GPU_KERNELS and not facts.gpu:
        return f"torch has the kernel of {attention!r} on GPUs only"
    if attention == "flex_attention" and not facts.compiler:
        return _no_compiler("flex attention", facts)
    if case.kv_cache.startswith("offloaded") and not facts.gpu:
        return "an offloaded cache lies in the host's memory, and so does any cache without a GPU"
    if case.kv_cache == "quantized" and "optimum.quanto" not in facts.packages:
        return "a quantized cache needs the package optimum-quanto: pip install optimum-quanto"
    if case.compile not in ("off", "eager", AUTO) and not facts.compiler:
        return _no_compiler(f"compile {case.compile!r}", facts)
    if case.tf32 and (facts.capability is None or facts.capability < (8, 0)):
        return "TF32 is of NVIDIA GPUs from compute capability 8.0 on"
    if case.cudnn_benchmark and not facts.gpu:
        return "cuDNN runs on GPUs only"
    for package in ("xgrammar", "llguidance"):
        if case.processor == package and package not in facts.packages:
            return f"the processor {package!r} needs the package {package}: pip install 'molprof[{package}]'"
    return None


def _flash_attn(name: str, dtype: str, facts: Facts) -> str | None:
    package = _ATTENTION_PACKAGES[name]
    if not facts.gpu:
        return f"{name} runs on GPUs only"
    if package not in facts.packages:
        return f"{name} needs the package {_PACKAGES[package]}"
    if dtype == "float32":
        return f"{name} takes 16-bit numbers only, not float32"
    if package == "flash_attn_interface" and facts.capability is not None and facts.capability < (9, 0):
        return f"{name} needs compute capability 9.0, this GPU has {facts.capability[0]}.{facts.capability[1]}"
    return None


def _no_compiler(what: str, facts: Facts) -> str:
    return f"{what} needs {'the package triton' if facts.gpu else 'a C++ compiler (g++ or $CXX)'}"


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # its parent package is missing, or broken
        return False


def _cpp_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name)
