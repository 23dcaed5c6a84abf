"""Threads that only wait do not count as work in the tree by Python function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from decoding_trace import op
from finding_cases import plain
from goldens import called
from tiny_trace import slice_


def function(name: str, ts: float, dur: float, tid: int) -> dict[str, Any]:
    return slice_("python_function", f"x/{name}.py(1): {name}", ts, dur, tid=tid)


WORKS = [
    function("work", 0, 1000, 100),
    function("short", 5, 0, 100),
    function("inner", 10, 600, 100),
    op("aten::mm", 700, 200),
]
WAITS = [function("_worker", 1, 998, 101), function("wait", 2, 996, 101)]


def functions(folder: Path, *more: Any) -> tuple[list[str], str]:
    """Names of the functions of the tree, and the text of the report."""
    tiny_trace.write(folder / "t.json", plain(*more))
    found: list[str] = []

    def walk(node: dict[str, Any]) -> None:
        found.append(node["name"].rpartition(" ")[2])
        for child in node.get("children", ()):
            walk(child)

    code, out, err = called(["report", "by", "source", "t.json", "--format", "json"], folder)
    assert code == 0, err
    walk(json.loads(out)["tree"])
    code, out, err = called(["report", "by", "source", "t.json"], folder)
    assert code == 0, err
    return found, out


@pytest.mark.parametrize(
    ("more", "is_work"),
    [
        (WAITS, False),
        ([*WAITS, function("called", 500, 1, 101)], True),  # it did something
        ([*WAITS, slice_("cpu_op", "aten::add", 500, 1, tid=101)], True),
        ([*WAITS, slice_("cuda_runtime", "cudaLaunchKernel", 500, 1, tid=101, correlation=7)], True),
        ([function("late", 400, 599, 101)], True),  # it began while others worked
    ],
)
def test_a_thread_that_stays_in_the_same_functions(tmp_path: Path, more: list[Any], is_work: bool) -> None:
    names, text = functions(tmp_path, *WORKS, *more)
    assert {"work", "inner"} <= set(names)
    assert bool({"_worker", "late"} & set(names)) is is_work
    assert ("Left out: 998 µs of threads that only wait." in text) is not is_work


def test_where_nothing_works_all_is_shown(tmp_path: Path) -> None:
    names, text = functions(tmp_path, *WORKS[:2], *WAITS)
    assert {"work", "_worker"} <= set(names)
    assert "Left out" not in text
