"""The compiled forward: what transformers is told, how often torch compiled something, and for how long."""

from __future__ import annotations

from typing import Any

from torch._dynamo.utils import counters, cumulative_time_spent_ns
from transformers import CompileConfig

from molprof.profiler.settings import AUTO


def compile_config(mode: str) -> CompileConfig | None:
    """What `--compile` means; None leaves it to transformers.

    `dynamic=False`: shapes are fixed by how batches are cut, so that a shape that changes shows as a recompile
    instead of as a slower graph.
    """
    if mode in (AUTO, "off"):
        return None
    backend = "eager" if mode == "eager" else "inductor"
    made: Any = CompileConfig(backend=backend, mode="default" if mode == "eager" else mode, dynamic=False)
    made._compile_all_devices = True  # on a CPU too, where transformers does not unless told so
    return made  # type: ignore[no-any-return]


def compile_settings(mode: str) -> dict[str, Any]:
    """The same as settings of `GenerationConfig`."""
    return {"disable_compile": True} if mode == "off" else {"compile_config": compile_config(mode)}


def compiled_frames() -> int:
    """Frames that torch has compiled in this process so far; a frame compiled again counts again."""
    return int(counters["frames"]["ok"])


def compile_time_ns() -> int:
    """Wall time that torch has spent on that, tracing and the backend's compilation together, by its own account."""
    return int(cumulative_time_spent_ns.get("entire_frame_compile", 0))
