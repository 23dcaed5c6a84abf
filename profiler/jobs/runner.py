"""Run cases on this machine, one process at a time, and say how each ended."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from molprof.common.process import OK, UNSUPPORTED, Ending


@dataclass(frozen=True)
class Turn:
    """One process of a case."""

    case: str  # its id
    label: str  # for people
    repeat: int = 0


@dataclass(frozen=True)
class Step:
    """A turn that has ended."""

    turn: Turn
    ending: Ending
    number: int  # number, of: its place among the turns to run
    of: int
    rest_s: float | None  # estimated seconds for the remaining ones; None: unknown


def run_here(
    turns: Sequence[Turn], run: Callable[[Turn], Ending], begin: Callable[[str, int, int], None]
) -> Iterator[Step]:
    """Run the turns in their order, and yield each. A case that was not ok is not repeated.

    `begin` is called before each with its label, its number and how many there are.
    """
    waiting, took, number = [*turns], dict[str, list[float]](), 0
    while waiting:
        turn = waiting.pop(0)
        number += 1
        begin(turn.label, number, number + len(waiting))
        ending = run(turn)
        if ending.state != OK:
            waiting = [other for other in waiting if other.case != turn.case]
        if ending.state != UNSUPPORTED:
            took.setdefault(turn.case, []).append(ending.seconds)
        usual = statistics.median([time for times in took.values() for time in times] or [0.0])
        rest = sum(statistics.median(took.get(other.case, [usual])) for other in waiting)
        yield Step(turn, ending, number, number + len(waiting), rest if took else None)
