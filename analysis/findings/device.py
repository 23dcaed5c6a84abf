"""Capabilities of a trace's devices, which decide whether a fix applies to them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.trace_processor.package import Query

Platform = Literal["CUDA", "ROCm", "XPU"]
# The first compute capability with tensor cores, with bfloat16, TF32 and flash attention in torch.
TENSOR_CORES, AMPERE = (7, 0), (8, 0)
# By pattern of the device's name in lower case; what its calls and versions tell comes after it.
_PLATFORMS: tuple[tuple[str, Platform], ...] = (
    ("*nvidia*", "CUDA"), ("*tesla*", "CUDA"), ("*geforce*", "CUDA"), ("*quadro*", "CUDA"), ("*titan*", "CUDA"),
    ("*amd*", "ROCm"), ("*instinct*", "ROCm"), ("*radeon*", "ROCm"), ("*gfx[0-9]*", "ROCm"), ("*intel*", "XPU"),
)  # fmt: skip
_SOFTWARE: dict[str, Platform] = {"HIP": "ROCm", "roctracer": "ROCm", "CUDA": "CUDA", "cupti": "CUDA"}
# Where the file does not tell it: compute capability by pattern of the name of devices before A100 in lower case.
_CAPABILITIES = (
    ("*p100*", (6, 0)), ("*p40*", (6, 1)), ("*p4", (6, 1)), ("*gtx 10*", (6, 1)), ("*v100*", (7, 0)),
    ("*titan v*", (7, 0)), ("tesla t4*", (7, 5)), ("nvidia t4", (7, 5)), ("*rtx 20*", (7, 5)),
    ("*gtx 16*", (7, 5)), ("*quadro rtx*", (7, 5)),
)  # fmt: skip
_CALLS = Query(
    "gpu_calls",
    "SELECT"
    " EXISTS(SELECT 1 FROM _molprof_call WHERE name GLOB 'hip*') AS hip,"
    " EXISTS(SELECT 1 FROM _molprof_call WHERE name GLOB 'cu[dA-Z]*') AS cuda,"
    " EXISTS(SELECT 1 FROM _molprof_call WHERE name GLOB 'ur[A-Z]*' OR name GLOB 'ze[A-Z]*') AS xpu",
)


def platform(known: TraceFacts) -> Platform | None:
    """Return the platform of the devices; None where nothing shows it."""
    trace = known.report.trace
    for name in trace.device_names:
        for pattern, kind in _PLATFORMS:
            if fnmatchcase(name.lower(), pattern):
                return kind
    calls = known.row(_CALLS)
    by_calls: tuple[tuple[str, Platform], ...] = (("hip", "ROCm"), ("cuda", "CUDA"), ("xpu", "XPU"))
    platforms = [kind for name, kind in by_calls if calls[name]]
    platforms += [kind for name, kind in _SOFTWARE.items() if name in trace.software]
    return platforms[0] if platforms else None


def copies_pinned(known: TraceFacts) -> bool:
    """Return True if all copies from the host of known memory kind are from pinned memory, and there are any."""
    names = [name.name for name in known.facts.names if name.name.startswith("Memcpy HtoD")]
    return any("Pinned" in name for name in names) and not any("Pageable" in name for name in names)


def lacks(known: TraceFacts, capability: tuple[int, int]) -> bool:
    """Return True if a CUDA device has a lower compute capability; False where that is not known."""
    if platform(known) != "CUDA":
        return False
    trace = known.report.trace
    by_name = [
        version
        for name in trace.device_names
        for pattern, version in _CAPABILITIES
        if fnmatchcase(name.lower(), pattern)
    ]
    return min(trace.capabilities or by_name or [capability]) < capability
