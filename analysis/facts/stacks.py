"""Python stacks that the trace processor does not hold: functions and modules of a thread at a moment.

Most events of many traces are Python stacks. A report only asks which are around calls and in gaps: to nest them here
takes a fraction of the time and memory that the trace processor takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from molprof.analysis.facts.nesting import Nesting

# With more of them, or in a longer trace, none are kept: to decode them takes 3 s per million.
MOST_STACK_EVENTS = 250_000
MOST_TEXT_BYTES = 100_000_000


class Stacks(Nesting):
    """Calls of Python functions."""

    def __init__(
        self,
        texts: Sequence[str],
        numbers: dict[tuple[int, int], int],
        threads: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        names: np.ndarray,
    ) -> None:
        """Set the calls. texts: the names by number. numbers: of threads, by pid and tid as in the trace processor."""
        super().__init__(threads, starts, ends, names)
        self.texts, self.numbers = texts, numbers
