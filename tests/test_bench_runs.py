"""A run of a benchmark: no result lost, nothing run twice, no process left, whatever becomes of a case."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import bench_faults
import pytest
from bench_faults import WORKER, case
from strays import mark as mark
from strays import strays

from molprof.common.bench_records import digest
from molprof.common.errors import RunError, UsageError
from molprof.profiler.bench.cases import Case, GenerateCase, case_id
from molprof.profiler.bench.facts import Facts
from molprof.profiler.bench.isolate import Limits
from molprof.profiler.bench.results_file import ResultsFile
from molprof.profiler.bench.schedule import Plan, Step, order, read_machine, run_plan

FACTS = Facts("cpu", None, False, (), bench_faults.ENVIRONMENT)
LONG = Limits(60.0)

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc on this system")


def run_all(path: Path, *cases: Case, **options: object) -> list[Step]:
    steps: list[Step] = []
    settings: dict[str, object] = {"repeats": 1, "seed": 0, "limits": LONG, "worker": WORKER, **options}
    results = ResultsFile(path)
    try:
        run_plan(Plan(cases=cases, **settings), FACTS, results, steps.append)  # type: ignore[arg-type]
    finally:
        results.close()
    return steps


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_all_results_are_kept_whatever_becomes_of_a_case(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    cases = [case("ok"), case("raise"), case("segfault"), GenerateCase("ok", attention="flash_attention_2")]
    steps = run_all(path, *cases, repeats=2)
    # What is not ok is not repeated; what cannot run is said first.
    assert [step.status for step in steps[:1]] == ["unsupported"]
    assert sorted(step.status for step in steps) == ["failed", "failed", "ok", "ok", "unsupported"]
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    environment, header, *results = lines(path)
    assert environment["environment"] == bench_faults.ENVIRONMENT
    assert (header["record"], header["seed"], header["repeats"], header["cases"]) == ("run", 0, 2, 4)
    assert {record["environment"] for record in results} == {environment["id"]}
    assert environment["id"] == digest(bench_faults.ENVIRONMENT)
    assert {record["case"] for record in results} == {case_id(item) for item in cases}
    assert sorted(str(record["status"]) for record in results) == sorted(step.status for step in steps)
    good = [record for record in results if record["status"] == "ok"]
    assert [record["repeat"] for record in good] == [0, 1]
    assert good[0]["figures"] == bench_faults.FIGURES


def test_out_of_memory_finds_the_largest_batch_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    # A row takes 40 MB: with Python itself, 3 rows stay below 160 MB and 4 do not.
    (step,) = run_all(path, case("rows", 9), limits=Limits(60.0, 160_000_000))
    assert step.status == "out of memory"
    assert step.message is not None
    assert step.message.endswith("; the largest batch that fits: 3")
    record = lines(path)[-1]
    assert (record["largest_batch"], record["fit_exact"]) == (3, True)
    assert record["fit_tries"] == [
        {"batch": 4, "status": "out of memory"}, {"batch": 2, "status": "ok"}, {"batch": 3, "status": "ok"},
    ]  # fmt: skip


def test_no_bisection_where_none_is_wanted(tmp_path: Path) -> None:
    run_all(tmp_path / "out.jsonl", case("rows", 9), limits=Limits(60.0, 160_000_000), bisect=False)
    assert "largest_batch" not in lines(tmp_path / "out.jsonl")[-1]


def test_order_is_interleaved_random_and_told_by_the_seed() -> None:
    cases = tuple(case(str(number)) for number in range(8))
    first = [(repeat, item.model) for repeat, item in order(Plan(cases, 3, 5, LONG)) if isinstance(item, GenerateCase)]
    assert [repeat for repeat, _ in first] == [0] * 8 + [1] * 8 + [2] * 8
    rounds = [[name for repeat, name in first if repeat == number] for number in range(3)]
    assert [sorted(names) for names in rounds] == [[str(number) for number in range(8)]] * 3
    assert rounds[0] != rounds[1] != rounds[2]
    assert [item.model for _, item in order(Plan(cases, 3, 5, LONG))] == [name for _, name in first]  # type: ignore[union-attr]
    assert [item.model for _, item in order(Plan(cases, 3, 6, LONG))] != [name for _, name in first]  # type: ignore[union-attr]


def test_resume_runs_what_is_missing_and_retry_what_was_not_ok(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert len(run_all(path, case("ok"), case("raise"))) == 2
    assert run_all(path, case("ok"), case("raise"), resume=True) == []
    more = run_all(path, case("ok"), case("raise"), case("talk"), resume=True, repeats=2)
    assert sorted((step.case.label().split()[0], step.repeat) for step in more) == [("ok", 1), ("talk", 0), ("talk", 1)]
    again = run_all(path, case("ok"), case("raise"), resume=True, retry=True)
    assert [(step.case.label().split()[0], step.status) for step in again] == [("raise", "failed")]
    environments = [record for record in lines(path) if record["record"] == "environment"]
    assert len(environments) == 1


def test_a_line_that_was_cut_off_is_taken_away_and_its_case_runs_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    run_all(path, case("ok"), case("talk"))
    text = path.read_bytes()
    path.write_bytes(text[:-20])
    (step,) = run_all(path, case("ok"), case("talk"), resume=True)
    assert step.status == "ok"
    records = lines(path)
    assert [record["record"] for record in records] == ["environment", "run", "result", "run", "result"]
    assert {record["case"] for record in records if record["record"] == "result"} == {
        case_id(case("ok")), case_id(case("talk")),
    }  # fmt: skip


@pytest.mark.parametrize("content", ["a note of mine\n", '{"traceEvents": []}\n', "[1]\n", "no line at all"])
def test_another_file_is_not_added_to(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.txt"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"other\.txt"):
        ResultsFile(path)
    assert path.read_text() == content


def test_the_machine_is_read_by_a_process_of_its_own() -> None:
    assert read_machine("auto", None, worker=WORKER) == FACTS
    with pytest.raises(RunError, match="cannot find out what this machine can run: ended with code 1"):
        read_machine("auto", None, worker="no_such_module:main")


SCRIPT = """
import sys
from molprof.commands.bench import Running, run
from molprof.profiler.bench.cases import GenerateCase
from molprof.profiler.bench.facts import Facts
import bench_faults
names = sys.argv[sys.argv.index("--only") + 1 :] if "--only" in sys.argv else ("ok", "wait 0.1", "sleep", "wait 0.2")
cases = [GenerateCase(model=name) for name in names]
facts = Facts("cpu", None, False, (), bench_faults.ENVIRONMENT)
resume = "--resume" in sys.argv
limit = float(sys.argv[2])
sys.exit(run(cases, facts, Running(__import__("pathlib").Path(sys.argv[1]), resume, False, False, 1, 1, limit, None,
                                   True, "cpu", None), "bench_faults:main"))
