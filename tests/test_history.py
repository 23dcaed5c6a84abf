"""A history keeps results, and shows where figures change and what else changed there."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest
import tiny_trace
from goldens import called
from msgspec.structs import replace
from test_measured_beside import results

from molprof.analysis.fleet.history import entries
from molprof.analysis.fleet.row import read_part, row_path, write_part

# What Otava prints of series that change once, from their first value to another.
PROGRAM = f"""#!{sys.executable}
import csv, json, sys
config = json.load(open(sys.argv[sys.argv.index("--config-file") + 1]))
for name, test in config["tests"].items():
    values = [float(row["value"]) for row in csv.DictReader(open(test["file"]))]
    first = next(number for number, value in enumerate(values) if value != values[0])
    parts = values[:first], values[first:]
    before, after = (f"{{sum(part) / len(part):f}}" for part in parts)
    change = {{"index": first, "mean_before": before, "mean_after": after, "pvalue": "0.000000"}}
    print(json.dumps({{name: [{{"changes": [change]}}]}}))
"""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a history of six results: one kernel under CUDA 12, from the fifth on three under CUDA 13."""
    folder = tmp_path_factory.mktemp("history")
    program = folder / "otava"
    program.write_text(PROGRAM)
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    for kernels, cuda in ((1, 12080), (3, 13000)):
        events = [tiny_trace.work("kernel", "a", 10 * number, 5, number) for number in range(kernels)]
        tiny_trace.write(folder / f"{kernels}.json", {"traceEvents": events, "cuda_runtime_version": cuda})
    assert called(["report", "rows", "1.json", "3.json", "--parts", "rows"], folder)[0] == 0
    first, second = sorted(map(read_part, (folder / "rows").iterdir()), key=lambda row: row.file)
    for number, row in enumerate([first] * 4 + [second] * 2):
        write_part(folder, replace(row, digest=(digest := f"{number:064}")))
        line = ["history", "add", row_path(folder, digest, False).name, "--to", "kept", "--commit", f"c{number}"]
        when = ["--name", "nightly", "--time", f"2026-11-0{number + 1}T05:00+02:00"]
        assert called([*line, *when], folder)[0] == 0
    return folder


@pytest.fixture
def otava(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLPROF_OTAVA", str(history / "otava"))


def test_a_change_is_shown_with_what_else_changed(history: Path, otava: None) -> None:
    code, out, _ = called(["history", "show", "kept", "--format", "json"], history)
    (found,) = json.loads(out)["histories"]
    assert (code, found["name"], [item["commit"] for item in found["results"]]) == (
        0, "nightly", ["c0", "c1", "c2", "c3", "c4", "c5"],
    )  # fmt: skip
    (change,) = [item for item in found["changes"] if item["figure"] == "kernels"]
    assert (change["before"], change["after"], change["change_ratio"]) == (1, 3, 2)
    assert change["last_before"] == "2026-11-04T03:00:00+00:00"
    assert change["differing"] == {"commit": ["c3", "c4"], "platform": ["CUDA 12.8", "CUDA 13.0"]}
    _, out, _ = called(["history", "show", "kept"], history)
    assert "nightly: 6 results, " in out
    assert "platform       CUDA 12.8 -> CUDA 13.0" in out
    _, out, _ = called(["history", "show", "kept", "--format", "html"], history)
    assert out.count("<svg ") == len(found["changes"])


def test_thresholds_are_judged_on_changes(history: Path, otava: None) -> None:
    def code(*options: str) -> int:
        return called(["history", "show", "kept", *options], history)[0]

    assert code("--fail-if", "kernels>+100%") == 1
    assert code("--fail-if", "kernels>+200%") == 0
    assert (code("--fail-if", "kernels>2", "--last", "2"), code("--fail-if", "kernels>2", "--last", "1")) == (1, 0)
    assert code("--fail-if", "tokens_per_s>+1%") == 3
    assert (code("--fail-if", "uncertain"), code("--name", "weekly")) == (2, 2)


def test_a_result_is_added_once(history: Path) -> None:
    (history / "cut.json").write_text('{"traceEvents": [')
    line = ["history", "add", "cut.json", "1.json", "--to", "other"]
    code, _, said = called(line, history)
    assert code == 3
    assert "1.json added to other: 1\n" in said
    assert "1 of 2 results could not be read, first cut.json is truncated" in said
    assert "1.json is already in other: 1\n" in called(line, history)[2]


def test_masks_of_a_benchmark_are_results_of_each_engine(tmp_path: Path) -> None:
    masks = results(tmp_path / "masks.jsonl", {"xgrammar": [800, 1600], "table": [80]}, "qwen")
    line = ["history", "add", masks.name, "--to", "kept", "--name", "nightly", "--commit", "c0"]
    code, _, said = called(line, tmp_path)
    assert code == 0
    assert "masks.jsonl added to kept: nightly: xgrammar, number, 8 rows on cuda\n" in said
    kept = {entry.name: entry for entry in entries(tmp_path / "kept")}
    assert {name: entry.figures for name, entry in kept.items()} == {
        "nightly: table, number": {"mask_fill_ns": 5},
        "nightly: table, number, 8 rows on cuda": {"processor_ns": 80, "mask_fill_ns": 10},
        "nightly: xgrammar, number": {"mask_fill_ns": 5},
        "nightly: xgrammar, number, 8 rows on cuda": {"processor_ns": 1200, "mask_fill_ns": 150},
    }
    assert kept["nightly: table, number"].environment == {"tokenizer": "qwen", "table": "1"}
    assert "is already in" in called(line, tmp_path)[2]
    (tmp_path / "other.jsonl").write_text("{}\n")
    code, _, said = called(["history", "add", "other.jsonl", "--to", "kept"], tmp_path)
    assert (code, "other.jsonl line 1 is not a benchmark record" in said) == (3, True)


def test_without_otava(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOLPROF_OTAVA", raising=False)
    monkeypatch.setenv("PATH", "")
    code, out, said = called(["history", "show", "kept"], history)
    assert (code, out) == (2, "")
    assert "no program otava on the PATH\n  pipx install apache-otava" in said
    for line, text in (("/bin/false", "failed: exit code 1"), ("/bin/echo {}", "cannot be read"), ("/x/y", "start")):
        monkeypatch.setenv("MOLPROF_OTAVA", line)
        code, _, said = called(["history", "show", "kept"], history)
        assert (code, text in said) == (2 if line == "/x/y" else 3, True)
    assert called(["history", "show", "absent"], history)[0] == 2


def test_otava_itself_finds_the_change(history: Path) -> None:
    if not (os.environ.get("MOLPROF_OTAVA") or shutil.which("otava")):
        pytest.skip("the program otava is not installed: pipx install apache-otava")
    _, out, _ = called(["history", "show", "kept", "--format", "json"], history)
    (found,) = json.loads(out)["histories"]
    changes = {item["figure"]: (item["commit_after"], item["before"], item["after"]) for item in found["changes"]}
    assert changes["kernels"] == ("c4", 1, 3)
