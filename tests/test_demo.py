"""The demo: what it says while it works, and what it says of both presets at its end."""

from __future__ import annotations

import re
from pathlib import Path

from conftest import Cli

from molprof import api
from molprof.commands.demo import RUNS


def test_both_pairs_are_told_apart_after_the_table(molprof: Cli, tmp_path: Path) -> None:
    result = molprof("demo", "-n", "1", "--repeats", "1")
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    assert lines.count("loading the model") == 2
    for name in RUNS:
        assert any(re.fullmatch(rf"{name}: timed pass: batch 1/1, \d+ tokens, [\d,]+ tokens/s", line) for line in lines)
    _, _, end = result.stdout.partition("\nWhat the LP does\n")
    said, _, rest = end.partition("\n\nValid molecules\n")
    assert said.startswith("  llama lp:generic takes ")
    assert "\n  qwen lp:generic takes " in said
    paragraph = " ".join(said.split())
    assert re.match(r"llama lp:generic takes [\d.]+x the time of llama no lp \(", paragraph)
    assert re.search(r" qwen lp:generic takes [\d.]+x the time of qwen no lp \(", paragraph)
    reports = {name: api.report(tmp_path / f"molprof-demo/{name}.json.gz") for name in RUNS}
    valid = [f"  {name}: {report.run.valid_molecules} of 1\n" for name, report in reports.items() if report.run]
    assert rest.startswith(f"{''.join(valid)}\nTraces\n")
    assert len(valid) == 4
