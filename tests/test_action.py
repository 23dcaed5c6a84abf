"""The GitHub Action that compares two traces works: its steps, run as a shell runs them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_trace

ACTION = Path(__file__).parent.parent / ".github" / "actions" / "molprof-diff"
yaml = pytest.importorskip("yaml")


def run(folder: Path, **given: str) -> tuple[int, str, dict[str, str]]:
    """The exit code of the steps in order, the summary, and the outputs. Other inputs have their default."""
    action: dict[str, Any] = yaml.safe_load((ACTION / "action.yml").read_text())
    assert set(given) <= set(action["inputs"])
    inputs = {name: given.get(name, item.get("default", "")) for name, item in action["inputs"].items()}
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "molprof"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m molprof "$@"\n')
    program.chmod(0o755)
    output, summary = folder / "output", folder / "summary"
    for path in (output, summary):
        path.write_text("")
    code = 0
    for step in action["runs"]["steps"]:
        condition = re.fullmatch(r"inputs\.([\w-]+) != ''", step.get("if", ""))
        if "run" not in step or (condition and not inputs[condition[1]]):
            continue
        names = {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], value)
            for name, value in step["env"].items()
        }
        assert "${{" not in step["run"]  # what others wrote is never part of a script
        files = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_ACTION_PATH": str(ACTION)}
        where = {"PATH": f"{program.parent}:{os.environ['PATH']}", "RUNNER_TEMP": str(folder)}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        code = subprocess.run(
            command, cwd=folder, env={**os.environ, **names, **files, **where}, check=False
        ).returncode
        if code:
            break
    return code, summary.read_text(), dict(line.split("=", 1) for line in output.read_text().splitlines())


def trace(path: Path, kernels: int) -> None:
    work = [tiny_trace.work("kernel", "a", 10 * number, 5, number) for number in range(kernels)]
    tiny_trace.write(path, {"traceEvents": work})


def test_a_broken_threshold_fails_the_step(tmp_path: Path) -> None:
    trace(tmp_path / "base one.json", 2)
    trace(tmp_path / "new.json", 3)
    (tmp_path / "$(touch oops).json").write_bytes((tmp_path / "new.json").read_bytes())
    code, summary, outputs = run(
        tmp_path,
        base="base one.json",
        head="$(touch oops).json",
        package="",
        record="cp new.json copied.json",
        **{"fail-if": "kernels>+10%\nlaunches>9\n"},
    )
    assert (code, outputs["verdict"]) == (1, "failed")
    assert "**Thresholds: failed**\n```\nfailed: " in summary
    assert "<html" in Path(outputs["page"]).read_text()
    assert (tmp_path / "copied.json").exists()
    assert not (tmp_path / "oops").exists()


def test_a_trace_that_cannot_be_read_fails_the_step(tmp_path: Path) -> None:
    trace(tmp_path / "base.json", 2)
    code, summary, outputs = run(tmp_path, base="base.json", head="absent.json", package="", **{"fail-if": "kernels>9"})
    assert (code, outputs) == (2, {"verdict": "failed"})
    assert "cannot read absent.json" in summary
