"""The difference as a table: groups with subtotals, shares, ratios, and what is not in it."""

from __future__ import annotations

from pathlib import Path

import tiny_trace
from msgspec.structs import replace
from page_data import render
from synthetic import Cost, Spec, captured, costs

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import Spread
from molprof.analysis.render.table import WIDTH

SLOWER = Spec(
    batches=(("cfffjle", "cfe"),),
    costs=costs(processor=Cost(200, 100, 350), forward=Cost(900, 10, 700)),
    once_ns={"template": 1_900, "tokenize": 500, "setup": 300, "text": 7},
    outside_ns=777,
    model="slow",
)


def report_of(folder: Path, spec: Spec) -> Report:
    return tiny_trace.report(folder / f"{spec.model}.json", captured(spec))


def difference_of(shown: str) -> str:
    return shown[shown.index("Difference in unprofiled time from") :].partition("\nPredictions")[0]


def test_several_runs_stand_side_by_side_and_in_several_tables(tmp_path: Path) -> None:
    """One of them without GPU work: its phases are one part each, and have no cells where others are divided."""
    plain, slow = report_of(tmp_path, Spec()), report_of(tmp_path, SLOWER)
    cpu = report_of(tmp_path, Spec(costs=costs(processor=Cost(100, 0, 60)), gpu=False, model="cpu"))
    shown = difference_of(render(compare([plain, slow, cpu, cpu, slow])))
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "processor, per step +2.75 ms +28.0 % +40.0 µs +0.41 % +40.0 µs +0.41 %" in lines
    assert "GPU busy +1.65 ms +16.8 %" in lines
    assert "host time +40.0 µs +0.41 % +40.0 µs +0.41 %" in lines
    assert sum(line.startswith("total ") for line in lines) == 2
    assert "  slow lp:generic #2: time 1.91x = " in shown
    assert max(map(len, shown.splitlines())) <= WIDTH


def test_gpu_time_without_room_is_said(tmp_path: Path) -> None:
    content = tiny_trace.document()  # times of the trace in µs, of the manifest in ns
    path = tiny_trace.write(tmp_path / "tiny.json", content)
    shown = difference_of(render(compare([api.report(path), api.report(path)])))
    text = "recorded GPU time beyond the unprofiled steps: 77.0 µs (first run), 77.0 µs (this run)"
    assert text in " ".join(shown.split())


def test_a_first_pass_no_slower_than_the_repeats_is_noise(tmp_path: Path) -> None:
    plain = report_of(tmp_path, Spec())
    assert plain.run is not None
    faster, slower = (
        replace(plain, run=replace(plain.run, first_pass_extra_ns=extra_ns, wall_ns=Spread(100, 90, 120, 3)))
        for extra_ns in (-20, 21)
    )
    shown = " ".join(difference_of(render(compare([faster, slower]))).split())
    assert (
        "not in the table: first pass (compiling, first use) minus the median: llama lp:generic #2 +21 ns part"
    ) in shown
