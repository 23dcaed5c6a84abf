"""What operators were called with stands by their slices, whatever is loaded and however the file is packed."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from molprof.analysis.facts.tables import install
from molprof.analysis.figures.shapes import input_shapes
from molprof.analysis.reader.load import load_trace
from molprof.analysis.reader.open import open_trace
from molprof.analysis.roofline.operands import Operand, read_operands
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.common.errors import EngineError

BASE = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
ARGS = {
    "External id": 3,
    "Input Dims": [[2, 3], [], [[4], [5, 6]], []],
    "Input Strides": [[3, 1], [], [], []],
    "Input type": ["float", "Scalar", "TensorList", ""],
    "Concrete Inputs": ["", "1", "", "[1, 2]"],
}
OPERANDS = (
    Operand("float", (2, 3), (3, 1)),
    Operand("Scalar", value="1"),
    Operand("TensorList", parts=((4,), (5, 6))),
    Operand(value="[1, 2]"),
)


COUNTER = {"ph": "C", "name": "power", "pid": 1, "ts": 0, "args": {"W": 5}}  # which only JSON can feed


def opened(engine: TraceProcessor, path: Path, **how: bool) -> TraceProcessor:
    load_trace(path, engine, **how)
    install(engine)
    return engine


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("others", [[], [COUNTER]], ids=["compact", "JSON"])
def test_operands_are_those_of_the_file(tmp_path: Path, engine: TraceProcessor, whole: bool, others: list[Any]) -> None:
    """One operator is decoded with its block, the second in brief; what is no argument, or wrong, is none."""
    events = [
        {**BASE, "name": "first", "ts": 1, "dur": 9, "args": ARGS},
        {**BASE, "name": "none", "ts": 2, "dur": 1, "args": {"External id": 4}},
        {**BASE, "name": "wrong", "ts": 3, "dur": 1, "args": {"Input Dims": [[2, -1]], "Input type": 5}},
        {**BASE, "name": "empty", "ts": 4, "dur": 1, "args": {"Input Dims": [[]]}},
        {**BASE, "name": "other", "cat": "user_annotation", "ts": 5, "dur": 1, "args": ARGS},
    ]
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [*events, *others]}, indent=1).encode()))
    opened(engine, path, all_args=whole)
    assert read_operands(engine, range(5)) == {0: OPERANDS}
    assert input_shapes(engine) == {0: ((2, 3), (), (4, 5, 6)), 2: ((2, -1),)}


OPERATORS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(1, 3), st.booleans(), st.booleans()), max_size=40
)


@hypothesis.settings(deadline=None, max_examples=20)
@hypothesis.given(OPERATORS, st.booleans(), st.sampled_from(([], [COUNTER])))
def test_arguments_stand_by_their_slices(
    rows: list[tuple[int, int, int, bool, bool]], whole: bool, others: Any
) -> None:
    """Also where many start at one moment, and the engine gets them in another order than the file has them."""
    events = [
        {**BASE, "name": f"op{place}", "ts": start, "dur": length, "tid": thread}
        | ({"args": {"Input Dims": [[place + 1]]}} if has_args else {})
        | ({} if is_operator else {"cat": "user_annotation"})
        for place, (start, length, thread, has_args, is_operator) in enumerate(rows)
    ]
    expected = {f"op{place}": ((place + 1,),) for place, row in enumerate(rows) if row[3] and row[4]}
    with tempfile.TemporaryDirectory() as folder, open_engine() as engine:
        path = Path(folder, "a.json")
        path.write_text(json.dumps({"traceEvents": [*events, *others]}))
        shapes = input_shapes(opened(engine, path, all_args=whole))
        ids, names = (column.tolist() for column in engine.query("SELECT id, name FROM slice").values())
    name_of = dict(zip(ids, names, strict=True))
    assert {name_of[number]: sizes for number, sizes in shapes.items()} == expected


def test_arguments_are_kept_with_a_trace_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLPROF_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": [{**BASE, "name": "first", "ts": 1, "dur": 9, "args": ARGS}]}))
    for _ in range(2):
        with open_trace(path, cached=True) as (engine, _):
            assert read_operands(engine, [0]) == {0: OPERANDS}


def test_a_trace_without_stacks_is_loaded_without_arguments(tmp_path: Path, engine: TraceProcessor) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": [{**BASE, "name": "first", "ts": 1, "dur": 9, "args": ARGS}]}))
    opened(engine, path, all_args=False, stacks=False)
    with pytest.raises(EngineError, match="loaded without Python stacks"):
        read_operands(engine, [0])
