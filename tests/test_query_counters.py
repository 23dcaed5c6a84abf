"""Counters that a profiler sampled on the GPU: their samples, means and energy, from either form of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import native_trace
import pytest
import tiny_trace
from sql_rows import events_loaded

from molprof import api
from molprof.analysis.figures import catalog

# The recorded steps last from 1000 to 1180 us and generate 3 tokens; device 0 works from 1030 to 1179 us.
SAMPLES = [
    ("GPU 0 Counters", "Power (W)", 1020, 100.0),
    ("GPU 0 Counters", "Power (W)", 1150, 200.0),
    ("GPU 0 Counters", "Power (W)", 1500, 900.0),
    ("GPU 0 Counters", "SM Active (%)", 1010, 0.0),
    ("GPU 0 Counters", "SM Active (%)", 1040, 75.5),
    ("GPU 0 Counters", "SM Active (%)", 1170, 24.5),
    ("python", "[memory] (odd) name", 1100, 5.0),
]


def counters() -> list[dict[str, Any]]:
    return [{"ph": "C", "name": name, "pid": pid, "ts": ts, "args": {"": value}} for pid, name, ts, value in SAMPLES]


@pytest.mark.parametrize("writer", [tiny_trace.write, native_trace.write], ids=["json", "native"])
def test_figures_of_counters(tmp_path: Path, writer: Any) -> None:
    document = tiny_trace.document()
    document["traceEvents"] += counters()
    report = api.report(writer(tmp_path / "run", document))
    found = {figure.id: figure.value(report) for figure in catalog.FIGURES if figure.group == "GPU counters"}
    assert found == {
        "sm_active_ratio": 0.5,
        "dram_bandwidth_ratio": None,
        "power_w": 200.0,
        "temperature_c": None,
        "energy_per_token_j": pytest.approx(150 * 180e-6 / 3),
    }
    assert report.table("counters").to_json() == [
        {"device": "0", "name": "Power", "unit": "W", "count": 3, "least": 100, "mean": 400, "most": 900,
         "working_count": 1, "working_mean": 200},
        {"device": "0", "name": "SM Active", "unit": "%", "count": 3, "least": 0, "mean": pytest.approx(100 / 3),
         "most": 75.5, "working_count": 2, "working_mean": 50},
    ]  # fmt: skip
    (energy,) = report.table("energy").to_json()
    assert (energy["span_ns"], energy["count"], energy["mean_w"], energy["tokens"]) == (180_000, 2, 150, 3)


def test_a_trace_without_counters_has_no_such_figures(tmp_path: Path) -> None:
    report = tiny_trace.report(tmp_path / "run.json", tiny_trace.document())
    assert {figure.value(report) for figure in catalog.FIGURES if figure.group == "GPU counters"} == {None}
    assert report.table("counters").rows == report.table("energy").rows == ()


def test_samples_by_device_name_and_unit(tmp_path: Path) -> None:
    events = [tiny_trace.work("kernel", "k", 1010, 1, 1), *counters()]
    with events_loaded(tmp_path, events) as rows:
        found = rows("counters", "SELECT ts, device, name, unit, value FROM molprof_counter_sample ORDER BY ts LIMIT 3")
        assert found == [
            (0, "0", "SM Active", "%", 0), (10_000, "0", "Power", "W", 100), (30_000, "0", "SM Active", "%", 75.5),
        ]  # fmt: skip
        sql = "SELECT device, name, unit FROM molprof_counter_sample WHERE value = 5"
        assert rows("counters", sql) == [(None, "[memory] (odd) name", None)]
        assert rows("counters", "SELECT * FROM molprof_energy") == []
        sql = "SELECT name, count, working_count, working_mean FROM molprof_counter_summary ORDER BY name"
        assert rows("counters", sql) == [("Power", 3, 0, None), ("SM Active", 3, 1, 0)]
