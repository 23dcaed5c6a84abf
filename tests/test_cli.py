"""The command line as real processes: output, exit codes, and what is left behind."""

from __future__ import annotations

import gzip
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
def test_every_command_has_help_with_an_example(molprof: Cli, name: str) -> None:
    result = molprof(name, "--help")
    assert result.returncode == 0
    assert name == "presets" or f"molprof {name}" in result.stdout.split("Example", 1)[1]


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


def test_report_without_torch(trace: str) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from molprof.cli import main\n"
        f"main(['report', {trace!r}, '--format', 'json'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    counts = json.loads(result.stdout)["counts"]
    assert (counts["launches"], counts["kernels"], counts["kernel_time_ns"]) == (1, 1, 3125)


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


def test_compare_two_foreign_traces(molprof: Cli, trace: str) -> None:
    result = molprof("compare", trace, trace, "--format", "json")
    assert result.returncode == 0, result.stderr
    comparison = json.loads(result.stdout)
    assert comparison["difference"] is None
    assert [run["counts"]["launches"] for run in comparison["runs"]] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nothing",), 2, "No such command 'nothing'"),
        (("reprot", "x"), 2, "No such command 'reprot'. Did you mean 'report'?"),
        (("report",), 2, "Missing argument 'TRACE...'"),
        (("report", "absent.json"), 2, "absent.json"),
        (("report", "."), 2, "holds no traces"),
        (("compare", "."), 2, ". is a directory"),
        (("report", "x.json", "--format", "yaml"), 2, "'yaml' is not one of"),
        (("compare", "one.json"), 2, "at least two traces"),
        (("report", "absent.json", "-o", "no/such/out.json"), 2, "does not exist"),
        (("capture", "--model", "qwen", "-o", "/dev/null/a.json"), 2, "/dev/null is not a directory"),
        (("plot",), 2, "Missing argument 'KIND'. Choose from: waterfall, timeline, phases, classes, latency, drift"),
        (("capture",), 2, "Missing option '--model'"),
        (("demo", "-n", "0"), 2, "Invalid value for '-n': 0 is not in the range x>=1."),
        (("capture", "--model", "qwen", "-o", "out.txt"), 2, ", .pftrace or .pftrace.gz"),
        (("capture", "--model", "qwen", "-o", "a.json", "-n", "0"), 2, "-n 0 is below 1"),
        (("capture", "--model", "qwen", "-o", "a.json", "--window", "5"), 2, "not FIRST:LAST"),
        (
            ("capture", "--model", "qwen", "-o", "a.json", "--lp", "--placeholder", "0.0"),
            2,
            "not three decimal numbers",
        ),
        (("capture", "--model", "qwen", "-o", "a.json", "--placeholder", "0.0,0.0,0.0"), 2, "this run has none"),
        (("capture", "--model", "qwen", "-o", "a.json", "--no-lp", "--processor", "generic"), 2, "give one of them"),
        (
            ("capture", "--model", "qwen", "-o", "a.json", "--temperature", "inf", "--sampling", "sample"),
            2,
            "--temperature inf is not a number above 0",
        ),
        (
            ("capture", "--model", "qwen", "-o", "a.json", "--temperature", "2", "--sampling", "greedy"),
            2,
            "--temperature does nothing with --sampling greedy",
        ),
        (
            ("capture", "--model", "qwen", "-o", "a.json", "--min-p", "2"),
            2,
            "--min-p 2.0 is not in (0, 1]",
        ),
        (("capture", "--model", "no-such-model", "-o", "a.json"), 2, "no-such-model"),
        (("capture", "--model", "qwen", "-o", "a.json", "--processor", "nope"), 2, "no processor 'nope'"),
        (("capture", "--model", "qwen", "-o", "a.json", "--smiles", "absent.smi"), 2, "absent.smi"),
    ],
)
def test_a_mistake_is_one_clear_message(
    molprof: Cli, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = molprof(*arguments, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert result.returncode == code, result.stderr
    # One style, whoever found the mistake: one line, and below it what to do.
    error, *hint = [line for line in result.stderr.splitlines() if line != "loading the model"]
    assert error.startswith("molprof: error: ")
    assert message in error
    assert all(line.startswith("  ") for line in hint)
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_on_the_command_line_names_the_commands_own_help(molprof: Cli) -> None:
    error, hint = molprof("report", "--nope").stderr.splitlines()
    assert error.startswith("molprof: error: No such option '--nope'.")
    assert hint == "  molprof report --help shows what it takes"
    alone = molprof()
    assert (alone.returncode, alone.stdout) == (2, "")
    assert alone.stderr.startswith("Usage: molprof [OPTIONS] COMMAND")


@pytest.mark.parametrize(
    "content",
    [b"", b"not json", b"{}", b'{"traceEvents": 3}', gzip.compress(b'{"traceEvents": [', mtime=0)[:-9], b"\xff\xfe"],
    ids=["empty", "text", "no events", "number", "cut", "utf-16"],
)
def test_an_unreadable_trace_exits_3(molprof: Cli, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    result = molprof("report", "bad.json", "-o", "out.txt")
    assert result.returncode == 3
    assert result.stderr.startswith("molprof: error: ")
    assert "bad.json" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out.txt").exists()


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


def test_partial_reports_what_is_whole_and_says_what_is_missing(molprof: Cli, tmp_path: Path) -> None:
    text = json.dumps(TRACE)
    (tmp_path / "cut.json").write_text(text[: text.index('"cat": "kernel"')])
    refused = molprof("report", "cut.json", "-o", "out.txt")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "truncated inside event 2" in refused.stderr
    assert "--partial" in refused.stderr
    result = molprof("report", "cut.json", "--partial", "--format", "json")
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("only the whole part was read: cut.json is truncated inside event 2 (byte ")
    report = json.loads(result.stdout)
    assert (report["trace"]["complete"], report["counts"]["launches"], report["counts"]["kernels"]) == (False, 1, 0)
    both = molprof("compare", "cut.json", "cut.json", "--partial")
    assert both.returncode == 0, both.stderr


def test_a_newer_manifest_is_refused(molprof: Cli, tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text(json.dumps({**TRACE, "molprof": {"schema": 99}}))
    result = molprof("report", "new.json", "-o", "out.txt")
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr.startswith("molprof: error: new.json: the trace was written with manifest schema 99; ")
    assert len(result.stderr.splitlines()) <= 2
    assert not (tmp_path / "out.txt").exists()


def test_standard_input_is_read_once(molprof: Cli) -> None:
    result = molprof("compare", "-", "-")
    assert result.returncode == 2
    assert "standard input (-) can be read once only" in result.stderr


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


@pytest.mark.parametrize("events", [[], [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]])
def test_a_trace_without_events_says_so(molprof: Cli, trace: str, tmp_path: Path, events: list[object]) -> None:
    (tmp_path / "empty.json").write_text(json.dumps({"traceEvents": events}))
    said = "empty.json holds no events with a duration, so nothing was recorded\n"
    report = molprof("report", "empty.json")
    assert (report.returncode, report.stderr) == (0, said)
    assert "\nWARNING: the trace holds no events with a duration, so nothing was recorded\n" in report.stdout
    assert molprof("compare", trace, "empty.json").stderr == said
    assert molprof("query", "SELECT 1 AS one", "empty.json", trace).stderr == said


# Root may read everything, but for a process that gave that right away.
UNPRIVILEGED = ["capsh", "--drop=cap_dac_override,cap_dac_read_search", "--", "-c", 'exec "$@"', "bash"]
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.mark.skipif(IS_ROOT and not shutil.which("capsh"), reason="root may read everything, and there is no capsh")
@pytest.mark.parametrize("command", [("report",), ("compare",), ("query", "launches")])
def test_a_trace_that_may_not_be_read_exits_2(trace: str, tmp_path: Path, command: tuple[str, ...]) -> None:
    Path(trace).chmod(0)
    arguments = [*command, trace, *([trace] if command == ("compare",) else []), "-o", "out.txt"]
    process = [*(UNPRIVILEGED if IS_ROOT else []), sys.executable, "-m", "molprof", *arguments]
    result = subprocess.run(process, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"molprof: error: cannot read {trace}: Permission denied\n"
    assert not (tmp_path / "out.txt").exists()
