"""The command line: help, output, exit codes, and files left behind, in a real process where that matters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from goldens import GIVEN, called

from molprof.cli import COMMANDS, cli
from molprof.commands.options import ResultOptions, result_options
from molprof.common.errors import TakenError
from molprof.common.files import check_output, replacing, scratch_file

TINY = GIVEN / "tiny.json"
MOLPROF = f"{sys.executable} -m molprof"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return Path(shutil.copy(TINY, tmp_path / "trace.json"))


def shell(line: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", line.replace("molprof", MOLPROF, 1)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def python(code: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


def test_help_of_every_command_needs_no_torch() -> None:
    done = python(
        "import sys, molprof.cli as c\n"
        "for name in c.COMMANDS:\n"
        "    c.cli.main([name, '--help'], standalone_mode=False)\n"
        "print(sorted(m for m in ('torch', 'transformers', 'rdkit') if m in sys.modules))"
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    shown = CliRunner().invoke(cli, [name, "--help"]).stdout
    assert name == "presets" or f"  molprof {name}" in shown.split("\n\n")[1]


@pytest.mark.parametrize("words", ["capture", "sweep", "bench sdpa", "report"])
def test_every_option_stands_under_a_subject(words: str) -> None:
    others = CliRunner().invoke(cli, [*words.split(), "--help-all"]).output.partition("\nOptions:\n")[2]
    assert [line.split()[0] for line in others.splitlines() if line.startswith("  -")] == ["-h,"]


@pytest.mark.parametrize(
    ("name", "given", "used"), [("report", None, "1"), ("report", "3", "3"), ("capture", None, None)]
)
def test_what_reads_traces_starts_no_threads_of_numpy(
    monkeypatch: pytest.MonkeyPatch, name: str, given: str | None, used: str | None
) -> None:
    environment = {} if given is None else {"OPENBLAS_NUM_THREADS": given}
    monkeypatch.setattr(os, "environ", environment)
    assert cli.get_command(click.Context(cli, **cli.context_settings), name)
    assert environment.get("OPENBLAS_NUM_THREADS") == used


def test_a_bad_line_is_named_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "in.smi").write_text("C\nxx\n")
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from molprof.cli import main\n"
        "main('capture --model qwen --smiles in.smi --strict -o out.json'.split())"
    )
    done = python(code, tmp_path)
    message = "molprof: error: in.smi, line 2: RDKit cannot read the SMILES 'xx'"
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, message)


@pytest.mark.parametrize(
    ("error", "code", "last"),
    [
        ("ZeroDivisionError('here')", 3, "this is a bug in molprof; please report it with the lines above"),
        ("OSError(28, 'No space left on device', 'a.json')", 3, "No space left on device: a.json"),
        ("ModuleNotFoundError(name='torch')", 2, "this command needs the package 'torch', which is not installed"),
        ("ModuleNotFoundError(name='numpy')", 2, "this command needs the module 'numpy', which is not installed"),
    ],
)
def test_any_error_ends_in_one_line(error: str, code: int, last: str) -> None:
    done = python(f"from molprof import cli\ndef work(**_): raise {error}\ncli.cli.main = work\ncli.main([])")
    line = next(line for line in done.stderr.splitlines() if line.startswith("molprof: "))
    assert (done.returncode, line) == (code, f"molprof: error: {last}")
    assert ("ZeroDivisionError: here" in done.stderr) == ("bug" in last)


def test_a_folder_named_molprof_in_the_working_directory_does_not_matter(tmp_path: Path, trace: Path) -> None:
    """As in a checkout, beside an installed package: the processes that read traces must not import that folder."""
    (tmp_path / "molprof").mkdir()
    (tmp_path / "molprof/__init__.py").write_text("raise ImportError('the wrong molprof')")
    shutil.copy(GIVEN / "tiny-2.json", tmp_path / "other.json")
    words = ["compare", "trace.json", "other.json", "--no-cache", "--format", "json"]
    done = python(f"import sys; sys.path[:] = {sys.path!r}; from molprof.cli import main; main({words!r})", tmp_path)
    assert len(json.loads(done.stdout)["runs"]) == 2


def test_a_remark_on_a_trace_is_on_stderr(tmp_path: Path, trace: Path) -> None:
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    said = "empty.json holds no events with a duration, so nothing was recorded\n"
    assert called(["compare", "trace.json", "empty.json"], tmp_path)[2] == said
    assert called(["query", "SELECT 1 AS one", "empty.json", "trace.json"], tmp_path)[2] == said


# Root may read everything, but for a process that gave that right away.
UNPRIVILEGED = "capsh --drop=cap_dac_override,cap_dac_read_search -- -c"


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("capsh"), reason="root may read all, and there is no capsh")
def test_a_trace_that_may_not_be_read_exits_2(tmp_path: Path, trace: Path) -> None:
    trace.chmod(0)
    line = "molprof query launches trace.json -o out.txt"
    done = shell(f"{UNPRIVILEGED} '{line}'" if os.geteuid() == 0 else line, tmp_path)
    message = "molprof: error: cannot read trace.json: Permission denied\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


# Where results go.


@pytest.mark.parametrize(
    ("words", "style"),
    [
        ("", "table"),
        ("-o page.html", "html"),
        ("-o PAGE.HTML", "html"),
        ("-o page.md", "markdown"),
        ("-o stacks.speedscope.json", "speedscope"),
        ("-o picture.png", "png"),
        ("-o picture.svg", "table"),  # a format that this command lacks
        ("-o page.html --format csv", "csv"),
        ("--format csv -o page.html", "csv"),
    ],
)
def test_the_ending_of_a_file_selects_its_format(words: str, style: str) -> None:
    @click.command()
    @result_options("speedscope", "png")
    def command(result: ResultOptions) -> None:
        click.echo(result.style)

    assert CliRunner().invoke(command, words.split()).output == f"{style}\n"


def test_the_longest_name_is_written_and_links_are_followed(tmp_path: Path, trace: Path) -> None:
    assert called(["report", "trace.json", "-o", "n" * 255], tmp_path)[0] == 0
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    assert called(["report", "trace.json", "-o", "link.txt", "--force"], tmp_path)[0] == 0
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == (tmp_path / ("n" * 255)).read_text()
    assert len(list(tmp_path.iterdir())) == 4
    (tmp_path / "input.json").symlink_to("trace.json")
    said = called(["report", "trace.json", "-o", "input.json", "--force"], tmp_path)[2]
    assert said.startswith("molprof: error: input.json is an input of this command, which would be lost")


def test_an_error_while_writing_names_the_users_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No such file") as failure, replacing(tmp_path / "out.txt") as part:
        part.unlink()
    assert failure.value.filename == str(tmp_path / "out.txt")
    assert list(tmp_path.iterdir()) == []


def test_what_killed_processes_left_is_removed_and_what_others_use_is_not(tmp_path: Path) -> None:
    made = "import os; from pathlib import Path; from molprof.common.files import scratch_file\n"
    made += "with scratch_file(Path('out')) as part:\n"
    made += "    Path(f'{part}.json').touch()\n    os.kill(os.getpid(), 9)"
    python(made, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    with scratch_file(tmp_path / "other") as used:
        assert list(tmp_path.iterdir()) == [used]
        check_output(tmp_path / "out", force=False)
        assert list(tmp_path.iterdir()) == [used]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["open", "flock", "fstat"])
def test_an_interrupt_while_a_file_is_begun_leaves_none(call: str, tmp_path: Path) -> None:
    made = f"""
