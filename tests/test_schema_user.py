"""A user with slow JSON generation gets a folder of runs, all rows of it, and readable lines."""

from __future__ import annotations

import json
from pathlib import Path

import tiny_trace
from captures import settings
from test_cli import called
from test_compare_runs import prompts
from test_constraint import found as findings_of
from test_constraint import program
from tiny import loaded

from molprof.analysis.figures.model import location_text
from molprof.profiler.capture.run import CapturedRun
from molprof.profiler.constraints import PROCESSORS
from molprof.profiler.molecules.prompts import read_inputs
from molprof.profiler.recording.tracefile import OutputFile


def test_a_folder_of_a_capture_stands_for_its_runs(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for name, processor in (("a", "rules"), ("b", None), ("a.graphs", None)):
        tiny_trace.write(tmp_path / "runs" / f"{name}.json", prompts(processor))
    (tmp_path / "runs" / "stored.json").write_text('{"a": 1}')
    code, out, err = called(["compare", "runs", "--format", "json"], tmp_path)
    assert (code, json.loads(out)["labels"]) == (0, ["mine unconstrained", "mine rules"])
    assert "a.graphs.json: left out: it belongs to the trace of its run" in err
    assert "stored.json (not a trace)" in err


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    code, _, err = called(["compare", "runs"], tmp_path)
    assert (code, "runs is a directory" in err) == (2, True)


def test_a_query_of_gpu_work_says_that_there_is_none(tmp_path: Path) -> None:
    tiny_trace.write(tmp_path / "cpu.json", tiny_trace.cpu_document())
    tiny_trace.write(tmp_path / "gpu.json", tiny_trace.document())
    said = "cpu.json: no rows: the trace has no GPU work"
    code, out, err = called(["query", "gpu_work", "cpu.json", "--format", "csv"], tmp_path)
    assert (code, len(out.splitlines()), said in err) == (0, 1, True)
    # Rows, a condition that nothing meets where there is work, and what reads no GPU work say nothing.
    for asked in (
        ["SELECT COUNT() AS count FROM molprof_gpu_work", "cpu.json"],
        ["SELECT id FROM molprof_gpu_work WHERE dur < 0", "gpu.json"],
        ["SELECT id FROM slice WHERE dur < -1", "cpu.json"],
    ):
        assert "no GPU work" not in called(["query", *asked], tmp_path)[2]


def test_a_place_with_next_to_no_time_is_not_named() -> None:
    assert location_text("aten::as_strided", 0.0014) == "spread, at no location more than 0.14 % of it"
    assert location_text("aten::add", 0.3) == "spread, most in aten::add (30.0 % of it)"
    assert location_text("aten::add", 0.5) == "aten::add (50.0 % of it)"


def test_engines_are_listed_with_what_they_take() -> None:
    for name in ("xgrammar", "llguidance", "outlines", "lm-format-enforcer", "table"):
        assert "--schema" in PROCESSORS[name].summary


def test_making_a_table_that_is_kept_already_is_told_with_what_it_took(tmp_path: Path) -> None:
    """A capture with every engine tries whether a table can be made, which then is there when its run begins."""
    (tmp_path / "ask.txt").write_text("Is water wet?\n")
    asked = settings(processor="table", regex="[0-9]{2}[a-z]{3}", prompts=str(tmp_path / "ask.txt"), max_new_tokens=8)
    runs = [
        CapturedRun(asked, OutputFile(tmp_path / f"{name}.json", True, ()), loaded("llama"), read_inputs(asked))
        for name in ("first", "second")
    ]
    parts = [run.once_parts_ns for run in runs]
    assert parts[0] == parts[1]
    assert all((run.processor_once_ns or 0) >= sum(run.once_parts_ns.values()) > 0 for run in runs)


def test_the_fix_of_a_programs_own_processor_names_what_ranks_engines(tmp_path: Path) -> None:
    (found,) = [item for item in findings_of(tmp_path, program([{"name": "Mine"}], {})) if item.id == "constraint"]
    assert "molprof bench masks SCHEMA.json" in found.fix
    assert "--processor all" in found.fix
    # transformers' own keep to no schema.
    (found,) = [
        item
        for item in findings_of(tmp_path, program([{"name": "MinLength", "own": False}], {"min_length": "3"}))
        if item.id == "constraint"
    ]
    assert "SCHEMA" not in found.fix
