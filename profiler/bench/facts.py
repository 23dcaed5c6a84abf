"""Capabilities of a machine, and the reason why a case cannot run there."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from molprof.common.document import Document, Section, table_of
from molprof.common.engine_settings import AUTO
from molprof.common.errors import MissingExtraError, RunError, UsageError
from molprof.common.installed import install_command
from molprof.common.memory import default_threads
from molprof.common.process import OK
from molprof.common.process.guarded import Limits, call
from molprof.common.settings import CaptureSettings
from molprof.common.typed_json import read_typed
from molprof.common.values import counted
from molprof.profiler.bench.cases import ENGINES, Case, LineCase, MasksCase, SdpaCase, case_id

# Import name -> what pip calls it.
_PACKAGES = {
    "flash_attn": "flash-attn",
    "flash_attn_interface": "flash-attn 3",
    "optimum.quanto": "optimum-quanto",
    "xgrammar": "xgrammar",
    "llguidance": "llguidance",
    "outlines_core": "outlines-core",
    "lmformatenforcer": "lm-format-enforcer",
    "jsonschema_rs": "jsonschema-rs",
    "triton": "triton",
}
_ATTENTION_PACKAGES = {
    "flash_attention_2": "flash_attn",
    "flash_attention_3": "flash_attn_interface",
    "flash-attn": "flash_attn",
    "flash-attn-3": "flash_attn_interface",
}
_GPU_KERNELS = ("sdpa-efficient", "sdpa-cudnn")
_LIMIT_S = 120.0
LINE = "line"  # of a sweep


@dataclass(frozen=True)
class CaseFacts:
    """Facts of a machine that decide whether a case can run."""

    device: str  # `cpu` or `cuda:N`
    capability: tuple[int, int] | None  # compute capability, major and minor; None on a CPU
    compiler: bool  # torch.compile has a compiler
    packages: tuple[str, ...]  # import names of the installed optional packages
    environment: dict[str, Any]  # hardware and versions, as in a manifest

    @property
    def gpu(self) -> bool:
        """True if the case runs on a GPU."""
        return self.capability is not None


def read_machine(device: str, threads: int | None, cases: Sequence[Case] = ()) -> CaseFacts:
    """Return the machine's capabilities; UsageError if the device, or a model or tokenizer of the cases, is missing."""
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(name, "presets", "this command")
    captures = [case.settings for case in cases if isinstance(case, LineCase) and case.settings is not None]
    names = [("model", settings.model) for settings in captures]
    names += [("tokenizer", settings.tokenizer) for settings in captures if settings.tokenizer]
    names += [("tokenizer", case.tokenizer) for case in cases if isinstance(case, MasksCase)]
    target = f"{__name__}:read_facts"
    count = None if any(isinstance(case, MasksCase) for case in cases) else threads  # those of --threads fill masks
    kind = "" if not cases else LINE if isinstance(cases[0], LineCase) else cases[0].kind
    ending = call(target, device, count, list(dict.fromkeys(names)), kind, limits=Limits(_LIMIT_S))
    if ending.state != OK and ending.hint is not None:
        raise UsageError(ending.message or "no such device", ending.hint)
    if ending.state != OK:
        text = f"cannot find out what this machine can run: {ending.message}"
        raise RunError(text, hint="molprof doctor checks what works on this machine")
    return read_typed(ending.value, CaseFacts, "facts")


def read_facts(device: str, threads: int | None, names: Sequence[tuple[str, str]], kind: str = "") -> dict[str, Any]:
    """Return `CaseFacts` as JSON; UsageError if one of `names` (`model` or `tokenizer`, and its name) does not exist.

    kind: of the cases. Those of masks and, on a CPU, captures have fewer threads than torch takes by itself.
    """
    import torch

    from molprof.profiler.environment import environment
    from molprof.profiler.models.device import capability, on_gpu, resolve_device
    from molprof.profiler.models.hub import check_exists

    for what, name in names:
        check_exists(what, name)
    where = resolve_device(device)
    if threads is not None or kind == MasksCase.kind or (kind == LINE and not on_gpu(where)):
        torch.set_num_threads(threads or default_threads(torch.get_num_threads()))
    packages = tuple(name for name in _PACKAGES if _installed(name))
    compilers = filter(None, (os.environ.get("CXX"), "g++", "clang++"))
    return {
        "device": str(where),
        "capability": capability(where),
        "compiler": "triton" in packages if on_gpu(where) else any(map(shutil.which, compilers)),
        "packages": packages,
        "environment": asdict(environment(where)),
    }


