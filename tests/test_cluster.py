"""Jobs without a cluster: a task's state from what it wrote and what Slurm says; its process; its job's folder."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import click
import pytest

from molprof.commands.submission import Submittable, own_arguments, submit_options
from molprof.common import process
from molprof.common.errors import RunError, UsageError
from molprof.common.process import run_child
from molprof.profiler.cluster import scheduler, status
from molprof.profiler.cluster.follow import LogTail
from molprof.profiler.cluster.job import Attempt, Job, Task, all_jobs, find_job, new_job_folder, read_job, write_json
from molprof.profiler.cluster.scheduler import SchedulerError, Sighting
from molprof.profiler.cluster.settings import SlurmSettings
from molprof.profiler.cluster.status import TaskStatus, job_status

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
        ("preempted", {"7": Sighting("PENDING")}, "pending", "again, after it was preempted"),
        ("running", {}, "lost", "Slurm no longer knows it, and it left no word"),
        (None, {}, "lost", "Slurm no longer knows it, and it left no word"),
        ("running", "no answer", "unknown", "running when last heard of"),
        (None, "no answer", "unknown", "not started when last heard of"),
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
        "Slurm says FAILED and the task left no word; molprof logs report-1 0 may say why"
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


def test_a_childs_end_is_told(tmp_path: Path) -> None:
    log = io.BytesIO()
    ending = run_child(["report", "absent.json"], tmp_path, log)
    assert (ending.state, ending.exit_code) == ("failed", 3)
    assert ending.message == "cannot read absent.json: No such file or directory"
    assert log.getvalue().startswith(b"molprof: error: cannot read absent.json")
    ending = run_child(["queries"], tmp_path, log := io.BytesIO())
    assert (ending.state, ending.exit_code, ending.message) == ("ok", 0, None)
    assert b"idle_causes" in log.getvalue()


def test_a_child_that_hangs_is_stopped_at_its_limit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hang.json")
    ending = run_child(["report", "hang.json"], tmp_path, log := io.BytesIO(), limit_s=8.0)
    assert (ending.state, ending.message) == ("timed out", "stopped at its limit of 8 s")
    assert log.getvalue().endswith(b"molprof: error: interrupted; no file was changed\n")


def test_a_child_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\n"
    monkeypatch.setattr(process, "command_line", lambda arguments: [sys.executable, "-c", f"{deaf}time.sleep(60)"])
    monkeypatch.setattr(process, "GRACE_S", 0.5)
    ending = run_child([], tmp_path, log := io.BytesIO(), limit_s=3.0)
    assert (ending.state, ending.exit_code, log.getvalue()) == ("timed out", -9, b"deaf\n")


def test_a_child_that_left_a_chatterer_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import subprocess; subprocess.Popen(['yes', 'still here']); print('done', flush=True)"
    monkeypatch.setattr(process, "command_line", lambda arguments: [sys.executable, "-c", script])
    ending = run_child([], tmp_path, log := io.BytesIO(), limit_s=60.0)
    assert (ending.state, ending.exit_code) == ("ok", 0)
    assert b"done" in log.getvalue()


def test_a_child_does_not_outlive_whoever_started_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hang.json")
    code = (
        "import subprocess, sys\n"
        "from molprof.common.process import command_line\n"
        "child = subprocess.Popen(command_line(['report', 'hang.json']), start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    other = int(parent.stdout.readline())
    with (tmp_path / "hang.json").open("wb"):  # opens when the child has opened it
        parent.kill()
        parent.wait()
        parent.stdout.close()
        for _ in range(100):
            if not _lives(other):
                break
            threading.Event().wait(0.1)
    assert not _lives(other)


def _lives(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def test_a_child_killed_by_a_signal_names_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hang.json")
    found: list[int] = []

    def kill() -> None:
        with (tmp_path / "hang.json").open("wb"):
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit() and int(entry.name) != os.getpid():
                    try:
                        line = (entry / "cmdline").read_bytes()
                        if b"hang.json" in line and str(os.getpid()).encode() in line.split(b"\0"):
                            found.append(int(entry.name))
                            os.kill(int(entry.name), signal.SIGKILL)
                    except OSError:
                        continue

    killer = threading.Thread(target=kill)
    killer.start()
    ending = run_child(["report", "hang.json"], tmp_path, io.BytesIO())
    killer.join()
    assert len(found) == 1
    assert (ending.state, ending.exit_code) == ("failed", -9)
    assert ending.message == "killed by SIGKILL, as the system does when memory runs out"


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
