"""`molprof run --processes`: a command with all Python processes that it starts, recorded into one trace.

Each process records itself (`hook.py`), and leaves a file in a folder. When the command has ended, these are merged.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from molprof.common.errors import RunError
from molprof.common.values import bytes_text, counted, time_text
from molprof.profiler.recording import hook
from molprof.profiler.recording.merged import MergedTrace, ProcessNote, merge
from molprof.profiler.recording.tracefile import OutputFile

# Processes that outlive the command are waited for while they write.
_WRITE_S, _POLL_S = 60.0, 0.1
_NAMED = 6
_decode = msgspec.json.Decoder(ProcessNote).decode


@dataclass(frozen=True)
class ProcessSettings:
    """What is recorded of each process, and when: from the import of torch to its end, unless a window is given."""

    stacks: bool = False
    shapes: bool = False
    after_s: float | None = None  # from the start of the command; infinite: when this process gets SIGUSR1
    for_s: float | None = None  # from then on

    @property
    def is_window(self) -> bool:
        """Whether the recording begins or ends at a moment of its own."""
        return (self.after_s, self.for_s) != (None, None)


def record_processes(
    line: Sequence[str], settings: ProcessSettings, output: OutputFile, report: Callable[[str], None]
) -> int:
    """Run a command line, and write the trace of its processes; returns its exit code, below 0 for a signal.

    report: called with lines for people. Raises RunError where no process recorded anything.
    """
    with _folder(settings) as folder:
        began = time.monotonic()
        code = _run(line, folder, settings, report)
        took_s = time.monotonic() - began
        (folder / hook.END_FILE).touch()
        _wait_for_others(folder, report)
        notes = _notes(folder)
        parts = [
            (path, note)
            for stem, note in notes.items()
            for number in range(note.parts)
            if (path := folder / f"{stem}.{number}.json").exists()
        ]
        report(f"the command took {time_text(round(1e9 * took_s))}, under the profiler")
        if parts:
            merged = merge(parts, output)
            for text in _written(merged, [note for _, note in parts]):
                report(text)
        for text in _left_out(notes, {note.pid for _, note in parts}):
            report(text)
        if parts:
            size = bytes_text(merged.path.stat().st_size)
            report(f"wrote {merged.path} ({size}); next: molprof report {shlex.quote(str(merged.path))}")
    if not parts:
        raise RunError("nothing is recorded: no process of the command recorded anything", _hint(notes, settings))
    return code


@contextlib.contextmanager
def _folder(settings: ProcessSettings) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="molprof-") as name:
        folder = Path(name)
        shutil.copyfile(hook.__file__, folder / "sitecustomize.py")
        asked = {"stacks": settings.stacks, "shapes": settings.shapes, "window": settings.is_window}
        (folder / hook.SETTINGS_FILE).write_text(json.dumps(asked))
        yield folder


def _run(line: Sequence[str], folder: Path, settings: ProcessSettings, report: Callable[[str], None]) -> int:
    """Run the command to its end; the window begins and ends meanwhile."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Without the second, Kineto prints every start and stop.
    env = {"KINETO_LOG_LEVEL": "99", **os.environ, hook.FOLDER_VARIABLE: str(folder), "PYTHONPATH": ":".join(paths)}
    due, begins, ends = time.monotonic() + (settings.after_s or 0), threading.Event(), None
    with subprocess.Popen(line, env=env) as process, _passed_on(process, begins.set):
        if due == math.inf:
            report(f"kill -USR1 {os.getpid()} begins the recording")
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S)
            now = time.monotonic()
            if settings.is_window and ends is None and (now >= due or begins.is_set()):
                (folder / hook.BEGIN_FILE).touch()
                ends = now + (math.inf if settings.for_s is None else settings.for_s)
                report("the recording begins")
            if ends is not None and now >= ends:
                (folder / hook.END_FILE).touch()
                ends = math.inf
                report("the recording ends; processes write what they have")


