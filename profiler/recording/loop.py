"""A loop of a program's own, which says where its steps and phases begin and which tokens they chose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from molprof.common.errors import UsageError
from molprof.common.manifest import STEP_PHASES
from molprof.profiler.recording.marks import Marks
from molprof.profiler.recording.sequences import Batch, Step


@dataclass
class _Given:
    """What `tokens` got in a step: the ids, and their version where the device has not been read."""

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
class _Running:
    prompts: list[list[int]]
    model: Any
    tokens: list[list[_Given]] = field(default_factory=list)  # by step
    processors: dict[str, None] = field(default_factory=dict)  # in the order of their first call


class OwnLoop:
    """Tells marks what a program says of its loop.

    Args:
        heard: called with each loop that has ended, and its model.
        number: gives the number of the next batch.
    """

    def __init__(self, marks: Marks, heard: Callable[[Batch, Any], None], number: Callable[[], int]) -> None:
        self._marks, self._heard, self._number = marks, heard, number
        self._running: _Running | None = None
        self._thread: int | None = None  # of the running step
        self._place = 0  # of the running phase
        self._waiting: tuple[int, str] | None = None  # a processor that is about to be called

    @contextmanager
    def step(self, prompts: Any, model: Any) -> Iterator[None]:
        if self._thread is not None:  # inside a step, or beside one in another thread: part of it, or not marked
            yield
            return
        self._thread = threading.get_ident()
        try:
            if prompts is not None or self._running is None:
                self.close()
                self._running = _Running([] if prompts is None else [list(row) for row in _lists(prompts)], model)
                self._marks.begin(self._number())
            self._running.tokens.append([])
            self._place = 0
            self._marks.forward()
            try:
                yield
            finally:
                self._marks.gap()
        finally:
            self._thread = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self._thread != threading.get_ident():
            yield
            return
        self._enter(STEP_PHASES.index(name))
        if (waiting := self._waiting) is not None:
            self._waiting = None
            self._marks.each(*waiting)
        yield
        self._enter(min(self._place + 1, len(STEP_PHASES) - 1) if self._place else 0)

    def tokens(self, ids: Any, sequences: Any) -> None:
        if self._running is None or not self._running.tokens:
            return
        waits = isinstance(ids, Tensor) and ids.device.type != "cpu"
        kept = ids if waits or not isinstance(ids, Tensor) else ids.tolist()
        version = ids._version if waits and not ids.is_inference() else None
        self._running.tokens[-1].append(_Given(kept, sequences, version))

    def watched(self, name: str) -> None:
        if self._thread == threading.get_ident() and self._running is not None:
            self._running.processors.setdefault(name)
            self._waiting = list(self._running.processors).index(name), name

    def close(self) -> None:
        """Ends the running loop."""
        running, self._running = self._running, None
        if running is None:
            return
        self._marks.end()
        steps = []
        for given in running.tokens:
            found: dict[int, list[int]] = {}
            for item in given:
                for number, row in item.by_sequence().items():
                    found.setdefault(number, []).extend(row)
            steps.append(Step(found, max(len(found), len(running.prompts), 1)))
        names = tuple(running.processors)
        self._heard(
            Batch(steps, running.prompts, processors=names, own=tuple(range(len(names))), constraining=len(names)),
            running.model,
        )

    def _enter(self, place: int) -> None:
        """Goes on to a phase, if it is a later one."""
        if place > self._place:
            self._place = place
            (self._marks.processor, self._marks.sampling, self._marks.bookkeeping)[place - 1]()


def _lists(ids: Any) -> list[Any]:
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    return list(ids) if isinstance(ids, (list, tuple, range)) else [ids]
