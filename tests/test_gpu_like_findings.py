"""Findings, comparisons and verdicts of captures that look like a GPU's, with the figures that were put in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gpu_clock import Call
from gpu_like import STEPS, Simulated

from molprof.analysis.compare import compare
from molprof.analysis.documents.comparison import comparison_document
from molprof.analysis.documents.report import report_document
from molprof.analysis.render import FORMATS, render

SLOW = ("aten::_local_scalar_dense", "aten::masked_fill", "aten::lift_fresh")


@pytest.fixture(scope="module")
def runs(simulated: Callable[..., Simulated]) -> dict[str, Simulated]:
    return {
        "plain": simulated("qwen"),
        "eager": simulated("qwen-generic"),
        "masked": simulated("qwen-generic", masked=True),
        "graph": simulated("qwen-generic", graph=True),
        "slow": simulated("qwen-generic", graph=True, processor_operators=SLOW),
        "jump": simulated("qwen-jump"),
        "llama": simulated("llama-generic"),
    }


def test_the_findings_of_each_run(runs: dict[str, Simulated]) -> None:
    found = {
        name: {item.id for item in run.findings.values() if not item.note} - {"templates", "idle_rows"}
        for name, run in runs.items()
    }
    small = {"elementwise_chains", "copies"}
    launching = small | {"launch_bound", "pauses"}
    assert found == {
        "plain": launching | {"cache_concatenation"},
        "eager": launching | {"cache_concatenation"},
        "masked": launching | {"cache_concatenation", "mask_rules_out_flash"},
        "graph": small | {"dominant_kernel"},
        "slow": small | {"dominant_kernel", "processor_share", "processor_syncs", "vocabulary_copies"},
        "jump": launching,
        "llama": launching | {"cache_concatenation", "junk_tokens"},
    }


def test_figures_of_idle_time(runs: dict[str, Simulated]) -> None:
    run = runs["eager"]
    _, busy_ns, _ = run.expected.device()
    recorded_ns = sum(dur for _, dur in run.expected.steps.values())
    figures = run.findings["limits"].figures
    assert figures["gpu_ns"] == busy_ns
    assert sum(figures.values()) == recorded_ns
    bound = run.findings["launch_bound"]
    assert bound.figures["recorded_ns"] == recorded_ns
    assert bound.gain_ratio is not None
    # The steps take 0.8 of that time without the profiler.
    assert 0 < bound.gain_ratio <= 1 - busy_ns / (0.8 * recorded_ns)


def test_figures_of_attention_and_cache(runs: dict[str, Simulated]) -> None:
    run = runs["masked"]
    attention = run.expected.classes()["attention"]
    figures = run.findings["attention_small"].figures
    assert (figures["kernels"], figures["attention_ns"]) == attention
    figures = run.findings["mask_rules_out_flash"].figures
    assert (figures["kernels"], figures["gpu_ns"]) == attention
    figures = run.findings["cache_concatenation"].figures
    cat_ns = next(work.dur for work in run.expected.works if work.work_class == "cat")
    assert (figures["kernels"], figures["gpu_ns"]) == (2 * attention[0], 2 * attention[0] * cat_ns)


def test_figures_of_a_slow_processor(runs: dict[str, Simulated]) -> None:
    run = runs["slow"]
    processor = run.expected.sums(phase="processor")
    figures = run.findings["processor_syncs"].figures
    assert figures == {"syncs_per_step": processor.syncs / STEPS, "sync_ns": processor.sync_ns, "steps": STEPS}
    figures = run.findings["vocabulary_copies"].figures
    assert (figures["copies_per_step"], figures["copy_ns"]) == (1, STEPS * 38_000)
    # Its copies are of pinned memory and block nothing.
    assert "host_copies" not in run.findings


def test_waiting_for_the_forward_is_no_work_of_the_processor(runs: dict[str, Simulated]) -> None:
    """The graph runs while the processor waits: without the processor, bookkeeping would wait for it."""
    run = runs["slow"]
    assert run.report.run is not None
    waiting_ns = run.expected.sums(phase="processor").sync_ns - run.expected.bound("processor").sync_idle_ns
    host_ns = run.expected.host_ns("processor")
    finding = run.findings["processor_share"]
    assert finding.figures["waiting_ratio"] == pytest.approx(waiting_ns / host_ns)
    assert waiting_ns > 0.5 * host_ns
    assert "of it waits for a busy GPU" in finding.evidence
    assert finding.gain_ratio is not None
    assert finding.gain_ratio < finding.figures["share_ratio"] - 0.1
    shown = " ".join(render(report_document(run.report)).split())
    assert "of it in host syncs)" in shown


def of_kind(calls: list[Call], kind: str) -> int:
    return sum(call.kind == kind for call in calls)


def test_a_comparison_adds_up_and_names_what_graphs_save(runs: dict[str, Simulated]) -> None:
    eager, graph = runs["eager"], runs["graph"]
    comparison = compare([eager.report, graph.report])
    assert comparison.labels == ("qwen lp:generic dynamic cache", "qwen lp:generic static cache")
    rows = {row.figure.id: row.values for row in comparison.rows}
    sides = (eager.expected, graph.expected)
    assert rows["launches"] == tuple(of_kind(side.calls, "launch") for side in sides)
    assert rows["graph_launches_per_step"] == (0, 1)
    assert rows["syncs_per_step"] == tuple(side.sums().syncs / STEPS for side in sides)
    assert rows["leaf_operators_per_step"] == (None, None)
    difference = comparison.differences[0]
    assert difference is not None
    assert sum(difference.parts.values()) + difference.residual_ns == difference.wall_ns
    # GPU time as recorded, of 547 decode steps; launching is the rest of unprofiled time, 0.8 of profiled.
    bounds = [side.bound("forward") for side in sides]
    gpu = [bound.gpu_busy_ns / STEPS * 547 for bound in bounds]
    kept = [(bound.gpu_busy_ns + bound.sync_idle_ns) / STEPS * 547 for bound in bounds]
    launch = [side.host_ns("forward") / STEPS * 547 * 0.8 - ns for side, ns in zip(sides, kept, strict=True)]
    assert difference.parts["forward.gpu"] == pytest.approx(gpu[1] - gpu[0], rel=0.001)
    assert difference.parts["forward.launch"] == pytest.approx(launch[1] - launch[0], rel=0.001)


def test_models_and_processors_compare(runs: dict[str, Simulated]) -> None:
    for first, other in (("plain", "eager"), ("llama", "eager")):
        comparison = compare([runs[first].report, runs[other].report])
        rows = {row.figure.id: row.values for row in comparison.rows}
        sides = (runs[first].expected, runs[other].expected)
        assert rows["launches_per_token"] == tuple(side.sums().launches / side.tokens for side in sides)
        assert rows["masking_launches"] == tuple(side.sums(phase="processor").launches / STEPS for side in sides)
        difference = comparison.differences[0]
        assert difference is not None
        assert abs(difference.residual_ns) <= 0.01 * abs(difference.wall_ns)
    predictions = {item.id: item.verdict for item in comparison.predictions}
    assert predictions["fewer_launches_per_molecule"] == "confirmed"
    assert predictions["fewer_elementwise_per_attention"] == "confirmed"


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_every_format_shows_the_gpu_and_no_figure_of_a_cpu(runs: dict[str, Simulated], form: str) -> None:
    for document in (
        report_document(runs["graph"].report),
        comparison_document(compare([runs["eager"].report, runs["graph"].report])),
    ):
        text = render(document, form)
        assert ("graph_launches_per_step" if form in ("json", "csv") else "graph launches per step") in text
        if form not in ("json", "csv"):
            assert "leaf operators" not in text
