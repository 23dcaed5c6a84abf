"""Findings: each rule fires on a trace built for it, with exact figures, and not beside its threshold."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from decoding_trace import Event, decoding, launched
from tiny_trace import slice_

from molprof.analysis.figures import build_report
from molprof.analysis.figures.model import Finding
from molprof.analysis.findings import find_all
from molprof.analysis.findings.intervals import inside_ns, joined, length_ns
from molprof.analysis.query import find_statement
from molprof.analysis.reader.open import open_trace
from molprof.analysis.reports.load import load_report

CORPUS = os.environ.get("MOLPROF_CORPUS")
GEMM, FLASH, CUTLASS = "sm90_xmma_gemm_bf16", "flash_fwd_kernel_bf16", "fmha_cutlassF_bf16_aligned_64x64_rf_sm80"


def findings(tmp_path: Path, content: dict[str, Any]) -> dict[str, Finding]:
    """By id. Every finding's query must run, and show something."""
    path = tiny_trace.write(tmp_path / "trace.json.gz", content)
    with open_trace(path) as (engine, info):
        found = find_all(engine, build_report(engine, info))
        for item in found:
            statement = find_statement(item.query, {})
            for module in statement.modules:
                engine.query(f"INCLUDE PERFETTO MODULE molprof.{module}; SELECT 1")
            columns = engine.query(statement.sql)
            assert len(next(iter(columns.values()))) > 0, item.id
    gains = [-1.0 if item.gain_ratio is None else item.gain_ratio for item in found]
    assert gains == sorted(gains, reverse=True)
    assert all(0 <= gain <= 1 for gain in gains if gain != -1.0)
    assert all(item.figures and item.evidence and item.explanation and item.fix for item in found)
    assert len({item.id for item in found}) == len(found)
    return {item.id: item for item in found}


def op(name: str, at: float, dur: float) -> Event:
    return slice_("cpu_op", name, at, dur)


def gemms(start: int, every: int, gpu_us: float, count: int, first: int = 0) -> list[Event]:
    """Kernels that begin 2 us after their launches, as many us apart."""
    moments = [start + first + every * number for number in range(count)]
    return [event for at in moments for event in launched("kernel", GEMM, at, at + 2, gpu_us)]


def busy(start: int) -> list[Event]:
    """One kernel for the whole step, launched in the step before it ends."""
    return launched("kernel", GEMM, start, start + 2, 990)


def test_stretches() -> None:
    stretches = joined([10, 0, 15, 40], [20, 5, 30, 50])
    assert stretches.tolist() == [[0, 5], [10, 30], [40, 50]]
    assert length_ns(stretches) == 35
    assert inside_ns([0, 3, 5, 25, 60], [50, 12, 10, 45, 70], stretches).tolist() == [35, 4, 0, 10, 0]
    assert inside_ns([1], [2], joined([], [])).tolist() == [0]


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
    assert "the longest gap 3.00 ms" in found["gpu_idle"].evidence


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


def test_processor_syncs(tmp_path: Path) -> None:
    def per_step(start: int, phase: int = 600) -> list[Event]:
        wait = slice_("cuda_runtime", "cudaStreamSynchronize", start + phase, 100, correlation=5)
        return [*launched("kernel", GEMM, start, start + 2, 500), wait]

    found = findings(tmp_path, decoding(per_step, processor="generic"))
    syncs = found["processor_syncs"]
    # 100 of 200 us of a phase that takes a fifth of the time; the GPU is idle longer.
    assert syncs.gain_ratio == pytest.approx(0.1)
    assert syncs.figures == {"syncs_per_step": 1.0, "sync_ns": 400_000, "steps": 4}
    assert "processor_syncs" not in findings(
        tmp_path, decoding(lambda start: per_step(start, phase=800), processor="generic")
    )


def test_processor_share(tmp_path: Path) -> None:
    found = findings(tmp_path, decoding(processor="generic"))
    share = found["processor_share"]
    assert share.gain_ratio == pytest.approx(0.2)
    assert share.figures == {"processor_wall_ns": 800_000, "steps_wall_ns": 4_000_000, "share_ratio": 0.2}
    assert "processor_share" not in findings(tmp_path, decoding())
    content = decoding(processor="generic")
    for repeat in content["molprof"]["timings"]["repeats"]:
        repeat["phases_ns"]["processor"] = 300_000
    assert "processor_share" not in findings(tmp_path, content)


