"""Samples of the Python functions of logits processors, taken by a thread while a recorded step is in their phase.

A sample is what `sys._current_frames` says of the thread of the step. Nothing is hooked into Python, so that a
processor of many small calls is as fast as before, and a debugger, coverage or profiler of the program stays as it is.
Samples are due at even intervals from a random beginning in each step. Where one is late, because a library kept the
interpreter's lock, it counts for all that were due. Every other step is sampled: the others show what that costs.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import site
import statistics
import sys
import sysconfig
import threading
import time
from collections import Counter
from types import CodeType, FrameType

from transformers import LogitsProcessorList

from molprof import common
from molprof.common.sampled import SampledFunctions, SampledStack

_INTERVAL_NS, _LONGEST_NS = 500_000, 16_000_000
# Where so many samples take more of the phase, the interval doubles.
_MOST_COST, _CHECKED = 0.05, 32
# Python hands its lock on at calls that release it, and after this time. With its own 5 ms, nearly all samples would
# be in such calls.
_SWITCH_S = 0.00001
# Functions inside each other, the outermost kept; and stacks that differ, beyond which samples are not kept apart.
_DEPTH, _MOST_STACKS = 16, 512
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_RECORDING = os.path.join(_ROOT, "recording") + os.sep
# What of it calls processors, in `marks.py`; all else of it is work of molprof's own, with all that it calls.
_PASSES_ON = "processed"
# Of molprof, all but processors.
_OWN = (
    _RECORDING,
    *(os.path.join(_ROOT, name) + os.sep for name in ("capture", "engines")),
    os.path.join(_ROOT, "constraints", "own.py"),
    os.path.dirname(os.path.abspath(common.__file__)) + os.sep,
    contextlib.__file__,
)
_LIST = LogitsProcessorList.__call__.__code__
_Stack = tuple[tuple[CodeType, int], ...]


class FunctionSampler:
    """A sampler of the thread that is in a phase, from `begin` to `end`."""

    def __init__(self) -> None:
        self._times: Counter[_Stack] = Counter()
        self._samples: Counter[_Stack] = Counter()
        self._phases = self._held_ns = 0
        self._sampled_ns: list[int] = []  # time of each phase with samples, and without
        self._other_ns: list[int] = []
        self._interval_ns = _INTERVAL_NS
        self._taken, self._checked = 0, (0, 0)  # samples; cost and time of the phase at the last look at them
        self._sampled: int | None = None  # the thread in its phase
        self._base: FrameType | None = None  # that runs the phase
        self._runs = False  # a phase does
        self._began_ns = 0
        self._switch_s = 0.0  # as the program has it
        self._closed = False
        self._wakes = threading.Event()
        self._thread = threading.Thread(target=self._run, name="molprof samples", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Begin the phase in this thread."""
        self.end()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_OWN):
            frame = frame.f_back
        self._base, self._runs = frame, True
        self._phases += 1
        self._began_ns = time.perf_counter_ns()
        if self._phases % 2:
            self._switch_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_SWITCH_S, self._switch_s))
            self._sampled = threading.get_ident()
            self._wakes.set()

    def end(self) -> None:
        """End the phase, if one runs."""
        if not self._runs:
            return
        took_ns = time.perf_counter_ns() - self._began_ns
        if self._sampled is None:
            self._other_ns.append(took_ns)
        else:
            self._sampled = None
            self._wakes.clear()
            self._sampled_ns.append(took_ns)
            sys.setswitchinterval(self._switch_s)
        self._base, self._runs = None, False

    def close(self) -> SampledFunctions | None:
        """End sampling, and return the samples; None if there was no phase."""
        self.end()
        self._closed = True
        self._wakes.set()
        self._thread.join()
        return self._found() if self._phases else None

    def _run(self) -> None:
        generator = random.Random(0)  # the program's numbers stay as they are
        while True:
            self._wakes.wait()
            if self._closed:
                break
            phase, sampled = self._phases, self._sampled
            due_ns = self._began_ns + generator.random() * self._interval_ns
            while sampled is not None:
                time.sleep(max(0.0, due_ns - time.perf_counter_ns()) / 1e9)
                now_ns, frame = time.perf_counter_ns(), sys._current_frames().get(sampled)
                if self._phases != phase or self._sampled is None:
                    break
                count = 1 + max(0, int((now_ns - due_ns) // self._interval_ns))
                self._add(frame, count)
                del frame  # or its locals would live on
                due_ns += count * self._interval_ns
                self._held_ns += time.perf_counter_ns() - now_ns
                self._adapt()

    def _adapt(self) -> None:
        """Make samples rarer where the last ones took too much of the phase."""
        self._taken += 1
        if self._taken % _CHECKED:
            return
        held_ns, spent_ns = self._held_ns, sum(self._sampled_ns) + time.perf_counter_ns() - self._began_ns
        if held_ns - self._checked[0] > _MOST_COST * (spent_ns - self._checked[1]):
            self._interval_ns = min(_LONGEST_NS, 2 * self._interval_ns)
        self._checked = held_ns, spent_ns

    def _add(self, frame: FrameType | None, count: int) -> None:
        """Add `count` samples of the innermost frame and its callers up to the one that runs the phase."""
        base, frames, is_own = self._base, list[tuple[CodeType, int]](), False
        while frame is not None and frame is not base:
            code = frame.f_code
            if code.co_filename.startswith(_RECORDING) and code.co_name != _PASSES_ON:
                frames.clear()
                is_own = True
            elif code is not _LIST and not code.co_filename.startswith(_OWN):
                frames.append((code, frame.f_lineno))
            frame = frame.f_back
        if frame is None:  # another phase, or none
            return
        if frames and frames[-1][0].co_filename == inspect.__file__:  # transformers looks at what a processor takes
            frames.clear()
        elif (
            not frames and not is_own and not _installed(frame.f_code.co_filename)
        ):  # a loop of the program's own masks by itself
            frames.append((frame.f_code, frame.f_lineno))
        stack = tuple(frames[: -_DEPTH - 1 : -1])
        if stack not in self._times and len(self._times) >= _MOST_STACKS:
            stack = stack[:1]
        self._times[stack] += count * self._interval_ns
        self._samples[stack] += count

    def _found(self) -> SampledFunctions:
        prefixes, indexes = _prefixes(), dict[CodeType, int]()
        stacks = [
            SampledStack(
                [indexes.setdefault(code, len(indexes)) for code, _ in stack],
                [line or 0 for _, line in stack],
                self._samples[stack],
                time_ns,
            )
            for stack, time_ns in self._times.most_common()
            if stack
        ]
        other_ns = self._times[()]
        return SampledFunctions(
            steps=len(self._sampled_ns),
            phase_ns=sum(self._sampled_ns),
            interval_ns=self._interval_ns,
            samples=sum(stack.samples for stack in stacks),
            held_ns=self._held_ns,
            step_ns=round(statistics.median(self._sampled_ns)),
            other_step_ns=round(statistics.median(self._other_ns)) if self._other_ns else None,
            other_ns=other_ns,
            functions=[_name(code, prefixes) for code in indexes],
            program=[index for code, index in indexes.items() if not _installed(code.co_filename)],
            stacks=stacks,
        )


def _installed(path: str) -> bool:
    """Return True if a file is of Python, an installed package or molprof, or is none."""
    return path.startswith(("<", _ROOT + os.sep, *_PLACES)) or not _INSTALLED.isdisjoint(path.split(os.sep))


_INSTALLED = {"site-packages", "dist-packages"}
_PLACES = tuple(
    {os.path.abspath(path) + os.sep for name, path in sysconfig.get_paths().items() if name.endswith("lib")}
)


def _prefixes() -> list[str]:
    """Return path prefixes that torch omits from functions in stacks, the longest first."""
    paths = {os.path.abspath(path) + os.sep for path in (*sys.path, *site.getsitepackages())}
    return sorted(paths, key=len, reverse=True)


def _name(code: CodeType, prefixes: list[str]) -> str:
    """Return a function as in stacks that torch records."""
    path = code.co_filename
    path = path[len(next((prefix for prefix in prefixes if path.startswith(prefix)), "")) :]
    return f"{path}({code.co_firstlineno}): {code.co_name}"
