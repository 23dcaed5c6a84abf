"""Reports of captures that look like a GPU's: every figure equals what was put in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from captures import captured, settings
from gpu_expected import Expected, Sums
from gpu_like import GPU, STEPS, Simulated, simulate

from molprof import api
from molprof.analysis.documents.figures import figure_values
from molprof.analysis.figures import Report

# Name: the capture that it is made from, and how.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "eager": ("qwen-generic", {}),
    "streams": ("qwen-generic", {"streams": 2, "masked": True}),
    "graph": ("qwen-generic", {"graph": True}),
    "jump-graph": ("qwen-jump", {"graph": True}),
}


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, simulated: Callable[..., Simulated]) -> tuple[Expected, Report]:
    source, options = RUNS[request.param]
    made = simulated(source, **options)
    return made.expected, made.report


def test_counts_of_the_trace(run: tuple[Expected, Report]) -> None:
    expected, report = run
    total, counts = expected.sums(), report.counts
    assert total.launches > 5 * STEPS
    assert total.kernels > 70 * STEPS
    assert report.certificate is not None
    # Simulated times are multiples of 100 ns.
    assert {doubt.check for doubt in report.certificate.doubts} == {"resolution"}
    assert (counts.launches, counts.graph_launches, counts.kernels) == (
        total.launches,
        total.graph_launches,
        total.kernels,
    )
    assert (counts.launches_without_gpu_work, counts.kernels_without_call) == (0, 0)
    kernels = [work for work in expected.works if work.category == "kernel"]
    assert counts.kernel_time_ns == sum(work.dur for work in kernels)
    assert counts.kernel_names == len({work.name for work in kernels})
    copies = {name.split(" (")[0]: figures for name, figures in expected.copies().items()}
    assert {name: (item.count, item.time_ns, item.bytes) for name, item in counts.memory_operations.items()} == copies
    assert report.trace.device_names == (GPU,)
    assert (report.trace.lost_events, report.trace.lanes) == (0, 0)
    assert [check.text for check in report.checks if not check.holds] == []


def test_device_time(run: tuple[Expected, Report]) -> None:
    expected, report = run
    assert [(item.span_ns, item.busy_ns, item.idle_ns) for item in report.devices.values()] == [expected.device()]
    causes = report.table("idle_causes").to_json()
    assert sum(row["time_ns"] for row in causes) == expected.device()[2]


def test_phases(run: tuple[Expected, Report]) -> None:
    expected, report = run
    assert report.run is not None
    for name in ("forward", "processor", "sampling", "bookkeeping"):
        phase = report.run.phases[name]
        sums = Sums(
            phase.launches or 0, phase.graph_launches or 0, phase.kernels or 0, phase.gpu_ns or 0, phase.syncs or 0,
            phase.sync_ns or 0,
        )  # fmt: skip
        assert sums == expected.sums(phase=name), name
        assert phase.host_ns == expected.host_ns(name)
        assert phase.bound is not None
        bound = expected.bound(name)
        assert (phase.bound.gpu_busy_ns, phase.bound.sync_idle_ns, phase.bound.launch_ns) == (
            bound.gpu_busy_ns, bound.sync_idle_ns, bound.launch_ns,
        )  # fmt: skip
    assert report.run.window.unattributed_gpu_ns == 0


def test_classes(run: tuple[Expected, Report]) -> None:
    expected, report = run
    assert report.run is not None
    assert report.run.window.classes is not None
    found = {name: (item.count, item.time_ns) for name, item in report.run.window.classes.items()}
    assert found == expected.classes()


def test_figures_per_step_and_token(run: tuple[Expected, Report]) -> None:
    expected, report = run
    figures = figure_values(report)
    total, processor = expected.sums(), expected.sums(phase="processor")
    tokens = expected.tokens
    classes = expected.classes()
    elementwise = sum("elementwise" in work.name for work in expected.works)
    wanted = {
        "launches": total.launches,
        "graph_launches": total.graph_launches,
        "graph_launches_per_step": total.graph_launches / STEPS,
        "launches_per_step": total.launches / STEPS,
        "launches_per_token": total.launches / tokens,
        "kernels_per_step": total.kernels / STEPS,
        "gpu_ns_per_step": total.gpu_ns / STEPS,
        "syncs_per_step": total.syncs / STEPS,
        "busy_ratio": expected.device()[1] / expected.device()[0],
        "copy_kernels_per_step": classes["copy"][0] / STEPS,
        "cat_kernels_per_step": classes.get("cat", (0, 0))[0] / STEPS,
        "attention_kernels_per_step": classes["attention"][0] / STEPS,
        "elementwise_to_attention": elementwise / classes["attention"][0],
        "masking_launches": processor.launches / STEPS,
        "masking_gpu_ns": processor.gpu_ns / STEPS,
        "masking_syncs": processor.syncs / STEPS,
        "leaf_operators_per_token": None,
        "leaf_operators_per_step": None,
        "masking_operators": None,
    }
    assert {name: figures[name] for name in wanted} == wanted


def test_a_whole_recording(tmp_path: Path) -> None:
    """A fresh capture of a tiny model with all its batches, and so with prefills and what lies outside the steps."""
    source = captured(
        tmp_path / "cpu.json.gz", settings(full=True, processor="generic", max_new_tokens=12, repeats=1, warmup=0)
    ).path
    expected = simulate(source, tmp_path / "gpu.json.gz")
    report = api.report(expected.path)
    assert [check.text for check in report.checks if not check.holds] == []
    assert report.run is not None
    assert len(expected.steps) == report.run.steps
    assert report.counts.kernels == expected.sums().kernels
    total = (report.run.totals or {})["kernels"]
    in_steps = sum(expected.sums(batch=batch, step=step).kernels for batch, step in expected.steps)
    assert (total.exact, total.value, total.low, total.high) == (True, in_steps, in_steps, in_steps)
    prefill = report.run.phases["prefill"]
    wanted = expected.sums(phase="prefill")
    assert (prefill.launches, prefill.gpu_ns, prefill.syncs) == (wanted.launches, wanted.gpu_ns, wanted.syncs)
    assert report.run.window.syncs == sum(expected.sums(batch=batch, step=step).syncs for batch, step in expected.steps)
