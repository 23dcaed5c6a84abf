"""Twice as many events cost twice as much in the commands that write, serve and query traces."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from shapes import write
from test_growth import Costs, counted, growth

from molprof import api
from molprof.analysis.export import export
from molprof.analysis.reader import Reading
from molprof.analysis.trace import Trace
from molprof.analysis.trace_processor.wasm import counting
from molprof.analysis.trim import Wish, trim
from molprof.analysis.ui.prepare import ViewTarget, prepare
from molprof.queries.catalog import catalog

EVENTS = 400
READING = Reading(stacks=True, cached=False, processes=1)
# Of each kind of thing that a trace may have much of, the shape that costs most; in one trace, one after the other.
CHOSEN = "generate_with_stacks+graph_replays"


@functools.cache
def tables() -> Sequence[tuple[str, str]]:
    """All tables and views of the SQL package, with their modules."""
    return [
        (module.name, entry.name)
        for module in catalog().values()
        for entry in module.entries
        if entry.kind != "function"
    ]


def costs(folder: Path, shape: str, events: int) -> Costs:
    path, found = folder / f"{events}.json", Costs()
    write(path, shape, events)
    with counting() as requests:
        command = functools.partial(counted, found, requests, time.perf_counter)
        with command("trim"):
            trim(path, folder / "part.json", Wish(start_ns=1_000_000))
        with command("export"):
            export(path, folder / "exported.json")
        with command("open"):
            prepare([Trace(path, READING)], folder, ViewTarget())
        with command("replay"):
            api.called_operators(path, READING)
        with api.load(path, READING) as trace:
            trace.loaded(stacks=True, all_args=True)
            for module, table in tables():
                query = f"INCLUDE PERFETTO MODULE molprof.{module}; SELECT COUNT() FROM (SELECT * FROM {table})"
                with command(f"query {table}"):
                    trace.read(lambda engine, info, sql=query: engine.query(sql), stacks=True, all_args=True)
    return found


@functools.cache
def fixed(folder: Path) -> Costs:
    return costs(folder, "one_stream", 3)


def test_twice_the_events_take_twice_the_work(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    before, after = (costs(tmp_path, CHOSEN, events) for events in (EVENTS, 2 * EVENTS))
    base = fixed(tmp_path_factory.getbasetemp())
    if growth(CHOSEN, base, before, after, ("instructions", "calls"), 1):
        later = costs(tmp_path, CHOSEN, 4 * EVENTS)
        assert growth(CHOSEN, base, after, later, ("instructions", "calls"), 1) == []
