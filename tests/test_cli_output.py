"""Where results go: files that are replaced whole or not at all, and a stdout that may be gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_trace import TRACE
from conftest import Cli

from molprof.common.files import replacing


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TRACE))
    return str(path)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc on this system")
def test_an_output_that_cannot_be_made_is_a_usage_error_before_any_work(molprof: Cli, tmp_path: Path) -> None:
    for output in ("/proc/out.json", "n" * 300):
        result = molprof("report", "absent.json", "-o", output)
        assert result.returncode == 2
        assert result.stderr.startswith(f"molprof: error: cannot write {output}: ")
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_can_be_written(molprof: Cli, trace: str, tmp_path: Path) -> None:
    assert molprof("report", trace, "-o", "n" * 255).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n" * 255, "trace.json"]


def test_an_error_while_writing_names_the_users_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No such file") as failure, replacing(tmp_path / "out.txt") as part:
        part.unlink()
    assert failure.value.filename == str(tmp_path / "out.txt")
    assert list(tmp_path.iterdir()) == []


def test_interrupt_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "molprof", "capture", "--model", "llama", "-n", "4", "-o", "out.json.gz"]
    # A job in the background of a shell ignores the signal, and its children inherit that.
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, **heard) as process:  # type: ignore[call-overload]
        assert process.stderr is not None
        assert "loading" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_is_no_error(trace: str) -> None:
    command = f"{sys.executable} -m molprof report {trace} | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (">&-", "it is closed"),
        pytest.param(
            "> /dev/full",
            "No space left on device",
            marks=pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system"),
        ),
    ],
    ids=["closed", "full"],
)
@pytest.mark.parametrize("style", ["table", "json"])
def test_a_stdout_that_takes_nothing_is_named(trace: str, style: str, sent: str, reason: str) -> None:
    command = f"{sys.executable} -m molprof report {trace} --format {style} {sent}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert result.stderr.splitlines() == [
        f"molprof: error: cannot write to stdout: {reason}",
        "  send it to a file: > FILE, or -o OUT where the command has it",
    ]


def test_only_regular_files_are_replaced_and_links_are_followed(molprof: Cli, trace: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused = molprof("report", trace, "-o", "pipe", "--force")
    assert (refused.returncode, (tmp_path / "pipe").is_fifo()) == (2, True)
    assert "pipe is not a regular file" in refused.stderr
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    assert molprof("report", trace, "-o", "link.txt", "--force").returncode == 0
    assert (tmp_path / "link.txt").is_symlink()
    assert "molprof report" in (tmp_path / "real.txt").read_text()
