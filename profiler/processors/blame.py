"""What a user's own code raised, and where in it, as text for an error message."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import torch

from molprof.common.errors import MolprofError

_LIBRARIES = ("stdlib", "platstdlib")
_INSTALLED = {"site-packages", "dist-packages"}

# Errors that already say what to do.
PASSED_ON = (MolprofError, torch.OutOfMemoryError)
# `SystemExit` would end the process without a message.
RAISED = (Exception, SystemExit)


def told(problem: BaseException, factory: str) -> str:
    """Kind, text and, where it is known, place of an error: `ValueError: too few (mine.py line 12)`.

    The place is the innermost frame outside of molprof and installed packages; for an installed processor, the
    innermost frame of its own package.

    Args:
        factory: `package.module:factory`.
    """
    text = str(problem).strip()
    what = f"{type(problem).__name__}: {text}" if text else type(problem).__name__
    place = _place(problem, factory.partition(":")[0])
    return what if place is None else f"{what} ({place})"


def _place(problem: BaseException, module: str) -> str | None:
    frames = [
        (str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(problem.__traceback__)
        if not frame.f_code.co_filename.startswith("<")  # no file: the import system, or generated code
    ]
    package = module.partition(".")[0]
    foreign = [frame for frame in frames if frame[0].partition(".")[0] != "molprof"]
    own = [frame for frame in foreign if not _installed(frame[1])]
    own = own or [frame for frame in foreign if frame[0].partition(".")[0] == package]
    return f"{Path(own[-1][1]).name} line {own[-1][2]}" if own else None


def _installed(file: str) -> bool:
    path = Path(file)
    if _INSTALLED.intersection(path.parts):
        return True
    return any(path.is_relative_to(sysconfig.get_path(name)) for name in _LIBRARIES)
