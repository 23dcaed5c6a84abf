"""Random inputs: what they hold, or an error in one line; never a traceback, and never another count.

MOLPROF_FUZZ_RUNS sets how many of each kind.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hostile
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from molprof import api
from molprof.analysis.reader import Reading
from molprof.common.errors import MolprofError
from molprof.common.manifest import from_json
from molprof.profiler.constraints.automaton import NoText, TooLarge
from molprof.profiler.constraints.json_schema import compiled
from molprof.profiler.constraints.regular import NotRegular
from molprof.profiler.jobs.grid import read_grid
from molprof.profiler.molecules.prompts import Constraint, read_texts

RUNS = int(os.environ.get("MOLPROF_FUZZ_RUNS", "0"))
OPTIONS = {"model": True, "batch-size": True, "processor": True, "n": True, "seed": True, "full": False}


def runs(usual: int) -> Callable[[Any], Any]:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=RUNS or usual, deadline=None, suppress_health_check=slow)


@contextmanager
def lines() -> Iterator[None]:
    """An error of the block is one line of what can be printed."""
    try:
        yield
    except MolprofError as problem:
        message = str(problem)
        assert message.strip()
        assert len(message) < 5_000


READ: dict[str, Callable[[Path, Reading], object]] = {
    "report": api.report,
    "memory": api.memory,
    "operators": api.called_operators,
    "module": lambda path, reading: api.origins(path, reading=reading),
    "path": api.critical_path,
    "shape": lambda path, reading: api.roofline(path, reading=reading),
    "kernels": api.recorded,
    "launches": lambda path, reading: api.query(path, "launches", reading=reading),
    "ranks": lambda path, reading: api.ranks([path], reading=reading),
}


@runs(15)
@given(hostile.traces(), st.sampled_from(sorted(READ)), st.booleans())
def test_traces(tmp_path_factory: pytest.TempPathFactory, text: bytes, how: str, partial: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "hostile.json"
    path.write_bytes(text)
    with lines():
        READ[how](path, Reading(stacks=True, cached=False, processes=1, partial=partial))
    with lines():
        report = api.report(path, Reading(cached=False, processes=1))
        events = json.loads(text)["traceEvents"]
        complete = Counter(str(event.get("cat")) for event in events if event.get("ph") == "X")
        assert report.trace.events_by_category == complete


@runs(40)
@given(hostile.manifests())
def test_manifests(raw: Any) -> None:
    with lines():
        from_json(json.loads(json.dumps(raw)))


@runs(40)
@given(hostile.GRIDS)
def test_grids(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "grid.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with lines():
        assert read_grid(path, lambda command: OPTIONS if command == "capture" else None).cases


@runs(40)
@given(hostile.REQUESTS)
def test_requests(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "requests.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with lines():
        read_texts(path, None)


@runs(40)
@given(hostile.SCHEMAS)
def test_schemas(schema: Any) -> None:
    with suppress(NoText, NotRegular, TooLarge):
        compiled(Constraint("schema", json.dumps(schema)))


def test_instants_among_python_stacks_are_no_complete_events(tmp_path: Path) -> None:
    """Found by `test_traces`: they were counted where stacks are read beside the engine."""
    events = [
        {"ph": ph, "cat": "python_function", "name": "m.py(3): f", "pid": 1, "tid": 1, "ts": number, "dur": 1}
        for number, ph in enumerate("XiBEX")
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    counts = [
        api.report(path, Reading(stacks=stacks, cached=False)).trace.events_by_category for stacks in (False, True)
    ]
    assert counts == [{"python_function": 2}] * 2
