"""The report: figures follow one change of a tiny run, broken sums are reported, users' counts of foreign traces."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import native_trace
import pytest
import tiny_trace
from certificate_data import CORPUS, needs_traces
from decoding_trace import decoding, gemms
from page_data import render
from tiny_trace import slice_, work

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.compare.thresholds import Expectation
from molprof.analysis.documents.figures import figure_values
from molprof.analysis.documents.report import report_document
from molprof.analysis.figures import Report, catalog
from molprof.analysis.figures.figure import evidence_of
from molprof.analysis.figures.run_model import Run, RunTotal
from molprof.analysis.figures.step_model import SLOTS, IntervalTotal, StepInterval, TypicalStep
from molprof.analysis.render import render as rendered
from molprof.analysis.reports import read_stored, with_given
from molprof.common.errors import TraceError, UsageError
from molprof.queries import PACKAGE, modules

EXPECTED = json.loads(Path(CORPUS, "expected.json").read_text()) if CORPUS else {}


def report_of(tmp_path: Path, content: dict[str, Any], name: str = "trace.json") -> Report:
    return tiny_trace.report(tmp_path / name, content)


def run_of(report: Report) -> Run:
    assert report.run is not None
    return report.run


@needs_traces
@pytest.mark.parametrize("name", EXPECTED or ["none"])
def test_real_traces(name: str) -> None:
    report = api.report(Path(str(CORPUS), "traces", name))
    figures, expected = report.to_json(), EXPECTED[name]
    assert figures["trace"]["events_by_category"] == expected["trace"]["events_by_category"]
    assert {key: figures["counts"][key] for key in expected["counts"]} == expected["counts"]
    assert figures["devices"] == expected["devices"]
    assert figures["trace"]["lost_events"] == 0
    assert all(check.holds for check in report.checks)
    other_ns = sum(row["time_ns"] for row in figures["tables"]["kernel_classes"] if row["class"] == "other")
    assert other_ns <= 0.05 * figures["counts"]["kernel_time_ns"]
    if step := report.typical_step:  # nothing of it is left out, and little is kept
        for kind in {total.kind for total in step.totals}:
            kept = [interval for interval in step.intervals if interval.kind == kind]
            totals = [total for total in step.totals if total.kind == kind]
            assert sum(interval.count for interval in kept) == sum(total.count for total in totals)
            # Within a lane nothing overlaps much, so there are at most as many long ones as slots, and as many short.
            assert len(kept) <= 2 * (SLOTS + 1) * len({(interval.device_stream, interval.own) for interval in kept})


def test_cut_blocks_are_summed_where_all_are_counted(tmp_path: Path) -> None:
    content = tiny_trace.document()
    content["molprof"]["molecules"][0].update(malformed_blocks=2, cut_blocks=1)
    assert run_of(report_of(tmp_path, content)).cut_blocks is None
    content["molprof"]["molecules"][1].update(cut_blocks=0)
    report = report_of(tmp_path, content)
    assert run_of(report).cut_blocks == 1
    assert ["cut", "blocks", "1"] in [line.split() for line in render(report).splitlines()]


def test_an_even_number_of_repeats_takes_the_middle_two(tmp_path: Path) -> None:
    content = tiny_trace.document()
    content["molprof"]["timings"]["repeats"].append(tiny_trace.repeat(1295, 1200))
    run = run_of(report_of(tmp_path, content))
    assert (run.wall_ns.median, run.phases["forward"].wall_ns, run.residual_ratio) == (1145, 1050, 5 / 1145)


def test_without_a_gpu_launches_are_not_recorded(tmp_path: Path) -> None:
    report = report_of(tmp_path, tiny_trace.cpu_document())
    run, forward = run_of(report), run_of(report).phases["forward"]
    assert (report.counts.launches, report.devices) == (0, {})
    assert (run.launches_per_token, run.launches_per_step, run.launches_per_molecule) == (None, None, None)
    assert (run.window.launches, run.window.gpu_ns, run.window.classes) == (None, None, None)
    assert run.leaf_operators_per_token == 4 / 3
    assert (forward.launches, forward.gpu_ns, forward.syncs, forward.leaf_operators) == (None, None, None, 2)
    assert run.totals == {"leaf_operators": RunTotal(6, 4, 8, False, 2, 3)}
    figures = figure_values(report)
    assert (figures["run_leaf_operators"], figures["run_launches"], figures["run_kernels"]) == (6, None, None)
    assert "estimate: 2 of 3 steps recorded" in render(report, "table")
    assert {figure.value(report) for figure in catalog.FIGURES if figure.group == "GPU counters"} == {None}


def test_without_a_processor_nothing_is_masked(tmp_path: Path) -> None:
    content = tiny_trace.document()
    content["molprof"]["generation"].update(processor=None, placeholder=None)
    for molecule in content["molprof"]["molecules"]:
        molecule.update(masked_logits=None, template=None)
    run = run_of(report_of(tmp_path, content))
    assert (run.setup.label, run.masked_logits, run.free_positions_per_block) == ("llama no lp", None, None)


def test_a_kernel_without_a_name_is_counted_and_classed(tmp_path: Path) -> None:
    report = report_of(tmp_path, {"traceEvents": [work("kernel", "", 5, 2, 1)]})
    assert (report.counts.kernels, report.counts.kernel_names) == (1, 1)
    assert report.table("kernel_classes").rows == (("other", 1, 2_000, 1.0, 1),)
    assert report.typical_step is None


@pytest.mark.parametrize(
    ("steps", "expected"), [(10, RunTotal(110, 103, 117, False, 3, 10)), (3, RunTotal(33, 33, 33, True, 3, 3))]
)
def test_steps_that_were_not_recorded_are_like_those_that_were(tmp_path: Path, steps: int, expected: RunTotal) -> None:
    launches = {1000: 10, 2000: 12, 3000: 11}
    content = decoding(lambda start: gemms(start, 20, 5, launches[start]), steps=3, lengths=[steps] * 8)
    assert run_of(report_of(tmp_path, content)).totals == {"launches": expected, "kernels": expected}


def several_tokens() -> dict[str, Any]:
    """The tiny run, but sequence 0 has both later tokens of step 1, and its row left the batch after it."""
    changed = tiny_trace.document()
    for event in changed["traceEvents"]:
        if event.get("cat") == "molprof.sequence":
            event["args"]["step"] = [[0, 1, 1], [0, 1]][event["args"]["sequence"]]
        if event.get("cat") == "molprof.token" and event["args"]["sequence"] == 0:
            event["args"]["step"] = 1
            event["ts"], event["dur"] = {1: (1000, 50), 2: (1050, 50)}[event["args"]["position"]]
    manifest = changed["molprof"]
    manifest["molecules"][0]["step_tokens"] = [1, 2]
    manifest["molecules"][1]["step_tokens"] = [1, 1]
    manifest["rows_per_step"] = [[2, 2, 1]]
    return changed


def test_steps_that_made_several_tokens_of_a_sequence(tmp_path: Path) -> None:
    report = report_of(tmp_path, several_tokens())
    assert [check.id for check in report.checks if not check.holds] == []
    run = run_of(report)
    assert (run.generated_tokens, run.row_steps, run.idle_row_steps) == (5, 5, 1)
    assert (run.window.tokens, run.setup.loop) == (3, None)


def _add_token(content: dict[str, Any]) -> None:
    content["molprof"]["molecules"][1]["token_ids"].append(10)
    content["molprof"]["steps_per_batch"] = [4]


def _longer(content: dict[str, Any]) -> None:
    for repeat in content["molprof"]["timings"]["repeats"]:
        repeat["wall_ns"] += 20


@pytest.mark.parametrize(
    ("broken", "change"),
    [
        ("tokens", _add_token),
        ("unfinished_rows", lambda content: content["molprof"].update(steps_per_batch=[2])),
        ("token_slices", lambda content: content["traceEvents"].pop()),
        ("kinds", lambda content: content["molprof"]["molecules"][0].update(kinds="cff")),
        ("wall_time", _longer),
    ],
)
def test_a_broken_sum_is_reported(tmp_path: Path, broken: str, change: Any) -> None:
    content = tiny_trace.document()
    change(content)
    assert [check.id for check in report_of(tmp_path, content).checks if not check.holds] == [broken]
    content = several_tokens()
    content["molprof"]["molecules"][0]["step_tokens"] = [1, 1]
    checks = report_of(tmp_path, content).checks
    assert [(check.id, check.left, check.right) for check in checks if not check.holds] == [("unfinished_rows", 5, 4)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 99}, "manifest schema 99"),
        ({"steps_per_batch": []}, "sequence 0 ran in batch 0, of 0 batches"),
        ({"molecules": 5}, "molecules: expected `array`, got `int`"),
        ({"generation": {**several_tokens()["molprof"]["generation"], "batch_size": None}},
         "manifest: missing field `batch_size`"),
        ({"rows_per_step": [[2, 2]]}, "rows_per_step and steps_per_batch have different numbers of steps"),
        ({"molecules": [{**several_tokens()["molprof"]["molecules"][0], "step_tokens": [1, 1, 1, 0]}]},
         "sequence 0 got tokens in 4 steps, of 3 steps of its batch"),
    ],
)  # fmt: skip
def test_a_manifest_that_cannot_be_trusted(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    content = several_tokens()
    content["molprof"].update(change)
    with pytest.raises(TraceError, match=message):
        report_of(tmp_path, content)


def test_every_table_has_a_module() -> None:
    tables = catalog.TABLES.values()
    assert {f"{PACKAGE}.{query.module}" for table in tables for query in table.queries} <= set(modules())


# The recorded steps last from 1000 to 1180 us and generate 3 tokens; device 0 works from 1030 to 1179 us.
SAMPLES = [
    *(("GPU 0 Counters", "Power (W)", ts, watts) for ts, watts in ((1020, 100.0), (1150, 200.0), (1500, 900.0))),
    *(("GPU 0 Counters", "SM Active (%)", ts, ratio) for ts, ratio in ((1010, 0.0), (1040, 75.5), (1170, 24.5))),
    ("python", "[memory] (odd) name", 1100, 5.0),
]


@pytest.mark.parametrize("writer", [tiny_trace.write, native_trace.write], ids=["json", "native"])
def test_figures_of_counters(tmp_path: Path, writer: Any) -> None:
    document = tiny_trace.document()
    document["traceEvents"] += [
        {"ph": "C", "name": name, "pid": pid, "ts": ts, "args": {"": value}} for pid, name, ts, value in SAMPLES
    ]
    report = api.report(writer(tmp_path / "run", document))
    found = {figure.id: figure.value(report) for figure in catalog.FIGURES if figure.group == "GPU counters"}
    assert found == {
        "sm_active_ratio": 0.5, "dram_bandwidth_ratio": None, "power_w": 200.0, "temperature_c": None,
        "energy_per_token_j": pytest.approx(150 * 180e-6 / 3),
    }  # fmt: skip
    columns = ("device", "name", "unit", "count", "least", "mean", "most", "working_count", "working_mean")
    assert [tuple(row[name] for name in columns) for row in report.table("counters").to_json()] == [
        ("0", "Power", "W", 3, 100, 400, 900, 1, 200),
        ("0", "SM Active", "%", 3, 0, pytest.approx(100 / 3), 75.5, 2, 50),
    ]
    (energy,) = report.table("energy").to_json()
    assert (energy["span_ns"], energy["count"], energy["mean_w"], energy["tokens"]) == (180_000, 2, 150, 3)


def replay(ts: float, correlation: int, names: str, slower: float = 0) -> list[dict[str, Any]]:
    """A graph launch, and one kernel of 2 µs for each letter, 1 µs apart."""
    launch = slice_("cuda_runtime", "cudaGraphLaunch", ts, 1, correlation=correlation)
    return [launch, *(work("kernel", name, ts + 5 + at * 3, 2 + slower, correlation) for at, name in enumerate(names))]


def test_layers_of_graphs_are_folded(tmp_path: Path) -> None:
    events = replay(0, 1, "eabcabcabch") + replay(100, 2, "eabcabcabch", 0.25)
    tables = report_of(tmp_path, {"traceEvents": events}).to_json()["tables"]
    assert [row["replays"] for row in tables["replayed_graphs"]] == [2]
    columns = ("position", "alike", "period", "name", "count", "p50_ns", "longest_ns", "p50_gap_ns")
    assert [tuple(row[name] for name in columns) for row in tables["graph_positions"]] == [
        (0, 1, 0, "e", 2, 2_000, 2_250, None),
        (1, 3, 3, "a", 6, 2_000, 2_250, 750),
        (2, 3, 3, "b", 6, 2_000, 2_250, 750),
        (3, 3, 3, "c", 6, 2_000, 2_250, 750),
        (10, 1, 0, "h", 2, 2_000, 2_250, 750),
    ]
    assert sum(row["time_ratio"] for row in tables["graph_positions"]) == 1


def test_short_intervals_of_the_typical_step_become_one(tmp_path: Path) -> None:
    events = [slice_("user_annotation", "ProfilerStep#1", 0, SLOTS * 10)]  # slots of 10 µs
    for number, (ts, dur) in enumerate([(0, 1), (12, 1), (15, 3), (19, 2)], 1):
        events.append(slice_("cuda_runtime", "cudaLaunchKernel", ts, dur, correlation=number))
    for number, (name, ts, dur) in enumerate([("gemm", 21, 3), ("fmha", 25, 4), ("gemm", 29, 2), ("gemm", 32, 40)], 1):
        events.append(work("kernel", name, ts, dur, number))
    step = report_of(tmp_path, {"traceEvents": events}).typical_step
    assert isinstance(step, TypicalStep)
    assert (step.dur_ns, step.steps, step.kind) == (SLOTS * 10_000, 1, None)
    assert step.intervals == (
        StepInterval("launch", None, "cudaLaunchKernel", None, 0, 1_000, 1, True),
        StepInterval("launch", None, "cudaLaunchKernel", None, 12_000, 9_000, 3, True),
        # More of its time is matmul than attention.
        StepInterval("gpu", "0/7", "gemm", "matmul", 21_000, 10_000, 3, True),
        StepInterval("gpu", "0/7", "gemm", "matmul", 32_000, 40_000, 1, True),
    )
    assert step.totals == (
        IntervalTotal("gpu", "0/7", "matmul", 3, 45_000),
        IntervalTotal("gpu", "0/7", "attention", 1, 4_000),
        IntervalTotal("launch", None, None, 4, 7_000),
    )


@pytest.mark.parametrize("captured", [True, False])
def test_the_sql_of_every_figure_gives_it(tmp_path: Path, captured: bool) -> None:
    content: dict[str, Any] = tiny_trace.document()
    path = tiny_trace.write(tmp_path / "trace.json", content if captured else {"traceEvents": content["traceEvents"]})
    report = api.report(path)
    evidence = {figure.id: evidence_of(figure, report) for figure in catalog.FIGURES}
    indirect = ("run_", "launches_per_molecule", "kernels_per_molecule")  # worked out from the result
    asked = [
        (figure.value(report), sql)
        for figure in catalog.FIGURES
        if (sql := evidence[figure.id].sql) is not None
        and not figure.id.startswith(indirect)
        and figure.value(report) is not None
    ]
    assert len(asked) > 30
    frames = api.query(path, ";\n".join(sql for _, sql in asked)).frames
    for (value, sql), frame in zip(asked, frames, strict=True):
        assert math.isclose((frame.rows() or [(0,)])[0][0], float(str(value))), sql
    assert evidence["kernels"].verdict in ("exact", "bounded")
    wall = evidence["wall_ns"]
    assert (wall.verdict, wall.sql) == ("bounded" if captured else "not_to_be_had", None)


def foreign(folder: Path, name: str = "foreign", launches: int = 6) -> Report:
    """A trace of so many launches and kernels, and 1 graph launch, without steps."""
    events = [slice_("cuda_runtime", "cudaGraphLaunch", 0, 1, correlation=0)]
    for place in range(1, launches + 1):
        events.append(slice_("cuda_runtime", "cudaLaunchKernel", 10 * place, 1, correlation=place))
        events.append(work("kernel", tiny_trace.COPY if place % 3 else "fmha", 10 * place + 5, 2, place))
    return report_of(folder, {"traceEvents": events}, f"{name}.json")


def test_figures_per_given_token_and_molecule(tmp_path: Path) -> None:
    report = foreign(tmp_path)
    names = ("launches_per_token", "kernels_per_token", "gpu_ns_per_token", "launches_per_molecule",
             "kernels_per_molecule", "tokens_per_molecule", "generated_tokens")  # fmt: skip
    assert [figure_values(report)[name] for name in names] == [None] * len(names)
    (told,) = with_given([report], [12], [4])
    assert [figure_values(told)[name] for name in names] == [0.5, 0.5, 1000, 1.5, 1.5, 3, 12]
    path = tmp_path / "stored.json"
    path.write_text(rendered(report_document(told), "json"))
    stored = read_stored(path)
    assert stored is not None
    assert figure_values(stored) == figure_values(told)
    without_gpu = report_of(tmp_path, {"traceEvents": [slice_("cpu_op", "aten::mm", 0, 1)]})
    (told,) = with_given([without_gpu], [12], [4])
    assert [figure_values(told)[name] for name in names[:2]] == [None, None]


def test_one_number_for_all_or_one_for_each(tmp_path: Path) -> None:
    report, run = foreign(tmp_path), report_of(tmp_path, tiny_trace.document())
    assert [it.given.tokens for it in with_given([report, run, report], [5], [])] == [5, None, 5]
    assert [it.given.molecules for it in with_given([report, run, report], [], [5, 6])] == [5, None, 6]
    with pytest.raises(UsageError, match="--tokens was given 3 times, for 2 foreign traces"):
        with_given([report, run, report], [1, 2, 3], [])


def test_what_was_measured_once_has_no_verdict(tmp_path: Path) -> None:
    own = Expectation("x", "x", "kernel_time_ns", "lower")
    item = compare([foreign(tmp_path, "a"), foreign(tmp_path, "b", 60)], expectations=[own]).predictions[-1]
    assert (item.verdict, item.reason) == ("not significant", "measured once, so its noise is not known")
