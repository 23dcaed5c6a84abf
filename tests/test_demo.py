"""The demo reports its progress, and ends with the comparison of both presets."""

from __future__ import annotations

import re
from pathlib import Path

from goldens import called

from molprof import api
from molprof.commands.demo import RUNS


def test_what_every_machine_finds_stands_first(tmp_path: Path) -> None:
    code, out, err = called(["demo", "-n", "1", "--repeats", "1"], tmp_path)
    assert code == 0, err
    lines = err.splitlines()
    assert lines.count("loading the model") == 2
    for name in RUNS:
        assert any(re.fullmatch(rf"{name}: timed pass: batch 1/1, \d+ tokens, [\d,]+ tokens/s", line) for line in lines)
    shown = out.splitlines()
    assert len(shown) <= 30
    assert max(map(len, shown)) <= 100
    told = {" ".join(line.split()[:2]): line.split()[2:] for line in shown}
    runs = [api.report(tmp_path / f"molprof-demo/{name}.json.gz").run for name in RUNS]
    assert told["valid molecules"] == [str(run.valid_molecules) for run in runs if run]
    assert told["junk tokens"] == [str(run.junk_tokens) for run in runs if run]
    assert shown.index("The same on every machine") < shown.index("Time on this machine, and how sure it is")
    assert out.count("too few passes to tell") == 2
