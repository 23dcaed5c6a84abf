"""The compiled forward: what transformers is told, and how often torch compiled during a pass."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from transformers import CompileConfig

from molprof.common.settings import AUTO

# Where torch keeps its own times, under names of its own functions. This one is entered once for every frame that is
# compiled, first or again (torch/_dynamo/convert_frame.py).
_MODULE = "torch._dynamo.utils"
_TIMES = "compilation_time_metrics"
_KEY = "_compile.compile_inner"


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


@dataclass(frozen=True)
class Compiles:
    """Compiled frames and the time in compiling them; None where this torch does not tell."""

    count: int | None
    time_ns: int | None

    def since(self, before: Compiles) -> Compiles:
        """What came on top of `before`; None where either is, or where torch forgot in between."""
        if self.count is None or before.count is None or self.time_ns is None or before.time_ns is None:
            return Compiles(None, None)
        if self.count < before.count:
            return Compiles(None, None)
        return Compiles(self.count - before.count, self.time_ns - before.time_ns)


def compiles_so_far() -> Compiles:
    """Of this process. Nothing is imported for it: without torch's compiler loaded, nothing was compiled."""
    utilities = sys.modules.get(_MODULE)
    if utilities is None:
        return Compiles(0, 0)
    times = getattr(utilities, _TIMES, None)
    if not isinstance(times, dict):
        return Compiles(None, None)
    seconds = times.get(_KEY, [])
    return Compiles(len(seconds), round(1e9 * sum(seconds)))
