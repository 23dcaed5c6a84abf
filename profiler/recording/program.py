"""Marks of a program that runs once: host timestamps of all its calls, and a recording of some steps of one.

The profiler runs for a few steps only, so that the times of all others are those of the bare program. A clock that
stands still while molprof works leaves the profiler's start and stop out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from molprof.common.manifest import BETWEEN, STEP_PHASES, Machine, ProcessorCalls, Repeat
from molprof.common.sampled import SampledFunctions
from molprof.common.values import counted
from molprof.profiler.recording.marks import Marks
from molprof.profiler.recording.sequences import Batch
from molprof.profiler.recording.window import TAKEN, ProfilerMarks, Steps, warm_up

WINDOW_FIRST, WINDOW_STEPS = 20, 20
_GAP, _END = len(STEP_PHASES), len(STEP_PHASES) + 1  # beside the places of the four phases


ALONE = "record it without that profiler"
MARK = "put `with molprof.step():` around each step of a loop of your own"
ALL = "without a window (molprof run --full) all is recorded"


@dataclass(frozen=True)
class Plan:
    """Which steps to record: a call, and its first and last step, all from 0; None: molprof chooses."""

    call: int | None = None
    window: tuple[int, int] | None = None
    records: bool = True  # False: nothing is recorded, and all steps are timed

    def windows(self, number: int, before: Sequence[int]) -> list[tuple[int, int]]:
        """The windows of call `number`, after calls of so many steps.

        By default the second call is recorded. The first one is too, for there may be no other.
        """
        if not self.records or number not in (0, 1 if self.call is None else self.call):
            return []
        if self.window is not None:
            return [self.window]
        if not before:  # of unknown length: the first steps, until there are better ones
            return [(1, WINDOW_STEPS), (WINDOW_STEPS + 1, 2 * WINDOW_STEPS)]
        return [usual_window(before[-1])]


def usual_window(steps: int) -> tuple[int, int]:
    """The first and the last step that are recorded of so many, by default.

    These are 20 decode steps, from step 20 on if there are so many: a run mostly consists of such steps.
    """
    last = steps - 1
    first = max(min(WINDOW_FIRST, last - WINDOW_STEPS + 1), min(1, last))
    return first, first + WINDOW_STEPS - 1


@dataclass
class CallTimes:
    """A call of `generate`, or a loop of the program's own; times in ns of a clock that stands still for molprof."""

    began_ns: int
    ended_ns: int = 0
    # What begins and when, in order: a place in `STEP_PHASES`, a gap, the end of the last step.
    marks: list[tuple[int, int]] = field(default_factory=list)
    profiled: set[int] = field(default_factory=set)  # steps that ran under the profiler
    each_ns: Counter[int] = field(default_factory=Counter)  # by place of a processor, in steps without the profiler
    steps: int = 0

    def phases_ns(self) -> list[Counter[str]]:
        """Time by phase of each step; a gap is a phase of the step before it."""
        steps: list[Counter[str]] = []
        for (place, begin), (_, end) in pairwise(self.marks):
            if place == 0:
                steps.append(Counter())
            name = BETWEEN if place == _GAP else "prefill" if place == 0 and len(steps) == 1 else STEP_PHASES[place]
            steps[-1][name] += end - begin
        return steps

    @property
    def setup_ns(self) -> int:
        """Time before the first step."""
        return (self.marks[0][1] if self.marks else self.ended_ns) - self.began_ns


@dataclass(frozen=True)
class Recorded:
    """A recording of some steps of a call."""

    profiler: torch.profiler.profile
    steps: Steps
    functions: SampledFunctions | None = None

    @property
    def count(self) -> int:
        return self.steps.last - self.steps.first + 1


