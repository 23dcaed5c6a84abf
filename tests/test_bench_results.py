"""The results file is written whole, refuses broken lines, and is summed up, shown and drawn right."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_data import ENVIRONMENT, FIGURES, ran, result, run_of, timed, write

from molprof.analysis.bench.recommend import recommend
from molprof.analysis.bench.summary import summed
from molprof.analysis.documents.advice import advice_document
from molprof.analysis.documents.benchmark import bench_document
from molprof.analysis.documents.plots import BENCH_PLOTS, NotRecordedError, plot_file
from molprof.analysis.render import render
from molprof.common.bench_records import digest, read_results
from molprof.common.errors import RunError, TraceError, UsageError
from molprof.profiler.bench.cases import SdpaCase
from molprof.profiler.jobs.results_file import ResultsFile

RUN = run_of()
KERNEL = SdpaCase("auto", 4, 16, 8, 128, 128, 64)
PLAIN = run_of(batch_size=4, count=4)
STATIC = replace(PLAIN, kv_cache="static")


@pytest.fixture(autouse=True)
def quiet_machine() -> None:
    """The machine is what each test says."""


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """A write beyond that size fails, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path, record = tmp_path / "out.jsonl", {"record": "run", "text": "a" * 100}
    with closing(ResultsFile(path)) as results:
        results.write(record)
        whole = path.read_bytes()
        with largest_file(len(whole) + 50), pytest.raises(RunError, match=r"cannot write .*: File too large"):
            results.write(record)
        assert path.read_bytes() == whole
        with path.open("ab") as file:  # what a killed neighbour began
            file.write(whole[:20])
        results.write(record)
    assert path.read_bytes() == 2 * whole


WRONG = {
    b'{"schema":"1","record":"run"}': " is not a benchmark record: schema: expected `int`, got `str`",
    b'{"record":"run"}': " is not a benchmark record: missing field `schema`",
    b'{"schema":9,"record":"run"}': " is of schema 9; this molprof reads 2",
    b'{"schema":1,"record":"run"}': " is of schema 1; this molprof reads 2",
    b'{"schema":2,"record":["run"]}': " is not a benchmark record: record: expected `str`, got `array`",
    b'{"schema":2,"record":"environment","id":["a"],"environment":{}}': ": id: expected `str`, got `array`",
    b'{"schema":2,"record":"result","environment":"b","repeat":0,"status":"ok"}': ": missing field `case`",
    b"\xff\xfe{}": " is not JSON: ",
    b"[" * 100_000: " is not JSON: ",
    b"a note of mine": " is not JSON: ",
}


@pytest.mark.parametrize("line", WRONG, ids=lambda line: line[:50].decode("ascii", "replace"))
def test_another_file_is_refused_by_both_sides_and_left_as_it_is(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"schema":2,"record":"run"}\n' + line + b"\n")
    before = path.read_bytes()
    for error, code, open_it in ((UsageError, 2, ResultsFile), (TraceError, 3, read_results)):
        with pytest.raises(error, match=re.escape(f"out.jsonl line 2{WRONG[line]}")) as raised:
            open_it(path)
        assert raised.value.exit_code == code
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"load_ns": -1}, "load_ns"),
        ({"kv_cache_bytes": 10**400}, "kv_cache_bytes"),
        ({"wall_ns": ["long"]}, r"wall_ns\[0\]: expected `int`, got `str`"),
        ({"wall_ns": []}, "no timed pass"),
    ],
)
def test_figures_that_nothing_can_have_measured_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    wrong = result(RUN, 0, "ok", {**FIGURES, **change})
    with pytest.raises(TraceError, match=f"figures: .*{message}"):
        summed(read_results(write(tmp_path / "out.jsonl", wrong)))


def test_a_retried_case_is_what_it_became_and_runs_of_the_same_case_add_up(tmp_path: Path) -> None:
    first = result(PLAIN, 0, "timed out", None, message="killed")
    for records, expected in (
        ([first], ("timed out", ())),
        ([first, *ran(PLAIN, [100, 200])], ("ok", (1e6, 2e6))),
        ([*ran(PLAIN, [100, 200]), *ran(PLAIN, [300])], ("ok", (1e6, 2e6, 3e6))),
        ([*ran(PLAIN, [100]), result(PLAIN, 1, "failed", None, message="no")], ("failed", (1e6,))),
    ):
        (found,) = summed(read_results(write(tmp_path / "a.jsonl", *records)))
        assert (found.status, found.times_ns) == expected


