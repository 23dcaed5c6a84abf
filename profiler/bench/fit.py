"""The largest batch that fits, where a case's own did not: by bisection, each try a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from molprof.common.bench_records import NO_MEMORY, OK
from molprof.profiler.bench.cases import Case, GenerateCase
from molprof.profiler.bench.isolate import Ended


@dataclass(frozen=True)
class Fit:
    """What bisection found.

    Attributes:
        largest_batch: the largest that ran, 0 where not even one row does.
        exact: False where a try ended in another way than ok or out of memory, so that a larger one may fit.
        tries: batch sizes and what became of them, in order.
    """

    largest_batch: int
    exact: bool
    tries: tuple[tuple[int, str], ...]


def largest_fit(case: Case, attempt: Callable[[Case], Ended], fits: int = 0) -> Fit:
    """Bisects between `fits`, which is known to fit, and the case's own batch, which does not.

    A try is one untimed pass of one batch of that size: it takes the memory that a timed one takes.
    """
    low, high, exact = fits, case.rows, True
    tries = []
    while high - low > 1:
        size = (low + high) // 2
        status = attempt(_sized(case, size)).status
        tries.append((size, status))
        if status == OK:
            low = size
        else:
            high = size
            exact = exact and status == NO_MEMORY
    return Fit(low, exact, tuple(tries))


def _sized(case: Case, size: int) -> Case:
    if isinstance(case, GenerateCase):
        return replace(case, batch_size=size, count=size, warmup=1, passes=1)
    return replace(case, batch=size)
