"""Many traces: tables of `molprof report rows`, folders with damaged traces, and the processes that read them."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from tiny_trace import document, write

from molprof import Reading, api
from molprof.analysis.documents.figures import figure_values, reports_document, trace_row
from molprof.analysis.render import render
from molprof.common.errors import TraceError


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
    done = molprof("report", "rows", "traces", "--format", "csv")
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
    (folder / "b.json").write_text('{"model": "x", "phase": 1}')  # no trace, and no damage
    done = molprof("report", "traces", "--format", "json", "-o", "reports")
    assert (done.returncode, done.stderr.splitlines()[0]) == (0, "left out of traces: b.json (not a trace)")
    (folder / "b.json").unlink()
    of_traces, of_reports = (
        json.loads(molprof("report", "rows", name, "--format", "json").stdout) for name in ("traces", "reports")
    )
    assert [row["file"] for row in of_reports] == ["reports/a.json", "reports/c.json"]
    assert [row["figures"] for row in of_reports] == [row["figures"] for row in of_traces]
    assert {row["problem"] for row in of_traces} == {None}


def test_a_table_for_people(folder: Path) -> None:
    """It shows what was recorded, says each name once, and has no empty part."""
    good, bad = trace_row("a", api.report(folder / "a.json")), trace_row("x/b.json", TraceError("x/b.json: it is cut"))
    text = render(reports_document([good, bad]))
    assert "launches" in text
    assert "leaf operators" not in text
    assert "1 trace could not be read" in text
    assert "Not read" not in render(reports_document([good]))
    text = render(reports_document([bad]))
    assert "\nTraces\n" not in text
    assert text.count("x/b.json") == 1
    assert trace_row("b", TraceError("b is cut")).reason == "is cut"
    assert trace_row("b", TraceError("bytes are missing")).reason == "bytes are missing"


@pytest.mark.parametrize(
    ("words", "stdout", "files"),
    [
        ("traces --format json -o out", "", {"a.json", "c.json"}),
        ("by operator traces --format csv -o out", "", {"a.csv", "c.csv"}),
        ("traces --format markdown", "## molprof report: traces/a.json", set()),
    ],
)
def test_a_damaged_trace_of_a_folder_is_named_and_the_others_are_written(
    folder: Path, molprof: Cli, words: str, stdout: str, files: set[str]
) -> None:
    os.mkfifo(folder / "pipe.json")
    (folder / "link.json.gz").symlink_to("nothing")
    (folder / "sub.json").mkdir()
    done = molprof("report", *words.split())
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


@pytest.mark.usefixtures("anew")
def test_an_interrupted_table_keeps_what_was_read(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    list(api.each_report([folder / "a.json"], Reading(cached=True)))
    line = [sys.executable, "-m", "molprof", "report", "rows", "a.json", "pipe", "--format", "csv"]
    heard: dict[str, Any] = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), "text": True}
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, cwd=folder, **outputs, **heard) as process:
        assert process.stderr.readline() == "waiting for data from pipe; Ctrl-C ends it\n"
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
    kept = "1 of 2 traces were read; their reports are kept: repeat the command to go on\n"
    assert (process.returncode, out) == (130, "")
    assert said == f"{kept}\nmolprof: error: interrupted; no file was changed\n"
