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
from molprof.common.manifest import PHASES
from molprof.queries import PACKAGE, modules

CORPUS = os.environ.get("MOLPROF_CORPUS")
EXPECTED = json.loads(Path(CORPUS, "expected.json").read_text()) if CORPUS else {}


def report_of(tmp_path: Path, content: dict[str, Any]) -> Report:
    return tiny_trace.report(tmp_path / "trace.json.gz", content)


def phase(wall_ns: int | None, *recorded: int | None, bound: tuple[int, ...] | None = None) -> dict[str, Any]:
    names = ("host_ns", "gpu_ns", "launches", "kernels", "syncs", "sync_ns", "leaf_operators", "graph_launches")
    parts = ("count", "gpu_busy_ns", "sync_idle_ns", "launch_ns")
    return {
        "wall_ns": wall_ns,
        **dict(zip(names, recorded or [None] * len(names), strict=True)),
        "bound": None if bound is None else dict(zip(parts, bound, strict=True)),
    }


def test_a_captured_run(tmp_path: Path) -> None:
    report = report_of(tmp_path, tiny_trace.document()).to_json()
    assert report["schema"] == 1
    assert report["trace"] == {
        "path": str(tmp_path / "trace.json.gz"),
        "bytes": (tmp_path / "trace.json.gz").stat().st_size,
        "events_by_category": {
            "cpu_op": 5,
            "cuda_driver": 1,
            "cuda_runtime": 6,
            "gpu_memcpy": 1,
            "kernel": 6,
            "molprof.sequence": 2,
            "molprof.token": 3,
            "user_annotation": 10,
        },
        "lost_events": 0,
        "lanes": 0,
        "complete": True,
        "problem": None,
        "stacks": True,
        "device_names": [],
        "trimmed": None,
        "whole_steps": True,
    }
    assert report["counts"] == {
        "launches": 4,
        "graph_launches": 1,
        "kernels": 6,
        "kernel_time_ns": 71_000,
        "kernel_names": 6,
        "memory_operations": {"Memcpy DtoH": {"count": 1, "time_ns": 1_000, "bytes": 16}},
        "launches_without_gpu_work": 1,
        "kernels_with_call": 5,
        "kernels_without_call": 1,
    }
    assert report["devices"] == {"0": {"span_ns": 149_000, "busy_ns": 67_000, "idle_ns": 82_000}}
    junk, *others = (item for item in report["findings"] if item["id"] in ("junk_tokens", "idle_rows", "profiler_cost"))
    assert [item["id"] for item in others] == ["idle_rows", "profiler_cost"]
    assert set(junk) == {
        "id", "title", "evidence", "gain", "gain_ratio", "fix", "explanation", "query", "figures", "uncertain",
        "place", "certain", "note",
    }  # fmt: skip
    assert (junk["gain"]["high"], junk["gain"]["of"]) == (junk["gain_ratio"], "unprofiled wall time")
    assert junk["gain_ratio"] == pytest.approx((1 - 2 / 3) * (1000 + 20 + 15 + 10) / 1095)
    assert list(report["tables"]) == list(TABLES)
    assert json.loads(json.dumps(report)) == report