"""


def start(path: Path, limit: float, *arguments: str) -> subprocess.Popen[str]:
    code = f"import sys; sys.path[:] = {sys.path!r}\n{SCRIPT}"
    # A job in the background of a shell ignores the signal, and its children inherit that.
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(limit), *arguments], stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), start_new_session=True,
    )  # fmt: skip


def wait_for_the_case_that_sleeps(mark: str) -> None:
    until = time.monotonic() + 90  # a machine at work starts a process slowly
    while sum("sleep 600" in line for line in strays(mark)) < 3:
        assert time.monotonic() < until, "the case that hangs did not start"
        time.sleep(0.1)


def test_an_interrupt_keeps_what_is_done_ends_what_runs_and_says_how_to_go_on(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "out.jsonl"
    with start(path, 100) as process:
        wait_for_the_case_that_sleeps(mark)
        before = lines(path)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert f"interrupted; {path} has the results so far (" in said
    assert " of this run); continue with:\n  molprof " in said
    assert said.rstrip().endswith("--resume")
    assert strays(mark) == []
    assert lines(path) == before
    done = {str(record["label"]).split(" no LP")[0] for record in before if record["record"] == "result"}
    with start(path, 2, "--resume") as process:
        assert process.wait() == 0
    after = {str(record["label"]).split(" no LP")[0]: record["status"] for record in lines(path) if "label" in record}
    assert after == {"ok": "ok", "wait 0.1": "ok", "wait 0.2": "ok", "sleep": "hung"}
    assert len([record for record in lines(path) if record["record"] == "result"]) == 4
    assert "sleep" not in done
    assert strays(mark) == []


@pytest.mark.parametrize(
    ("names", "code"),
    [(("raise", "segfault"), 1), (("raise", "ok"), 0), (("unsupported",), 0)],
    ids=["bad", "one is good", "unsupported"],
)
def test_a_benchmark_without_a_figure_has_failed(tmp_path: Path, names: tuple[str, ...], code: int) -> None:
    with start(tmp_path / "out.jsonl", 100, "--only", *names) as process:
        assert process.stderr is not None
        said = process.stderr.read()
    assert (process.returncode, "RunError: none of the cases has figures: " in said) == (code, bool(code))


def test_results_of_another_environment_are_told_and_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    other = {**bench_faults.ENVIRONMENT, "torch": "1.0\x1b"}
    results = ResultsFile(path)
    name = case_id(GenerateCase(model="ok"))
    where = results.environment(other)
    results.write(
        {
            "record": "result", "case": name, "label": "ok", "settings": {}, "environment": where, "repeat": 0,
            "status": "ok",
        }
    )  # fmt: skip
    results.close()
    with start(path, 100, "--resume", "--only", "ok") as process:
        assert process.stderr is not None
        said = process.stderr.read()
    told = f"1 result of these cases in {path}: not counted, because their environment differs: "
    assert f"{told}torch 1.0\\x1b, here {bench_faults.ENVIRONMENT['torch']}\n" in said
    assert "results: 1 ok" in said


def test_nothing_outlives_a_runner_that_is_killed(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "out.jsonl"
    with start(path, 100) as process:
        wait_for_the_case_that_sleeps(mark)
        before = lines(path)
        process.kill()
    until = time.monotonic() + 20
    while strays(mark):
        assert time.monotonic() < until, strays(mark)
        time.sleep(0.1)
    assert lines(path) == before
