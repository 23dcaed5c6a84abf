"""Many traces in one table: `molprof report --rows`, and the processes that read them."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest
from conftest import Cli
from tiny_trace import document, write

from molprof import Reading, api
from molprof.analysis import trace as traces
from molprof.analysis.documents.figures import figure_values, reports_document, trace_row
from molprof.analysis.figures import Report
from molprof.analysis.reader.source import traces_in
from molprof.analysis.render import render
from molprof.commands import report as report_command
from molprof.commands.options import Result
from molprof.common.errors import EngineError, TraceError
from molprof.common.process import Served, answer

CACHED = Reading(cached=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three traces, of which the second is damaged, and a file that is none."""
    monkeypatch.setenv("MOLPROF_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "traces"
    place.mkdir()
    write(place / "a.json", document())
    (place / "b.json").write_text("[{")
    content = document()
    content["molprof"]["generation"]["seed"] = 7
    write(place / "c.json.gz", content)
    (place / "notes.txt").write_text("no trace")
    return place


def test_a_folder_becomes_one_table_with_the_problem_of_what_cannot_be_read(
    folder: Path, molprof: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = molprof("report", "traces", "--rows", "--format", "csv")
    assert done.returncode == 3
    error = done.stderr.splitlines()[-2]
    assert error.startswith("molprof: error: 1 of 3 traces could not be read, first traces/b.json")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["file"] for row in rows] == ["traces/a.json", "traces/b.json", "traces/c.json.gz"]
    assert [bool(row["problem"]) for row in rows] == [False, True, False]
    monkeypatch.chdir(folder.parent)
    values = figure_values(api.report("traces/a.json"))
    assert list(rows[0])[2:] == list(values)
    assert [rows[0][name] for name in values] == ["" if value is None else str(value) for value in values.values()]
    assert set(list(rows[1].values())[2:]) == {""}


def test_stored_reports_stand_for_their_traces(folder: Path, molprof: Cli) -> None:
    (folder / "b.json").unlink()
    assert molprof("report", "traces", "--format", "json", "-o", "reports").returncode == 0
    of_traces, of_reports = (
        json.loads(molprof("report", name, "--rows", "--format", "json").stdout) for name in ("traces", "reports")
    )
    assert [row["file"] for row in of_reports] == ["reports/a.json", "reports/c.json"]
    assert [row["figures"] for row in of_reports] == [row["figures"] for row in of_traces]
    assert {row["problem"] for row in of_traces} == {None}


def test_a_table_for_people_shows_what_was_recorded(folder: Path) -> None:
    report = api.report(folder / "a.json")
    rows = [trace_row("a", report), trace_row("b", TraceError("b is cut"))]
    text = render(reports_document(rows))
    assert "launches" in text
    assert "leaf operators" not in text
    assert "1 trace could not be read" in text
    assert "is cut" in text


def test_a_table_says_each_name_once_and_has_no_empty_part(folder: Path) -> None:
    good, bad = trace_row("a", api.report(folder / "a.json")), trace_row("x/b.json", TraceError("x/b.json: it is cut"))
    assert "Not read" not in render(reports_document([good]))
    text = render(reports_document([bad]))
    assert "\nTraces\n" not in text
    assert text.count("x/b.json") == 1
    assert trace_row("b", TraceError("b is cut")).reason == "is cut"
    assert trace_row("b", TraceError("bytes are missing")).reason == "bytes are missing"


def test_a_folder_without_traces_is_wrong_usage(folder: Path, molprof: Cli) -> None:
    (folder / "none").mkdir()
    done = molprof("report", "traces/none", "--rows")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no traces in traces/none" in done.stderr


def test_a_report_of_a_folder_leaves_out_what_is_no_trace(folder: Path, molprof: Cli) -> None:
    (folder / "b.json").write_text('{"model": "x", "phase": 1}')  # damaged before
    done = molprof("report", "traces", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "left out of traces: b.json (not a trace)\n")
    assert [report["trace"]["path"] for report in json.loads(done.stdout)] == ["traces/a.json", "traces/c.json.gz"]
    (folder.parent / "other").mkdir()
    (folder.parent / "other/settings.json").write_text("{}")
    done = molprof("report", "other")
    assert (done.returncode, done.stdout) == (2, "")
    assert "other holds no traces" in done.stderr


@pytest.mark.parametrize(
    ("words", "stdout", "files"),
    [
        ("--format json -o out", "", {"a.json", "c.json"}),
        ("--format html -o out", "", {"a.html", "c.html"}),
        ("--by operator --format csv -o out", "", {"a.csv", "c.csv"}),
        ("--format json", "[", set()),
        ("--format markdown", "## molprof report: traces/a.json", set()),
    ],
)
def test_a_damaged_trace_of_a_folder_is_named_and_the_others_are_written(
    folder: Path, molprof: Cli, words: str, stdout: str, files: set[str]
) -> None:
    os.mkfifo(folder / "pipe.json")
    (folder / "link.json.gz").symlink_to("nothing")
    (folder / "sub.json").mkdir()
    done = molprof("report", "traces", *words.split())
    assert (done.returncode, done.stdout.split("\n")[0]) == (3, stdout)
    damage = "is truncated inside event 1 (byte 2 of the text, after 0 events)"
    told = [line for line in done.stderr.splitlines() if not line.startswith("wrote ")]
    assert told == [
        "left out of traces: link.json.gz, pipe.json (no regular files)",
        f"traces/b.json: {damage}",
        f"molprof: error: 1 of 3 traces could not be read, first traces/b.json {damage}",
        "  --partial reads the intact part of a damaged trace",
    ]
    assert {path.name for path in (folder.parent / "out").glob("*")} == files


def test_an_interrupted_table_goes_on_where_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = traces_in(folder)
    assert [path.name for path in paths] == ["a.json", "b.json", "c.json.gz"]
    monkeypatch.setattr(traces, "processors", lambda: 1)
    found = api.each_report(paths, CACHED)

    def interrupted(*arguments: object) -> object:
        yield next(found)
        yield next(found)
        found.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(report_command, "each_report", interrupted)
        with pytest.raises(KeyboardInterrupt):
            report_command.report_rows(paths, CACHED, Result("csv"))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.endswith("2 of 3 traces were read; their reports are kept: repeat the command to go on\n")
    # What was read is not read again.
    asked: list[str] = []
    ask = Served.ask
    monkeypatch.setattr(Served, "ask", lambda self, *request: asked.append(request[1]) or ask(self, *request))
    first, damaged, last = api.each_report(paths, CACHED)
    assert isinstance(first, Report)
    assert isinstance(damaged, TraceError)
    assert isinstance(last, Report)
    assert str(folder / "a.json") not in asked


def test_a_process_answers_many_requests_and_is_replaced_when_it_dies() -> None:
    served = Served(f"{__name__}:serve", "try again")
    pids = [served.ask(b"pid", "it") for _ in range(2)]
    assert pids[0] == pids[1] != str(os.getpid()).encode()
    with pytest.raises(TraceError, match="no such trace") as raised:
        served.ask(b"error", "it")
    assert raised.value.hint == "a hint"
    with pytest.raises(EngineError, match="the process that read it failed: out of luck") as died:
        served.ask(b"die", "it")
    assert died.value.hint == "try again"
    assert served.ask(b"pid", "it") != pids[0]
    served.kill()
    served.close()


def serve() -> None:
    answer(_answered)


def _answered(request: bytes) -> bytes:
    if request == b"error":
        raise TraceError("no such trace", hint="a hint")
    if request == b"die":
        raise SystemExit("out of luck")
    return str(os.getpid()).encode()
