"""The command line as real processes: output, exit codes, and what is left behind."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_trace import TRACE
from click.testing import CliRunner
from conftest import Cli

from molprof.cli import COMMANDS, cli, main


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TRACE))
    return str(path)


def test_help_names_every_command_without_torch(molprof: Cli) -> None:
    result = molprof("--help")
    assert result.returncode == 0
    assert all(f"  {name} " in result.stdout for name in COMMANDS)
    code = (
        "import sys, molprof.cli as c\n"
        "for name in c.COMMANDS:\n"
        "    c.cli.main([name, '--help'], standalone_mode=False)\n"
        "print(sorted(m for m in ('torch', 'transformers', 'rdkit') if m in sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert name == "presets" or f"molprof {name}" in result.stdout.split("Example", 1)[1]


@pytest.mark.parametrize("words", ["capture", "bench matrix", "bench sdpa", "report"])
def test_every_option_stands_under_a_subject(words: str) -> None:
    others = CliRunner().invoke(cli, [*words.split(), "--help"]).output.partition("Other options:\n")[2]
    assert [line.split()[0] for line in others.splitlines() if line.startswith("  -")] == ["-h,"]


def test_remarks_of_the_libraries_reach_stderr_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("molprof")
    for name in ("handlers", "propagate"):  # of this process, as other tests need them
        monkeypatch.setattr(logger, name, getattr(logger, name))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for _ in range(2):
        with pytest.raises(SystemExit):
            main(["--version"])
    logging.getLogger("molprof.analysis").info("a remark\x1b")
    assert capsys.readouterr().err == "a remark\\x1b\n"


@pytest.mark.parametrize(
    ("name", "given", "used"), [("report", None, "1"), ("report", "3", "3"), ("capture", None, None)]
)
def test_what_reads_traces_starts_no_threads_of_numpy(
    monkeypatch: pytest.MonkeyPatch, name: str, given: str | None, used: str | None
) -> None:
    environment = {} if given is None else {"OPENBLAS_NUM_THREADS": given}
    monkeypatch.setattr(os, "environ", environment)
    assert cli.get_command(click.Context(cli), name)
    assert environment.get("OPENBLAS_NUM_THREADS") == used


def test_a_bad_line_is_named_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "in.smi").write_text("C\nxx\n")
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from molprof.cli import main\n"
        "main('capture --model qwen --smiles in.smi --strict -o out.json'.split())"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.splitlines()[0]) == (
        2,
        "molprof: error: in.smi, line 2: RDKit cannot read the SMILES 'xx'",
    )


def test_report_to_a_file_and_no_overwriting(molprof: Cli, trace: str, tmp_path: Path) -> None:
    assert molprof("report", trace, "--format", "json", "-o", "out.json").returncode == 0
    assert json.loads((tmp_path / "out.json").read_text())["devices"]["0"]["busy_ns"] == 3125
    again = molprof("report", trace, "--format", "json", "-o", "out.json")
    assert (again.returncode, again.stdout) == (2, "")
    assert "out.json already exists" in again.stderr
    assert molprof("report", trace, "-o", "out.json", "--force").returncode == 0


def test_a_bug_shows_where_and_exits_3(trace: str) -> None:
    code = (
        "import molprof.api as p\n"
        "def broken(*args, **options): raise ZeroDivisionError('here')\n"
        "p.each_report = broken\n"
        "from molprof.cli import main\n"
        f"main(['report', {trace!r}, '--no-cache'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert "ZeroDivisionError: here\nmolprof: error: this is a bug in molprof" in result.stderr


def test_partial_compares_what_is_whole(molprof: Cli, tmp_path: Path) -> None:
    text = json.dumps(TRACE)
    (tmp_path / "cut.json").write_text(text[: text.index('"cat": "kernel"')])
    assert molprof("compare", "cut.json", "cut.json").returncode == 3
    both = molprof("compare", "cut.json", "cut.json", "--partial")
    assert both.returncode == 0, both.stderr


def test_a_folder_named_molprof_in_the_working_directory_does_not_matter(tmp_path: Path, trace: str) -> None:
    """As in a checkout, beside an installed package: the processes that read traces must not import that folder."""
    (tmp_path / "molprof").mkdir()
    (tmp_path / "molprof/__init__.py").write_text("raise ImportError('the wrong molprof')")
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**TRACE, "other": 1}))
    code = f"import sys; sys.path[:] = {sys.path!r}; from molprof.cli import main; main()"
    command = [sys.executable, "-c", code, "compare", trace, str(other), "--no-cache", "--format", "json"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["runs"]) == 2


def test_a_trace_without_events_says_so(molprof: Cli, trace: str, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text(json.dumps({"traceEvents": []}))
    said = "empty.json holds no events with a duration, so nothing was recorded\n"
    assert molprof("compare", trace, "empty.json").stderr == said
    assert molprof("query", "SELECT 1 AS one", "empty.json", trace).stderr == said


# Root may read everything, but for a process that gave that right away.
UNPRIVILEGED = ["capsh", "--drop=cap_dac_override,cap_dac_read_search", "--", "-c", 'exec "$@"', "bash"]
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.mark.skipif(IS_ROOT and not shutil.which("capsh"), reason="root may read everything, and there is no capsh")
def test_a_trace_that_may_not_be_read_exits_2(trace: str, tmp_path: Path) -> None:
    Path(trace).chmod(0)
    arguments = ["query", "launches", trace, "-o", "out.txt"]
    process = [*(UNPRIVILEGED if IS_ROOT else []), sys.executable, "-m", "molprof", *arguments]
    result = subprocess.run(process, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"molprof: error: cannot read {trace}: Permission denied\n"
    assert not (tmp_path / "out.txt").exists()
