"""`record()`: a trace of any code, with the steps and tokens of whatever calls transformers' `generate` in it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch

from molprof.common.errors import MolprofError
from molprof.profiler.environment import check_versions
from molprof.profiler.recording.clock import FULL, StepPlan
from molprof.profiler.recording.interrupts import Interrupts, trim
from molprof.profiler.recording.recording import Recording, text_of
from molprof.profiler.recording.tracefile import OutputFile

_LOG = logging.getLogger("molprof")
_running = threading.Lock()  # torch has one profiler


class _RecordedBlock(ContextDecorator):
    """The block of `record`. An interrupt while molprof works reaches the program when that is done."""

    def __init__(self, begin: Callable[[Interrupts], AbstractContextManager[Recording]]) -> None:
        self._begin = begin
        self._interrupts = Interrupts()
        self._inner = begin(self._interrupts)

    def _recreate_cm(self) -> _RecordedBlock:
        return _RecordedBlock(self._begin)

    def __enter__(self) -> Recording:
        try:
            with self._interrupts:
                return self._inner.__enter__()
        finally:
            if (came := self._interrupts.came) is not None:
                came.deliver  # noqa: B018

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            with self._interrupts:
                return self._inner.__exit__(kind, problem, trace)
        finally:
            if problem is not None:
                trim(problem)
            if (came := self._interrupts.came) is not None:
                came.deliver  # noqa: B018


def record(
    path: str | Path,
    tokenizer: Any = None,
    *,
    window: Literal["auto"] | tuple[int, int] | None = None,
    call: int | None = None,
    force: bool = False,
    functions: bool | None = None,
    **what: bool,
) -> _RecordedBlock:
    """Record the block, and write the trace when it ends, also by an exception.

    Each call of transformers' `generate`, of any thread, is a batch of the trace; so is each loop of `molprof.step`.
    Models, logits processors, stopping criteria and generation configs stay as they are. A recording inside another is
    part of that one, and writes no file; nor does one where the program's own torch.profiler runs. Both are logged, and
    what goes wrong in molprof is too: it ends the recording, not the program.

    Without `window` and `call` all is recorded and nothing is timed without the profiler. With one of them the profiler
    runs for some steps only, and the others are timed; where none of these steps is reached, no file is written, and
    what to add is logged.

    Args:
        path: the trace, which ends in .json or .json.gz.
        tokenizer: for the texts of prompts and tokens; None: the loaded one that belongs to the model.
        window: first and last step to record, from 0; "auto": 20 decode steps, from step 20 on if there are so many.
        call: the call of `generate`, or the loop, whose window is recorded, from 0; None: the second, or the first if
            there is no other, or if that one has more steps in its window.
        force: replace a file that exists.
        functions: sample the functions of logits processors in recorded steps; None: unless there are stacks.
        what: to record more. `stacks`: modules and Python functions, for `molprof report by`; `modules`: of these,
            modules alone; `shapes`: shapes and types of operators' arguments, for `report by shape` and `replay`;
            `memory`: allocations and frees, for `report by memory`; the thread of the block alone is recorded.

    Raises:
        UsageError: the file cannot be written, before the block runs; or `what` has another name.
        RunError: torch could not export its trace, or the disk is full.
    """
    plan = FULL if window is None and call is None else StepPlan(call, None if window == "auto" else window)
    options = {"tokenizer": tokenizer, "plan": plan, "functions": functions, **what}
    return _RecordedBlock(partial(_recorded, Path(path), force, options))


@contextmanager
def _recorded(path: Path, force: bool, options: dict[str, Any], interrupts: Interrupts) -> Iterator[Recording]:
    check_versions()
    output = OutputFile(path, force, tuple(sys.argv))
    other = torch._C._autograd._profiler_enabled() and not _running.locked()
    if other or not _running.acquire(blocking=False):
        runs = "the program's own profiler runs" if other else "a recording already runs"
        _LOG.warning("%s: %s is not written", runs, path)
        yield Recording(output, None, FULL)
        return
    try:
        output.check()
        recording = Recording(output, **options)
        listening = ExitStack()
        try:
            listening.enter_context(recording.listening())
        except Exception as problem:
            _LOG.warning("%s: %s is not written", text_of(problem), path)
            yield recording
            return
        try:
            with listening:
                yield recording
        except BaseException as problem:
            try:
                _write(recording, path, interrupts, text_of(problem))
            except Exception as other:  # the block's own exception is what its caller is to see
                _LOG.warning("no trace is written: %s", other)
            raise
        if (nothing := recording.nothing()) is not None:
            _LOG.warning("%s: %s is not written; %s", nothing[0], path, nothing[1])
            return
        try:
            _write(recording, path, interrupts)
        except (MolprofError, OSError):
            raise
        except Exception as problem:
            _LOG.warning("%s: %s is not written", text_of(problem), path)
    finally:
        _running.release()


def _write(recording: Recording, path: Path, interrupts: Interrupts, problem: str | None = None) -> None:
    try:
        with interrupts.raised():
            recording.write(problem)
    except KeyboardInterrupt:
        if not interrupts.came:
            raise
        _LOG.warning("interrupted while the trace was written: %s is not written", path)
