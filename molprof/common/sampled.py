"""Samples of Python functions of logits processors, as a recording stores them, with sums by function and line.

The profiler writes them into the manifest, the analysis reads them there.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

# Fewer samples tell no shares.
_LEAST = 20


class SampledStack(Struct, frozen=True):
    """A stack of functions, and the number of samples that show it."""

    functions: list[int]  # places in `SampledFunctions.functions`, the outermost first
    lines: list[int]  # the line that runs, of each
    samples: int
    time_ns: int  # that the samples stand for


class SampledFunctions(Struct, frozen=True):
    """Samples of the phase `processor` of recorded steps: functions of processors and those that they call."""

    steps: int  # that were sampled: every other one
    phase_ns: int  # time of the phase in these steps
    interval_ns: int  # between two samples of a step, at the end
    samples: int
    held_ns: int  # for which taking samples kept the interpreter
    step_ns: int  # median time of the phase in a sampled step
    other_step_ns: int | None  # and in a recorded step that was not; None without one
    other_ns: int  # that samples in none of these functions stand for: what calls processors
    functions: list[str]  # file(line): name, where the line is the first of the function
    program: list[int]  # places of those that are in no installed package
    stacks: list[SampledStack]  # the longest first

    @property
    def sampled_ns(self) -> int:
        """The time that all samples represent."""
        return sum(stack.time_ns for stack in self.stacks) + self.other_ns

    @property
    def slowdown(self) -> float | None:
        """The factor by which sampling lengthened the phase, noise included; None without steps to compare."""
        return self.step_ns / self.other_step_ns if self.other_step_ns else None

    @property
    def is_enough(self) -> bool:
        """True if there are enough samples to show where the time goes."""
        return self.samples >= _LEAST and bool(self.stacks)

    def by_function(self) -> Counter[str]:
        """Return time by the innermost function, ns."""
        times_ns = Counter[str]()
        for stack in self.stacks:
            times_ns[self.functions[stack.functions[-1]]] += stack.time_ns
        return times_ns

    def inside(self) -> Counter[str]:
        """Return time by function, callees included, ns."""
        times_ns = Counter[str]()
        for stack in self.stacks:
            for index in set(stack.functions):
                times_ns[self.functions[index]] += stack.time_ns
        return times_ns

    def by_line(self) -> Counter[tuple[str, int]]:
        """Return time by function and line, ns: the innermost of the program; if it has none, of the outermost.

        What a comprehension does is done in the line that it stands in.
        """
        times_ns = Counter[tuple[str, int]]()
        for stack in self.stacks:
            names = [self.functions[index] for index in stack.functions]
            inner = reversed(range(len(names)))
            index = next((index for index in inner if stack.functions[index] in self.program), 0)
            while index and "): <" in names[index] and stack.lines[index] == stack.lines[index - 1]:
                index -= 1
            times_ns[names[index], stack.lines[index]] += stack.time_ns
        return times_ns
