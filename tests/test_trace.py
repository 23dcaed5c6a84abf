"""A trace is opened once and read lazily: layers, frames that join, reports without a trace processor."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_trace import slice_, work, write

import molprof
from molprof.analysis.frame import FRAMES
from molprof.analysis.reader import open as opening
from molprof.common.errors import EngineError, TraceError, UsageError


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """The layers with which files were read: Python stacks, all arguments."""
    seen: list[tuple[bool, bool]] = []
    original = opening.open_trace

    def recorded(*arguments: Any, **how: Any) -> Any:
        seen.append((how["stacks"], how["all_args"]))
        return original(*arguments, **how)

    monkeypatch.setattr(opening, "open_trace", recorded)
    return seen


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[molprof.Trace]:
    events = [
        slice_("python_function", "main.py(3): main", 0, 90),
        slice_("cpu_op", "aten::mm", 1, 9, **{"Input Dims": [[2, 3]]}),
        slice_("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=7),
        work("kernel", "gemm", 20, 5, 7),
        slice_("cpu_op", "aten::add", 30, 9),
    ]
    with molprof.load(write(tmp_path / "trace.json", {"traceEvents": events}), cached=False) as trace:
        yield trace


def test_a_layer_is_read_when_it_is_asked_for(trace: molprof.Trace, opened: list[tuple[bool, bool]]) -> None:
    assert opened == []
    assert trace.report.counts.kernels == trace.figures["kernels"] == 1
    assert (trace.info.events_by_category["cpu_op"], len(trace.phases)) == (2, 0)
    assert opened == [(False, False)]
    assert trace.work["source"].tolist() == ["main.py(3): main"]
    assert trace.sql("SELECT name FROM slice WHERE ts = $ts", ts=1_000)["name"].tolist() == ["aten::mm"]
    # All arguments, and the stacks that were there.
    assert opened == [(False, False), (True, False), (True, True)]
    assert trace.work["call_id"].tolist() == trace.calls["id"].tolist()
    # Of a report facts alone have correlation numbers, of frames the trace processor too.
    assert trace.work["correlation"].tolist() == trace.calls["correlation"].tolist() == [7]
    with molprof.load(trace.path, cached=False, stacks=True) as whole:
        assert (whole.report.counts.kernels, whole.work["correlation"].tolist()) == (1, [7])
        assert opened.pop() == (True, False)
    mine = trace.operators.where(trace.operators["id"] == trace.calls["operator_id"][0])
    assert (mine["name"].tolist(), trace.work.unit("dur")) == (["aten::mm"], "ns")
    for name in FRAMES:
        assert set(getattr(trace, name).meanings) == set(getattr(trace, name).names), name
    assert (trace.kernels["name"].tolist(), trace.launches["kernels"].tolist()) == (["gemm"], [1])
    with pytest.raises(AttributeError, match="its frames are work, kernels, calls, "):
        trace.kernel  # noqa: B018
    trace.close()
    assert (len(trace.work), len(trace.info.events_by_category), len(opened)) == (1, 4, 3)


def kernels(trace: molprof.Trace) -> dict[str, int]:
    return {str(trace.path): trace.report.counts.kernels}


def test_a_closed_trace_holds_no_memory(trace: molprof.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that reads a thousand traces, and looks for circles of objects seldom, would hold all of them."""
    held: list[weakref.ref[Any]] = []
    install = opening.install

    def seen(engine: Any, *arguments: Any) -> None:
        install(engine, *arguments)
        held.extend([weakref.ref(engine), weakref.ref(engine.facts)])

    monkeypatch.setattr(opening, "install", seen)
    gc.collect()
    gc.disable()
    try:
        assert trace.report.counts.kernels == 1
        trace.sql("INCLUDE PERFETTO MODULE molprof.idle_causes; SELECT * FROM molprof_idle_cause")
        trace.close()
        assert [item() for item in held] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.parametrize("at_once", [0, 1, 2])
def test_each_trace_in_order_and_errors_in_their_place(trace: molprof.Trace, tmp_path: Path, at_once: int) -> None:
    (tmp_path / "bad.json").write_text('{"traceEvents": [')
    empty = write(tmp_path / "empty.json", {"traceEvents": []})
    paths = [empty, tmp_path / "bad.json", trace.path, tmp_path / "none.json"]
    found = list(molprof.each_trace(paths, kernels, at_once=at_once))
    assert [type(item) for item in found] == [dict, TraceError, dict, UsageError]
    assert (found[0], found[2]) == ({str(paths[0]): 0}, {str(paths[2]): 1})
    kept = list(molprof.each_trace(paths, kernels, known=lambda path: {path.name: 5}, at_once=at_once))
    assert kept == [{path.name: 5} for path in paths]


def killed(trace: molprof.Trace) -> int:
    if trace.path.name == "bad.json":
        os.kill(os.getpid(), signal.SIGKILL)
    return 1


@pytest.mark.parametrize("others", [2, 9])
def test_a_process_that_is_killed_costs_its_trace_alone(tmp_path: Path, others: int) -> None:
    paths = [tmp_path / name for name in ["bad.json", *map(str, range(others))]]
    (error, *found) = molprof.each_trace(paths, killed, at_once=2, hint="read fewer")
    assert found == [1] * others
    assert isinstance(error, EngineError)
    why = "killed by SIGKILL, as the system does when memory runs out"
    assert (str(error), error.hint) == (f"the process that read {paths[0]} failed: {why}", "read fewer")


def test_importing_molprof_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'pytest', 'numpy', 'msgspec', 'click', 'molprof.api'} & {*sys.modules}"
    code = f"import sys, molprof; sys.exit(bool({heavy}) or not callable(molprof.compare))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