def test_row_masking(tmp_path: Path) -> None:
    def per_step(start: int, rows: int = 8) -> list[Event]:
        return [
            event
            for row in range(rows)
            for event in (op("aten::select", start + 600 + 20 * row, 2), op("aten::fill_", start + 605 + 20 * row, 3))
        ]

    masking = findings(tmp_path, decoding(per_step, processor="generic"))["row_masking"]
    assert masking.gain_ratio == pytest.approx(7 / 8 * 0.2)
    assert masking.figures == {
        "rows": 8,
        "calls_per_step": 8,
        "least_calls_per_row": 1,
        "leaf_operators_per_step": 16,
    }
    assert "row_masking" not in findings(tmp_path, decoding(lambda start: per_step(start, rows=7), processor="generic"))
    # Fewer rows prove nothing.
    assert "row_masking" not in findings(tmp_path, decoding(per_step, batch_size=4, processor="generic"))


def test_row_masking_counts_launches_on_a_gpu(tmp_path: Path) -> None:
    def per_step(start: int) -> list[Event]:
        loop = [op("aten::select", start + 600 + 20 * row, 2) for row in range(8)]
        return [*loop, *gemms(start, 20, 10, 8, first=605)]

    masking = findings(tmp_path, decoding(per_step, processor="generic"))["row_masking"]
    assert masking.figures["launches_per_step"] == 8
    # The processor's host time, and its 8 kernels of 10 us that may run behind it.
    assert masking.gain_ratio == pytest.approx(7 / 8 * (0.2 + 0.08))


def test_vocabulary_copies_on_a_gpu(tmp_path: Path) -> None:
    def per_step(start: int, gpu_us: float = 20) -> list[Event]:
        copy = launched("kernel", tiny_trace.COPY, start + 802, start + 804, gpu_us)
        return [op("aten::clone", start + 800, 12), op("aten::copy_", start + 801, 10), *copy]

    copies = findings(tmp_path, decoding(per_step))["vocabulary_copies"]
    # 20 us on the GPU and 12 us in aten::clone, of each 1000 us.
    assert copies.gain_ratio == pytest.approx(0.032)
    assert copies.figures == {
        "copies_per_step": 1.0,
        "copy_ns": 80_000,
        "least_ns": 3_000,
        "rows": 8,
        "logits_width": 128_256,
    }
    assert "vocabulary_copies" not in findings(tmp_path, decoding(lambda start: per_step(start, gpu_us=2.5)))


def test_vocabulary_copies_on_a_cpu(tmp_path: Path) -> None:
    def per_step(start: int, name: str = "aten::copy_", dur: float = 60) -> list[Event]:
        return [op(name, start + 620, dur)]

    copies = findings(tmp_path, decoding(per_step))["vocabulary_copies"]
    assert copies.gain_ratio == pytest.approx(0.06)
    assert copies.figures["least_ns"] == 50_000
    assert "vocabulary_copies" not in findings(tmp_path, decoding(lambda start: per_step(start, dur=49)))
    assert "vocabulary_copies" not in findings(tmp_path, decoding(lambda start: per_step(start, "aten::mul", 90)))


def layer(start: int, cats: int) -> list[Event]:
    """So many concatenations of 10 us, 5 us of them on the GPU, then attention."""
    events = [op("aten::scaled_dot_product_attention", start + 100, 20)]
    for number in range(cats):
        at = start + 20 * number
        events += [op("aten::cat", at, 10), *launched("kernel", tiny_trace.CAT, at + 2, at + 4, 5)]
    return events


def test_cache_concatenation(tmp_path: Path) -> None:
    cats = findings(tmp_path, decoding(lambda start: layer(start, 4)))["cache_concatenation"]
    # The last two of four: the others rotate queries and keys.
    assert cats.figures == {
        "concatenations": 8,
        "attention_calls": 4,
        "host_ns": 80_000,
        "gpu_ns": 40_000,
        "kernels": 8,
    }
    assert cats.gain_ratio == pytest.approx(0.02 + 0.01)
    static = decoding(lambda start: layer(start, 2), generation={"cache": "static"})
    assert "cache_concatenation" not in findings(tmp_path, static)
    assert "cache_concatenation" not in findings(tmp_path, decoding(lambda start: layer(start, 1)))


@pytest.mark.parametrize(("cats", "fires"), [(2, False), (4, True)])
def test_cache_concatenation_in_a_trace_of_other_origin(tmp_path: Path, cats: int, fires: bool) -> None:
    content = {"traceEvents": [event for start in (0, 200, 400) for event in layer(start, cats)]}
    assert ("cache_concatenation" in findings(tmp_path, content)) is fires


