"""Progress of a capture on stderr: on a terminal one line that is redrawn, elsewhere one line per pass."""

from __future__ import annotations

import io
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from molprof.common.text import escaped

if TYPE_CHECKING:
    from molprof.profiler.capture.passes import Progress as State

_STAGES = {
    "load": "loading the model",
    "weights": "making weights, layer",
    "verify": "checking pass",
    "warmup": "warm-up",
    "repeat": "timed pass",
    "unmarked": "timed pass without phase timestamps",
    "profile": "recorded pass",
    "disagreement": "untimed pass for disagreement",
    "write": "writing the trace",
}
_REDRAW_S = 0.1


def duration(seconds: float) -> str:
    """Return seconds as text, from 90 s on in minutes, from 90 min on in hours."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Progress:
    """Prints the progress of a capture, after `label`; a context manager, so that an error begins on a new line."""

    def __init__(self, label: str = "", stream: TextIO | None = None) -> None:
        self._label = f"{label}: " if label else ""
        self._stream = stream or sys.stderr or io.StringIO()  # None if stderr is closed
        self._live = self._stream.isatty()
        self._drawn = 0.0
        self._pass: tuple[str, int] = ("", 0)
        self._dirty = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._dirty:
            self._stream.write("\n")
            self._stream.flush()

    def __call__(self, state: State) -> None:
        for line in state.notes:
            self._stream.write(f"{self._label}{escaped(line)}\n")
        current = (state.stage, state.number)
        finished = state.batches > 0 and state.batch >= state.batches
        if not self._live:
            if finished or (current != self._pass and state.stage in ("load", "write")):
                self._stream.write(self._text(state) + "\n")
                self._stream.flush()
            self._pass = current
            return
        now = time.monotonic()
        if current == self._pass and not finished and now - self._drawn < _REDRAW_S:
            return
        self._pass, self._drawn, self._dirty = current, now, True
        self._stream.write(f"\r\x1b[2K{self._text(state)}")
        if finished:
            self._stream.write("\n")
            self._dirty = False
        self._stream.flush()

    def _text(self, state: State) -> str:
        text: str = self._label + _STAGES.get(state.stage, state.stage)
        if state.of > 1:
            text += f" {state.number}/{state.of}"
        if state.batches:
            text += f": batch {min(state.batch + 1, state.batches)}/{state.batches}"
        if state.step:
            text += f", step {state.step}/{state.max_steps}"
        if state.tokens and state.elapsed_ns:
            text += f", {state.tokens:,} tokens, {state.tokens / (state.elapsed_ns / 1e9):,.0f} tokens/s"
        return text