@contextlib.contextmanager
def _passed_on(process: subprocess.Popen[Any], begin: Callable[[], object]) -> Iterator[None]:
    """Pass signals that would end this process on to the command, whose end it waits for; one calls `begin`."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        # Ctrl-C reaches all processes of a terminal's group.
        if number != signal.SIGINT or not _in_foreground():
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, lambda number, frame: begin())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _notes(folder: Path) -> dict[str, ProcessNote]:
    """Return what processes said of themselves, by name of their files, in order of their start."""
    stems = [path.stem for path in folder.glob("*-*.json") if path.stem.count(".") == 0]
    return {
        stem: _decode((folder / f"{stem}.json").read_bytes())
        for stem in sorted(stems, key=lambda stem: int(stem.partition("-")[2]))
    }


def _wait_for_others(folder: Path, report: Callable[[str], None]) -> None:
    """Wait for processes that have not written yet; they are told that the window is over."""
    ends, told = time.monotonic() + _WRITE_S, False
    while writing := [note for note in _notes(folder).values() if note.torch and not note.ended and _is_alive(note)]:
        if not told:
            report(f"waiting for {counted(len(writing), 'process', 'es')}: {_listed(writing)}")
            told = True
        if time.monotonic() > ends:
            return
        try:
            time.sleep(_POLL_S)
        except KeyboardInterrupt:
            return


def _is_alive(note: ProcessNote) -> bool:
    try:
        state = Path(f"/proc/{note.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def _written(merged: MergedTrace, notes: Sequence[ProcessNote]) -> Iterator[str]:
    """Yield lines about the trace."""
    by_pid = {note.pid: note for note in notes}
    yield f"{counted(len(merged.processes), 'process', 'es')} recorded:"
    for process in merged.processes:
        events = counted(merged.events[process.pid], "event")
        yield f"  {by_pid[process.pid].text}: {'; '.join([events, *process.problems])}"
    moved = [abs(process.clock_moved_ns) for process in merged.processes if process.clock_moved_ns is not None]
    if len(moved) > 1:
        apart_ns = max(process.clock_apart_ns or 0 for process in merged.processes)
        yield (
            f"their clocks were moved by {time_text(max(moved))} at most, onto that of the first, and agree with "
            f"CLOCK_MONOTONIC to {time_text(apart_ns)}"
        )
    if unmarked := [process.pid for process in merged.processes if process.clock_moved_ns is None]:
        yield f"without marks of the clock: {', '.join(map(str, unmarked))}"


def _left_out(notes: dict[str, ProcessNote], recorded: set[int]) -> Iterator[str]:
    """Yield lines about processes without a trace."""
    last = {note.pid: note for note in notes.values()}.values()  # a process may have become another program
    others = [note for note in last if note.pid not in recorded]
    killed = [note for note in others if note.torch and not note.ended]
    kinds = {
        "killed before they had written, so that nothing of them is recorded": [x for x in killed if not _is_alive(x)],
        "still running, and not recorded": [x for x in killed if _is_alive(x)],
        "outside the window": [x for x in others if x.torch and x.ended and not x.problems],
        "without torch, so without a trace": [x for x in others if not x.torch],
    }
    for what, some in kinds.items():
        if some:
            yield f"{what}: {_listed(some)}"
    for note in others:
        if note.ended and note.problems:
            yield f"nothing of {note.text}: {'; '.join(note.problems)}"


def _listed(notes: Sequence[ProcessNote]) -> str:
    more = f", and {len(notes) - _NAMED} more" if len(notes) > _NAMED else ""
    return ", ".join(note.text for note in notes[:_NAMED]) + more


def _hint(notes: dict[str, ProcessNote], settings: ProcessSettings) -> str:
    if not notes:
        return f"it started no Python that reads PYTHONPATH (python -I and -E do not); {sys.executable} does"
    if not any(note.torch for note in notes.values()):
        return "no process imported torch"
    return "choose another --after and --for" if settings.is_window else "end its processes by SIGTERM, not SIGKILL"
