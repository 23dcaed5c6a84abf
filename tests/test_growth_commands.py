"""Twice as many events, or files, cost twice as much in the commands that write, serve, query and list traces."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from shapes import write
from test_growth import Costs, counted, growth

from molprof import api
from molprof.analysis.documents.figures import TraceRow, reports_document
from molprof.analysis.documents.ranks import ranks_document
from molprof.analysis.export import export
from molprof.analysis.fleet.history import add, entries, entry_of
from molprof.analysis.fleet.ranks import ranks_of_trace
from molprof.analysis.fleet.row import is_part
from molprof.analysis.fleet.row import write_part as write_row
from molprof.analysis.fleet.rows import Fleet, each_row, joined_files, row_of_trace
from molprof.analysis.ranks.files import ENDING as RANK
from molprof.analysis.ranks.files import write_part as write_rank
from molprof.analysis.reader import Reading
from molprof.analysis.reader.parts import digest_of
from molprof.analysis.render import render
from molprof.analysis.trace import Trace
from molprof.analysis.trace_processor.wasm import counting
from molprof.analysis.trim import Wish, trim
from molprof.analysis.ui.prepare import ViewTarget, prepare
from molprof.queries.catalog import catalog

EVENTS, FILES = 400, 20
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
        with command("rows"):
            rows = list(each_row([path], READING, Fleet(folder)))
        with command("history add"):
            add(folder, entry_of(rows[0], digest_of(path), shape, f"2026-01-01 {events}", None))
        with command("ranks --parts"):
            api.ranks([path], READING, parts=folder)
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


def costs_of_files(folder: Path, files: int) -> Costs:
    """What commands cost that take so many files with what was read of traces."""
    folder.mkdir()
    found, path = Costs(), folder / "trace.json"
    write(path, "one_stream", 30)
    with Trace(path, READING) as trace:
        row, ranks = row_of_trace(trace), ranks_of_trace(trace)
    for number in range(files):
        (source := folder / f"{number}.json").write_text(str(number))
        write_rank(folder, source, False, [replace(rank, rank=number) for rank in ranks])
        write_row(folder, structs.replace(row, digest=f"{number:032x}"))
    command = functools.partial(counted, found, [], time.perf_counter)
    with command("rows"):
        parts, _ = joined_files([file for file in folder.iterdir() if is_part(file)], partial=False)
        render(
            reports_document(
                [TraceRow(one.file, one.figures, one.problem) for one in each_row(parts, READING, Fleet())]
            )
        )
        assert len(parts) == files
    with command("ranks"):
        job = api.ranks(sorted(folder.glob(f"*{RANK}")), READING)
        render(ranks_document(job))
        assert len(job.ranks) == files
    history = folder / "history"
    history.mkdir()
    with command("history"):
        for number in range(files):
            add(history, entry_of(row, f"{number:032x}", None, f"2026-01-01 {number}", None))
        assert len(list(entries(history))) == files
    return found


def test_twice_the_files_take_twice_the_work(tmp_path: Path) -> None:
    nothing: Costs = defaultdict(lambda: defaultdict(float))
    before, after = (costs_of_files(tmp_path / str(files), files) for files in (FILES, 2 * FILES))
    assert growth("files", nothing, before, after, ("calls",), 1) == []
