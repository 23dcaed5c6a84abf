"""Twice as many events cost twice as much, whatever there is much of: instructions and calls are counted."""

from __future__ import annotations

import cProfile
import functools
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from shapes import SHAPES, write

from molprof import api
from molprof.analysis.compare.kernels.by import by_steps
from molprof.analysis.compare.kernels.pick import Kernels
from molprof.analysis.compare.kernels.read import STEPS, TRACE, RecordedRows, cut, read_recorded
from molprof.analysis.compare.kernels.sums import summed
from molprof.analysis.critical.path import read_critical_path
from molprof.analysis.documents.critical import critical_document
from molprof.analysis.documents.kernels import kernels_document
from molprof.analysis.documents.memory import memory_document
from molprof.analysis.documents.origin import origin_document
from molprof.analysis.documents.ranks import ranks_document
from molprof.analysis.documents.report import report_document
from molprof.analysis.documents.roofline import roofline_document
from molprof.analysis.memory import read_memory
from molprof.analysis.origin.opened import read_opened
from molprof.analysis.origin.tree import BYS
from molprof.analysis.ranks import job_of_files
from molprof.analysis.ranks.read import ranks_of
from molprof.analysis.render import render
from molprof.analysis.roofline.read import read_roofline
from molprof.analysis.trace_processor.wasm import counting
from molprof.common.errors import MolprofError

EVENTS = 800
FACTOR = 2.3  # by which a command may cost more for twice the events
# A query or function may grow by leaps: tables are enlarged when they are full, pages are split. Of a square it is 4.
FACTOR_OF_PART = 3.2
LEAST = {"instructions": 5_000_000, "calls": 10_000, "seconds": 0.05}
ALL = "all"
_SQL = re.compile(rb"(?:INCLUDE|CREATE|WITH|SELECT)\b.*", re.DOTALL)
_INCLUDED = re.compile(r"INCLUDE PERFETTO MODULE (\S+);\s*")

Costs = dict[str, dict[tuple[str, str], float]]  # of each command, by kind and by query or function

# Shapes that stand in one trace, one after the other: half of what a small trace costs does not depend on its events.
# At most one of them allocates; steps are apart, because comparisons look at nothing else where there are any.
TOGETHER = (
    "one_stream+two_threads+short_kernels+chains+allocations",
    "streams+devices+devices_at_once+allocations_of_devices",
    "threads+processes+idle_threads+allocations_in_ranges",
    "operator_names+long_operator_names+argument_shapes+allocations_of_one_address",
    "kernel_names+long_kernel_names+allocations_freed_in_reverse",
    "queue+kernels_overlap_all+operators_overlap_all",
    "one_correlation+one_time+no_length",
    "no_kernels+nested_operators+nested_operators_all+nested_ranges+range_names",
    "nested_functions_all+functions+function_names+module_names",
    "steps+steps_on_the_gpu+steps_with_threads+allocations_of_steps",
    "syncs+syncs_behind_a_queue+syncs_of_streams+stream_waits+copies",
    "graph_replays+graph_replays_without_numbers+large_graphs+graphs_replayed_once",
    "counters+counter_names+asynchronous+begins_and_ends+thread_names",
    "flows+flows_of_one_number+collectives",
)
ALONE = sorted(SHAPES.keys() - {name for names in TOGETHER for name in names.split("+")})
# Shapes with many of what numpy might look at one by one, and their least number of events.
TIMED = ("streams", "devices")
LONG_EVENTS = 3_000


@contextmanager
def counted(found: Costs, requests: list[Any], clock: Callable[[], float], name: str) -> Iterator[None]:
    """Counts the block as the cost of a command, which may find that the trace lacks what it shows."""
    requests.clear()
    profile = cProfile.Profile(clock)
    with suppress(MolprofError), profile:
        yield
    costs = found.setdefault(name, defaultdict(float))
    for request, instructions in requests:
        _add(costs, "instructions", _title(request), instructions)
    for entry in profile.getstats():
        function = _function(entry.code)
        _add(costs, "calls", function, entry.callcount)
        if "wasmtime" not in function:
            _add(costs, "seconds", function, entry.inlinetime)


