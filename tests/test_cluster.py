"""Jobs without a cluster: a task's state from what it wrote and what Slurm says; its process; its job's folder."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import click
import pytest

from molprof.commands.submission import Submittable, follow, own_arguments, submit_options
from molprof.common.errors import RunError, UsageError
from molprof.profiler.jobs import scheduler, status
from molprof.profiler.jobs.job import Attempt, Job, Task, all_jobs, find_job, new_job_folder, read_job, write_json
from molprof.profiler.jobs.resources import SlurmSettings
from molprof.profiler.jobs.scheduler import SchedulerError, Sighting
from molprof.profiler.jobs.status import LogTail, TaskStatus, job_status

WHEN = "2026-01-01T00:00:00+00:00"


def job_in(folder: Path, tasks: int = 1, slurm_id: str | None = "7") -> Job:
    place = new_job_folder(folder, "report")
    names = tuple(Task(f"t{number}", ("report", f"{number}.json")) for number in range(tasks))
    attempt = Attempt(tuple(range(tasks)), slurm_id, WHEN)
    job = Job(place, "report", "slurm", SlurmSettings(cpus=2, setup=("x",)), str(folder), WHEN, names, (attempt,))
    job.save()
    return job


def say(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Sighting] | str) -> None:
    """Makes the scheduler answer, or, given a text, not answer for that reason."""

    def sightings(slurm_ids: set[str]) -> dict[str, Sighting]:
        if isinstance(answer, str):
            raise SchedulerError(answer)
        return answer if slurm_ids else {}

    monkeypatch.setattr(status, "sightings", sightings)


@pytest.mark.parametrize(
    ("wrote", "slurm", "state", "message"),
    [
        (None, {"7": Sighting("PENDING", "Resources")}, "pending", "Resources"),
        (None, {"7": Sighting("PENDING")}, "pending", None),
        (None, {"7": Sighting("RUNNING")}, "running", None),
        ("running", {"7": Sighting("RUNNING")}, "running", None),
        ("running", {"7": Sighting("COMPLETING")}, "running", None),
        ("running", {"7": Sighting("OUT_OF_MEMORY")}, "out of memory", "said"),
        ("running", {"7": Sighting("TIMEOUT", "TimeLimit")}, "timed out", "said"),
        (None, {"7": Sighting("CANCELLED")}, "cancelled", None),
        ("ok", {"7": Sighting("RUNNING")}, "ok", "said"),
        ("ok", {"7": Sighting("CANCELLED")}, "ok", "said"),
        ("failed", {}, "failed", "said"),
        ("stopped", {"7": Sighting("PREEMPTED")}, "preempted", "said"),
        ("stopped", {}, "stopped", "said"),
        ("timed out", {}, "timed out", "said"),
        ("cancelled", {"7": Sighting("COMPLETING")}, "cancelled", "said"),
        ("preempted", {"7": Sighting("PENDING")}, "pending", "requeued after it was preempted"),
        ("running", {}, "lost", "Slurm no longer knows it, and it did not write that it ended"),
        (None, {}, "lost", "Slurm no longer knows it, and it did not write that it ended"),
        ("running", "no answer", "unknown", "it was running"),
        (None, "no answer", "unknown", "it had not started"),
        ("ok", "no answer", "ok", "said"),
        ("cancelled", "no answer", "cancelled", "said"),
    ],
)
def test_a_tasks_state(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrote: str | None,
    slurm: dict[str, Sighting] | str,
    state: str,
    message: str | None,
) -> None:
    job = job_in(tmp_path)
    if wrote is not None:
        record = {"attempt": 0, "state": wrote, "message": "said", "node": "n1", "exit_code": 0}
        write_json(job.record_path(0), record)
    say(monkeypatch, slurm)
    (task,) = job_status(job).tasks
    assert (task.state, task.message, task.slurm_id) == (state, message, "7")


def test_a_task_that_ends_while_slurm_is_asked_is_taken_at_its_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in(tmp_path)
    write_json(job.record_path(0), {"attempt": 0, "state": "running"})

    def sightings(slurm_ids: set[str]) -> dict[str, Sighting]:
        write_json(job.record_path(0), {"attempt": 0, "state": "ok", "exit_code": 0})
        return {"7": Sighting("COMPLETED")}

    monkeypatch.setattr(status, "sightings", sightings)
    assert job_status(job).tasks[0].state == "ok"


def test_a_failure_that_left_no_word_names_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_in(tmp_path)
    say(monkeypatch, {"7": Sighting("FAILED", "NonZeroExitCode")})
    assert job_status(job).tasks[0].message == (
        "Slurm says FAILED, and the task wrote no reason; see molprof logs report-1 0"
    )


@pytest.mark.parametrize(
    "record",
    [{}, {"state": 3}, {"state": "asleep"}, {"state": "ok", "node": True}],
    ids=["empty", "3", "asleep", "node"],
)
def test_a_damaged_word_of_a_task_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: dict[str, object]
) -> None:
    job = job_in(tmp_path)
    write_json(job.record_path(0), {"attempt": 0, **record})
    say(monkeypatch, {"7": Sighting("RUNNING")})
    assert job_status(job).tasks[0].state == "running"


def test_a_damaged_job_is_one_line(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    job.save()
    raw = json.loads((job.folder / "job.json").read_text())
    raw["tasks"][0]["name"] = None
    write_json(job.folder / "job.json", raw)
    with pytest.raises(RunError, match=r"job\.json: tasks: \[0\]\.name: expected `str`, got `null`"):
        read_job(job.folder)


def test_what_slurm_forgets_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_in(tmp_path, tasks=2)
    say(monkeypatch, {"7_0": Sighting("PREEMPTED"), "7_1": Sighting("RUNNING"), "8_0": Sighting("FAILED")})
    assert job_status(job).summary == "1 preempted, 1 running"
    say(monkeypatch, {})
    assert job_status(job).summary == "1 preempted, 1 lost"
    assert job.seen() == {"7_0": {"state": "PREEMPTED", "reason": "None"}}


def test_tasks_cancelled_unstarted_are_listed_by_their_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_in(tmp_path, tasks=3)
    say(monkeypatch, {"7": Sighting("CANCELLED"), "7_0": Sighting("RUNNING")})
    assert job_status(job).summary == "2 cancelled, 1 running"


def test_another_attempt_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_in(tmp_path, tasks=2)
    write_json(job.record_path(1), {"attempt": 0, "state": "failed", "message": "once"})
    again = replace(job, attempts=(*job.attempts, Attempt((1,), "9", WHEN)))
    say(monkeypatch, {"7_0": Sighting("RUNNING"), "9": Sighting("PENDING")})
    assert [(task.state, task.message, task.slurm_id) for task in job_status(again).tasks] == [
        ("running", None, "7_0"),
        ("pending", None, "9"),
    ]


def test_a_submission_that_was_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_in(tmp_path, slurm_id=None)
    say(monkeypatch, {})
    assert job_status(read_job(job.folder)).tasks[0].state == "lost"
    job.attempt_folder(0).mkdir()
    (job.attempt_folder(0) / "31_submission.sh").touch()
    assert read_job(job.folder).slurm_task_id(0) == "31"


def test_a_jobs_file_comes_back_whole(tmp_path: Path) -> None:
    first, second = job_in(tmp_path), job_in(tmp_path, tasks=3)
    assert (first.id, second.id) == ("report-1", "report-2")
    assert find_job(tmp_path, "2") == find_job(tmp_path, "report-2") == second
    assert all_jobs(tmp_path) == ([first, second], [])
    assert [second.slurm_task_id(number) for number in range(3)] == ["7_0", "7_1", "7_2"]
    with pytest.raises(UsageError, match="no job '3'") as raised:
        find_job(tmp_path, "3")
    assert raised.value.hint == "the latest: report-1, report-2"
    for damage, message in (
        ("{", "cannot be read"),
        ('{"schema": 9}', "schema 9"),
        ('{"schema": 1}', "kind: expected `str`"),
    ):
        (first.folder / "job.json").write_text(damage)
        with pytest.raises(RunError, match=message):
            read_job(first.folder)
    readable, problems = all_jobs(tmp_path)
    assert (readable, len(problems)) == ([second], 1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("7_0|RUNNING|None\n7_1|PENDING|Priority\n", {"7_0": ("RUNNING", "None"), "7_1": ("PENDING", "Priority")}),
        ("", {}),
    ],
    ids=["two", "none"],
)
def test_squeues_lines(monkeypatch: pytest.MonkeyPatch, text: str, found: dict[str, tuple[str, str]]) -> None:
    monkeypatch.setattr(scheduler, "_ask", lambda command, **_: text if command[0] == "squeue" else "")
    assert scheduler.sightings({"7"}) == {name: Sighting(*values) for name, values in found.items()}


def test_accounting_knows_what_squeue_has_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"squeue": "8|RUNNING|None\n", "sacct": "7_0|CANCELLED by 1000\n7_1|TIMEOUT\n", "scontrol": ""}
    asked: list[list[str]] = []

    def ask(command: list[str], **_: object) -> str:
        asked.append(command)
        return answers[command[0]]

    monkeypatch.setattr(scheduler, "_ask", ask)
    monkeypatch.setattr(scheduler.shutil, "which", lambda name: name)
    assert scheduler.sightings({"7", "8"}) == {
        "7_0": Sighting("CANCELLED"),
        "7_1": Sighting("TIMEOUT"),
        "8": Sighting("RUNNING"),
    }
    assert "--jobs=7" in asked[-1]


def test_a_scheduler_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "scontrol"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SchedulerError, match=r"Slurm does not answer: scontrol took more than 0\.2 s"):
        scheduler._ask(["scontrol", "ping"], time_limit_s=0.2)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(SchedulerError, match="there is no Slurm here"):
        scheduler.check_reachable()


def test_a_command_line_without_its_submission() -> None:
    @click.command(cls=Submittable)
    @submit_options
    @click.option("-n")
    @click.option("-o", "--output")
    @click.option("--on/--off", default=None)
    @click.option("--fail", multiple=True)
    @click.option("--no-cache", "cached", flag_value=False, default=True)
    @click.pass_context
    def command(context: click.Context, /, **options: object) -> None:
        click.echo(json.dumps(own_arguments(context, "output")))

    from click.testing import CliRunner

    arguments = ["-n", "3", "--submit", "h100", "--no-cache", "--slurm=time=5", "--slurm", "cpus=1", "--detach", "-n4"]
    arguments += ["--off", "--on", "--fail", "a", "--fail=b", "-o", "x"]
    assert json.loads(CliRunner().invoke(command, arguments).output) == [
        "-n",
        "4",
        "--no-cache",
        "--on",
        "--fail",
        "a",
        "--fail",
        "b",
    ]


def test_a_logs_new_lines(tmp_path: Path) -> None:
    path, tail = tmp_path / "log", LogTail()
    assert tail.new_lines(None) == []
    path.write_bytes(b"one\ntw")
    assert tail.new_lines(path) == ["one"]
    with path.open("ab") as file:
        file.write(b"o\nthree")
    assert tail.new_lines(path) == ["two"]


def test_states_are_counted_in_their_order() -> None:
    tasks = tuple(TaskStatus(number, "x", state) for number, state in enumerate(("failed", "ok", "pending", "ok")))
    job = Job(Path("x"), "report", "slurm", SlurmSettings(), "", WHEN, ())
    found = status.JobStatus(job, tasks)
    assert (found.summary, found.finished, found.good, found.failed()) == (
        "2 ok, 1 failed, 1 pending",
        False,
        False,
        (0,),
    )


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (2, ["t0: running on n", "t1: pending: Resources", "t0: failed: no file", "t1: running", "t1: ok"]),
        (21, ["{id}: 1 running, 20 pending", "t0: failed: no file", "{id}: 1 failed, 1 running, 19 pending",
              "{id}: 20 ok, 1 failed"]),
    ],
)  # fmt: skip
def test_of_many_tasks_counts_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tasks: int,
    said: list[str],
) -> None:
    job = job_in(tmp_path, tasks)
    rest = range(2, tasks)
    waiting = [TaskStatus(number, f"t{number}", "pending", "Resources") for number in range(tasks)]
    steps = [
        [TaskStatus(0, "t0", "running", node="n"), *waiting[1:]],
        [TaskStatus(0, "t0", "failed", "no file"), TaskStatus(1, "t1", "running"), *waiting[2:]],
        [TaskStatus(0, "t0", "failed", "no file"), *(TaskStatus(number, f"t{number}", "ok") for number in (1, *rest))],
    ]
    monkeypatch.setattr(status, "watch", lambda job: (status.JobStatus(job, tuple(step)) for step in steps))
    assert follow(job).finished
    assert capsys.readouterr().err.splitlines() == [line.format(id=job.id) for line in said]
