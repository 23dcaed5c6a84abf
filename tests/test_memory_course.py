"""Memory of a trace equals results by hand: the peak, its categories, growth, the need of a batch of N."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from synthetic import Spec, captured
from tiny_trace import memory_event, slice_, write

from molprof import api
from molprof.analysis.memory import BEFORE, UNEXPLAINED, WEIGHTS, Memory
from molprof.common.errors import TraceError
from molprof.profiler.recording.record import record

CORPUS = os.environ.get("MOLPROF_CORPUS")
# 2 for keys and values, layers, key-value heads, width of a head, bytes of bfloat16.
TOKEN_BYTES = 2 * 4 * 2 * 64 * 2
WEIGHTS_BYTES, LOGITS_BYTES = 2 * 1_600_000, 128_256 * (2 + 4 + 4)


def read(folder: Path, content: dict[str, Any]) -> Memory:
    return api.memory(write(folder / "trace.json", content))[0]


def run() -> dict[str, Any]:
    """Two rows over five steps. Each concatenates their cache anew, one token longer, and frees the old one."""
    content = captured(Spec((("cfffe", "cfffe"),)))
    content["molprof"]["model"]["head_dim"] = 64
    content["molprof"]["environment"]["gpu_memory_bytes"] = 40_000_000
    content["deviceProperties"] = [{"id": 0, "name": "Test GPU", "totalGlobalMem": 40_000_000}]
    steps = [event for event in content["traceEvents"] if event["name"].startswith("molprof.step ")]
    assert len(steps) == 5
    total, old = WEIGHTS_BYTES + 5000, 0
    for number, step in enumerate(steps, 1):
        new, ts = 2 * (10 + number) * TOKEN_BYTES, step["ts"]
        content["traceEvents"].append(slice_("cpu_op", "aten::cat", ts + 0.1, 0.2))
        for size in (new, -old) if old else (new,):
            total += size
            content["traceEvents"].append(memory_event(size, ts + 0.2, 100 + number - (size < 0), total, 9_000_000))
        old = new
    return content


def test_a_capture(tmp_path: Path) -> None:
    found = read(tmp_path, run())
    (course,) = found.courses
    caches = [2 * (10 + number) * TOKEN_BYTES for number in range(1, 6)]
    assert course.at_peak == {WEIGHTS: WEIGHTS_BYTES, "cache": caches[-2] + caches[-1], BEFORE: 5000}
    assert (course.growth["cache"], course.growth_steps, course.growth_tokens) == (2 * 2 * TOKEN_BYTES, 2, 4)
    assert (course.capacity_bytes, course.reserved_bytes, course.unexplained) == (40_000_000, 9_000_000, 0)
    assert [(place.path, place.bytes, place.peak_bytes, place.left_bytes) for place in course.places][::2] == [
        (("prefill",), caches[0], 0, 0),
        (("forward",), sum(caches[1:]), sum(caches[-2:]), caches[-1]),
    ]
    assert found.model is not None
    assert (found.model.needs.cache_of_token, found.model.tokens, found.model.rows) == (TOKEN_BYTES, 9, 2)
    sixteen = next(batch for batch in found.batches if batch.rows == 16)
    assert (sixteen.fixed, sixteen.cache, sixteen.logits, sixteen.rest) == (
        WEIGHTS_BYTES, 16 * 9 * TOKEN_BYTES, 16 * LOGITS_BYTES, 0,
    )  # fmt: skip
    assert found.most_rows == (40_000_000 - WEIGHTS_BYTES) // (9 * TOKEN_BYTES + LOGITS_BYTES)


def test_a_capture_without_memory_events_is_told_by_its_model(tmp_path: Path) -> None:
    content = run()
    content["traceEvents"] = [event for event in content["traceEvents"] if event["name"] != "[memory]"]
    found = read(tmp_path, content)
    assert (found.courses, found.batches[0].rest) == ((), None)
    assert "molprof capture --memory" in found.notes[0]
    assert found.batches[0].total == WEIGHTS_BYTES + 9 * TOKEN_BYTES + LOGITS_BYTES


def test_what_is_not_recorded_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no memory events"):
        read(tmp_path, {"traceEvents": [slice_("cpu_op", "aten::mm", 0, 1)]})
    # Of the second event, 100 bytes are not told.
    events = [memory_event(1000, 1, 1, 1000), memory_event(-1000, 2, 1, 100), slice_("cpu_op", "aten::mm", 0, 3)]
    found = read(tmp_path, {"traceEvents": events})
    assert found.courses[0].unexplained == 1
    assert UNEXPLAINED in found.notes[0]
    assert found.courses[0].live[UNEXPLAINED].tolist() == [0, 100]


def test_recorded_memory_adds_up(tmp_path: Path) -> None:
    with record(tmp_path / "run.json", memory=True):
        kept = torch.zeros(1000)
        torch.ones(500).sum()
    assert len(kept) == 1000
    (course,) = api.memory(tmp_path / "run.json")[0].courses
    assert course.device == "cpu"
    assert course.peak_bytes >= 4000 + 2000
    assert sum(place.left_bytes for place in course.places if len(place.path) == 1) >= 4000


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
def test_a_recorded_cache(tmp_path: Path) -> None:
    """Keys and values of 24 layers, 16 sequences of 559 tokens, 1024 wide in bfloat16."""
    found, _ = api.memory(Path(str(CORPUS), "traces", "h100_qwen1.5_0.5b.json.gz"))
    course = found.courses[0]
    assert course.at_peak["cache"] == 2 * 24 * 16 * 559 * 1024 * 2
    frame = api.load(found.info.path).memory
    on_gpu = frame.where(frame["device"] == "0")
    assert np.array_equal(course.total, on_gpu["total_bytes"])
