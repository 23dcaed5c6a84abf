"""Findings on attention and the KV cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from decoding_trace import Event, decoding, launched
from finding_data import CUTLASS, FLASH, GEMM, findings, op


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
def test_cache_concatenation_in_a_foreign_trace(tmp_path: Path, cats: int, fires: bool) -> None:
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
        "scaled_dot_product_attention takes 120 µs of 2.40 ms recorded in forward (5.00 %), a phase that takes "
        "60.0 % of unprofiled time"
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
        "1 attention kernel takes 1.00 µs: 4.76 % of the GPU's work, 0.50 % of the recorded span, 200 µs"
    )
    assert found["limits"].evidence == "queued work that does not start 89.5 %, GPU work 10.5 %"


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
