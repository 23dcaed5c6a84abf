"""Processors that change nothing and sleep a known share of a step, for pairs.py."""

from __future__ import annotations

import time
from typing import Any

# Mean unprofiled time of a decode step without a processor, which pairs.py measures first.
STEP_NS = 0
# What the calls of each processor really slept since it was cleared, ns; a busy machine wakes them late.
SLEPT_NS = dict.fromkeys(("one", "another", "sleep_1", "sleep_3", "sleep_10"), 0)


class Sleeping:
    """Returns the scores as they are, after a sleep."""

    def __init__(self, name: str, percent: int) -> None:
        self.name, self.parameters = name, {"percent": percent}
        self._seconds = STEP_NS * percent / 100 / 1e9

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if self._seconds:
            began = time.perf_counter_ns()
            time.sleep(self._seconds)
            SLEPT_NS[self.name] += time.perf_counter_ns() - began
        return scores


def one(target: Any) -> Sleeping:
    """Does not sleep."""
    return Sleeping("one", 0)


def another(target: Any) -> Sleeping:
    """The same under another name."""
    return Sleeping("another", 0)


def sleep_1(target: Any) -> Sleeping:
    return Sleeping("sleep_1", 1)


def sleep_3(target: Any) -> Sleeping:
    return Sleeping("sleep_3", 3)


def sleep_10(target: Any) -> Sleeping:
    return Sleeping("sleep_10", 10)
