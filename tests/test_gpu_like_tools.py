"""Queries, plots, trim and the UI on captures that look like a GPU's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from gpu_expected import Expected
from gpu_like import STEPS, Simulated
from test_ui import strips

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.documents.figures import reports_of
from molprof.analysis.documents.plots import PLOTS, plot_file
from molprof.analysis.trim import Wish, trim
from molprof.analysis.ui.contents import Place
from molprof.analysis.ui.prepare import prepare


@pytest.fixture(scope="module")
def graph(simulated: Callable[..., Simulated]) -> Expected:
    return simulated("qwen-generic", streams=2, graph=True).expected


def queried(molprof: Cli, trace: Path, query: str) -> list[dict[str, Any]]:
    shown = molprof("query", query, str(trace), "--format", "json")
    assert shown.returncode == 0, shown.stderr
    found: list[dict[str, Any]] = json.loads(shown.stdout)
    return found


def test_modules(graph: Expected, molprof: Cli) -> None:
    total = graph.sums()
    kernels = Counter(work.call.kind for work in graph.works if work.category == "kernel")
    rows = queried(molprof, graph.path, "launches")
    assert [(row["name"], row["kind"], row["count"], row["kernels"]) for row in rows] == [
        ("cudaLaunchKernel", "launch", total.launches, kernels["launch"]),
        ("cudaGraphLaunch", "graph_launch", total.graph_launches, kernels["graph_launch"]),
    ]
    (row,) = queried(molprof, graph.path, "graphs")
    assert row["graph_launches"] == total.graph_launches
    assert row["gpu_ns"] == sum(work.dur for work in graph.works if work.call.kind == "graph_launch")
    (row,) = queried(molprof, graph.path, "sync_phases")
    waits = graph.sums(phase="bookkeeping")
    assert (row["phase"], row["count"], row["time_ns"]) == ("bookkeeping", waits.syncs, waits.sync_ns)
    rows = queried(molprof, graph.path, "streams")
    by_stream = Counter(work.stream for work in graph.works)
    assert {row["stream"]: row["count"] for row in rows} == by_stream
    (row,) = queried(molprof, graph.path, "memory_copies")
    ((count, time_ns, size),) = graph.copies().values()
    assert (row["direction"], row["target"], row["count"], row["time_ns"], row["bytes"]) == (
        "DtoH", "Pinned", count, time_ns, size,
    )  # fmt: skip


def test_each_step(graph: Expected, molprof: Cli) -> None:
    sql = (
        "SELECT step.step, fact.launches, fact.graph_launches, fact.kernels, fact.gpu_ns, fact.syncs, fact.sync_ns"
        " FROM molprof_step_launch AS fact JOIN molprof_step AS step ON step.id = fact.step_id ORDER BY step.step"
    )
    for row in queried(molprof, graph.path, sql):
        wanted = graph.sums(step=row["step"])
        assert [row[name] for name in row if name != "step"] == list(vars(wanted).values()), row["step"]


def test_trim_keeps_the_gpu_work_of_the_steps(graph: Expected, tmp_path: Path) -> None:
    trim(graph.path, tmp_path / "few.json.gz", Wish(steps=(24, 26)))
    report = api.report(tmp_path / "few.json.gz")
    steps = [graph.sums(step=step) for step in (24, 25, 26)]
    counts = report.counts
    assert (counts.launches, counts.graph_launches, counts.kernels) == (
        sum(step.launches for step in steps),
        sum(step.graph_launches for step in steps),
        sum(step.kernels for step in steps),
    )
    assert [check.text for check in report.checks if not check.holds] == []
    assert report.run is not None
    assert report.run.window.gpu_ns == sum(step.gpu_ns for step in steps)
    assert report.run.window.syncs == sum(step.syncs for step in steps)


def test_the_ui_shows_tokens_above_streams(graph: Expected, tmp_path: Path) -> None:
    result = prepare([api.load(graph.path, stacks=True)], tmp_path, Place(step=25))
    pinned = result.view.pinned
    assert pinned[:3] == ["steps", "phases", "host syncs"]
    streams = [pinned.index(f"GPU 0 stream {stream}") for stream in (7, 20)]
    tokens = [place for place, name in enumerate(pinned) if name.startswith("sequence")]
    assert tokens
    assert max(tokens) < min(streams)
    assert result.notes == []
    found = strips(result)
    assert len(found["steps"]) == STEPS
    assert len(found["host syncs"]) == graph.sums().syncs
    assert sum(row[1] for row in found["GPU 0 idle"]) == graph.device()[2]


@pytest.mark.parametrize("kind", sorted(PLOTS))
def test_plots(simulated: Callable[..., Simulated], kind: str) -> None:
    runs = (simulated("qwen-generic"), simulated("qwen-generic", streams=2, graph=True))
    svg = plot_file(kind, reports_of(compare([run.report for run in runs])), "svg").decode()
    assert svg.startswith("<?xml")
    if kind == "waterfall":
        assert "bookkeeping: launch-bound (GPU idle)" in svg
