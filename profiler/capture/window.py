"""Which steps of a capture are recorded."""

from __future__ import annotations

from molprof.common.errors import UsageError
from molprof.common.manifest import Window
from molprof.profiler.decoding.runner import PassResult

WINDOW_FIRST, WINDOW_STEPS = 20, 20


def choose_window(asked: tuple[int, int] | None, full: bool, result: PassResult) -> Window:
    """The steps to record.

    By default 20 decode steps of the first batch, from step 20 on where the answers are that long, in which
    no row is finished yet: those are the steps that a run mostly consists of.

    Raises:
        UsageError: the window asked for begins after the last step.
    """
    batch = result.batches[0]
    if full:
        return Window(True, 0, 0, batch.steps - 1)
    if asked is not None:
        check_window(asked, batch.steps)
        return Window(False, 0, asked[0], min(asked[1], batch.steps - 1))
    last = min(map(batch.busy_steps, range(len(batch.rows)))) - 1
    first = max(min(WINDOW_FIRST, last - WINDOW_STEPS + 1), min(1, last))
    return Window(False, 0, first, min(first + WINDOW_STEPS - 1, last))


def check_window(asked: tuple[int, int], steps: int) -> None:
    """Raises UsageError where a window (first and last step) begins after the last of so many steps."""
    if asked[0] >= steps:
        raise UsageError(
            f"window {asked[0]}:{asked[1]} begins after the first batch's last step {steps - 1}",
            hint=f"--window within 0:{steps - 1}",
        )
