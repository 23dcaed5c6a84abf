"""Where results go: files that are replaced whole or not at all, and a stdout that may be gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_trace import TRACE
from click.testing import CliRunner
from conftest import Cli

from molprof.commands.options import Result, result_options
from molprof.common.errors import TakenError
from molprof.common.files import check_output, replacing, scratch_file


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


@pytest.mark.parametrize(
    "words",
    [
        "report trace.json -o linked.json",
        "report trace.json --rows -o trace.json",
        "report trace.json trace-2.json -o . --format json",
        "compare trace-2.json trace.json -o trace.json",
        "query launches trace.json -o trace.json",
        "ranks trace.json trace-2.json -o trace.json",
        "ranks . -o trace.json",
        "plot classes trace.svg -o trace.svg",
    ],
)
def test_an_input_is_not_replaced_by_force(molprof: Cli, trace: str, tmp_path: Path, words: str) -> None:
    text = Path(trace).read_text()
    for name in ("trace-2.json", "trace.svg"):
        (tmp_path / name).write_text(text)
    (tmp_path / "linked.json").symlink_to("trace.json")
    result = molprof(*words.split(), "--force")
    assert (result.returncode, "is an input of this command, which would be lost" in result.stderr) == (2, True)
    assert {path.read_text() for path in tmp_path.iterdir()} == {text}


def test_an_error_while_writing_names_the_users_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No such file") as failure, replacing(tmp_path / "out.txt") as part:
        part.unlink()
    assert failure.value.filename == str(tmp_path / "out.txt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "unbuffered"), [("report {trace} --format html > x", ""), ("--help > /dev/full", "1")]
)
def test_stdout_gets_all_or_the_exit_code_tells(tmp_path: Path, trace: str, words: str, unbuffered: str) -> None:
    limited = f"ulimit -f 8; {sys.executable} -m molprof {words.format(trace=trace)}"  # KiB
    # Python may leave cut bytecode of modules that it compiles under the limit.
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        ["bash", "-c", limited], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 3
    assert result.stderr.startswith("molprof: error: cannot write to stdout: ")


@pytest.mark.parametrize("words", ["report {trace} --format html -o x", "trim {trace} --from 0s -o x.json"])
def test_an_output_that_the_disk_does_not_take_is_named(tmp_path: Path, trace: str, words: str) -> None:
    named = words.rpartition(" ")[2]
    Path(trace).write_text(json.dumps({**TRACE, "traceEvents": TRACE["traceEvents"] * 50}))
    result = subprocess.run(
        ["bash", "-c", f"ulimit -f 1; {sys.executable} -m molprof {words.format(trace=trace)}"],
        cwd=tmp_path,
        env={**os.environ, "MOLPROF_CACHE": "/proc/none", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr.splitlines()[-1]) == (3, f"molprof: error: File too large: {named}")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_what_killed_processes_left_is_removed_and_what_others_use_is_not(tmp_path: Path) -> None:
    made = "import os; from pathlib import Path; from molprof.common.files import scratch_file\n"
    made += f"with scratch_file(Path({str(tmp_path / 'out')!r})) as part:\n"
    made += "    Path(f'{part}.json').touch()\n    os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", made], check=False)
    assert len(list(tmp_path.iterdir())) == 2
    with scratch_file(tmp_path / "other") as used:
        assert list(tmp_path.iterdir()) == [used]
        check_output(tmp_path / "out", force=False)
        assert list(tmp_path.iterdir()) == [used]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    def link(*names: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # as on file systems without links

    if not links:
        monkeypatch.setattr(os, "link", link)
    out = tmp_path / "out.json.gz"

    def write() -> None:
        with replacing(out, force=False) as part:
            part.write_text("mine")
            out.write_text("theirs")

    with pytest.raises(TakenError, match=r"another process wrote .*out\.json\.gz meanwhile") as taken:
        write()
    assert taken.value.kept == tmp_path / "out-2.json.gz"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "out.json.gz": "theirs",
        "out-2.json.gz": "mine",
    }


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
def test_a_stdout_that_takes_nothing_is_named(trace: str, sent: str, reason: str) -> None:
    command = f"{sys.executable} -m molprof report {trace} {sent}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert result.stderr.splitlines() == [
        f"molprof: error: cannot write to stdout: {reason}",
        "  send it to a file: > FILE, or -o OUT where the command has it",
    ]


@pytest.mark.parametrize("words", ["report - --no-cache", "mcp ."])
def test_a_closed_stdin_is_named(tmp_path: Path, words: str) -> None:
    command = f"{sys.executable} -m molprof {words} <&-"
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "molprof: error: cannot read standard input: it is closed\n  start it without <&-\n"


@pytest.mark.skipif(sys.platform != "linux", reason="names are UTF-8 on this system, and there may be no /dev/full")
def test_a_name_that_is_not_utf8(molprof: Cli, trace: str, tmp_path: Path) -> None:
    name = "out\udcff.json"
    assert molprof("trim", trace, "--from", "0s", "-o", name).returncode == 0
    other = tmp_path / "a\udcff.json"
    other.write_bytes((tmp_path / name).read_bytes())
    for words in ("report . --rows", f"query launches {other.name}", f"compare {name} {other.name} --format html"):
        assert "Traceback" not in molprof(*words.split()).stderr
    result = molprof("report", name, "--format", "json")
    assert (result.returncode, json.loads(result.stdout)["trace"]["path"]) == (0, name)
    assert json.loads((tmp_path / name).read_bytes())["traceName"] == "out\\udcff.json"
    command = f"{sys.executable} -m molprof report none.json 2> /dev/full"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 2


def test_what_the_encoding_of_stdout_lacks_is_escaped(tmp_path: Path, trace: str) -> None:
    line = [sys.executable, "-m", "molprof", "query", "SELECT 'µ…' AS name", trace]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    result = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.splitlines()[-1].strip() == b"\xb5\\u2026"


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


@pytest.mark.parametrize(
    ("words", "style"),
    [
        ("", "table"),
        ("-o page.html", "html"),
        ("-o PAGE.HTML", "html"),
        ("-o page.md", "markdown"),
        ("-o table.csv", "csv"),
        ("-o stored.json", "json"),
        ("-o stacks.speedscope.json", "speedscope"),
        ("-o picture.png", "png"),
        ("-o picture.svg", "table"),  # a format that this command lacks
        ("-o reports", "table"),
        ("-o page.html --format csv", "csv"),
        ("--format csv -o page.html", "csv"),
    ],
)
def test_the_ending_of_a_file_selects_its_format(words: str, style: str) -> None:
    @click.command()
    @result_options("speedscope", "png")
    def command(result: Result) -> None:
        click.echo(result.style)

    assert CliRunner().invoke(command, words.split()).output == f"{style}\n"