class ProgramMarks(Marks):
    """Marks of a program.

    Args:
        options: of `ProfilerMarks`.
        now: a clock in ns.
    """

    def __init__(self, device: torch.device, plan: Plan, now: Callable[[], int] = time.perf_counter_ns, **options: Any):
        self.calls: list[CallTimes] = []
        self.recorded: Recorded | None = None
        self.cut: Recorded | None = None  # of a call that did not return
        self.lost: str | None = None  # why the profiler did not start
        self.own_ns = 0  # molprof's own work while the clock stood still
        self._device, self._plan, self._now, self._options = device, plan, now, options
        self._call: CallTimes | None = None
        self._before: Recorded | None = None  # what was recorded before the running call
        self._windows: list[tuple[int, int]] = []
        self._running: ProfilerMarks | None = None
        self._each: tuple[int, int] | None = None  # the processor that runs, and since when
        self._is_warm = False

    def clock(self) -> int:
        """The time, without that of molprof's own work."""
        return self._now() - self.own_ns

    @contextmanager
    def standing(self) -> Iterator[None]:
        """The clock stands still in the block."""
        began = self._now()
        try:
            yield
        finally:
            self.own_ns += self._now() - began

    def setup(self, name: str, batch: int) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self, batch: int) -> None:
        self._before = self.recorded
        self._windows = self._plan.windows(batch, [call.steps for call in self.calls])
        self._call = CallTimes(self.clock())

    def forward(self) -> None:
        assert self._call is not None
        step, ended = self._call.steps, self.clock()
        with self.standing():
            if self._running is not None and step > self._windows[0][1]:
                self._stop()
            if self._running is None and self._windows and step == self._windows[0][0]:
                self._start(step)
            elif self._running is not None:
                self._running.forward()
            if self._running is not None:
                self._call.profiled.add(step)
        self._call.steps += 1
        self._add(0, ended)

    def processor(self) -> None:
        self._add(1)
        self._to_profiler("processor")

    def sampling(self) -> None:
        self._add(2)
        self._to_profiler("sampling")

    def bookkeeping(self) -> None:
        self._add(3)
        self._to_profiler("bookkeeping")

    def gap(self) -> None:
        self._add(_GAP)
        self._to_profiler("gap")

    def each(self, place: int, label: str) -> None:
        now = self.clock()
        self._end_each(now)
        self._each = place, now
        self._to_profiler("each", place, label)

    def end(self) -> None:
        call = self._call
        assert call is not None
        call.ended_ns = self.clock()
        if call.marks:
            call.marks.append((_END, call.ended_ns))
        with self.standing():
            self._stop()
        self.calls.append(call)
        self._call = None

    def failed(self) -> None:
        """The call has raised an exception: it counts for nothing."""
        with self.standing():
            self._stop()
        if self.recorded is not self._before:
            self.cut, self.recorded = self.recorded, self._before
        self._call = None

    @property
    def estimated_steps(self) -> int:
        """Steps that ran under the profiler."""
        return sum(len(call.profiled) for call in self.calls)

    def repeat(self) -> Repeat | None:
        """The times of the program as a pass over all its calls; None without a step like those under the profiler.

        A step under the profiler counts with the median times of the others of its call, or where it has none, of all.
        """
        each = [call.phases_ns() for call in self.calls]
        timed = [
            [phases for step, phases in enumerate(steps) if step not in call.profiled]
            for call, steps in zip(self.calls, each, strict=True)
        ]
        phases: Counter[str] = Counter()
        steps_ns: list[list[int]] = []
        for call, steps in zip(self.calls, each, strict=True):
            phases["setup"] += call.setup_ns
            times = []
            for step, found in enumerate(steps):
                if step in call.profiled:
                    place = len(steps_ns)
                    alike = _alike(timed[place], step) or [item for other in timed for item in _alike(other, step)]
                    if not alike:
                        return None
                    found = Counter({name: round(median(item[name] for item in alike)) for name in set().union(*alike)})
                phases += found
                times.append(sum(time for name, time in found.items() if name != BETWEEN))
            steps_ns.append(times)
        for before, after in pairwise(self.calls):
            phases[BETWEEN] += after.began_ns - before.ended_ns
        names = {name for steps in timed for item in steps for name in item} - {BETWEEN}
        step_phases_ns = {name: [[item[name] for item in steps if name in item] for steps in timed] for name in names}
        return Repeat(sum(phases.values()), dict(phases), steps_ns, step_phases_ns=step_phases_ns)

    def _to_profiler(self, name: str, *arguments: Any) -> None:
        if self._running is not None:
            getattr(self._running, name)(*arguments)

    def _add(self, place: int, now: int | None = None) -> None:
        assert self._call is not None
        now = self.clock() if now is None else now
        self._end_each(now)
        self._call.marks.append((place, now))

    def _end_each(self, now: int) -> None:
        if self._each is not None and self._call is not None:
            place, began = self._each
            if self._call.steps - 1 not in self._call.profiled:
                self._call.each_ns[place] += now - began
            self._each = None

    def _start(self, step: int) -> None:
        if not self._is_warm:
            warm_up(self._device)
            self._is_warm = True
        number = len(self.calls)
        if torch._C._autograd._profiler_enabled():
            self.lost = "the program's own profiler was running"
            self._windows = []
            return
        self._running = ProfilerMarks(self._device, Steps(number, *self._windows[0]), step=step, **self._options)
        self._running.begin(number)
        self._running.forward()

    def _stop(self) -> None:
        """Ends a recording, which is kept unless an earlier one has more steps."""
        if self._running is None or self._call is None:
            return
        first, last = self._windows.pop(0)
        self._running.finish()
        profiler, functions, self._running = self._running.profiler, self._running.functions, None
        if profiler is None:
            self.lost = TAKEN
            return
        found = Recorded(profiler, Steps(len(self.calls), first, min(last, self._call.steps - 1)), functions)
        if self.recorded is None or found.count >= self.recorded.count:
            self.recorded = found