def test_run_figures(tmp_path: Path) -> None:
    run = report_of(tmp_path, tiny_trace.document()).to_json()["run"]
    assert run.pop("setup")["label"] == "llama lp:generic"
    assert run.pop("wall_ns") == {"median": 1095, "low": 995, "high": 1195, "repeats": 3}
    phases = run.pop("phases")
    assert tuple(phases) == PHASES
    assert phases["template"] == phase(10)
    assert phases["forward"] == phase(1000, 110_000, 68_000, 2, 4, 0, 0, 2, 1, bound=(2, 45_000, 0, 65_000))
    assert phases["processor"] == phase(20, 30_000, 2_000, 1, 1, 0, 0, 1, 0, bound=(2, 18_000, 0, 12_000))
    assert phases["sampling"] == phase(15, 30_000, 1_000, 0, 0, 2, 8_000, 1, 0, bound=(2, 3_000, 5_000, 22_000))
    assert phases["bookkeeping"] == phase(10, 10_000, 0, 1, 0, 0, 0, 0, 0, bound=(2, 1_000, 0, 9_000))
    assert run.pop("window") == {
        "full": False,
        "batch": 0,
        "first_step": 1,
        "last_step": 2,
        "steps": 2,
        "tokens": 3,
        "gpu_recorded": True,
        "launches": 4,
        "kernels": 5,
        "gpu_ns": 71_000,
        "leaf_operators": 4,
        "classes": {
            "matmul": {"count": 1, "time_ns": 40_000},
            "cat": {"count": 1, "time_ns": 10_000},
            "copy": {"count": 1, "time_ns": 10_000},
            "attention": {"count": 1, "time_ns": 8_000},
            "index/scatter/gather": {"count": 1, "time_ns": 2_000},
            "memcpy DtoH": {"count": 1, "time_ns": 1_000},
        },
        "unattributed_gpu_ns": 1_000,
        "graph_launches": 1,
        "syncs": 2,
    }
    assert [example["text"] for example in run.pop("drift")["junk_examples"]] == ["<1.0,2.0,3.0|abra|>"]
    sequences = run.pop("sequences")
    assert sequences[0] == {
        "sequence": 0,
        "smiles": "C",
        "tokens": 3,
        "free": 1,
        "copy": 1,
        "junk": 1,
        "filler": 0,
        "blocks": 1,
        "junk_blocks": 1,
        "malformed_blocks": 0,
        "cut_blocks": None,
        "masked_logits": 300,
        "valid": False,
        "problem": "no [/CONFORMER]",
        "prompt": "[SMILES]C[/SMILES]",
    }
    repeats = run.pop("repeats")
    assert [repeat["wall_ns"] for repeat in repeats] == [1195, 995, 1095]
    assert repeats[0]["phases_ns"] == tiny_trace.repeat(1195, 1100)["phases_ns"]
    assert {(repeat["compiles"], repeat["compile_ns"]) for repeat in repeats} == {(None, None)}
    assert [(item["first_step"], item["last_step"]) for item in run.pop("step_times")] == [(0, 0), (1, 1), (2, 2)]
    rare = ("session", "machine", "masked", "peak_memory_bytes", "peak_memory_of", "totals")
    assert [name for name in rare if run.pop(name) is not None] == ["totals"]
    assert run.pop("shapes") == {"rows": [2], "prompt_widths": [4], "steps": [3]}
    assert run == {
        "first_pass_extra_ns": 5000 - 1095,
        "profiled_ratio": 2.0,
        "marks": {
            "mark_ns": 50.0,
            "per_step": 4,
            "time_ratio": 50 * 4 * 3 / 1095,
            "unmarked_wall_ns": None,
            "signature_ns": None,
        },
        "molecules": 2,
        "valid_molecules": 1,
        "skipped": 0,
        "batches": 1,
        "steps": 3,
        "decode_steps": 2,
        "generated_tokens": 5,
        "row_steps": 6,
        "idle_row_steps": 1,
        "launches_per_token": 4 / 3,
        "launches_per_step": 2.0,
        "launches_per_molecule": 3.0,
        "leaf_operators_per_token": 4 / 3,
        "leaf_operators_per_step": 2.0,
        "masked_logits": 400,
        "blocks": 1,
        "free_positions_per_block": 14.0,
        "coordinate_tokens_per_block": 1.0,
        "junk_tokens": 1,
        "filler_tokens": 0,
        "junk_blocks": 1,
        "malformed_blocks": 0,
        "cut_blocks": None,
        "residual_ratio": 5 / 1095,
        "disagreement": None,
    }


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


def test_a_trace_of_other_origin_has_no_run(tmp_path: Path) -> None:
    content = {"traceEvents": [tiny_trace.work("kernel", "fmha", 5, 2, 1)]}
    report = report_of(tmp_path, content)
    assert report.run is None
    assert report.to_json()["run"] is None
    assert [check.id for check in report.checks] == ["events", "kernels"]
    assert report.table("drift").rows == ()
    assert report.table("kernel_classes").rows == (("attention", 1, 2_000, 1.0, 1),)


def test_a_kernel_without_a_name_is_counted_and_classed(tmp_path: Path) -> None:
    report = report_of(tmp_path, {"traceEvents": [tiny_trace.work("kernel", "", 5, 2, 1)]})
    assert (report.counts.kernels, report.counts.kernel_names) == (1, 1)
    assert report.table("kernel_classes").rows == (("other", 1, 2_000, 1.0, 1),)


def test_sums_hold(tmp_path: Path) -> None:
    checks = report_of(tmp_path, tiny_trace.document()).checks
    assert {check.id: (check.left, check.right) for check in checks} == {
        "events": (34, 34),
        "kernels": (6, 6),
        "gpu_time": (72_000, 72_000),
        "tokens": (5, 5),
        "unfinished_rows": (5, 5),
        "token_slices": (3, 3),
        "kinds": (1, 1),
        "phase_bound": (180_000, 180_000),
        "wall_time": (1095, 1090),
    }
    assert all(check.holds for check in checks)


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


def test_steps_of_a_trace_of_other_origin_are_in_a_table(tmp_path: Path) -> None:
    content = {
        "traceEvents": [
            tiny_trace.slice_("user_annotation", "step[DECODE bs=4]", 0, 100),
            tiny_trace.slice_("user_annotation", "step[EXTEND bs=2 toks=9]", 100, 50),
            tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", 10, 5, correlation=1),
            tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", 200, 5, correlation=2),
            tiny_trace.work("kernel", "a", 20, 5, 1),
            tiny_trace.work("kernel", "a", 210, 5, 2),
        ]
    }
    report = report_of(tmp_path, content).to_json()
    assert report["run"] is None
    rows = report["tables"]["steps"]
    names = ("source", "kind", "tokens", "launches_per_token")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("sglang", "decode", 4, 0.25),
        # How many prompts it read to their end, and so gave their first token, its name does not tell.
        ("sglang", "prefill", None, None),
        ("(outside)", None, None, None),
    ]
    assert report["tables"]["launch_calls"] == [
        {
            "name": "cudaLaunchKernel",
            "kind": "launch",
            "count": 2,
            "time_ns": 10_000,
            "kernels": 2,
            "mean_delay_ns": 10_000.0,
        }
    ]
    assert report["tables"]["idle_causes"] == [
        {
            "device": "0",
            "cause": cause,
            "count": 1,
            "time_ns": time_ns,
            "idle_ratio": time_ns / 185_000,
            "longest_ns": time_ns,
        }
        for cause, time_ns in (("cpu_outside", 175_000), ("launching", 10_000))
    ]


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
