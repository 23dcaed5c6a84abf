"""Idle time of real traces: divided by SQL, and once more the plain way; and what findings can gain from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import plain_idle
import pytest
from certificate_data import CORPUS, needs_traces

import molprof

_OF_HOST = ("cpu_waited", "cpu_calls", "cpu_operators", "cpu_outside", "launching")
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
    plain = plain_idle.gaps(path)
    for table, positions in (("idle_causes", ["between"]), ("idle_edges", ["before", "after"])):
        found: dict[str, Counter[str]] = {device: Counter() for device in report.devices}
        for row in report.table(table).to_json():
            cause = str(row["cause"])
            assert isinstance(row["time_ns"], int)
            assert row["time_ns"] > 0
            found[str(row["device"])][cause if cause in _OF_HOST else "device"] += row["time_ns"]
        sums = {device: [parts for place, _, parts in gaps if place in positions] for device, gaps in plain.items()}
        assert found == {device: sum(parts, Counter()) for device, parts in sums.items()}
    assert {device: sum(ns for place, ns, _ in gaps if place == "between") for device, gaps in plain.items()} == {
        name: device.idle_ns for name, device in report.devices.items()
    }

    # What the findings call idle time: in gaps up to 1 ms until the launch takes effect, else outside long calls.
    short, long = Counter[str](), Counter[str]()
    for place, length_ns, parts in (gap for gaps in plain.values() for gap in gaps):
        if report.trace.cut_out and place != "between":
            continue  # what ran before and after is not known
        (long if place != "between" or length_ns > 1_000_000 else short).update(parts)
    figures = {item.id: item.figures for item in report.findings}
    work = ("cpu_calls", "cpu_operators", "cpu_outside")
    if "launch_bound" in figures:
        assert figures["launch_bound"]["gap_ns"] == sum(short[cause] for cause in (*work, "launching"))
    if "host_work" in figures:
        assert figures["host_work"]["cpu_operators_ns"] == long["cpu_operators"]
        assert figures["host_work"]["cpu_outside_ns"] == long["cpu_outside"]
        assert figures["host_work"]["idle_ns"] <= sum(long[cause] for cause in work)
    if "host_syncs" in figures:
        assert figures["host_syncs"]["waited_ns"] == short["cpu_waited"] + long["cpu_waited"]
