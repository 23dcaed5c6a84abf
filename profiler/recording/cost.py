"""What the marks of a run cost."""

from __future__ import annotations

import inspect
import statistics
import timeit
from collections.abc import Callable

from transformers import LogitsProcessor

from molprof.profiler.recording.marks import HostMarks


def mark_cost_ns() -> float:
    """Measured cost of one host timestamp as `HostMarks` takes it, in ns."""
    return _cost_ns(HostMarks().processor, 2000)


def signature_cost_ns() -> float:
    """Measured cost of one signature inspection as `LogitsProcessorList` makes it, in ns."""
    call = LogitsProcessor().__call__
    return _cost_ns(lambda: inspect.signature(call).parameters, 200)


def _cost_ns(action: Callable[[], object], calls: int) -> float:
    """Median of nine averages."""
    return 1e9 / calls * statistics.median(timeit.repeat(action, repeat=9, number=calls))
