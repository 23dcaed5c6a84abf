"""Twice as many events cost twice as much, whatever there is much of: instructions and calls are counted."""

from __future__ import annotations

import cProfile
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from shapes import SHAPES, write

from molprof import api
from molprof.analysis.compare.kernels.read import STEPS, TRACE, Recorded, cut, read_recorded
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
FACTOR = 2.3  # by which costs may grow for twice the events
# What grows by less may do so by leaps: tables are enlarged when they are full, pages are split.
LEAST_INSTRUCTIONS = 5_000_000
LEAST_CALLS = 1_000
_SQL = re.compile(rb"(?:INCLUDE|CREATE|WITH|SELECT)\b.*", re.DOTALL)
_INCLUDED = re.compile(r"INCLUDE PERFETTO MODULE (\S+);\s*")

Costs = dict[str, Counter[str]]  # of each command, by what they are of

# Shapes and commands that still take too long. Empty is the aim.
KNOWN_SUPERLINEAR: dict[str, tuple[str, ...]] = {}


def costs(path: Path, shape: str, events: int) -> Costs:
    """What each command costs for a trace of that shape and size."""
    write(path, shape, events)
    found: Costs = {}
    with counting() as requests, api.load(path, processes=1, cached=False) as trace:

        @contextmanager
        def command(name: str) -> Iterator[None]:
            """Counts the block, which may find that the trace lacks what the command shows."""
            requests.clear()
            profile = cProfile.Profile()
            with suppress(MolprofError), profile:
                yield
            counted = found.setdefault(name, Counter())
            for request, instructions in requests:
                counted[_title(request)] += instructions
            for entry in profile.getstats():
                counted[f"calls of {entry.code}"] += entry.callcount

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
            recorded = trace.read(read_recorded)
            region = STEPS if recorded.steps else TRACE
            render(kernels_document(summed(cut(recorded, region), cut(_changed(recorded), region)), region))
        with command("trees"):
            origins, _ = trace.read(read_opened)
        for by in BYS:
            with command(by):
                render(origin_document(origins, by))
    return found


def _changed(recorded: Recorded) -> Recorded:
    """The same, but every seventh kernel has another name."""
    rows = (
        row._replace(name=f"other {row.name}") if place % 7 == 0 else row for place, row in enumerate(recorded.rows)
    )
    return replace(recorded, rows=tuple(rows))


def _title(request: bytes) -> str:
    sql = _SQL.search(request[:10_000])
    if sql is None:
        return "loading"
    text = sql[0].decode("utf-8", "replace")
    return f"{' '.join(_INCLUDED.findall(text))}: {' '.join(_INCLUDED.sub('', text).split())[:80]}"


@functools.cache
def fixed(folder: Path) -> Costs:
    """What each command costs for a trace with next to nothing in it."""
    return costs(folder / "fixed.json", "one_stream", 3)


def growth(fixed: Mapping[str, int], once: Mapping[str, int], twice: Mapping[str, int]) -> dict[str, float]:
    """The factors above FACTOR by which costs grow, less those that do not depend on the number of events."""
    found = {}
    for what, count in twice.items():
        least = LEAST_CALLS if what.startswith("calls of ") else LEAST_INSTRUCTIONS
        before, after = (max(1, number - fixed.get(what, 0)) for number in (once.get(what, 0), count))
        if after > least and after / before > FACTOR:
            found[what] = after / before
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_twice_the_events_cost_twice_as_much(
    shape: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    once, twice = (costs(tmp_path / f"{events}.json", shape, events) for events in (EVENTS, 2 * EVENTS))
    base = fixed(tmp_path_factory.getbasetemp())
    found = {name: grown for name in twice if (grown := growth(base[name], once[name], twice[name]))}
    for name in KNOWN_SUPERLINEAR.get(shape, ()):
        found.pop(name, None)
    assert not found
