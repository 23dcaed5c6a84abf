"""The first screen of a comparison: its numbers follow from one another, it fits, and names what else differs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_trace

from molprof import api
from molprof.analysis.compare import Comparison
from molprof.analysis.compare.difference import known_parts
from molprof.analysis.compare.statistics import significant
from molprof.analysis.documents.comparison import comparison_document, comparison_verdict
from molprof.analysis.render import render
from molprof.common.document import Table

TRACES = Path(__file__).parent.parent / "traces"
NS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}
TIMES = re.compile(r"([\d.]+) (\w+) against ([\d.]+) (\w+), ([+-][\d.]+) (\w+)")


@pytest.fixture(
    params=[
        "cpu-llama cpu-llama-generic",
        "cpu-llama-generic cpu-qwen-generic",
        "cpu-qwen cpu-qwen cpu-qwen-jump",
        "cpu-llama cpu-llama-generic cpu-qwen cpu-qwen-generic",
    ]
)
def comparison(request: pytest.FixtureRequest) -> Comparison:
    """Of rounds of one capture, and of runs that are not paired."""
    return api.compare(*(TRACES / f"{name}.json.gz" for name in request.param.split()))


def bars(comparison: Comparison) -> Table:
    sections = comparison_document(comparison).screen
    (table,) = (section.table for section in sections if section.title.startswith("Difference in "))
    assert table is not None
    return table


def test_every_number_follows_from_the_others(comparison: Comparison) -> None:
    wall = comparison.wall
    for row in comparison.rows:
        numbers = [row.numbers(place)[0] for place in range(len(row.values))]
        assert all(
            ratio is None or ratio == pytest.approx(number / numbers[0])
            for number, ratio in zip(numbers, row.ratios, strict=True)
            if number is not None and numbers[0]
        )
    for place, item in enumerate(comparison.differences, 1):
        assert item is not None
        here, first = wall.numbers(place)
        assert here is not None
        assert first is not None
        assert item.wall_ns == sum(item.parts.values()) + item.residual_ns == here - first
        assert all(part in known_parts(item) for part in item.causes)
        if item.paired:
            assert wall.significant[place] is significant(item.wall_interval, 0.0)
        rows = bars(comparison).rows
        shown = [row[place] for row in rows]
        assert sum(ns or 0 for ns in shown[:-1]) == shown[-1] == item.wall_ns  # type: ignore[misc]
        if len(comparison.labels) == 2:
            assert all(row[1] is None or row[2] == pytest.approx(row[1] / first) for row in rows)  # type: ignore[operator]
        if said := TIMES.search(comparison_verdict(comparison)[place - 1]):
            told = [float(said[number]) * NS[said[number + 1]] for number in (1, 3, 5)]
            assert told == pytest.approx([here, first, here - first], rel=0.005)


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_it_fits_one_screen(comparison: Comparison, columns: int) -> None:
    lines = render(comparison_document(comparison), "table", columns, whole=False).splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) <= 40


def test_other_hardware_and_software_is_said(tmp_path: Path) -> None:
    def trace(device: str, **versions: object) -> Path:
        events = [
            tiny_trace.slice_("user_annotation", "ProfilerStep#1", 0, 50 + len(device)),
            tiny_trace.work("kernel", "gemm", 5, len(device), 1),
        ]
        keys = {"deviceProperties": [{"id": 0, "name": device}], **versions}
        return tiny_trace.write(tmp_path / f"{device}.json", {**keys, "traceEvents": events})

    packages = {"system": {"pip_packages": ["torch==2.8.0", "six==1"]}}
    before = trace("V100", cuda_runtime_version=12040, engine_version="1.0")
    after = trace("MI300X", hip_runtime_version=60443483, engine_version="1.0", metadata=packages)
    comparison = api.compare(before, after)
    (said,) = comparison_verdict(comparison)
    assert said.startswith("MI300X takes 1.04x the time of V100 for a step: 56.0 µs against 54.0 µs, +2.00 µs (")
    assert said.endswith(" Not the program alone differs: device (MI300X, not V100), and platform.")
    shown = " ".join(render(comparison_document(comparison), whole=False).split())
    assert "device V100 -> MI300X platform CUDA 12.4 -> HIP 6.4.43483" in shown
    assert comparison.runs[1].trace.software == {"HIP": "6.4.43483", "engine": "1.0", "torch": "2.8.0"}
    assert comparison_verdict(api.compare(after, after))[0].startswith("MI300X #2 and MI300X #1 are one file")