def _alike(steps: Sequence[Counter[str]], step: int) -> list[Counter[str]]:
    """Of a call's steps, those of the kind of a step: the prefill, or a decode step."""
    return [item for item in steps if ("prefill" in item) == (step == 0)]


def summary_lines(steps: Sequence[int], tokens: int, marks: Marks, machine: Machine | None) -> list[str]:
    """Lines for people. steps: of each batch. machine: while the program ran."""
    made = f"{counted(len(steps), 'batch', 'es')}, {counted(tokens, 'token')}"
    if not isinstance(marks, ProgramMarks) or marks.recorded is None:
        return [f"{made}; every step is recorded"]
    call, first, last = marks.recorded.steps
    profiled, recorded = marks.estimated_steps, last - first + 1
    others = ", all others were timed"
    if profiled > recorded:
        timed = sum(steps) - profiled
        was = "was" if timed == 1 else "were"
        others = f"; {profiled - recorded:,} more ran under the profiler, and {counted(timed, 'step')} {was} timed"
    lines = [f"{made}; steps {first} to {last} of batch {call} are recorded{others}"]
    if marks.repeat() is None:
        lines.append(
            "no times without the profiler: no timed step is like those under it; call generate once more, or choose "
            "--window"
        )
    elif machine is not None and (doubts := machine.doubts()):
        lines.append(f"times are in doubt: while the program ran, {'; '.join(doubts)}")
    return lines


def nothing_recorded(marks: ProgramMarks, problem: str | None) -> tuple[str, str]:
    """Why there is nothing to write, and what to do; `problem`: what ended the program early."""
    if marks.lost is not None:
        return marks.lost, ALONE
    if problem is not None:
        return f"nothing was recorded before the program ended with {problem}", ALL
    if marks.calls:
        steps = ", ".join(str(call.steps) for call in marks.calls[:8])
        return f"no step of the window was reached; the calls had {steps} steps", "choose another window or call"
    return (
        "no call of transformers' generate returned, and molprof.step() was not called",
        f"{MARK}; {ALL}",
    )


def processor_calls(batches: Sequence[Batch], marks: Any) -> list[ProcessorCalls]:
    """The processors of all batches by class and place."""
    counts: Counter[tuple[int, str, bool]] = Counter()
    times: Counter[tuple[int, str, bool]] = Counter()
    steps: Counter[tuple[int, str, bool]] = Counter()
    calls = marks.calls if isinstance(marks, ProgramMarks) else None
    for number, batch in enumerate(batches):
        for place, name in enumerate(batch.processors):
            key = (place, name, place in batch.own)
            counts[key] += 1
            if calls is not None and place < batch.constraining:
                call = calls[number]
                times[key] += call.each_ns[place]
                steps[key] += call.steps - len(call.profiled)
    return [
        ProcessorCalls(name, place, own, count, times[key] if steps[key] else None, steps[key] or None)
        for key, count in sorted(counts.items())
        for place, name, own in [key]
    ]