def test_a_busy_machine_is_told_beside_the_results(tmp_path: Path) -> None:
    busy = {"cores": 2, "before": None, "passes": [{"wall_ns": 1, "other_cores": 1.5, "throttled_ratio": 0.5}]}
    calm = {"cores": 2, "before": None, "passes": [{"wall_ns": 1, "other_cores": 0.1}]}
    records = [*ran(PLAIN, [1000], machine=busy), *ran(STATIC, [500], machine=calm), *timed(KERNEL, 200)]
    results = read_results(write(tmp_path / "a.jsonl", *records))
    text = " ".join(render(bench_document(results, "")).split())
    doubt = "other programs kept 1.5 of 2 cores busy; the control group was out of its share of CPU time for 50.0 %"
    assert f"times are not reliable: dynamic: during the timed passes {doubt} of the time" in text
    cases = json.loads(render(bench_document(results, ""), "json"))["cases"]
    assert [case["doubts"] for case in cases] == [f"{doubt} of the time", "", None]


def test_what_did_not_run_is_shown_and_no_candidate(tmp_path: Path) -> None:
    large = replace(PLAIN, batch_size=64, count=64)
    why = {"message": "CUDA out of memory", "largest_batch": 40, "fit_exact": True}
    flash = result(replace(PLAIN, attention="sdpa-flash"), 0, "unsupported", None, message="No kernel \x1b[31m")
    records = [*ran(PLAIN, [1000]), flash, result(large, 0, "out of memory", None, **why)]
    results = read_results(write(tmp_path / "x.jsonl", *records))
    text = " ".join(render(bench_document(results, "")).split())
    assert "out of memory: CUDA out of memory; the largest batch that fits: 40: b64 sdpa" in text
    assert "unsupported: No kernel \\x1b[31m: b4 sdpa-flash" in text
    advice = " ".join(render(advice_document(recommend(results), results, None)).split())
    assert "rejected: sdpa-flash, dynamic cache: unsupported: No kernel \\x1b[31m" in advice


def test_a_gpu_is_waited_for_and_a_line_cut_off_is_left_out(tmp_path: Path) -> None:
    machine = {**ENVIRONMENT, "gpu": "A GPU"}
    records = [{**item, "environment": digest(machine)} for item in ran(PLAIN, [1000, 900])]
    path = write(tmp_path / "x.jsonl", *records, environment=machine)
    assert "the host waits for the GPU" in render(bench_document(read_results(path), ""))
    path.write_bytes(path.read_bytes()[:-30])
    cut = read_results(path)
    assert (len(cut.results), "ends inside line 3" in cut.notes[0]) == (1, True)


@pytest.mark.parametrize("kind", BENCH_PLOTS)
def test_plots_are_drawn_the_same_each_time_or_say_what_is_missing(tmp_path: Path, kind: str) -> None:
    eight = replace(PLAIN, batch_size=8, count=8)
    records = [*ran(PLAIN, [1000]), *ran(STATIC, [500]), *ran(eight, [800]), *timed(KERNEL, 200)]
    results = read_results(write(tmp_path / "x.jsonl", *records))
    data = plot_file(kind, results, "svg")
    assert data == plot_file(kind, results, "svg")
    if kind == "heat":
        assert re.findall(r">(dynamic|static|\d+|no result)<", data.decode()).count("no result") == 1
        assert {"100", "125", "200", "4", "8"} <= set(re.findall(r">([\d.]+)<", data.decode()))
    empty = read_results(write(tmp_path / "y.jsonl", result(PLAIN, 0, "failed", None)))
    with pytest.raises(NotRecordedError, match="not recorded: ") as raised:
        plot_file(kind, empty, "svg")
    assert re.fullmatch(
        r"molprof (bench sdpa -o FILE|sweep \w+) measures it; molprof sweep show: .*", raised.value.hint or ""
    )


def test_files_of_shares_are_read_with_the_file(tmp_path: Path) -> None:
    def written(name: str, machine: str, *cases: tuple[str, str]) -> None:
        with closing(ResultsFile(tmp_path / name)) as results:
            for case, status in cases:
                line = {"case": case, "label": case, "settings": {}, "repeat": 0, "status": status, "ended": name}
                results.write({"record": "result", "environment": results.environment({"gpu": machine}), **line})

    written("all.1-of-2.jsonl", "one", ("b", "failed"))
    written("all.2-of-2.jsonl", "another", ("a", "ok"))
    for more in ([], ["one"]):
        for machine in more:
            written("all.jsonl", machine, ("a", "ok"))
        found = read_results(tmp_path / "all.jsonl").results
        assert [(item.case, item.environment, item.status) for item in found] == [
            ("b", digest({"gpu": "one"}), "failed"), ("a", digest({"gpu": "another"}), "ok"),
            *(("a", digest({"gpu": machine}), "ok") for machine in more),
        ]  # fmt: skip


def test_reading_results_needs_no_torch(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", *ran(PLAIN, [1000]))
    for arguments in (["bench", "show", "x.jsonl"], ["sweep", "recommend", "x.jsonl"], ["sweep", "--help"]):
        code = (
            "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
            f"from molprof.cli import main\nmain({arguments!r})"
        )
        line = [sys.executable, "-c", code]
        shown = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ)
        assert shown.returncode == 0, shown.stderr
