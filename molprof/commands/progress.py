"""Progress on stderr: a line per pass or case, and on a terminal one that is redrawn."""

from __future__ import annotations

import io
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from molprof.common.text import escaped
from molprof.common.values import counted

if TYPE_CHECKING:
    from molprof.profiler.bench.schedule import FinishedTurn
    from molprof.profiler.capture.passes import CaptureProgress as State

_STAGES = {
    "load": "loading the model",
    "make": "making the constraint",
    "weights": "making weights, layer",
    "verify": "warm-up that checks the processor",
    "warmup": "warm-up",
    "repeat": "timed pass",
    "unmarked": "timed pass without phase timestamps",
    "graphs": "pass that captures the CUDA graphs again",
    "profile": "recorded pass",
    "count": "warm-up that counts masked logits",
    "disagreement": "untimed pass for disagreement",
    "write": "writing the trace",
    "failed": "failed",
    "machine": "looking at the machine",
}
_REDRAW_S, _LINE_S = 0.1, 10.0
_LABEL_LENGTH = 52
_CLEAR = "\r\x1b[2K"


def duration(seconds: float) -> str:
    """Return seconds as text, from 90 s on in minutes, from 90 min on in hours."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def time_left(seconds: float) -> str:
    """Return an estimate, such as `, about 9 s left`."""
    return f", about {seconds:.0f} s left" if seconds < 90 else f", about {duration(seconds)} left"


class Lines:
    """Lines on stderr, and on a terminal one more below them that is redrawn."""

    def __init__(self) -> None:
        self._stream = sys.stderr or io.StringIO()  # None if stderr is closed
        self._live = self._stream.isatty()
        self._dirty = False

    def line(self, text: str) -> None:
        """Print a line in place of the one that is redrawn."""
        self.clear()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def draw(self, text: str) -> None:
        """Show `text` until the next call; on a terminal only."""
        if self._live:
            self._stream.write(f"{_CLEAR}{text}")
            self._stream.flush()
            self._dirty = True

    def clear(self) -> None:
        """Delete what `draw` shows."""
        if self._dirty:
            self._stream.write(_CLEAR)
            self._dirty = False


class Counting(Lines):
    """Progress of reading files; without a terminal a line every 10 s."""

    def __init__(self, noun: str) -> None:
        super().__init__()
        self._noun = noun
        self._begin = self._said = time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        """Show how many of the items are done, and the time left."""
        now = time.monotonic()
        left = time_left((now - self._begin) / done * (of - done)) if done < of else ""
        text = f"read {done:,} of {counted(of, self._noun)}{left}"
        self.draw(text)
        if not self._live and done < of and now - self._said >= _LINE_S:
            self._said = now
            self.line(text)


class CaseLines(Lines):
    """A line on stderr for each case that has ended; on a terminal, also one for the running case."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: Counter[str] = Counter()
        self.last_problem: str | None = None

    def begin(self, label: str, number: int, of: int) -> None:
        """Show that a case begins."""
        self.draw(f"[{number}/{of}] running {escaped(label)}")

    def __call__(self, step: FinishedTurn) -> None:
        """Show the result of a case."""
        ending, width = step.ending, len(str(step.of))
        self.statuses[ending.state] += 1
        label = f"{escaped(step.turn.label):<{_LABEL_LENGTH}}"
        text = f"[{step.number:>{width}}/{step.of}] {ending.state:<13} {label} {duration(ending.seconds)}"
        if step.rest_s:
            text += time_left(step.rest_s)
        if ending.message:
            self.last_problem = escaped(ending.message)
            text += f"\n{' ' * (2 * width + 4)}{self.last_problem}"
        self.line(text)


class ProgressPrinter(Lines):
    """Prints the progress of a capture; a context manager, so that an error begins on a new line."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn = 0.0
        self._pass: tuple[str, int, str] = ("", 0, "")

    def __enter__(self) -> ProgressPrinter:
        return self

    def __exit__(self, *error: object) -> None:
        if self._dirty:
            self._stream.write("\n")
            self._stream.flush()

    def __call__(self, state: State) -> None:
        """Show the progress of the capture."""
        for line in state.notes:
            self.line(f"{_run(state)}{escaped(line)}")
        this = state.stage, state.number, state.run
        is_new = this != self._pass
        self._pass = this
        if 0 < state.batches <= state.batch or (is_new and not self._live and state.stage in ("load", "write", "make")):
            self.line(self._text(state))
        elif is_new or time.monotonic() - self._drawn >= _REDRAW_S:
            self._drawn = time.monotonic()
            self.draw(self._text(state))

    def _text(self, state: State) -> str:
        text: str = _run(state) + _STAGES.get(state.stage, state.stage)
        if state.of > 1:
            text += f" {state.number}/{state.of}"
        if state.batches:
            text += f": batch {min(state.batch + 1, state.batches)}/{state.batches}"
        if state.step:
            text += f", step {state.step}/{state.max_steps}"
        if state.tokens and state.elapsed_ns:
            text += f", {state.tokens:,} tokens, {state.tokens / (state.elapsed_ns / 1e9):,.0f} tokens/s"
        return text


def _run(state: State) -> str:
    return f"{escaped(state.run)}: " if state.run else ""
