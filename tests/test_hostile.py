"""Random inputs give their content or an error in one line; never a traceback or a wrong count.

MOLPROF_FUZZ_RUNS sets how many of each kind; `fuzz.py` tries them for as long as it may.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_replay_odd import called, outline

from molprof import api
from molprof.analysis.export import export
from molprof.analysis.reader import Reading
from molprof.analysis.roofline.operands import Operand
from molprof.analysis.roofline.script import script_of
from molprof.analysis.trace import Trace
from molprof.analysis.trim import Wish, trim
from molprof.analysis.ui.contents import ViewTarget
from molprof.analysis.ui.prepare import prepare
from molprof.common.errors import MolprofError
from molprof.common.manifest import from_json
from molprof.profiler.constraints.automaton import NoText, TooLarge
from molprof.profiler.constraints.json_schema import compiled
from molprof.profiler.constraints.regular import NotRegular
from molprof.profiler.jobs.grid import Option, read_grid
from molprof.profiler.molecules.prompts import Constraint, read_texts

RUNS = int(os.environ.get("MOLPROF_FUZZ_RUNS", "0"))
OPTIONS = {
    "model": Option(), "batch-size": Option(number=int), "processor": Option(), "n": Option(number=int),
    "seed": Option(number=int), "full": Option(takes_value=False),
}  # fmt: skip


def is_read(ask: Callable[[], object]) -> bool:
    """Whether it answers; else its error is one text of what can be printed."""
    try:
        ask()
    except MolprofError as problem:
        message = str(problem)
        assert message.strip()
        assert len(message) < 5_000
        return False
    return True


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
    "trim": lambda path, _: trim(path, path.with_name("part.json"), Wish(start_ns=50_000)),
    "export": lambda path, _: export(path, path.with_name("exported.json")),
    "open": lambda path, reading: prepare([Trace(path, reading)], path.parent, ViewTarget()),
}


def trace_is_read(folder: Path, given: tuple[bytes, str, bool]) -> bool:
    text, how, partial = given
    path = folder / "hostile.json"
    path.write_bytes(text)

    def counted() -> None:
        report = api.report(path, Reading(cached=False, processes=1))
        events = json.loads(text)["traceEvents"]
        complete = Counter(str(event.get("cat")) for event in events if event.get("ph") == "X")
        assert report.trace.events_by_category == complete

    is_read(lambda: READ[how](path, Reading(stacks=True, cached=False, processes=1, partial=partial)))
    return is_read(counted)


def manifest_is_read(_: Path, raw: Any) -> bool:
    return is_read(lambda: from_json(json.loads(json.dumps(raw))))


def grid_is_read(folder: Path, text: str) -> bool:
    path = folder / "grid.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return is_read(lambda: read_grid(path, lambda command: OPTIONS if command == "capture" else None).cases)


def requests_are_read(folder: Path, text: str) -> bool:
    path = folder / "requests.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return is_read(lambda: read_texts(path, None))


def schema_is_compiled(_: Path, schema: Any) -> bool:
    try:
        compiled(Constraint("schema", json.dumps(schema)))
    except (NoText, NotRegular, TooLarge):
        return False
    return True


def name_is_a_text(_: Path, given: tuple[str, str]) -> bool:
    """The name of an operator, and what a script says of its file: neither becomes anything else of a program."""
    name, of = given
    scripts: list[str] = []
    if is_read(lambda: scripts.append(script_of(called(name, TABLE), of))):
        assert outline(scripts[0]) == PLAIN
    return bool(scripts)


TABLE = Operand("float", (2, 3), (3, 1))
PLAIN = outline(script_of(called("aten::mul", TABLE), "of a test"))
KINDS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Path, Any], bool]]] = {
    "traces": (st.tuples(hostile.traces(), st.sampled_from(sorted(READ)), st.booleans()), trace_is_read),
    "manifests": (hostile.manifests(), manifest_is_read),
    "grids": (hostile.GRIDS, grid_is_read),
    "requests": (hostile.REQUESTS, requests_are_read),
    "schemas": (hostile.SCHEMAS, schema_is_compiled),
    "names": (st.tuples(hostile.OPERATORS, hostile.TEXTS), name_is_a_text),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    strategy, reads = KINDS[kind]

    usual = 8 if kind == "traces" else 25

    @settings(max_examples=RUNS or usual, deadline=None, suppress_health_check=[*HealthCheck])
    @given(strategy)
    def check(value: Any) -> None:
        reads(tmp_path, value)

    check()


@pytest.mark.parametrize(
    "inside", [{"type": 0}, {"anyOf": 5}, {"properties": 5}, {"items": {"$ref": 5}}, {"pattern": "("}]
)
def test_a_wrong_value_inside_of_a_schema_is_named(inside: dict[str, Any]) -> None:
    """Found by `fuzz.py`: it ended in a TypeError."""
    with pytest.raises(NotRegular, match=r"with a value of another type than it takes|that Python does not read"):
        compiled(Constraint("schema", json.dumps({"type": "object", "properties": {"a": inside}, "required": ["a"]})))


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
