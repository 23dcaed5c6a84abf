"""Ctrl-C in `molprof.record()` raises the program's own exception, with a trace or one line, and leaves nothing."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import molprof
from molprof import api

MOMENTS = {
    "begins": ("recording.py", "listening", 1),
    "ends": ("window.py", "finish", 1),
    "exports": ("window.py", "export", 1),
    "reads": ("tracefile.py", "read_exported", 1),
    "writes": ("tracefile.py", "_json", 1),
    "removes": ("files.py", "_remove", 2),
}


@contextmanager
def interrupted(file: str, function: str, number: int) -> Iterator[None]:
    """An interrupt when a function of molprof is called for this time."""
    left = [number]

    def heard(frame: Any, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == function and code.co_filename.endswith(f"/{file}"):
            left[0] -= 1
            if left[0] == 0:
                sys.setprofile(None)
                os.kill(os.getpid(), signal.SIGINT)

    sys.setprofile(heard)
    try:
        yield
    finally:
        sys.setprofile(None)


def steps(path: Path) -> None:
    with molprof.record(path):
        for _ in range(2):
            with molprof.step():
                torch.ones(2).add_(1)
                molprof.tokens([3])
    for _ in range(3):
        pass  # where a signal comes that waited for the end of the block


def frames(problem: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(problem.__traceback__)]


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupt_while_molprof_works(moment: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.json.gz"
    with pytest.raises(KeyboardInterrupt) as caught, interrupted(*MOMENTS[moment]):
        steps(path)
    assert set(frames(caught.value)) == {__file__}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not torch.autograd.profiler._is_profiler_enabled
    left = [item.name for item in tmp_path.iterdir()]
    if moment in ("begins", "ends", "removes"):  # the trace so far is whole
        assert (left, caplog.messages) == ([path.name], [])
        assert (api.report(path).run is None) == (moment == "begins")
        return
    line = f"interrupted while the trace was written: {path} is not written"
    assert (left, caplog.messages) == ([], [line])
    steps(path)
    assert path.exists()


def test_a_handler_of_the_program_is_kept_and_called(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once molprof is done: the trace is written whole."""
    seen: list[str] = []

    def mine(number: int, frame: Any) -> None:
        seen.append(frame.f_code.co_filename)

    before = signal.signal(signal.SIGINT, mine)
    try:
        with interrupted(*MOMENTS["writes"]):
            steps(tmp_path / "a.json")
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)
    assert (seen, caplog.messages) == ([__file__], [])
    assert api.report(tmp_path / "a.json").run is not None


@molprof.watch
def fails(ids: Any, scores: Any) -> Any:
    try:
        return molprof.watch(int)("no number")
    except ValueError as problem:
        raise KeyError(3) from problem


@pytest.mark.parametrize("how", [{}, {"window": (0, 1)}], ids=["all", "window"])
def test_an_exception_of_the_block_has_frames_of_the_program_alone(how: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(KeyError) as caught, molprof.record(tmp_path / "a.json", **how), molprof.step():
        fails(1, 2)
    assert frames(caught.value) == [__file__] * 2
    assert caught.value.__cause__ is not None
    assert frames(caught.value.__cause__) == [__file__]
