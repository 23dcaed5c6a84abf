"""Results of benchmarks read, summed up, shown and drawn: exact figures of files made by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench_data import ENVIRONMENT, ran, result, timed, write

from molprof.analysis.bench.summary import summed
from molprof.analysis.documents.benchmark import bench_document
from molprof.analysis.documents.plots import BENCH_PLOTS, NotRecordedError, plot_file
from molprof.analysis.render import render
from molprof.common.bench_records import digest, read_results
from molprof.common.errors import TraceError
from molprof.profiler.bench.cases import GenerateCase, SdpaCase

PLAIN = GenerateCase(model="qwen", batch_size=4, count=4)
STATIC = replace(PLAIN, kv_cache="static")
SDPA = SdpaCase("auto", 1, 4, 2, 64, 64, 32, "causal", "float32")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(
        tmp_path / "bench.jsonl",
        *ran(PLAIN, [1000, 1100, 900]),
        *ran(STATIC, [500, 520, 480]),
        *ran(replace(PLAIN, batch_size=8, count=8), [1600, 1500, 1700], tokens=200),
        *ran(replace(STATIC, batch_size=8, count=8), [1000, 1000, 1000], tokens=200),
        result(replace(PLAIN, attention="sdpa-flash"), 0, "unsupported", None, message="No kernel \x1b[31m"),
        result(replace(PLAIN, batch_size=64), 0, "out of memory", None, message="CUDA out of memory", largest_batch=40,
               fit_exact=True),
        result(replace(STATIC, attention="eager"), 0, "hung", None, message="killed at the limit of 9 s", stack=["a"]),
        *timed(SDPA, 200, 220, 210, chosen="flash"),
        *timed(replace(SDPA, backend="math"), 2100, 2200, 2000),
    )  # fmt: skip


@pytest.mark.parametrize("gpu", [None, "A GPU"], ids=["cpu", "gpu"])
def test_only_a_gpu_is_waited_for(tmp_path: Path, gpu: str | None) -> None:
    machine = {**ENVIRONMENT, "gpu": gpu}
    records = [{**item, "environment": digest(machine)} for item in ran(PLAIN, [1000])]
    path = write(tmp_path / "x.jsonl", *records, environment=machine)
    text = render(bench_document(read_results(path), ""))
    assert ("the host waits for the GPU" in text, "host time" in text) == (gpu is not None, True)


def test_a_retried_case_is_what_it_became_and_runs_of_the_same_case_add_up(tmp_path: Path) -> None:
    first = result(PLAIN, 0, "hung", None, message="killed")
    (hung,) = summed(read_results(write(tmp_path / "a.jsonl", first)))
    assert (hung.status, hung.times_ns) == ("hung", ())
    (retried,) = summed(read_results(write(tmp_path / "b.jsonl", first, *ran(PLAIN, [100, 200]))))
    assert (retried.status, retried.message, retried.times_ns) == ("ok", None, (1e6, 2e6))
    twice = [*ran(PLAIN, [100, 200]), *ran(PLAIN, [300])]
    assert summed(read_results(write(tmp_path / "c.jsonl", *twice)))[0].times_ns == (1e6, 2e6, 3e6)
    late = [*ran(PLAIN, [100]), result(PLAIN, 1, "failed", None, message="no")]
    (failed,) = summed(read_results(write(tmp_path / "d.jsonl", *late)))
    assert (failed.status, failed.times_ns) == ("failed", (1e6,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no benchmark results"),
        ("not json\n", "line 1 is not JSON"),
        ('{"a": 1}\n', "line 1 is not a benchmark record: missing field `schema`"),
        ('{"schema": 9, "record": "result"}\n', "line 1 is of schema 9; this molprof reads up to 1"),
        ('{"schema": 1, "record": "result"}\n', "line 1: missing field `case`"),
    ],
)
def test_what_is_no_file_of_results_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(TraceError, match=re.escape(message)):
        read_results(tmp_path / "x.jsonl")


def test_wrong_figures_are_refused(tmp_path: Path) -> None:
    wrong = result(PLAIN, 0, "ok", {"wall_ns": ["long"], "phases_ns": [], "tokens": 1, "steps": 1})
    with pytest.raises(TraceError, match=r"figures: wall_ns\[0\]: expected `int`, got `str`"):
        summed(read_results(write(tmp_path / "x.jsonl", wrong)))
    empty = result(PLAIN, 0, "ok", {"wall_ns": [], "phases_ns": [], "tokens": 1, "steps": 1})
    with pytest.raises(TraceError, match="no timed pass"):
        summed(read_results(write(tmp_path / "x.jsonl", empty)))


def test_a_line_cut_off_at_the_end_is_left_out_and_said(file: Path) -> None:
    whole = read_results(file)
    file.write_bytes(file.read_bytes()[:-30])
    cut = read_results(file)
    assert len(cut.results) == len(whole.results) - 1
    assert "ends inside line" in cut.notes[0]


@pytest.mark.parametrize("kind", BENCH_PLOTS)
def test_figures_are_drawn_the_same_each_time(file: Path, kind: str) -> None:
    results = read_results(file)
    data = plot_file(kind, results, "svg")
    assert data == plot_file(kind, results, "svg")
    assert b"<script" not in data
    assert plot_file(kind, results, "png").startswith(b"\x89PNG")


def test_the_heat_map_says_speeds_and_what_is_missing(tmp_path: Path) -> None:
    records = [*ran(PLAIN, [1000]), *ran(STATIC, [500]), *ran(replace(PLAIN, batch_size=8, count=8), [800])]
    text = plot_file("heat", read_results(write(tmp_path / "x.jsonl", *records)), "svg").decode()
    assert re.findall(r">(dynamic|static|\d+|no result)<", text).count("no result") == 1
    assert {"100", "125", "200", "4", "8"} <= set(re.findall(r">([\d.]+)<", text))


@pytest.mark.parametrize("kind", BENCH_PLOTS)
def test_figures_of_what_was_not_measured_are_refused(tmp_path: Path, kind: str) -> None:
    results = read_results(write(tmp_path / "x.jsonl", result(PLAIN, 0, "failed", None)))
    with pytest.raises(NotRecordedError, match="not recorded: ") as raised:
        plot_file(kind, results, "svg")
    assert re.fullmatch(r"molprof bench \w+ -o FILE measures it; molprof bench show FILE: .*", raised.value.hint or "")


@pytest.mark.parametrize(
    "arguments",
    [("bench", "show", "FILE"), ("recommend", "FILE"), ("bench", "--help"), ("bench", "matrix", "--help")],
    ids=" ".join,
)
def test_help_and_reading_results_need_no_torch(file: Path, arguments: tuple[str, ...]) -> None:
    given = [str(file) if argument == "FILE" else argument for argument in arguments]
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from molprof.cli import main\n"
        f"main({given!r})"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