def costs(path: Path, shape: str, events: int, clock: Callable[[], float] = time.perf_counter) -> Costs:
    """What each command costs for a trace of that shape and size; functions are timed by `clock`."""
    write(path, shape, events)
    found: Costs = {}
    with counting() as requests, api.load(path, processes=1, cached=False) as trace:
        command = partial(counted, found, requests, clock)
        with command("report"):
            render(report_document(trace.report))
        with command("ranks"):
            ranks = trace.read(ranks_of)
            render(ranks_document(job_of_files([*ranks, *(replace(rank, rank=1) for rank in ranks)])))
        with command("reading"):
            trace.loaded(stacks=True, all_args=True)
        with command("path"):
            render(critical_document(trace.read(read_critical_path)))
        with command("memory"):
            render(memory_document(trace.read(read_memory)))
        with command("shape"):
            render(roofline_document(trace.read(read_roofline)))
        with command("compare"):
            recorded = trace.read(partial(read_recorded, host="source"))
            region = STEPS if recorded.steps else TRACE
            sides = cut(recorded, region), cut(_changed(recorded), region)
            for by in ("kernel", "source"):
                render(kernels_document(Kernels(region, by_steps(*sides, by), summed(*sides), ())))
        with command("trees"):
            origins, _ = trace.read(read_opened)
        for by in BYS:
            with command(by):
                render(origin_document(origins, by))
    return found


def _add(counted: dict[tuple[str, str], float], kind: str, what: str, cost: float) -> None:
    counted[kind, what] += cost
    counted[kind, ALL] += cost


def _changed(recorded: RecordedRows) -> RecordedRows:
    """The same, but every seventh kernel has another name."""
    rows = (
        row._replace(name=f"other {row.name}") if place % 7 == 0 else row for place, row in enumerate(recorded.rows)
    )
    return replace(recorded, rows=tuple(rows))


# Ids of slices, which differ from trace to trace.
_NUMBERS = re.compile(r"\[\d[\d, ]*\]?")


def _title(request: bytes) -> str:
    sql = _SQL.search(request[:10_000])
    if sql is None:
        return "loading"
    text = _NUMBERS.sub("[...]", sql[0].decode("utf-8", "replace"))
    return f"{' '.join(_INCLUDED.findall(text))}: {' '.join(_INCLUDED.sub('', text).split())[:80]}"


def _function(code: CodeType | str) -> str:
    return code if isinstance(code, str) else f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"


@functools.cache
def fixed(folder: Path) -> Costs:
    """What each command costs for a trace with next to nothing in it."""
    return costs(folder / "fixed.json", "one_stream", 3)


def growth(shape: str, fixed: Costs, before: Costs, after: Costs, kinds: Collection[str], doublings: int) -> list[str]:
    """What grows by more than it may; queries without the instructions that do not depend on the number of events."""
    found = []
    for command in after:
        for (kind, what), cost in after[command].items():
            once = fixed[command][kind, what] if kind == "instructions" and what != ALL else 0
            more = cost - once
            less = max(before[command][kind, what] - once, once)  # what is small beside the fixed cost varies with it
            factor = (FACTOR if what == ALL else FACTOR_OF_PART) ** doublings
            if kind in kinds and more > LEAST[kind] and more > factor * less:
                found.append(
                    f"{command}: {more / less if less > 0 else inf:.2f} times the {kind} of {what} ({more:,.0f})"
                )
    return found


@pytest.mark.parametrize("shape", [*TOGETHER, *ALONE])
def test_twice_the_events_take_twice_the_work(
    shape: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before, after = (costs(tmp_path / f"{events}.json", shape, events) for events in (EVENTS, 2 * EVENTS))
    base = fixed(tmp_path_factory.getbasetemp())
    if growth(shape, base, before, after, ("instructions", "calls"), 1):
        # The trace processor changes its plan at some size, which is a leap, and none for the next doubling.
        later = costs(tmp_path / "later.json", shape, 4 * EVENTS)
        assert growth(shape, base, after, later, ("instructions", "calls"), 1) == []


@pytest.mark.parametrize("shape", TIMED)
def test_four_times_the_events_take_four_times_the_time(shape: str, tmp_path: Path) -> None:
    """What numpy does with arrays is not counted. A time that was disturbed is taken again."""
    nothing: Costs = defaultdict(lambda: defaultdict(float))
    for attempt in range(3):
        before, after = (
            costs(tmp_path / f"{attempt}-{events}.json", shape, events, time.process_time)
            for events in (LONG_EVENTS, 4 * LONG_EVENTS)
        )
        if not (found := growth(shape, nothing, before, after, ("seconds",), 2)):
            return
    pytest.fail("\n".join(found))
