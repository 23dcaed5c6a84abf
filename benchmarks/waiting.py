"""Processors that change nothing and take a known share of a step, for pairs.py: asleep, or computing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# Mean unprofiled time of a decode step without a processor, which pairs.py measures first.
STEP_NS = 0
# What the calls of each processor really took since it was cleared, ns; a busy machine wakes them late.
TAKEN_NS = dict.fromkeys(("one", "another", "sleep_1", "sleep_3", "sleep_10", "spin_3", "spin_10"), 0)


class Waiting:
    """Returns the scores as they are, after a while."""

    def __init__(self, name: str) -> None:
        way, _, percent = name.partition("_")
        self.name, self.parameters = name, {"percent": int(percent or 0)}
        self._spins, self._ns = way == "spin", STEP_NS * int(percent or 0) / 100

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if self._ns:
            began = time.perf_counter_ns()
            if self._spins:
                while time.perf_counter_ns() - began < self._ns:
                    pass
            else:
                time.sleep(self._ns / 1e9)
            TAKEN_NS[self.name] += time.perf_counter_ns() - began
        return scores


def __getattr__(name: str) -> Callable[[Any], Waiting]:
    """Return the maker of a processor: `sleep_3` is asleep for 3 % of a step, `one` and `another` do not wait."""
    if name not in TAKEN_NS:
        raise AttributeError(name)
    return lambda target: Waiting(name)
