"""The compiled forward: what transformers is told, and how often torch compiled during a pass."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from transformers import CompileConfig

from molprof.common.settings import AUTO


def compile_config(mode: str) -> CompileConfig | None:
    """The compile config of a mode of `settings.COMPILE`; None leaves it to transformers.

    `dynamic=False`: all batches have one shape, and another shape should show as a recompile, not as a slower graph.
    """
    if mode in (AUTO, "off"):
        return None
    backend = "eager" if mode == "eager" else "inductor"
    made: Any = CompileConfig(backend=backend, mode="default" if mode == "eager" else mode, dynamic=False)
    made._compile_all_devices = True  # transformers compiles on GPUs only, unless this is set
    return made  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Compiles:
    """Compiled frames and the time in compiling them; None if this torch does not say."""

    count: int | None
    time_ns: int | None

    def since(self, before: Compiles) -> Compiles:
        """The difference; None if either is, or if torch's counts were reset in between."""
        if self.count is None or before.count is None or self.count < before.count:
            return Compiles(None, None)
        return Compiles(self.count - before.count, (self.time_ns or 0) - (before.time_ns or 0))


def compiles_so_far() -> Compiles:
    """All of this process. Imports nothing: if torch's compiler is not loaded, nothing was compiled."""
    utilities = sys.modules.get("torch._dynamo.utils")
    if utilities is None:
        return Compiles(0, 0)
    times = getattr(utilities, "compilation_time_metrics", None)
    if not isinstance(times, dict):
        return Compiles(None, None)
    # torch keeps the times of its functions by name; this one runs once per compiled frame, the first time or again.
    seconds = times.get("_compile.compile_inner", [])
    return Compiles(len(seconds), round(1e9 * sum(seconds)))
