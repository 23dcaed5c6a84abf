"""The compiled forward: what transformers is told."""

from __future__ import annotations

from typing import Any

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
