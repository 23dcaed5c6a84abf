"""Changes that a user wants to try on a trace: shorter kernels, removed host time, launches in graphs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from molprof.common.errors import UsageError

LAUNCHES, SYNCS, GPU, HOST, CALLS, OPERATORS = "launches", "syncs", "gpu", "host", "calls", "operators"
# What is changed otherwise than by a factor, with the word for it.
WORDS = {LAUNCHES: "graph", SYNCS: "none"}
# Between two kernels of a replayed graph. Recorded H100 graphs have 0.49 us on average (Qwen3-0.6B compiled, traces/
# h100-qwen-static*.json.gz, 10,460 gaps) and 0.43 (vLLM with four GPUs, 7,938), MI300X next to none (SGLang, vLLM).
GRAPH_PAUSE_NS = 500
_MOST = 1000
_FORM = "such as elementwise=0.5x, mask_fill=0x, 'aten::cat=0.2x', launches=graph or syncs=none"


class WhatIfChange(NamedTuple):
    """A change: all that a name selects takes `factor` times as long; None for `launches=graph` and `syncs=none`."""

    name: str
    factor: float | None

    def __str__(self) -> str:
        return f"{self.name}={WORDS[self.name] if self.factor is None else f'{self.factor:g}x'}"


def parse_changes(texts: Sequence[str]) -> tuple[WhatIfChange, ...]:
    """Parse changes such as 'elementwise=0.2x,launches=graph'. Raises UsageError."""
    return tuple(_change(item.strip()) for text in texts for item in text.split(","))


def _change(text: str) -> WhatIfChange:
    name, equals, value = (part.strip() for part in text.rpartition("="))
    if not equals or not name:
        raise UsageError(f"{text!r} is no change", hint=_FORM)
    if name in WORDS:
        if value != WORDS[name]:
            raise UsageError(f"{text!r} is no change", hint=f"{name}={WORDS[name]}")
        return WhatIfChange(name, None)
    try:
        factor = float(value.removesuffix("x"))
    except ValueError:
        factor = math.nan
    if not 0 <= factor <= _MOST:
        raise UsageError(f"{text!r} is no change: {value!r} is no factor from 0 to {_MOST:,}", hint=_FORM)
    return WhatIfChange(name, factor)


def is_pattern(change: WhatIfChange, classes: Collection[str], phases: Collection[str]) -> bool:
    """Return True if a change selects operators and functions by their names."""
    return change.name not in {*WORDS, GPU, HOST, CALLS, OPERATORS, *classes, *phases}


def matches(name: str, pattern: str) -> bool:
    """Return True if a name matches the pattern; `*` stands for any text. Case counts."""
    return name == pattern or fnmatchcase(name, pattern)
