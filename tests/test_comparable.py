"""What may be compared: refusals, notes, stored reports in place of traces, and the command line's exit codes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from conftest import Cli
from page_data import render

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.figures import Report
from molprof.analysis.reports import read_stored
from molprof.common.errors import NotComparableError, TraceError

FOREIGN = {"traceEvents": [tiny_trace.work("kernel", "k", 5, 2, 1)]}


def changed(tmp_path: Path, generation: dict[str, Any] | None = None, smiles: str | None = None) -> Report:
    content = tiny_trace.document()
    content["molprof"]["generation"].update(generation or {})
    if smiles is not None:
        content["molprof"]["molecules"][0]["smiles"] = smiles
    return tiny_trace.report(tmp_path / "other.json", content)


def sampled(**parameters: float) -> dict[str, Any]:
    return {"sampling": "sample", "sampling_parameters": parameters}


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return tiny_trace.report(tmp_path / "trace.json", tiny_trace.document())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"smiles": "CC"}, "other molecules, as CC instead of C (1 of 2)"),
        ({"generation": sampled(temperature=0.5, top_p=0.9)}, "sampling (sample, not greedy)"),
    ],
)
def test_other_work_is_refused_unless_anyway(
    tmp_path: Path, report: Report, change: dict[str, Any], problem: str
) -> None:
    other = changed(tmp_path, **change)
    line = f"llama lp:generic #2 and llama lp:generic #1 are not comparable: {problem}"
    with pytest.raises(NotComparableError) as caught:
        compare([report, other])
    assert (str(caught.value), caught.value.exit_code) == (line, 3)
    assert "--anyway" in str(caught.value.hint)
    assert line in compare([report, other], anyway=True).notes


def test_other_sampling_parameters_are_other_work(tmp_path: Path) -> None:
    runs = [changed(tmp_path, sampled(temperature=value, top_p=0.9)) for value in (1.0, 0.5)]
    expected = r"sampling parameters \(temperature 0.5, top_p 0.9, not temperature 1.0, top_p 0.9\)"
    with pytest.raises(NotComparableError, match=expected):
        compare(runs)


def test_a_run_of_fewer_molecules_is_refused(tmp_path: Path, report: Report) -> None:
    content = tiny_trace.document()
    content["molprof"]["molecules"].pop()
    fewer = tiny_trace.report(tmp_path / "fewer.json", content)
    with pytest.raises(NotComparableError, match=r"molecules \(1, not 2\)"):
        compare([report, fewer])


def test_a_molecule_without_its_token_track_is_missing(tmp_path: Path, report: Report) -> None:
    content = tiny_trace.document()
    content["molprof"]["molecules"][0]["sequence"] = 9
    broken = tiny_trace.report(tmp_path / "broken.json", content)
    with pytest.raises(NotComparableError, match=r"other molecules, as nothing instead of C \(1 of 2\)"):
        compare([report, broken])


def test_experiments_are_compared_and_said(tmp_path: Path, report: Report) -> None:
    other = changed(tmp_path, {"batch_size": 1, "cache": "static", "max_new_tokens": 9, "seed": 7})
    assert compare([report, other]).notes[0] == (
        "llama lp:generic static cache batch 1 differs from llama lp:generic dynamic cache batch 2 in KV cache "
        "(static, not dynamic); "
        "batch size (1, not 2); max_new_tokens (9, not 3)"
    )
    sampled = [changed(tmp_path, {"sampling": "sample", "seed": seed}) for seed in (0, 1)]
    assert any("seed (1, not 0)" in line for line in compare(sampled).notes)


def test_what_was_cut_is_said(report: Report) -> None:
    assert "1 of 2 molecules of llama lp:generic #1 stopped at the token limit" in compare([report, report]).notes[0]


def test_a_foreign_trace_is_compared_as_far_as_it_goes(tmp_path: Path, report: Report) -> None:
    foreign = tiny_trace.report(tmp_path / "theirs.json", FOREIGN)
    comparison = compare([foreign, report])
    assert any(line.startswith("not captured by molprof: theirs. ") for line in comparison.notes)
    rows = {row.figure.id: row for row in comparison.rows}
    assert rows["kernels"].ratios[1] == 6
    assert rows["kernels"].significant == (None, True)
    assert rows["wall_ns"].significant == (None, None)
    assert not any("not captured" in line for line in compare([foreign, foreign]).notes)


def test_noise_and_counts(tmp_path: Path, report: Report) -> None:
    content = tiny_trace.document()
    repeats = content["molprof"]["timings"]["repeats"]
    for repeat, more in zip(repeats, (300, 400, 500), strict=True):
        repeat["wall_ns"] += more
        repeat["phases_ns"]["forward"] += more
        repeat["phases_ns"]["sampling"] += (more - 400) // 20
    other = tiny_trace.report(tmp_path / "other.json", content)
    comparison = compare([report, other])
    rows = {row.figure.id: row for row in comparison.rows}
    assert rows["wall_ns"].significant == (None, True)
    interval = rows["wall_ns"].ratio_intervals[1]
    assert interval is not None
    assert (interval.low, interval.high) == (1395 / 1195, 1595 / 995)
    assert interval.level == pytest.approx(0.9)
    assert rows["sampling_ns"].significant == (None, False)
    assert rows["prefill_ns"].significant == (None, False)
    assert rows["launches"].significant == (None, False)
    assert rows["busy_ratio"].significant == (None, None)
    assert {rows[name].figure.noise for name in ("busy_ratio", "gpu_ns_per_step", "kernel_time_ns")} == {"once"}
    shown = [line.split() for line in render(comparison).splitlines()]
    assert ["total", "time", "(median)", "1.09", "µs", "1.50", "µs", "1.37x"] in shown
    assert ["prefill", "time", "per", "batch", "30", "ns", "30", "ns", "~"] in shown
    assert ["decode", "steps", "2", "2", "1.00x"] in shown
    assert any(line.startswith("3 timed passes: intervals of ratios reach 90 %, not 95 %") for line in comparison.notes)
    row = next(item for item in comparison.to_json()["rows"] if item["id"] == "prefill_ns")
    assert row["significant"] == [None, False]


def test_too_few_repeats_are_said(tmp_path: Path, report: Report) -> None:
    content = tiny_trace.document()
    del content["molprof"]["timings"]["repeats"][1:]
    one = tiny_trace.report(tmp_path / "one.json", content)
    comparison = compare([report, one])
    assert any(
        "too few timed passes to tell" in line and "llama lp:generic #2 (1)" in line for line in comparison.notes
    )
    assert {row.significant[1] for row in comparison.rows if row.figure.noise == "repeats"} == {None}
    assert "~ " not in render(comparison).split("How sure")[0]


@pytest.mark.parametrize("packed", [False, True])
def test_a_stored_report_stands_for_its_trace(tmp_path: Path, report: Report, packed: bool) -> None:
    text = render(report, "json").encode()
    path = tmp_path / "baseline.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    stored = read_stored(path)
    assert stored is not None
    # What a table without rows would have had as columns is not in JSON.
    assert stored.to_json() == report.to_json()
    assert compare([stored, report]).to_json() == compare([report, report]).to_json()
    # Keys in another order are as good.
    other = tmp_path / "sorted.json"
    other.write_text(json.dumps(json.loads(text), sort_keys=True))
    again = read_stored(other)
    assert again is not None
    assert again.to_json() == report.to_json()
    trace = tmp_path / "trace.json"
    assert api.reports([path, trace, path]) == [stored, report, stored]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"no json", b'{"schema": 1, "runs": []}', b'{"trace": {}}', b"\xff\xff"]
)
def test_other_files_are_no_stored_reports(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    assert read_stored(path) is None
    assert read_stored(tmp_path / "absent.json") is None
    assert read_stored(tiny_trace.write(tmp_path / "trace.json.gz", tiny_trace.document())) is None


def test_a_stored_report_that_is_not_whole(tmp_path: Path, report: Report) -> None:
    path = tmp_path / "baseline.json"
    content = report.to_json()
    path.write_text(json.dumps({**content, "schema": 99}))
    with pytest.raises(TraceError, match="is a report of schema 99"):
        read_stored(path)
    path.write_text(json.dumps({**content, "counts": {"launches": 3}}))
    with pytest.raises(TraceError, match="is not a whole report of this molprof: Object missing required field"):
        read_stored(path)
    path.write_text(json.dumps({key: content[key] for key in ("schema", "trace")}))
    with pytest.raises(TraceError, match="is not a whole report of this molprof: Object missing required field"):
        read_stored(path)
    for tables, message in (
        (5, "Expected `object`, got `int`"),
        ({"steps": [5]}, "Expected `object`, got `int`"),
        ({"drift": [{"drift": 1}]}, "table drift lacks junk_and_filler_tokens in a row"),
        ({"of_a_newer_molprof": [{"a": 1, "b": 2}, {"a": 1}]}, "table of_a_newer_molprof lacks b in a row"),
        ({"host_syncs": [{"time_ns": "long"}]}, "table host_syncs has text in place of a number: time_ns"),
    ):
        path.write_text(json.dumps({**content, "tables": tables}))
        with pytest.raises(TraceError, match=f"is not a whole report of this molprof: {message}"):
            read_stored(path)


def test_a_stored_report_without_a_table_or_with_another_is_read(tmp_path: Path, report: Report) -> None:
    content = json.loads(render(report, "json"))
    del content["tables"]["steps"], content["tables"]["idle_causes"]
    content["tables"]["of_a_newer_molprof"] = [{"calls": 3, "time_ns": 5}]
    content["of_a_newer_molprof"] = {"more": 1}
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(content))
    stored = read_stored(path)
    assert stored is not None
    assert stored.table("steps").rows == stored.table("idle_causes").rows == ()
    assert stored.table("of_a_newer_molprof").rows == ((3, 5),)
    for style in ("table", "markdown", "csv", "json", "html"):
        assert render(stored, style)
        assert render(compare([stored, report]), style)


def test_a_stored_foreign_report_without_its_steps_lacks_what_is_read_from_them(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    content = tiny_trace.report(tmp_path / "theirs.json", FOREIGN).to_json()
    del content["tables"]["steps"]
    path.write_text(json.dumps(content))
    stored = read_stored(path)
    assert stored is not None
    rows = {row.figure.id: row.values for row in compare([stored, stored]).rows}
    assert rows["launches_per_step"] == rows["launches_per_token"] == (None, None)
    assert rows["kernels"] == (1, 1)


def test_a_stored_report_is_no_trace(molprof: Cli, tmp_path: Path, report: Report) -> None:
    (tmp_path / "baseline.json").write_text(render(report, "json"))
    for command in (["report", "baseline.json"], ["query", "launches", "baseline.json"]):
        ran = molprof(*command)
        assert ran.returncode == 3
        assert ran.stderr.startswith("molprof: error: baseline.json is a stored report, not a trace")
        assert ran.stderr.endswith("\n  molprof compare and molprof plot take its file\n")


def test_thresholds_at_the_command_line(molprof: Cli, tmp_path: Path) -> None:
    tiny_trace.write(tmp_path / "before.json", tiny_trace.document())
    content = tiny_trace.document()
    content["traceEvents"].append(tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", 1012, 1, correlation=50))
    tiny_trace.write(tmp_path / "after.json", content)
    stored = molprof("report", "before.json", "--format", "json", "-o", "baseline.json", "--fail-if", "junk_tokens>1")
    assert stored.returncode == 0, stored.stderr
    good = molprof("compare", "baseline.json", "before.json", "--fail-if", "launches_per_token>+5%")
    assert (good.returncode, good.stderr) == (0, "")
    broken = molprof(
        "compare", "baseline.json", "after.json", "--fail-if", "launches_per_token>+5%", "--fail-if", "junk_tokens>1",
        "--format", "json", "-o", "out.json",
    )  # fmt: skip
    assert broken.returncode == 1
    assert broken.stderr.splitlines() == [
        "wrote out.json",
        "failed: launches_per_token>+5%: llama lp:generic #2: launches_per_token is 1.67, 1.33 in "
        "llama lp:generic #1: +25.0 %",
    ]
    assert len(json.loads((tmp_path / "out.json").read_text())["runs"]) == 2
    value = molprof("report", "after.json", "--fail-if", "junk_tokens>0")
    assert (value.returncode, value.stderr) == (1, "failed: junk_tokens>0: junk_tokens is 1\n")
    assert "molprof report: after.json" in value.stdout
    tiny_trace.write(tmp_path / "theirs.json", FOREIGN)
    untold = molprof("report", "theirs.json", "--fail-if", "junk_tokens>0")
    assert untold.returncode == 3
    assert untold.stderr == "undecided: junk_tokens>0: junk_tokens is not recorded (not captured by molprof)\n"
    wrong = molprof("report", "after.json", "--fail-if", "junk>0", "-o", "none.txt")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean junk_tokens" in wrong.stderr
    assert not (tmp_path / "none.txt").exists()


def test_other_work_is_refused_at_the_command_line(molprof: Cli, tmp_path: Path) -> None:
    content = tiny_trace.document()
    tiny_trace.write(tmp_path / "a.json", content)
    content["molprof"]["molecules"][0]["smiles"] = "CC"
    tiny_trace.write(tmp_path / "b.json", content)
    refused = molprof("compare", "a.json", "b.json", "-o", "out.txt")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "other molecules, as CC instead of C (1 of 2)\n  compare them with --anyway" in refused.stderr
    assert not (tmp_path / "out.txt").exists()
