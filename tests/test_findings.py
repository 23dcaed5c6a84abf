"""Findings: each rule fires on a trace built for it, with exact figures, and not beside its threshold."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from decoding_trace import Event, decoding, launched
from finding_data import GEMM, busy, findings, gemms, op
from tiny_trace import slice_

from molprof import api
from molprof.analysis.figures.model import Gain
from molprof.analysis.findings import RULES

CORPUS = os.environ.get("MOLPROF_CORPUS")


def test_launch_bound_without_graphs(tmp_path: Path) -> None:
    # Per step 10 kernels of 5 us, 50 us apart: gaps of 45 us, and one of 545 us to the next step.
    found = findings(tmp_path, decoding(lambda start: gemms(start, 50, 5, 10)))
    gap_ns = 1000 * (4 * 9 * 45 + 3 * 545)
    assert found["launch_bound"].gain_ratio == pytest.approx(gap_ns / 4_000_000)
    assert found["launch_bound"].figures == {
        "gap_count": 39,
        "gap_ns": gap_ns,
        "recorded_ns": 4_000_000,
        "busy_ratio": 0.05,
        "launches": 40,
    }
    unused = found["graphs_unused"]
    assert unused.gain_ratio == pytest.approx(gap_ns / 4_000_000)
    assert (unused.figures["launches_per_step"], unused.figures["kernels_by_graph"]) == (10, 0)
    assert found["gpu_idle"].gain_ratio == pytest.approx(0.95)
    assert found["gpu_idle"].figures["cpu_busy_ns"] == gap_ns
    assert "attention_small" not in found


def test_without_the_profiler_the_gpu_waits_less(tmp_path: Path) -> None:
    # The same work; unprofiled a step takes a tenth, in which the GPU works half of the time.
    found = findings(tmp_path, decoding(lambda start: gemms(start, 50, 5, 10), profiled_ratio=10))
    gap_ns = 1000 * (4 * 9 * 45 + 3 * 545)
    assert found["launch_bound"].gain_ratio == pytest.approx(0.5 * gap_ns / 3_800_000)
    assert found["gpu_idle"].gain_ratio == pytest.approx(0.5)
    assert found["profiler_cost"].gain_ratio is None
    assert found["profiler_cost"].figures == {"profiled_ratio": 10.0}
    found = findings(tmp_path, decoding(lambda start: gemms(start, 50, 5, 10), profiled_ratio=20))
    assert not {"launch_bound", "graphs_unused", "gpu_idle"} & set(found)


def test_a_busy_gpu_is_neither_idle_nor_launch_bound(tmp_path: Path) -> None:
    assert findings(tmp_path, decoding(busy)) == {}


def test_one_long_gap_is_no_launch(tmp_path: Path) -> None:
    def per_step(start: int) -> list[Event]:
        return launched("kernel", GEMM, start, start + 2, 5) if start in (1000, 4000) else []

    found = findings(tmp_path, decoding(per_step))
    assert set(found) == {"gpu_idle"}
    assert "longest gap 3.00 ms" in found["gpu_idle"].evidence


def test_broken_graphs(tmp_path: Path) -> None:
    def per_step(start: int, plain: int = 25) -> list[Event]:
        graph = launched("graph", GEMM, start, start + 4, 6)
        return [*graph, *(gemms(start, 20, 5, plain, first=20))]

    found = findings(tmp_path, decoding(per_step))
    broken = found["graphs_broken"]
    assert (broken.figures["launches_per_step"], broken.figures["graph_launches_per_step"]) == (25, 1)
    assert (broken.figures["kernels_by_launch"], broken.figures["kernels_by_graph"]) == (100, 4)
    # From the graph's end at 10 to 22, then 24 gaps of 15 us; the long one to the next step ends with a graph.
    assert broken.figures["gap_ns"] == 1000 * 4 * (12 + 24 * 15)
    assert broken.gain_ratio == pytest.approx(4 * 372 / 4000)
    assert "graphs_unused" not in found
    few = findings(tmp_path, decoding(lambda start: per_step(start, plain=19)))
    assert not {"graphs_broken", "graphs_unused"} & set(few)


def test_compiling_in_timed_passes(tmp_path: Path) -> None:
    passes = (
        {"compiles": 2, "compile_ns": 400_000},
        {"compiles": 1, "compile_ns": 200_000},
        {"compiles": 0, "compile_ns": 0},
    )
    region = lambda start: [op("Torch-Compiled Region: 0/0", start, 500)]  # noqa: E731
    compiling = findings(tmp_path, decoding(region, repeats=passes))["compiling"]
    assert compiling.gain_ratio == pytest.approx(0.05)
    assert compiling.figures == {"compiles": 3, "recorded_frames": 0, "recorded_ns": 0}
    assert compiling.evidence == "frames compiled in each timed pass: 2, 1, 0"
    # A region that runs is compiled before.
    none = ({"compiles": 0, "compile_ns": 0},) * 3
    assert "compiling" not in findings(tmp_path, decoding(region, repeats=none))


def test_compiling_in_recorded_steps(tmp_path: Path) -> None:
    def per_step(start: int) -> list[Event]:
        if start != 2000:
            return []
        return [op("_compile.compile_inner (dynamo_timed)", start, 400), op("gc (dynamo_timed)", start + 350, 100)]

    compiling = findings(tmp_path, decoding(per_step))["compiling"]
    assert compiling.gain_ratio == pytest.approx(0.45 / 4)
    assert compiling.figures == {"compiles": 0, "recorded_frames": 1, "recorded_ns": 450_000}


def test_idle_rows(tmp_path: Path) -> None:
    lengths = [10, 2, 10, 2]
    idle = findings(tmp_path, decoding(lengths=lengths, batch_size=2, setup={"text": 1_000_000}))["idle_rows"]
    assert idle.figures == {
        "idle_row_steps": 16,
        "row_steps": 40,
        "idle_ratio": 0.4,
        "steps": 20,
        "steps_by_length": 12,
    }
    # A fifth of the time is not in steps.
    assert idle.gain_ratio == pytest.approx(0.4 * 0.8)
    assert "12 steps instead of 20" in idle.evidence
    one_batch = findings(tmp_path, decoding(lengths=lengths, batch_size=4))["idle_rows"]
    assert "all rows are in one batch" in one_batch.evidence
    sorted_rows = findings(tmp_path, decoding(lengths=[10, 10, 9, 2], batch_size=2))["idle_rows"]
    assert "saves no steps" in sorted_rows.evidence
    assert "--sort" not in sorted_rows.fix
    assert "idle_rows" not in findings(tmp_path, decoding(lengths=[10, 9], batch_size=2))


def test_idle_rows_of_a_run_that_is_sorted_and_drops_rows(tmp_path: Path) -> None:
    content = decoding(lengths=[10, 2, 10, 2], batch_size=2)
    content["molprof"]["generation"].update(sorted=True, drop_finished=True)
    idle = findings(tmp_path, content)["idle_rows"]
    assert "the batches are sorted by expected length" in idle.evidence
    assert idle.fix == "Refill finished rows, as servers do."


def test_junk_tokens(tmp_path: Path) -> None:
    junk = findings(tmp_path, decoding(kinds=["fffjj", "ffffl"], lengths=[5, 5], batch_size=2))["junk_tokens"]
    assert junk.figures == {"junk_tokens": 2, "filler_tokens": 1, "token_ratio": 0.3, "steps": 5, "steps_without": 4}
    # All of the time is in steps. Steps cost the same however many rows they have, and so for row-steps.
    assert junk.gain == Gain(pytest.approx(0.2), pytest.approx(0.2), "unprofiled wall time", "steps that are saved")
    few = ["f" * 199 + "j", "f" * 200]
    assert "junk_tokens" not in findings(tmp_path, decoding(kinds=few, lengths=[200, 200], batch_size=2))


def test_templates(tmp_path: Path) -> None:
    templates = findings(tmp_path, decoding(setup={"template": 1_000_000}))["templates"]
    assert templates.gain_ratio == pytest.approx(0.2)
    assert templates.figures == {"template_ns": 1_000_000, "wall_ns": 5_000_000, "molecules": 8}
    assert "templates" not in findings(tmp_path, decoding(setup={"template": 50_000}))


def test_the_profiler_costs_too_much(tmp_path: Path) -> None:
    assert findings(tmp_path, decoding(profiled_ratio=1.6))["profiler_cost"].figures == {"profiled_ratio": 1.6}
    assert "profiler_cost" not in findings(tmp_path, decoding(profiled_ratio=1.25))


def test_copies_to_the_device_in_every_step(tmp_path: Path) -> None:
    name = "Memcpy HtoD (Pageable -> Device)"

    def per_step(start: int) -> list[Event]:
        copies = [launched("gpu_memcpy", name, start + 10 * at, start + 10 * at + 3, 4, bytes=100) for at in range(3)]
        return [event for copy in copies for event in copy]

    copies = findings(tmp_path, decoding(per_step))["host_copies"]
    # 3 x 4 us on the GPU, 3 x 2 us in the calls.
    assert copies.gain_ratio == pytest.approx(0.018)
    assert copies.figures == {"count": 12, "gpu_ns": 48_000, "host_ns": 24_000, "bytes": 1200, "steps": 4}
    once = decoding(lambda start: per_step(start) if start == 1000 else [])
    assert "host_copies" not in findings(tmp_path, once)


def test_a_trace_without_anything_timed_has_no_findings(tmp_path: Path) -> None:
    assert findings(tmp_path, {"traceEvents": [slice_("user_annotation", "x", 0, 5)]}) == {}


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # One eager prefill under a profiler with stacks: 768 launches of 0.100 ms each, the GPU works 13 % of the time.
        ("b200_vllm_eager", {"gpu_idle": 0.866, "launch_bound": 0.650, "attention_small": 0.006}),
        ("h100_qwen1.5_0.5b", {"attention_small": 0.078}),
        # The one step begins with 463 ms in which the device has nothing to do, a single gap.
        ("mi300x_sglang_qwen3_8b_decode", {"gpu_idle": 0.979}),
        ("mi300x_vllm_decode_graph", {"attention_small": 0.038}),
        ("mi300x_vllm_piecewise_graph", {"attention_small": 0.017}),
        # A compiled region that runs; attention is 29 % of it.
        ("torch_compile_triton", {}),
        ("v100_resnet_ddp", {}),
    ],
)
def test_public_traces(name: str, expected: dict[str, float]) -> None:
    report = api.report(Path(str(CORPUS), "traces", f"{name}.json.gz"))
    assert {item.id: round(item.gain_ratio or 0.0, 3) for item in report.findings} == expected


def test_every_rule_is_documented() -> None:
    docs = Path(__file__).parent.parent / "docs"
    pages = "".join((docs / name).read_text() for name in ("findings.md", "origin.md"))
    documented = re.findall(r"^\| `(\w+)` \|", pages, re.MULTILINE)
    assert sorted(documented) == sorted(rule.id for rule in RULES)
