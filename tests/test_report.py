"""The report: every figure of a tiny captured run, what is not recorded, broken sums, and real traces."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from page_data import render

from molprof import api
from molprof.analysis.figures import Report
from molprof.analysis.figures.catalog import TABLES
from molprof.common.errors import TraceError
from molprof.queries import PACKAGE, modules

CORPUS = os.environ.get("MOLPROF_CORPUS")
EXPECTED = json.loads(Path(CORPUS, "expected.json").read_text()) if CORPUS else {}


def report_of(tmp_path: Path, content: dict[str, Any]) -> Report:
    return tiny_trace.report(tmp_path / "trace.json.gz", content)


def test_cut_blocks_are_summed_where_all_are_counted(tmp_path: Path) -> None:
    content = tiny_trace.document()
    content["molprof"]["molecules"][0].update(malformed_blocks=2, cut_blocks=1)
    assert report_of(tmp_path, content).to_json()["run"]["cut_blocks"] is None
    content["molprof"]["molecules"][1].update(cut_blocks=0)
    report = report_of(tmp_path, content)
    assert report.to_json()["run"]["cut_blocks"] == 1
    assert ["cut", "blocks", "1"] in [line.split() for line in render(report).splitlines()]


def test_an_even_number_of_repeats_takes_the_middle_two(tmp_path: Path) -> None:
    content = tiny_trace.document()
    content["molprof"]["timings"]["repeats"].append(tiny_trace.repeat(1295, 1200))
    run = report_of(tmp_path, content).run
    assert run is not None
    assert (run.wall_ns.median, run.phases["forward"].wall_ns) == (1145, 1050)
    assert run.residual_ratio == 5 / 1145


def test_without_a_gpu_launches_are_not_recorded(tmp_path: Path) -> None:
    report = report_of(tmp_path, tiny_trace.cpu_document())
    run = report.run
    assert run is not None
    assert report.counts.launches == 0
    assert (run.launches_per_token, run.launches_per_step, run.launches_per_molecule) == (None, None, None)
    assert (run.window.launches, run.window.gpu_ns, run.window.classes) == (None, None, None)
    assert run.leaf_operators_per_token == 4 / 3
    recorded = run.phases["forward"]
    assert (recorded.launches, recorded.gpu_ns, recorded.syncs, recorded.leaf_operators) == (
        None,
        None,
        None,
        2,
    )
    assert report.devices == {}


def test_without_a_processor_nothing_is_masked(tmp_path: Path) -> None:
    content = tiny_trace.document()
    content["molprof"]["generation"].update(processor=None, placeholder=None)
    for molecule in content["molprof"]["molecules"]:
        molecule.update(masked_logits=None, template=None)
    run = report_of(tmp_path, content).run
    assert run is not None
    assert (run.setup.label, run.masked_logits, run.free_positions_per_block) == ("llama no lp", None, None)


def test_a_kernel_without_a_name_is_counted_and_classed(tmp_path: Path) -> None:
    report = report_of(tmp_path, {"traceEvents": [tiny_trace.work("kernel", "", 5, 2, 1)]})
    assert (report.counts.kernels, report.counts.kernel_names) == (1, 1)
    assert report.table("kernel_classes").rows == (("other", 1, 2_000, 1.0, 1),)


@pytest.mark.parametrize("broken", ["tokens", "unfinished_rows", "token_slices", "kinds", "wall_time"])
def test_a_broken_sum_is_reported(tmp_path: Path, broken: str) -> None:
    content = tiny_trace.document()
    manifest = content["molprof"]
    if broken == "tokens":
        manifest["molecules"][1]["token_ids"].append(10)
        manifest["steps_per_batch"] = [4]
    elif broken == "unfinished_rows":
        manifest["steps_per_batch"] = [2]
    elif broken == "token_slices":
        content["traceEvents"].pop()
    elif broken == "kinds":
        manifest["molecules"][0]["kinds"] = "cff"
    else:
        for repeat in manifest["timings"]["repeats"]:
            repeat["wall_ns"] += 20
    checks = report_of(tmp_path, content).checks
    assert [check.id for check in checks if not check.holds] == [broken]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 99}, "manifest schema 99"),
        ({"steps_per_batch": []}, "sequence 0 ran in batch 0, of 0 batches"),
        ({"molecules": 5}, "molecules: expected `array`, got `int`"),
    ],
)
def test_a_manifest_that_cannot_be_trusted(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    content = tiny_trace.document()
    content["molprof"].update(change)
    with pytest.raises(TraceError, match=message):
        report_of(tmp_path, content)


def test_every_table_has_a_module() -> None:
    assert {f"{PACKAGE}.{query.module}" for table in TABLES.values() for query in table.queries} <= set(modules())


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
@pytest.mark.parametrize("name", EXPECTED or ["none"])
def test_real_traces(name: str) -> None:
    report = api.report(Path(str(CORPUS), "traces", name))
    figures = report.to_json()
    expected = EXPECTED[name]
    assert figures["trace"]["events_by_category"] == expected["trace"]["events_by_category"]
    assert {key: figures["counts"][key] for key in expected["counts"]} == expected["counts"]
    assert figures["devices"] == expected["devices"]
    assert figures["trace"]["lost_events"] == 0
    assert all(check.holds for check in report.checks)
    other_ns = sum(row["time_ns"] for row in figures["tables"]["kernel_classes"] if row["class"] == "other")
    assert other_ns <= 0.05 * figures["counts"]["kernel_time_ns"]
