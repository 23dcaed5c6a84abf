"""Findings on the logits processor and on copies of logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_trace
from decoding_trace import Event, decoding, launched
from finding_data import GEMM, findings, gemms, op
from tiny_trace import slice_


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
    assert share.figures == {
        "processor_wall_ns": 800_000,
        "steps_wall_ns": 4_000_000,
        "share_ratio": 0.2,
        "waiting_ratio": 0.0,
    }
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
