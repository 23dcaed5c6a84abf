"""Captures on a GPU: figures of the report equal plain counts of the file's own events.

`goldens/given/gpu-*.json.gz` are real captures of a CPU to which a GPU's calls and work were added: no time of them was
measured. Goldens hold their reports, findings and comparison.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from goldens import GIVEN
from plain_kernels import ns, union

from molprof import api
from molprof.analysis.figures import Report
from molprof.analysis.trim import Wish, trim

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
PHASES = ("forward", "processor", "sampling", "bookkeeping")


class Plain:
    """The events of a trace with integer times, and what belongs to each phase of each step."""

    def __init__(self, path: Path) -> None:
        text = gzip.decompress(path.read_bytes())
        self.events = [item for item in json.loads(text, parse_float=str)["traceEvents"] if item["ph"] == "X"]
        for item in self.events:
            item["begin"] = ns(item["ts"])
            item["end"] = item["begin"] + ns(item["dur"])
        self.calls = self.of("cuda_runtime")
        self.work = [item for category in GPU for item in self.of(category)]
        marks = [
            item for item in self.of("user_annotation") if item["name"].split()[0].removeprefix("molprof.") in PHASES
        ]
        self.spans = [(item["begin"], item["end"], item["name"]) for item in marks]
        place_of = {call["args"]["correlation"]: self.place(call) for call in self.calls}
        self.of_call: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.of_work: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for call in self.calls:
            self.of_call[self.place(call)].append(call)
        for item in self.work:
            self.of_work[place_of[item["args"]["correlation"]]].append(item)

    def of(self, category: str) -> list[dict[str, Any]]:
        return [item for item in self.events if item.get("cat") == category]

    def place(self, call: dict[str, Any]) -> str:
        return next((name for begin, end, name in self.spans if begin <= call["begin"] < end), "")

    def sums(self, word: str) -> tuple[int, int, int, int, int, int]:
        """Launches, graph launches, kernels, GPU time, syncs and their time where the phase's name holds `word`."""
        calls = [call for name, items in self.of_call.items() if f"{word} " in f"{name} " for call in items]
        work = [item for name, items in self.of_work.items() if f"{word} " in f"{name} " for item in items]
        names = Counter(call["name"] for call in calls)
        syncs = [call for call in calls if "Synchronize" in call["name"]]
        return (
            names["cudaLaunchKernel"],
            names["cudaGraphLaunch"],
            sum(item["cat"] == "kernel" for item in work),
            sum(item["end"] - item["begin"] for item in work),
            len(syncs),
            sum(call["end"] - call["begin"] for call in syncs),
        )


@pytest.fixture(scope="module", params=["gpu-eager", "gpu-graph"])
def run(request: pytest.FixtureRequest) -> tuple[Path, Plain, Report]:
    path = GIVEN / f"{request.param}.json.gz"
    return path, Plain(path), api.report(path)


def test_the_work_of_each_phase(run: tuple[Path, Plain, Report]) -> None:
    _, plain, report = run
    assert report.run is not None
    for name in PHASES:
        found = report.run.phases[name]
        figures = (found.launches, found.graph_launches, found.kernels, found.gpu_ns, found.syncs, found.sync_ns)
        assert figures == plain.sums(f"molprof.{name}"), name
    assert report.run.window.unattributed_gpu_ns == 0
    assert [check.text for check in report.checks if not check.holds] == []
    assert (report.trace.lost_events, report.trace.lanes) == (0, 0)


def test_the_time_of_the_device(run: tuple[Path, Plain, Report]) -> None:
    _, plain, report = run
    busy = sum(end - begin for begin, end in union([(item["begin"], item["end"]) for item in plain.work]))
    recorded = [item for item in plain.events if item.get("cat") in ("cpu_op", "user_annotation", "cuda_runtime", *GPU)]
    span = max(item["end"] for item in recorded) - min(item["begin"] for item in recorded)
    (device,) = report.devices.values()
    assert (device.busy_ns, device.idle_ns) == (busy, device.span_ns - busy)
    assert device.span_ns <= span
    assert sum(row["time_ns"] for row in report.table("idle_causes").to_json()) == device.idle_ns
    kernels = [item for item in plain.work if item["cat"] == "kernel"]
    counts = report.counts
    assert counts.kernel_time_ns == sum(item["end"] - item["begin"] for item in kernels)
    assert (counts.kernels, counts.kernel_names) == (len(kernels), len({item["name"] for item in kernels}))
    copies = Counter(item["args"]["bytes"] for item in plain.work if item["cat"] == "gpu_memcpy")
    found = sum(item.bytes or 0 for item in counts.memory_operations.values())
    assert found == sum(size * count for size, count in copies.items())
    classes = report.run.window.classes if report.run is not None else None
    assert classes is not None
    assert sum(item.count for item in classes.values()) == len(plain.work)


def test_the_figures_of_each_step_also_where_it_was_trimmed(run: tuple[Path, Plain, Report], tmp_path: Path) -> None:
    path, plain, _ = run
    sql = (
        "INCLUDE PERFETTO MODULE molprof.launches; SELECT step.step, fact.launches, fact.graph_launches, fact.kernels,"
        " fact.gpu_ns, fact.syncs, fact.sync_ns FROM molprof_step_launch AS fact JOIN molprof_step AS step"
        " ON step.id = fact.step_id ORDER BY step.step"
    )
    trim(path, tmp_path / "few.json.gz", Wish(steps=(22, 24)))
    whole, few = (api.query(trace, sql).frame.rows() for trace in (path, tmp_path / "few.json.gz"))
    assert [tuple(figures) for _, *figures in whole] == [plain.sums(f"step={step}") for step, *_ in whole]
    assert few == [row for row in whole if 22 <= row[0] <= 24]
    assert len(few) == 3
