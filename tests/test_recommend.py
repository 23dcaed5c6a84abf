"""Advice from results: the fastest valid configuration, its certainty, against the default, bounded by a trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_trace
from bench_data import ran, result, run_of, write
from conftest import Cli

from molprof import api
from molprof.analysis.bench.recommend import Advice, read_bounds, recommend
from molprof.common.bench_records import read_results
from molprof.common.errors import TraceError
from molprof.common.manifest import STEP_PHASES
from molprof.common.values import factor_text

PLAIN = run_of(batch_size=4, count=4)
STATIC = replace(PLAIN, kv_cache="static")
EAGER = replace(PLAIN, attention="eager")


def advise(tmp_path: Path, *records: object) -> tuple[Advice, ...]:
    return recommend(read_results(write(tmp_path / "x.jsonl", *records)))  # type: ignore[arg-type]


def test_the_fastest_is_named_with_its_gain_and_how_sure_that_is(tmp_path: Path) -> None:
    (advice,) = advise(
        tmp_path,
        *ran(PLAIN, [1000, 1010, 990, 1005]),
        *ran(STATIC, [500, 505, 495, 502]),
        *ran(EAGER, [1200, 1210, 1190, 1205]),
    )
    assert (advice.best["kv_cache"], advice.best["attention"]) == ("static", "sdpa")
    assert advice.tokens_per_s == pytest.approx(1e5 / 501)
    assert advice.default_tokens_per_s == pytest.approx(1e5 / 1002.5)
    assert advice.over_default is not None
    assert advice.over_default.value == pytest.approx(501 / 1002.5)
    assert advice.over_default.certain is True
    assert advice.over_default.interval is not None
    assert advice.over_default.interval.level == pytest.approx(1 - 2 / 70)
    assert advice.alike == ()
    assert [(lever.name, lever.value) for lever in advice.levers] == [("kv_cache", "static"), ("attention", "eager")]
    assert advice.levers[1].ratio.value > 1


def test_a_configuration_of_unknown_validity_is_rejected_if_the_default_is_known(tmp_path: Path) -> None:
    unknown = ran(STATIC, [500, 505, 495, 502], valid_molecules=None)
    (advice,) = advise(tmp_path, *ran(PLAIN, [1000, 1010, 990, 1005]), *unknown)
    assert advice.best["kv_cache"] == "dynamic"
    assert [item.reason for item in advice.rejected] == ["validity not recorded, 4 by default"]
    (advice,) = advise(tmp_path, *ran(PLAIN, [1000, 1010, 990, 1005], valid_molecules=None), *unknown)
    assert advice.best["kv_cache"] == "static"


def test_overlapping_intervals_are_not_told_apart(tmp_path: Path) -> None:
    (advice,) = advise(tmp_path, *ran(PLAIN, [1000, 900, 1100, 950]), *ran(STATIC, [980, 1020, 890, 940]))
    assert advice.best["kv_cache"] == "static"
    assert advice.over_default is not None
    assert advice.over_default.certain is False
    assert [item["kv_cache"] for item in advice.alike] == ["dynamic"]


def test_few_repeats_say_nothing_about_certainty(tmp_path: Path) -> None:
    (advice,) = advise(tmp_path, *ran(PLAIN, [1000]), *ran(STATIC, [500]))
    assert advice.over_default is not None
    assert (advice.over_default.value, advice.over_default.certain) == (0.5, None)
    assert [item["kv_cache"] for item in advice.alike] == ["dynamic"]


def test_what_is_not_valid_is_no_candidate(tmp_path: Path) -> None:
    (advice,) = advise(
        tmp_path,
        *ran(PLAIN, [1000, 1000, 1000]),
        *ran(STATIC, [100, 100, 100], valid_molecules=3),
        result(EAGER, 0, "timed out", None, message="killed at the limit of 9 s"),
    )
    assert advice.best["kv_cache"] == "dynamic"
    assert advice.candidates == 1
    assert [entry.reason for entry in advice.rejected] == [
        "3 valid molecules, 4 by default", "timed out: killed at the limit of 9 s",
    ]  # fmt: skip


def test_processors_and_batch_sizes_are_apart(tmp_path: Path) -> None:
    bigger = replace(PLAIN, batch_size=8, count=8)
    constrained = replace(PLAIN, processor="qwen")
    found = advise(tmp_path, *ran(PLAIN, [1000]), *ran(bigger, [900]), *ran(constrained, [700]), *ran(STATIC, [400]))
    assert [(item.shared["processor"], item.batch_size, item.best["kv_cache"]) for item in found] == [
        (None, 4, "static"), (None, 8, "dynamic"), ("qwen", 4, "dynamic"),
    ]  # fmt: skip


def test_compiling_and_its_cache_are_one_change(tmp_path: Path) -> None:
    compiled = replace(STATIC, compile="default")
    (advice,) = advise(tmp_path, *ran(PLAIN, [1000]), *ran(compiled, [500]))
    assert [(lever.name, lever.value) for lever in advice.levers] == [("compile", "default, static cache")]


def test_nothing_measured_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no case of whole generation in the file is ok"):
        advise(tmp_path, result(PLAIN, 0, "failed", None))


def test_a_trace_bounds_what_each_change_can_gain(molprof: Cli, tmp_path: Path) -> None:
    model = replace(PLAIN, model="llama", processor="generic")
    file = write(
        tmp_path / "x.jsonl",
        *ran(model, [1000]),
        *ran(replace(model, attention="eager"), [900]),
        *ran(PLAIN, [1000]),
        *ran(EAGER, [900]),
    )
    trace = tiny_trace.write(tmp_path / "trace.json", tiny_trace.document())
    raw = json.loads(molprof("sweep", "recommend", str(file), "--trace", str(trace), "--format", "json").stdout)
    found = {bound["lever"]: bound["gain_ratio"] for bound in raw["bounds"]["bounds"]}
    assert list(found) == ["attention", "kv_cache", "compile", "processor", "tf32", "CUDA graphs"]
    # Nothing in that trace is concatenated, so that its cache is not told.
    assert found["kv_cache"] is None
    assert all(0 < found[name] < 1 for name in ("attention", "compile", "processor", "tf32"))
    shown = molprof("sweep", "recommend", str(file), "--trace", str(trace))
    assert shown.returncode == 0, shown.stderr
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert f"attention eager 1.11x too few repeats {factor_text(1 / (1 - found['attention']))}" in lines
    # The trace is of llama with a processor.
    assert lines.count("no bounds: the trace has another model, or differs in the use of a processor") == 1


def test_the_bound_of_attention_is_its_share_of_the_time(tmp_path: Path) -> None:
    """GPU time of the class in the recorded steps, over their unprofiled time, times the steps' share of the run."""
    document = tiny_trace.document()
    trace = tiny_trace.write(tmp_path / "trace.json", document)
    run = api.report(trace).run
    assert run is not None
    assert run.window.classes is not None
    assert run.wall_ns.median is not None
    # The recorded steps are decode steps, and stand for those alone.
    in_steps = sum(run.phases[name].wall_ns or 0 for name in STEP_PHASES) / run.wall_ns.median
    assert run.profiled_ratio is not None
    steps = [event for event in document["traceEvents"] if event["name"].startswith("molprof.step ")]
    unprofiled_ns = sum(1000 * event["dur"] for event in steps) / run.profiled_ratio
    bounds = api.load(trace).read(read_bounds)
    (gain_ratio,) = (bound.gain_ratio for bound in bounds.bounds if bound.lever == "attention")
    assert gain_ratio == pytest.approx(run.window.classes["attention"].time_ns / unprofiled_ns * in_steps)
    assert (bounds.settings["model"], bounds.settings["processor"]) == ("llama", "generic")


def test_the_bound_on_a_cpu_is_of_the_operators(tmp_path: Path) -> None:
    bounds = api.load(tiny_trace.write(tmp_path / "trace.json", tiny_trace.cpu_document())).read(read_bounds)
    found = {bound.lever: bound.gain_ratio for bound in bounds.bounds}
    assert "tf32" not in found
    assert found["compile"] is not None