import os, signal, sys
from pathlib import Path
from molprof.common.files import replacing
def heard(frame, event, called):
    if event == "c_return" and called.__name__ == "{call}" and frame.f_code.co_filename.endswith("/files.py"):
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)
sys.setprofile(heard)
try:
    with replacing(Path("out")) as part:
        part.write_text("never")
except KeyboardInterrupt:
    sys.exit(7)
"""
    assert subprocess.run([sys.executable, "-c", made], cwd=tmp_path, check=False).returncode == 7
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
    kept = tmp_path / "out-2.json.gz"
    assert taken.value.kept == kept
    assert {path: path.read_text() for path in tmp_path.iterdir()} == {out: "theirs", kept: "mine"}


STDOUT = "cannot write to stdout: "


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("molprof report trace.json | true; exit ${PIPESTATUS[0]}", 0, ""),  # a reader that goes away
        ("molprof report trace.json >&-", 3, f"{STDOUT}it is closed"),
        ("molprof report trace.json > /dev/full", 3, f"{STDOUT}No space left on device"),
        ("molprof --help > /dev/full", 3, f"{STDOUT}No space left on device"),
        ("ulimit -f 8; molprof report trace.json --format html > x", 3, f"{STDOUT}File too large"),  # KiB
        ("ulimit -f 1; molprof report trace.json --format html -o x", 3, "File too large: x"),
        ("ulimit -f 1; molprof trim trace.json --from 0s -o x.json", 3, "File too large: x.json"),
        ("molprof report - --no-cache <&-", 2, "cannot read standard input: it is closed"),
        ("molprof mcp . <&-", 2, "cannot read standard input: it is closed"),
    ],
)
def test_streams_that_are_closed_or_full(line: str, code: int, message: str, tmp_path: Path, trace: Path) -> None:
    document = json.loads(trace.read_text())
    trace.write_text(json.dumps({**document, "traceEvents": document["traceEvents"] * 50}))
    done = shell(line, tmp_path, MOLPROF_CACHE="/proc/none", PYTHONUNBUFFERED="1" if "--help" in line else "")
    said = done.stderr.splitlines()
    assert (done.returncode, said[0] if said else "") == (code, f"molprof: error: {message}" if message else "")
    assert {path.name for path in tmp_path.iterdir()} <= {"trace.json", *(["x"] if "> x" in line else [])}


@pytest.mark.skipif(sys.platform != "linux", reason="names are UTF-8 on this system")
def test_a_name_that_is_not_utf8(tmp_path: Path, trace: Path) -> None:
    name, other = "out\udcff.json", "a\udcff.json"
    assert called(["trim", "trace.json", "--from", "0s", "-o", name], tmp_path)[0] == 0
    shutil.copy(tmp_path / name, tmp_path / other)
    for words in ("report rows .", f"query launches {other}", f"compare {name} {other} --format html"):
        assert "Traceback" not in called(words.split(), tmp_path)[2]
    code, out, _ = called(["report", name, "--format", "json"], tmp_path)
    assert (code, json.loads(out)["trace"]["path"]) == (0, name)
    assert json.loads((tmp_path / name).read_bytes())["traceName"] == "out\\udcff.json"


def test_what_the_encoding_of_stdout_lacks_is_escaped(tmp_path: Path, trace: Path) -> None:
    done = shell(
        "molprof query \"SELECT 'µ…' AS name\" trace.json | iconv -f latin1", tmp_path, PYTHONIOENCODING="latin-1"
    )
    assert done.stdout.splitlines()[-1].strip() == "µ\\u2026"


def test_a_folder_with_nothing_in_it_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    asked = ["capture", "--model", "no-such-model", "--processor", "none,generic", "-o"]
    for name in ("new/runs", "mine/runs", "mine"):
        assert called([*asked, name], tmp_path)[0] == 2
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["mine"]
