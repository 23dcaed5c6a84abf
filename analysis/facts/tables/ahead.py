"""Columns of tables of facts, computed by a thread while the trace processor answers queries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.tables.table import Column, FactTable
from molprof.common.errors import EngineError

# What numpy takes longest for, by facts of which the trace processor must be asked before; the longest first.
_LONG = {
    ("work", "phase_lanes"): ("idle_sum",),
    ("classes", "call_stacks"): (
        "launched_work", "class_overlap", "exposed_class", "exposed_name", "host_track", "missing_call", "stream",
    ),
}  # fmt: skip
# Below, nothing takes long.
_LEAST_SLICES = 20_000


@contextlib.contextmanager
def ahead(facts: Facts, tables: Mapping[str, FactTable], processes: int) -> Iterator[None]:
    """Compute the slowest columns in a second thread during this block; none if only one process is allowed."""
    if processes == 1 or len(facts.slices.ts) < _LEAST_SLICES:
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        try:
            for needed, names in _LONG.items():
                for name in needed:
                    getattr(facts, name)
                facts.ahead.update((name, pool.submit(_alone, facts, tables[name])) for name in names)
            yield
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            facts.ahead.clear()


def _alone(facts: Facts, table: FactTable) -> Sequence[Column]:
    with facts.asking_nothing():
        return table.make(facts)


def made(name: str, facts: Facts, table: FactTable) -> Sequence[Column]:
    """Return the columns of a table, from the other thread if it has begun them."""
    future = facts.ahead.pop(name, None)
    if future is not None and not future.cancel():
        with contextlib.suppress(EngineError):  # of what that thread would have had to ask
            columns: Sequence[Column] = future.result()
            return columns
    return table.make(facts)
