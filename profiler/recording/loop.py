"""Marks of a user's own loop: where its steps and phases begin, and the tokens that they chose."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from molprof.common.errors import UsageError
from molprof.common.manifest import STEP_PHASES
from molprof.profiler.recording.marks import Marks
from molprof.profiler.recording.sequences import DecodedStep, WrittenBatch

_LOG = logging.getLogger("molprof")


@dataclass
class _StepTokens:
    """The ids passed to `tokens` in a step, and their version where the device has not been read."""

    ids: Any
    sequences: Any
    version: int | None

    def by_sequence(self) -> dict[int, list[int]]:
        if self.version is not None and self.ids._version != self.version:
            raise UsageError("a tensor given to molprof.tokens() was changed afterwards", hint="give it a copy")
        rows = [row if isinstance(row, list) else [row] for row in _lists(self.ids)]
        numbers = range(len(rows)) if self.sequences is None else _lists(self.sequences)
        return {int(number): [int(token) for token in row] for number, row in zip(numbers, rows, strict=True)}


@dataclass
class _RunningLoop:
    prompts: list[list[int]]
    model: Any
    tokens: list[list[_StepTokens]] = field(default_factory=list)  # by step
    processors: dict[str, None] = field(default_factory=dict)  # in the order of their first call


class OwnLoop:
    """Passes the marks of a user's own loop on. A failure here ends the marks, not the program.

    Args:
        heard: called with each loop that has ended, and its model.
        number: gives the number of the next batch.
    """

    def __init__(self, marks: Marks, heard: Callable[[WrittenBatch, Any], None], number: Callable[[], int]) -> None:
        self._marks, self._heard, self._number = marks, heard, number
        self._running: _RunningLoop | None = None
        self._thread: int | None = None  # of the running step
        self._place = 0  # of the running phase
        self._waiting: tuple[int, str] | None = None  # a processor that is about to be called
        self._stopped = False

    def step(self, prompts: Any, model: Any) -> AbstractContextManager[None]:
        """Open the block of one step."""
        return _TimedBlock(self._guarded, partial(self._begin_step, prompts, model), self._end_step)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Open the block of one phase."""
        return _TimedBlock(self._guarded, partial(self._begin_phase, name), self._end_phase)

    def tokens(self, ids: Any, sequences: Any) -> None:
        """Record the tokens of a step."""
        self._guarded(partial(self._keep, ids, sequences))

    def watched(self, name: str) -> None:
        """Note a processor that is called in the running step."""
        if self._thread == threading.get_ident() and self._running is not None:
            self._running.processors.setdefault(name)
            self._waiting = list(self._running.processors).index(name), name

    def close(self) -> None:
        """End the running loop."""
        self._guarded(self._close)

    def _guarded(self, action: Callable[[], bool | None]) -> bool:
        if self._stopped:
            return False
        try:
            return bool(action())
        except Exception as problem:
            self._stopped, self._running = True, None
            _LOG.warning("molprof stopped recording: %s: %s", type(problem).__name__, problem)
            with suppress(Exception):
                self._marks.failed()
            return False

    def _begin_step(self, prompts: Any, model: Any) -> bool:
        if self._thread is not None:  # inside a step, or beside one in another thread: part of it, or not marked
            return False
        self._thread = threading.get_ident()
        if prompts is not None or self._running is None:
            self._close()
            self._running = _RunningLoop([] if prompts is None else _prompts(prompts), model)
            self._marks.begin(self._number())
        self._running.tokens.append([])
        self._place = 0
        self._marks.forward()
        return True

    def _end_step(self) -> None:
        self._thread = None
        if self._running is not None:  # a call of `generate` in the step has ended the loop
            self._marks.gap()

    def _begin_phase(self, name: str) -> bool:
        if self._thread != threading.get_ident():
            return False
        self._enter(STEP_PHASES.index(name))
        if (waiting := self._waiting) is not None:
            self._waiting = None
            self._marks.each(*waiting)
        return True

    def _end_phase(self) -> None:
        self._enter(min(self._place + 1, len(STEP_PHASES) - 1) if self._place else 0)

    def _keep(self, ids: Any, sequences: Any) -> None:
        if self._running is None or not self._running.tokens:
            return
        waits = isinstance(ids, Tensor) and ids.device.type != "cpu"
        kept = ids if waits or not isinstance(ids, Tensor) else ids.tolist()
        version = ids._version if waits and not ids.is_inference() else None
        self._running.tokens[-1].append(_StepTokens(kept, sequences, version))

    def _close(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        self._marks.end()
        names = tuple(running.processors)
        self._heard(
            WrittenBatch(
                _steps(running),
                running.prompts,
                processors=names,
                own=tuple(range(len(names))),
                constraining=len(names),
            ),
            running.model,
        )

    def _enter(self, index: int) -> None:
        """Enter a phase, if it is a later one than the present."""
        if index > self._place and self._running is not None:
            self._place = index
            (self._marks.processor, self._marks.sampling, self._marks.bookkeeping)[index - 1]()


class _TimedBlock:
    """A block that marks its beginning and end; the end only if the beginning was marked."""

    def __init__(
        self, guarded: Callable[[Callable[[], Any]], bool], begin: Callable[[], bool], end: Callable[[], None]
    ):
        self._guarded, self._begin, self._end = guarded, begin, end
        self._marked: list[bool] = []  # a block may be entered in itself

    def __enter__(self) -> None:
        self._marked.append(self._guarded(self._begin))

    def __exit__(self, *problem: object) -> None:
        if self._marked and self._marked.pop():
            self._guarded(self._end)


def _steps(running: _RunningLoop) -> list[DecodedStep]:
    """Return the steps of a loop, without their tokens if these are not ids, or were changed."""
    try:
        steps = []
        for items in running.tokens:
            by_sequence: dict[int, list[int]] = {}
            for item in items:
                for number, row in item.by_sequence().items():
                    by_sequence.setdefault(number, []).extend(row)
            steps.append(DecodedStep(by_sequence, max(len(by_sequence), len(running.prompts), 1)))
        return steps
    except Exception as problem:
        _LOG.warning("the tokens of a loop are not recorded: %s", problem)
        return [DecodedStep({}, max(len(running.prompts), 1))] * len(running.tokens)


def _prompts(prompts: Any) -> list[list[int]]:
    """Return the ids of prompts by row; none if they are not ids."""
    try:
        rows = [] if isinstance(prompts, (str, bytes, Mapping)) else _lists(prompts)
        if not rows or not all(isinstance(row, (list, tuple, range, Tensor)) for row in rows):
            raise TypeError(f"{type(prompts).__name__} is no tensor and no lists of token ids, of shape (rows, width)")
        return [[int(token) for token in _lists(row)] for row in rows]
    except Exception as problem:
        _LOG.warning("the prompts given to molprof.step() are not recorded: %s", problem)
        return []


def _lists(ids: Any) -> list[Any]:
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    return list(ids) if isinstance(ids, (list, tuple, range)) else [ids]