def unsupported(case: Case, facts: CaseFacts | None) -> str | None:
    """Return why the case cannot run here, or None if nothing is known against it."""
    if facts is None:
        return case.reason if isinstance(case, LineCase) else None
    if isinstance(case, LineCase):
        return case.reason or (_generate(case.settings, facts) if case.settings and case.is_measured else None)
    return _sdpa(case, facts) if isinstance(case, SdpaCase) else _masks(case, facts)


def _masks(case: MasksCase, facts: CaseFacts) -> str | None:
    needed = ["jsonschema_rs", *(ENGINES[name][1] for name in (case.engine, case.other) if name is not None)]
    missing = [_PACKAGES[name] for name in needed if name is not None and name not in facts.packages]
    return f"it requires the package {missing[0]}: pip install {missing[0]}" if missing else None


def _sdpa(case: SdpaCase, facts: CaseFacts) -> str | None:
    if case.backend in _ATTENTION_PACKAGES:
        return _flash_attn(case.backend, case.dtype, facts) or (
            "flash-attn accepts no mask but the causal one" if case.mask == "padding" else None
        )
    if case.backend == "flex" and not facts.compiler:
        return _no_compiler("flex attention", facts)
    return None


def _generate(case: CaptureSettings, facts: CaseFacts) -> str | None:
    if reason := case.without_device(facts.capability):
        return reason
    attention = case.attention
    if attention in _ATTENTION_PACKAGES and (reason := _flash_attn(attention, case.dtype, facts)):
        return reason
    if attention in _GPU_KERNELS and not facts.gpu:
        return f"{attention!r} runs on GPUs only"
    if attention == "flex_attention" and not facts.compiler:
        return _no_compiler("flex attention", facts)
    if case.kv_cache == "quantized" and "optimum.quanto" not in facts.packages:
        return "a quantized cache requires the package optimum-quanto: pip install optimum-quanto"
    if case.compile not in ("off", "eager", AUTO) and not facts.compiler:
        return _no_compiler(f"compile {case.compile!r}", facts)
    for package in ("xgrammar", "llguidance"):
        if case.processor == package and package not in facts.packages:
            return f"the processor {package!r} requires the package {package}: {install_command(package, package)}"
    return None


def _flash_attn(name: str, dtype: str, facts: CaseFacts) -> str | None:
    package = _ATTENTION_PACKAGES[name]
    if not facts.gpu:
        return f"{name} runs on GPUs only"
    if package not in facts.packages:
        return f"{name} requires the package {_PACKAGES[package]}"
    if dtype == "float32":
        return f"{name} accepts 16-bit numbers only, not float32"
    if package == "flash_attn_interface" and facts.capability is not None and facts.capability < (9, 0):
        return f"{name} requires compute capability 9.0; this GPU has {facts.capability[0]}.{facts.capability[1]}"
    return None


def _no_compiler(what: str, facts: CaseFacts) -> str:
    return f"{what} requires {'the package triton' if facts.gpu else 'a C++ compiler (g++ or $CXX)'}"


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # its parent package is missing, or broken
        return False


def cases_document(cases: Sequence[Case], facts: CaseFacts, repeats: int) -> Document:
    """Return the cases, with the reasons of those that cannot run here."""
    rows = [{"id": case_id(case), "label": case.label(), "unsupported": unsupported(case, facts)} for case in cases]
    able = sum(row["unsupported"] is None for row in rows)
    where = facts.environment.get("gpu") or facts.environment.get("cpu") or facts.device
    summary = (
        f"{able} of {len(cases)} cases can run on {facts.device} ({where}), {counted(repeats, 'process', 'es')} each"
    )
    table = table_of(
        rows, ("case", "text", "id"), ("settings", "text", "label"), ("unsupported here", "text", "unsupported"),
        missing="",
    )  # fmt: skip
    return Document("Benchmark cases", (Section("", table=table),), lambda: rows, summary=(summary,))
