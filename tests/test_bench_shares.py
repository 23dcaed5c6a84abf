"""A benchmark in shares: which cases each runs, and their files put together."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from conftest import Cli

from molprof.cli import cli
from molprof.common.bench_records import digest
from molprof.common.errors import UsageError
from molprof.profiler.bench import schedule
from molprof.profiler.bench.facts import Facts
from molprof.profiler.bench.results_file import ResultsFile, collected
from molprof.profiler.jobs.status import JobStatus

MACHINE = {"gpu": "one"}
OTHER = {"gpu": "another"}


def written(path: Path, machine: dict[str, Any], *cases: tuple[str, int, str]) -> Path:
    results = ResultsFile(path)
    for case, repeat, status in cases:
        results.write(
            {
                "record": "result", "case": case, "label": case, "settings": {},
                "environment": results.environment(machine), "repeat": repeat, "status": status,
            }
        )  # fmt: skip
    results.close()
    return path


def ended(output: Path, *parts: Path, good: bool = False) -> JobStatus:
    data = {"output": str(output), "parts": [str(part) for part in parts]}
    return cast(JobStatus, SimpleNamespace(job=SimpleNamespace(data=data), good=good))


def lines(path: Path) -> list[tuple[str, ...]]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        (item["id"],) if item["record"] == "environment" else (item["case"], item["environment"], item["status"])
        for item in records
    ]


def test_files_of_shares_are_put_together_each_line_once(tmp_path: Path) -> None:
    output = written(tmp_path / "all.jsonl", MACHINE, ("a", 0, "ok"))
    first = written(tmp_path / "1.jsonl", MACHINE, ("a", 0, "ok"), ("b", 0, "hung"))
    second = written(tmp_path / "2.jsonl", OTHER, ("a", 0, "ok"))
    one, other = digest(MACHINE), digest(OTHER)
    expected = [(one,), ("a", one, "ok"), ("b", one, "hung"), (other,), ("a", other, "ok")]
    for _ in range(2):  # collecting again adds nothing
        collected(ended(output, first, second, tmp_path / "a task that never began.jsonl"))
        assert lines(output) == expected


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    part = written(tmp_path / "1.jsonl", MACHINE, ("a", 0, "ok"))
    part.write_bytes(part.read_bytes() + b'{"schema":1,"record":"res')
    collected(ended(tmp_path / "all.jsonl", part))
    assert lines(tmp_path / "all.jsonl") == [(digest(MACHINE),), ("a", digest(MACHINE), "ok")]


def test_files_of_shares_that_all_ended_well_are_gone_when_they_are_collected(tmp_path: Path) -> None:
    output, part = tmp_path / "all.jsonl", written(tmp_path / "1.jsonl", MACHINE, ("a", 0, "ok"))
    collected(ended(output, part))
    assert part.exists()  # another task is queued again
    collected(ended(output, part, good=True))
    assert [path.name for path in tmp_path.iterdir()] == ["all.jsonl"]
    assert lines(output) == [(digest(MACHINE),), ("a", digest(MACHINE), "ok")]


def test_a_second_job_of_the_same_cases_adds_its_own_results(tmp_path: Path) -> None:
    output = written(tmp_path / "all.jsonl", MACHINE, ("a", 0, "ok"))
    part = written(tmp_path / "1.jsonl", MACHINE, ("a", 0, "ok"))
    # As measured at another time.
    part.write_text(part.read_text().replace('"status":"ok"', '"status":"ok","wall_s":2.0'))
    for _ in range(2):
        collected(ended(output, part))
    where = digest(MACHINE)
    assert lines(output) == [(where,), ("a", where, "ok"), ("a", where, "ok")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "no/x.jsonl"), "the directory no does not exist"),
        (("-o", "."), ". is not a regular file"),
        (("-o", "note.txt"), "note.txt is not a file of benchmark results"),
        (("-o", "x.jsonl", "--retry"), "--retry requires --resume"),
        (("-o", "x.jsonl", "--share", "1/2"), "--share selects cases to run here; on a cluster, use --tasks N"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_submitted(
    molprof: Cli, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    (tmp_path / "note.txt").write_text("mine")
    result = molprof("bench", "sdpa", *options, "--submit", "slurm")
    assert (result.returncode, result.stderr.splitlines()[0]) == (2, f"molprof: error: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


@pytest.mark.parametrize(
    "command", [("capture", "-o", "x.json"), ("bench", "batch", "-o", "x.jsonl")], ids=lambda c: c[0]
)
def test_no_job_waits_in_a_queue_for_a_folder_that_is_not_there(
    molprof: Cli, tmp_path: Path, command: tuple[str, ...]
) -> None:
    result = molprof(*command, "--model", "./absent", "--submit", "slurm")
    assert result.returncode == 2
    assert result.stderr.splitlines()[0] == "molprof: error: no folder ./absent to load the model from"
    assert list(tmp_path.iterdir()) == []


def test_a_job_whose_tasks_left_nothing_makes_no_file(tmp_path: Path) -> None:
    collected(ended(tmp_path / "all.jsonl", tmp_path / "1.jsonl"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "cases"),
    [(("batch", "--batch-size", "1"), 2), (("sdpa", "--backend", "math", "--phase", "decode"), 4)],
    ids=["generation", "kernel"],
)
def test_no_task_is_without_a_case(molprof: Cli, tmp_path: Path, arguments: tuple[str, ...], cases: int) -> None:
    result = molprof("bench", *arguments, "-o", "x.jsonl", "--submit", "slurm", "--tasks", str(cases + 1))
    assert result.returncode == 2
    assert (
        f"--tasks {cases + 1} for {cases} cases: some would have none\n  use at most --tasks {cases}" in result.stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_another_file_is_refused(tmp_path: Path) -> None:
    part = tmp_path / "1.jsonl"
    part.write_text('{"no": "result"}\n')
    with pytest.raises(UsageError, match="line 1 is not a benchmark record: missing field `schema`"):
        collected(ended(tmp_path / "all.jsonl", part))


def test_shares_are_all_cases_and_none_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schedule, "read_machine", lambda *asked: Facts("cpu", None, True, (), {}))

    def cases(*options: str) -> list[str]:
        line = ["bench", "sdpa", "--shape", "1x1x1x8x8", "--phase", "decode", "--dry-run", *options]
        assert cli.main(line, standalone_mode=False) == 0
        return [line.split()[0] for line in capsys.readouterr().out.splitlines() if " 1x1x1" in line]

    assert len(cases()) > 2
    assert sorted(cases("--share", "1/2") + cases("--share", "2/2")) == sorted(cases())


@pytest.mark.parametrize("share", ["0/2", "3/2", "1", "a/b", "1/"])
def test_a_share_is_one_of_so_many(molprof: Cli, share: str) -> None:
    result = molprof("bench", "sdpa", "--dry-run", "--share", share)
    assert result.returncode == 2
    assert f"'{share}' is not K/N, such as 1/4" in result.stderr


def test_tasks_are_of_a_submission(molprof: Cli) -> None:
    result = molprof("bench", "sdpa", "-o", "x.jsonl", "--tasks", "2")
    assert result.returncode == 2
    assert "--tasks requires --submit NAME" in result.stderr
