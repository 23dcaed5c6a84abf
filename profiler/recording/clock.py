"""The clock of generation: host timestamps where phases begin, with a recording of some, all or no steps.

Timed and recorded passes of captures have it, and programs that run once. The profiler runs for planned steps only, so
that the times of all others are those of the bare program. The clock stands still while the profiler starts and stops.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from molprof.common.errors import ProcessorError
from molprof.common.manifest import BETWEEN, STEP_PHASES, Repeat, Window
from molprof.common.sampled import SampledFunctions
from molprof.profiler.recording.marks import Marks
from molprof.profiler.recording.window import ProfilerMarks, export, warm_up

WINDOW_FIRST, WINDOW_STEPS = 20, 20
_GAP, _END = len(STEP_PHASES), len(STEP_PHASES) + 1  # beside the places of the four phases
_CALLS = (*STEP_PHASES, "gap")
# Why a recording is lost.
TAKEN = "the program's own profiler took the place of molprof's"


@dataclass(frozen=True)
class StepPlan:
    """The steps to record: a call, and its first and last step, from 0; None: molprof chooses."""

    call: int | None = None
    window: tuple[int, int] | None = None
    records: bool = True  # False: nothing is recorded, and all steps are timed
    full: bool = False  # everything is, set-up phases included
    ends: bool = False  # the call ends with its window

    @staticmethod
    def of(window: Window) -> StepPlan:
        """Return the plan to record these steps, after which their batch ends, or to record everything."""
        return FULL if window.full else StepPlan(window.batch, (window.first_step, window.last_step), ends=True)

    def windows(self, number: int, before: Sequence[int], most: int | None = None) -> list[tuple[int, int]]:
        """Return the windows of call `number`, of at most `most` steps, after calls of so many steps.

        By default the second call is recorded. The first one is too, for there may be no other.
        """
        if not self.records or self.full or number not in (0, 1 if self.call is None else self.call):
            return []
        if self.window is not None:
            return [self.window]
        if before:
            return [usual_window(before[-1])]
        # How long a first call gets, only its end tells: so its first steps are recorded, until there are as many
        # later ones.
        first, later = (1, WINDOW_STEPS), (WINDOW_STEPS + 1, 2 * WINDOW_STEPS)
        return [first] if most is not None and most <= later[1] else [first, later]


TIMED, FULL = StepPlan(records=False), StepPlan(full=True)


def usual_window(steps: int) -> tuple[int, int]:
    """Return the first and the last step that are recorded by default, out of so many.

    These are 20 decode steps, from step 20 on if there are so many: a run mostly consists of such steps.
    """
    last = steps - 1
    first = max(min(WINDOW_FIRST, last - WINDOW_STEPS + 1), min(1, last))
    return first, first + WINDOW_STEPS - 1


@dataclass
class CallTimes:
    """A call of `generate`, or a loop of the user; times in ns of a clock that stops while molprof works."""

    began_ns: int
    ended_ns: int = 0
    # What begins and when, in order: a place in `STEP_PHASES`, a gap, the end of the last step.
    marks: list[tuple[int, int]] = field(default_factory=list)
    profiled: set[int] = field(default_factory=set)  # steps that ran under the profiler
    each_ns: Counter[int] = field(default_factory=Counter)  # by place of a processor, in steps without the profiler
    steps: int = 0

    def phases_ns(self) -> list[Counter[str]]:
        """Return the time by phase of each step; a gap belongs to the step before it."""
        steps: list[Counter[str]] = []
        for (phase, begin), (_, end) in pairwise(self.marks):
            if phase == 0:
                steps.append(Counter())
            name = BETWEEN if phase == _GAP else "prefill" if phase == 0 and len(steps) == 1 else STEP_PHASES[phase]
            steps[-1][name] += end - begin
        return steps

    @property
    def setup_ns(self) -> int:
        """Time before the first step."""
        return (self.marks[0][1] if self.marks else self.ended_ns) - self.began_ns


@dataclass(frozen=True)
class RecordedSteps:
    """A recording of some steps of a call; window None: a recording of everything."""

    profiler: torch.profiler.profile
    window: Window | None
    functions: SampledFunctions | None = None

    @property
    def count(self) -> int:
        """The number of recorded steps."""
        return 0 if self.window is None else self.window.last_step - self.window.first_step + 1


class Clock(Marks):
    """Timestamps at the marks, without device synchronization: cheap enough for timed passes.

    Args:
        device: what is recorded, with `plan`.
        on_step: called with batch and step when a step begins, in passes that are not timed.
        now: a clock in ns.
        what: to record; of `ProfilerMarks`.
    """

    def __init__(
        self,
        plan: StepPlan = TIMED,
        device: torch.device | None = None,
        *,
        on_step: Callable[[int, int], None] | None = None,
        now: Callable[[], int] = time.perf_counter_ns,
        **what: bool,
    ) -> None:
        self.calls: list[CallTimes] = []
        self.recorded: RecordedSteps | None = None
        self.cut: RecordedSteps | None = None  # of a call that did not return
        self.lost: str | None = None  # why the profiler did not start
        self.own_ns = 0  # molprof's own work while the clock stood still
        self.full = plan.full
        self._device, self._plan, self._on_step, self._now, self._what = device, plan, on_step, now, what
        self._setup_ns: Counter[str] = Counter()  # by set-up phase, summed over batches
        self._batch = 0
        self._most: int | None = None  # steps of the next call
        self._call: CallTimes | None = None
        self._before: RecordedSteps | None = None  # what was recorded before the running call
        self._windows: list[tuple[int, int]] = []
        self._running: ProfilerMarks | None = None
        self._each: tuple[int, int] | None = None  # the processor that runs, and since when
        self._is_warm = False
        if plan.full or plan.ends:  # a step may run in another thread, which must not record first
            self._warm_up()
        if plan.full:
            self._running = ProfilerMarks(self._profiled_device, **what)

    def clock(self) -> int:
        """Return the time, without that of molprof's own work."""
        return self._now() - self.own_ns

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Stop the clock in the block."""
        began = self._now()
        try:
            yield
        finally:
            self.own_ns += self._now() - began

    @contextmanager
    def setup(self, name: str, batch: int) -> Iterator[None]:
        """Measure the time of the block as set-up."""
        began = self.clock()
        if self._running is None:
            yield
        else:
            with self._running.setup(name, batch):
                yield
        self._setup_ns[name] += self.clock() - began

    def expect(self, steps: int | None) -> None:
        """Note the most steps of the next batch."""
        self._most = steps

    def begin(self, batch: int) -> None:
        """Begin a batch."""
        self._batch, self._before = batch, self.recorded
        self._windows = self._plan.windows(batch, [call.steps for call in self.calls], self._most)
        self._most = None
        if self._running is not None:
            self._running.begin(batch)
        self._call = CallTimes(self.clock())

    def forward(self) -> None:
        """Begin the forward of a step."""
        if (call := self._call) is None:  # of another thread, which outlives the recording
            return
        step = call.steps
        if self._on_step is not None:
            if self._running is not None:
                self._running.gap()
            self._on_step(self._batch, step)
        ended = self.clock()
        if self._windows or self._running is not None:
            with self.standing():
                self._record(step)
            if self._running is not None:
                call.profiled.add(step)
        call.steps += 1
        if self._each is not None:
            self._end_each(ended)
        call.marks.append((0, ended))

    def processor(self) -> None:
        """Begin the processors of a step."""
        self._mark(1)

    def sampling(self) -> None:
        """Begin the sampling of a step."""
        self._mark(2)

    def bookkeeping(self) -> None:
        """Begin the bookkeeping of a step."""
        self._mark(3)

    def gap(self) -> None:
        """Begin the time between two steps."""
        self._mark(_GAP)

    def each(self, index: int, label: str) -> None:
        """Begin the call of one processor."""
        now = self.clock()
        self._end_each(now)
        self._each = index, now
        if self._running is not None:
            self._running.each(index, label)

    def end(self) -> None:
        """End a batch."""
        if (call := self._call) is None:
            return
        call.ended_ns = self.clock()
        if call.marks:
            call.marks.append((_END, call.ended_ns))
        with self.standing():
            if self.full and self._running is not None:
                self._running.end()
            else:
                self._stop()
        self.calls.append(call)
        self._call = None

    def failed(self) -> None:
        """Drop the call that raised an exception: it counts for nothing."""
        if self.full and self._running is not None:
            self._running.failed()
        elif self._call is not None:  # else an earlier call's recording is whole
            with self.standing():
                self._stop()
            if self.recorded is not self._before:
                self.cut, self.recorded = self.recorded, self._before
        self._call = None

    def enough(self) -> bool:
        """Return True if all requested steps are recorded."""
        plan = self._plan
        if not plan.ends or plan.window is None or self._call is None:
            return False
        return self._batch == plan.call and self._call.steps > plan.window[1]

    def finish(self) -> None:
        """Stop a recording that still runs: of everything, or of a batch that failed.

        A program's call that outlives the recording, in another thread, stops its own: torch has one for each thread.
        """
        if self.full:
            self._stop()
        elif self._plan.ends and self._running is not None:
            self.failed()

    @property
    def kept(self) -> RecordedSteps | None:
        """The recorded steps, or those of a call that did not return."""
        return self.recorded or self.cut

    @property
    def estimated_steps(self) -> int:
        """Steps that ran under the profiler."""
        return sum(len(call.profiled) for call in self.calls)

    def repeat(self, wall_ns: int | None = None, **more: Any) -> Repeat | None:
        """Return the times as a pass over all calls; None without a step like the recorded ones.

        A step under the profiler counts with the median times of the others of its call, or where it has none, of all.

        Args:
            wall_ns: of a pass; None: of a program, all that lies between its calls included.
            more: of `Repeat`.
        """
        each = [call.phases_ns() for call in self.calls]
        timed = [
            [phases for step, phases in enumerate(steps) if step not in call.profiled]
            for call, steps in zip(self.calls, each, strict=True)
        ]
        phases = Counter(self._setup_ns)
        steps_ns: list[list[int]] = []
        for call, steps in zip(self.calls, each, strict=True):
            phases["setup"] += call.setup_ns
            times = []
            for step, spent in enumerate(steps):
                if step in call.profiled:
                    number = len(steps_ns)
                    alike = _alike(timed[number], step) or [item for other in timed for item in _alike(other, step)]
                    if not alike:
                        return None
                    spent = Counter({name: round(median(item[name] for item in alike)) for name in set().union(*alike)})
                phases.update(spent)
                times.append(sum(time for name, time in spent.items() if name != BETWEEN))
            steps_ns.append(times)
        if wall_ns is None:
            for before, after in pairwise(self.calls):
                phases[BETWEEN] += after.began_ns - before.ended_ns
            wall_ns = sum(phases.values())
        names = dict.fromkeys(name for steps in timed for item in steps for name in item if name != BETWEEN)
        step_phases_ns = {name: [[item[name] for item in steps if name in item] for steps in timed] for name in names}
        return Repeat(wall_ns, dict(phases), steps_ns, step_phases_ns=step_phases_ns, **more)

    def phases_ns(self) -> dict[str, int]:
        """Host time by phase of a timed pass, summed over calls and steps."""
        repeat = self.repeat(0)
        return {} if repeat is None else repeat.phases_ns

    def _mark(self, index: int) -> None:
        if (call := self._call) is None:
            return
        now = self._now() - self.own_ns
        if self._each is not None:
            self._end_each(now)
        call.marks.append((index, now))
        if self._running is not None:
            getattr(self._running, _CALLS[index])()

    def _end_each(self, now: int) -> None:
        if self._each is not None and self._call is not None:
            index, began = self._each
            if self._call.steps - 1 not in self._call.profiled:
                self._call.each_ns[index] += now - began
            self._each = None

    def _record(self, step: int) -> None:
        """Start, continue or end a recording before a step."""
        if self._windows and self._running is not None and step > self._windows[0][1]:
            self._stop()
        if self._running is None and self._windows and step == self._windows[0][0]:
            self._start(step)
        elif self._running is not None:
            self._running.forward()

    def _start(self, step: int) -> None:
        if torch._C._autograd._profiler_enabled():
            self.lost = "the program's own profiler was running"
            self._windows = []
            return
        self._warm_up()
        self._running = ProfilerMarks(self._profiled_device, self._batch, step, **self._what)
        self._running.forward()

    def _stop(self) -> None:
        """End a recording, which is kept unless an earlier one has more steps."""
        if self._running is None:
            return
        running, self._running = self._running, None
        running.finish()
        window = None
        if not self.full and self._call is not None:
            first, last = self._windows.pop(0)
            window = Window(False, self._batch, first, min(last, self._call.steps - 1))
        if running.profiler is None:
            self.lost = TAKEN
            return
        recorded_steps = RecordedSteps(running.profiler, window, running.functions)
        if self.recorded is None or recorded_steps.count >= self.recorded.count:
            self.recorded = recorded_steps

    @property
    def _profiled_device(self) -> torch.device:
        return self._device or torch.device("cpu")

    def _warm_up(self) -> None:
        if not self._is_warm:
            warm_up(self._profiled_device, self._what.get("threads", False))
            self._is_warm = True


def _alike(steps: Sequence[Counter[str]], step: int) -> list[Counter[str]]:
    """Return the steps of a call that are of one step's kind: the prefill, or decode steps."""
    return [item for item in steps if ("prefill" in item) == (step == 0)]


@contextmanager
def recording(raw: Path, device: torch.device, plan: StepPlan = FULL, **options: Any) -> Iterator[Clock]:
    """Yield the marks of a recording that ends with the block and is exported to `raw`, also where a processor failed.

    `options` are those of `Clock`.
    """
    marks = Clock(plan, device, **options)
    failure: ProcessorError | None = None
    try:
        yield marks
    except ProcessorError as problem:
        failure = problem
    finally:
        marks.finish()
    if marks.kept is not None:
        export(marks.kept.profiler, raw)
    if failure is not None:
        raise failure
