"""Idle time of real traces: divided by SQL, and once more the plain way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import plain_idle
import pytest
from certificate_data import CORPUS, needs_traces

import molprof

_OF_HOST = ("cpu_waited", "cpu_calls", "cpu_operators", "cpu_outside")
TRACES = [
    *("traces/b200_vllm_eager", "traces/h100_qwen1.5_0.5b", "traces/mi300x_sglang_qwen3_8b_decode"),
    *("traces/v100_resnet_ddp", "pairs/mi300_vit_base", "pairs/h100_bert_small", "ranks/megatron_tp8_rank0"),
]


@needs_traces
@pytest.mark.parametrize("name", TRACES)
def test_idle_time_is_divided_as_a_plain_recount_divides_it(name: str) -> None:
    path = Path(CORPUS or "") / f"{name}.json.gz"
    with molprof.load(path) as trace:
        report = trace.report
    found: dict[str, Counter[str]] = {device: Counter() for device in report.devices}
    for row in report.table("idle_causes").to_json():
        cause = str(row["cause"])
        assert isinstance(row["time_ns"], int)
        assert row["time_ns"] > 0
        found[str(row["device"])][cause if cause in _OF_HOST else "device"] += row["time_ns"]
    assert found == plain_idle.causes(path)
    assert {device: causes.total() for device, causes in found.items()} == {
        name: device.idle_ns for name, device in report.devices.items()
    }
