"""The demo: what it says while it works, and what it says of both presets at its end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Cli

from molprof.analysis.reports.load import load_report
from molprof.commands.demo import RUNS, _left


@pytest.mark.parametrize(
    ("elapsed_s", "done", "text"),
    [
        (0.0, 0, ""),
        (20.0, 1, ", about 60 s left"),
        (60.0, 2, ", about 60 s left"),
        (300.0, 2, ", about 5 min left"),
        (30.0, 1, ", about 2 min left"),
    ],
)
def test_what_is_left_is_told_by_the_runs_before(elapsed_s: float, done: int, text: str) -> None:
    assert _left(elapsed_s, done) == text


def test_both_pairs_are_told_apart_after_the_table(molprof: Cli, tmp_path: Path) -> None:
    result = molprof("demo", "-n", "1", "--repeats", "1")
    assert result.returncode == 0, result.stderr
    runs = [line for line in result.stderr.splitlines() if line.startswith("run ")]
    assert runs[0] == "run 1 of 4: llama"
    left = r", about \d+ (s|min) left"
    for line, (number, name) in zip(runs[1:], ((2, "llama-lp"), (3, "qwen"), (4, "qwen-lp")), strict=True):
        assert re.fullmatch(f"run {number} of 4: {name}{left}", line)
    _, _, end = result.stdout.partition("\nWhat the LP does\n")
    said, _, rest = end.partition("\n\nValid molecules\n")
    assert said.startswith("  llama lp:generic takes ")
    assert "\n  qwen lp:qwen takes " in said
    paragraph = " ".join(said.split())
    assert re.match(r"llama lp:generic takes [\d.]+x the time of llama no lp \(", paragraph)
    assert re.search(r" qwen lp:qwen takes [\d.]+x the time of qwen no lp \(", paragraph)
    reports = {name: load_report(tmp_path / f"molprof-demo/{name}.json.gz") for name in RUNS}
    valid = [f"  {name}: {report.run.valid_molecules} of 1\n" for name, report in reports.items() if report.run]
    assert rest.startswith(f"{''.join(valid)}\nTraces\n")
    assert len(valid) == 4
