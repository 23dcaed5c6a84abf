"""How often torch.compile compiled, and how long that took: compiling inside a timed pass is no generation."""

from __future__ import annotations

import sys
from dataclasses import dataclass

# Where torch keeps its own times, under names of its own functions. This one is entered once for every frame that is
# compiled, first or again (torch/_dynamo/convert_frame.py).
_MODULE = "torch._dynamo.utils"
_TIMES = "compilation_time_metrics"
_KEY = "_compile.compile_inner"


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
