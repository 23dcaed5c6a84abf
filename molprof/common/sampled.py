"""Samples of the Python functions of logits processors: what a recording keeps of them, and sums by function and line.

The profiler writes them into the manifest, the analysis reads them there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

# Fewer samples tell no shares.
_LEAST = 20


class SampledStack(Struct, frozen=True):
    """Functions inside each other, and how often they were seen so."""

    functions: list[int]  # places in `SampledFunctions.functions`, the outermost first
    lines: list[int]  # the line that runs, of each
    samples: int
    time_ns: int  # that the samples stand for


class SampledFunctions(Struct, frozen=True):
    """Where the phase `processor` of recorded steps passes, sampled: functions of processors and what they call."""

    steps: int
    phase_ns: int  # time of the phase in these steps
    interval_ns: int  # between two samples of a step, at the end
    samples: int
    cost_ns: int  # CPU time of sampling
    other_ns: int  # that samples in none of these functions stand for: what calls processors
    functions: list[str]  # file(line): name, where the line is the first of the function
    program: list[int]  # places of those that are in no installed package
    stacks: list[SampledStack]  # the longest first

    @property
    def sampled_ns(self) -> int:
        """Time that all samples stand for."""
        return sum(stack.time_ns for stack in self.stacks) + self.other_ns

    @property
    def is_enough(self) -> bool:
        """Whether there are samples enough to tell what takes the time."""
        return self.samples >= _LEAST and bool(self.stacks)

    def by_function(self) -> Counter[str]:
        """Time by the innermost function, ns."""
        found = Counter[str]()
        for stack in self.stacks:
            found[self.functions[stack.functions[-1]]] += stack.time_ns
        return found

    def inside(self) -> Counter[str]:
        """Time by function, what it calls included, ns."""
        found = Counter[str]()
        for stack in self.stacks:
            for place in set(stack.functions):
                found[self.functions[place]] += stack.time_ns
        return found

    def by_line(self) -> Counter[tuple[str, int]]:
        """Time by line and its function, ns: the innermost of the program; where it has none, of the outermost."""
        found = Counter[tuple[str, int]]()
        for stack in self.stacks:
            place = next((place for place in self._inner(stack) if stack.functions[place] in self.program), 0)
            found[self.functions[stack.functions[place]], stack.lines[place]] += stack.time_ns
        return found

    @staticmethod
    def _inner(stack: SampledStack) -> Iterator[int]:
        return reversed(range(len(stack.functions)))