def attention(start: int, operator: str, kernel: str, gpu_us: float) -> list[Event]:
    return [
        op(f"aten::{operator}", start, 20),
        *launched("kernel", kernel, start + 5, start + 7, gpu_us),
        *launched("kernel", GEMM, start + 30, start + 7 + gpu_us, 990 - gpu_us),
    ]


def test_a_small_share_of_attention(tmp_path: Path) -> None:
    def per_step(start: int, gpu_us: float = 90) -> list[Event]:
        return attention(start, "_scaled_dot_product_flash_attention", FLASH, gpu_us)

    small = findings(tmp_path, decoding(per_step))["attention_small"]
    assert small.gain_ratio == pytest.approx(0.09)
    assert small.figures == {"attention_ns": 360_000, "gpu_ns": 3_960_000, "kernels": 4}
    assert "attention_small" not in findings(tmp_path, decoding(lambda start: per_step(start, 100)))


def test_a_small_share_of_attention_on_a_cpu(tmp_path: Path) -> None:
    def per_step(start: int, dur: float = 30) -> list[Event]:
        outer = op("aten::scaled_dot_product_attention", start, dur)
        return [outer, op("aten::_scaled_dot_product_flash_attention_for_cpu", start + 5, dur - 10)]

    small = findings(tmp_path, decoding(per_step))["attention_small"]
    # 30 of the 600 us of a forward, which is 0.6 of the time.
    assert small.gain_ratio == pytest.approx(0.03)
    assert small.evidence == (
        "scaled_dot_product_attention takes 120 µs of 2.40 ms of recorded forward, 5.00 % of a phase that takes "
        "60.0 % of the unprofiled time"
    )
    assert "attention_small" not in findings(tmp_path, decoding(lambda start: per_step(start, 120)))


def test_the_span_of_a_share_is_named(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 0, 100),
        tiny_trace.work("kernel", FLASH, 100, 1, 1),
        tiny_trace.work("kernel", "gemm", 180, 20, 2),
    ]
    found = findings(tmp_path, {"traceEvents": events})
    assert found["attention_small"].evidence == (
        "1 attention kernel takes 1.00 µs: 4.76 % of the GPU's work, 0.50 % of the whole recording, 200 µs"
    )
    assert found["gpu_idle"].evidence.startswith("busy 21.0 µs of the whole recording, 200 µs, with ")


def test_a_mask_rules_out_flash(tmp_path: Path) -> None:
    efficient = "_scaled_dot_product_efficient_attention"

    def content(operator: str = efficient, **model: str) -> dict[str, Any]:
        return decoding(lambda start: attention(start, operator, CUTLASS, 200), model=model)

    mask = findings(tmp_path, content())["mask_rules_out_flash"]
    assert mask.gain_ratio == pytest.approx(0.2)
    assert mask.figures == {"calls": 4, "kernels": 4, "gpu_ns": 800_000}
    for other in (
        content(dtype="float32"),
        content(attention="sdpa-efficient"),
        content("_scaled_dot_product_flash_attention"),
    ):
        assert "mask_rules_out_flash" not in findings(tmp_path, other)


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
    assert "all rows are one batch" in one_batch.evidence
    sorted_rows = findings(tmp_path, decoding(lengths=[10, 10, 9, 2], batch_size=2))["idle_rows"]
    assert "need no fewer steps" in sorted_rows.evidence
    assert "like length" not in sorted_rows.fix
    assert "idle_rows" not in findings(tmp_path, decoding(lengths=[10, 9], batch_size=2))


def test_junk_tokens(tmp_path: Path) -> None:
    junk = findings(tmp_path, decoding(kinds=["fffjj", "ffffl"], lengths=[5, 5], batch_size=2))["junk_tokens"]
    assert junk.figures == {"junk_tokens": 2, "filler_tokens": 1, "token_ratio": 0.3, "steps": 5, "steps_without": 4}
    assert junk.gain_ratio == pytest.approx(0.2)
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
        # One eager prefill under a profiler with stacks: 768 launches of 0.1 ms each, the GPU works 13 % of the time.
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
    report = load_report(Path(str(CORPUS), "traces", f"{name}.json.gz"))
    assert {item.id: round(item.gain_ratio or 0.0, 3) for item in report.findings} == expected


def test_every_rule_is_documented() -> None:
    root = Path(__file__).parent.parent
    known = {
        name
        for path in (root / "analysis/findings").glob("*.py")
        for name in re.findall(r'id="(\w+)"', path.read_text())
    }
    documented = set(re.findall(r"^\| `(\w+)` \|", (root / "docs/findings.md").read_text(), re.MULTILINE))
    assert known == documented
    assert len(known) == 17
