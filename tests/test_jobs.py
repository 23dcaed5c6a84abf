"""Jobs without a cluster: states follow from tasks' records and Slurm's reports; a job's folder; many cases here.

Slurm's commands are scripts that print what a test puts into files.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from conftest import Cli
from rank_traces import events, write_rank
from tiny_trace import document, write

from molprof.commands.submission import Submittable, follow, own_arguments, submit_options
from molprof.common.bench_records import read_sweep
from molprof.common.errors import RunError, UsageError
from molprof.common.jobs.job import Attempt, Job, Task, all_jobs, find_job, new_job_folder, read_job, write_json
from molprof.common.jobs.resources import SlurmSettings
from molprof.common.jobs.scheduler import SchedulerError, check_reachable
from molprof.common.jobs.status import JobStatus, TaskStatus, job_status, unfinished, watch
from molprof.common.jobs.submit import run_task

WHEN = "2026-01-01T00:00:00+00:00"
DOWN = "Slurmctld(primary) at node is DOWN"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says what `squeue` and `sacct` print; None: the controller is down."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    scripts = {
        "scontrol": f"test ! -e down || {{ echo '{DOWN}'; exit 1; }}; case $1 in --oneliner) cat job.txt;; esac",
        "squeue": "cat squeue.txt", "sacct": "cat sacct.txt", "srun": "exit 1",
        "sbatch": "test ! -e refused || { echo 'sbatch: error: no such partition' >&2; exit 1; }\n"
        "echo Submitted batch job 7",
        "scancel": 'echo "$@" > cancelled',
    }  # fmt: skip
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\ncd {folder}\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def say(squeue: str | None, sacct: str = "", job: str = "") -> None:
        (folder / "down").unlink(missing_ok=True)
        for name, text in (("squeue", squeue or ""), ("sacct", sacct), ("job", job)):
            (folder / f"{name}.txt").write_text(text)
        if squeue is None:
            (folder / "down").touch()

    say("")
    return say


def job_in(folder: Path, tasks: int = 1, slurm_id: str | None = "7", **more: Any) -> Job:
    place = new_job_folder(folder, "report")
    names = tuple(Task(f"t{number}", ("report", f"{number}.json"), f"/{number}.txt") for number in range(tasks))
    attempt = Attempt(tuple(range(tasks)), slurm_id, WHEN)
    settings = SlurmSettings(cpus=2, setup=("x",))
    job = Job(place, "report", "slurm", settings, str(folder), WHEN, names, (attempt,), **more)
    job.save()
    return job


@pytest.mark.parametrize(
    ("wrote", "says", "state", "message"),
    [
        (None, "7|PENDING|Resources", "pending", "Resources"),
        (None, "7|PENDING|None", "pending", None),
        (None, "7|RUNNING|None", "running", None),
        ("running", "7|COMPLETING|None", "running", None),
        ("running", "7|OUT_OF_MEMORY|None", "out of memory", "said"),
        ("running", "7|TIMEOUT|TimeLimit", "timed out", "said"),
        (None, "7|CANCELLED|None", "cancelled", None),
        ("ok", "7|CANCELLED|None", "ok", "said"),
        ("failed", "", "failed", "said"),
        ("stopped", "7|PREEMPTED|None", "preempted", "said"),
        ("stopped", "", "stopped", "said"),
        ("timed out", "", "timed out", "said"),
        ("cancelled", "7|COMPLETING|None", "cancelled", "said"),
        ("preempted", "7|PENDING|None", "pending", "requeued after it was preempted"),
        ("running", "", "lost", "Slurm no longer knows it, and it did not write that it ended"),
        ("running", "7|FAILED|x", "failed",
         "Slurm says FAILED, and the task wrote no reason; see molprof jobs logs report-1 0"),
        ("running", None, "unknown", "it was running"),
        (None, None, "unknown", "it had not started"),
        ("cancelled", None, "cancelled", "said"),
        ("asleep", "7|RUNNING|None", "running", None),
    ],
)  # fmt: skip
def test_a_tasks_state(
    slurm: Callable[..., None], tmp_path: Path, wrote: str | None, says: str | None, state: str, message: str | None
) -> None:
    job = job_in(tmp_path / "jobs")
    if wrote is not None:
        write_json(job.record_path(0), {"attempt": 0, "state": wrote, "message": "said", "node": "n1", "exit_code": 0})
    slurm(says)
    status = job_status(job)
    (task,) = status.tasks
    assert (task.state, task.message, task.slurm_id) == (state, message, "7")
    assert (status.problem or "").startswith(f"scontrol: {DOWN}" if says is None and wrote != "failed" else "")


def test_what_slurm_says_of_arrays_is_kept_when_it_forgets(slurm: Callable[..., None], tmp_path: Path) -> None:
    job = job_in(tmp_path / "jobs", tasks=3)
    slurm("7_0|PREEMPTED|None\n7_1|RUNNING|None\n8_0|FAILED|None\n7_2|PENDING|None")
    assert job_status(job).summary == "1 preempted, 1 running, 1 pending"
    assert unfinished(tmp_path / "jobs", {"/0.txt", "/1.txt"}) == {"/1.txt": "report-1"}
    slurm("")
    assert job_status(job).summary == "1 preempted, 2 lost"
    slurm("", "7_1|CANCELLED by 1000\n7_2|TIMEOUT\n")  # accounting knows them longer
    assert job_status(job).summary == "1 timed out, 1 preempted, 1 cancelled"
    other = job_in(tmp_path / "jobs", tasks=2)  # tasks that were cancelled unstarted are listed by their array
    slurm("7|CANCELLED|None\n7_0|RUNNING|None")
    assert job_status(other).summary == "1 cancelled, 1 running"


def test_another_attempt_starts_anew(slurm: Callable[..., None], tmp_path: Path) -> None:
    job = job_in(tmp_path / "jobs", tasks=2)
    write_json(job.record_path(1), {"attempt": 0, "state": "failed", "message": "once"})
    again = replace(job, attempts=(*job.attempts, Attempt((1,), "9", WHEN)))
    slurm("7_0|RUNNING|None\n9|PENDING|None")
    found = [(task.state, task.message, task.slurm_id) for task in job_status(again).tasks]
    assert found == [("running", None, "7_0"), ("pending", None, "9")]


def test_a_submission_that_was_cut_short(slurm: Callable[..., None], tmp_path: Path) -> None:
    job = job_in(tmp_path / "jobs", slurm_id=None)
    assert job_status(read_job(job.folder)).tasks[0].message == "its submission was interrupted before Slurm had it"
    job.attempt_folder(0).mkdir()
    (job.attempt_folder(0) / "31_submission.sh").touch()
    assert read_job(job.folder).slurm_task_id(0) == "31"


def test_a_jobs_file_comes_back_whole(tmp_path: Path) -> None:
    first, second = job_in(tmp_path), job_in(tmp_path, tasks=3, data={"output": "x"})
    assert (first.id, second.id) == ("report-1", "report-2")
    assert find_job(tmp_path, "2") == find_job(tmp_path, "report-2") == second
    assert all_jobs(tmp_path) == ([first, second], [])
    assert [second.slurm_task_id(number) for number in range(3)] == ["7_0", "7_1", "7_2"]
    with pytest.raises(UsageError, match="no job '3'") as raised:
        find_job(tmp_path, "3")
    assert raised.value.hint == "the latest: report-1, report-2"
    for damage, message in (
        ("{", "cannot be read"), ('{"schema": 9}', "schema 9; this molprof reads 1"),
        ('{"schema": 1}', "kind: expected `str`"),
    ):  # fmt: skip
        (first.folder / "job.json").write_text(damage)
        with pytest.raises(RunError, match=message):
            read_job(first.folder)
    readable, problems = all_jobs(tmp_path)
    assert (readable, len(problems)) == ([second], 1)


def test_a_scheduler_that_is_down_or_absent(
    slurm: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in(tmp_path / "jobs")
    check_reachable()
    slurm(None)
    with pytest.raises(SchedulerError, match="report-1 can no longer be followed: scontrol: ") as raised:
        list(watch(job, patience_s=0))
    assert raised.value.hint == (
        "its tasks go on and write their results; collect them later with molprof jobs collect report-1"
    )
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(SchedulerError, match="there is no Slurm here: not all of sbatch, srun"):
        check_reachable()


@pytest.mark.parametrize(
    ("fields", "state", "message"),
    [
        (None, "ok", None),
        ("JobId=7 Reason=TimeLimit TimeLimit=00:01:00", "timed out", "the limit was 00:01:00"),
        ("JobId=7 Reason=None PreemptTime=2026-01-01T00:00:00", "preempted", None),
        ("JobId=7 Reason=None PreemptTime=None", "cancelled", None),
        ("", "cancelled", None),
    ],
)
def test_a_task_runs_and_writes_how_it_ended(
    slurm: Callable[..., None], tmp_path: Path, fields: str | None, state: str, message: str | None
) -> None:
    """In a process, which Slurm's SIGTERM stops unless `fields` is None."""
    job = job_in(tmp_path / "jobs")
    slurm("", job=fields or "")
    if fields is None:
        write(tmp_path / "jobs/0.json", document())
    else:
        os.mkfifo(tmp_path / "jobs/0.json")
    environment = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    pid = os.fork()
    if not pid:
        try:
            os.environ.update(environment)
            os.dup2(os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT), 1)
            run_task(str(job.folder), 0)
        except SystemExit as ended:
            os._exit(int(ended.code or 0))
        finally:
            os._exit(99)
    if fields is not None:
        with (tmp_path / "jobs/0.json").open("wb"):  # opens when the command line has opened it
            os.kill(pid, 15)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    record = json.loads(job.record_path(0).read_text())
    assert (record["state"], record["message"]) == (state, message)
    assert (code, record["exit_code"]) == ((0, 0) if fields is None else (143, 143))
    assert (record["attempt"], record["node"]) == (0, "n1")
    assert record["started"] <= record["ended"]


def test_commands_show_jobs_and_cancel_them(slurm: Callable[..., None], molprof: Cli, tmp_path: Path) -> None:
    job = job_in(tmp_path / ".molprof/jobs", tasks=2)
    write_json(job.record_path(0), {"attempt": 0, "state": "failed", "message": "no \x1b", "node": "n1"})
    slurm("7_1|RUNNING|None")
    listed = " ".join(molprof("jobs").stdout.split())
    assert f"report-1 slurm {WHEN} 1 failed, 1 running /" in listed
    assert molprof("jobs", "1").stdout == (
        "  task  name  state    slurm  node  message\n"
        "  ----  ----  -------  -----  ----  -------\n"
        "     0  t0    failed   7_0    n1    no \\x1b\n"
        "     1  t1    running  7_1    -\n"
    )
    (told,) = json.loads(molprof("jobs", "1", "--format", "json").stdout)
    assert (told["id"], told["kind"], told["finished"], told["problem"]) == ("report-1", "report", False, None)
    assert (told["tasks"][0]["arguments"], told["tasks"][0]["output"]) == (["report", "0.json"], "/0.txt")
    assert molprof("jobs", "cancel", "1").stderr == "cancelled 1 of 2 tasks of report-1\n"
    assert (tmp_path / "slurm/cancelled").read_text() == "7_1\n"
    early = molprof("jobs", "collect", "1")
    assert (early.returncode, "report-1 has not ended" in early.stderr) == (3, True)
    slurm(None)
    assert "Slurm does not answer, so these are the states that the tasks wrote" in molprof("jobs").stderr
    slurm("7_1|TIMEOUT|None")
    done = molprof("jobs", "collect", "1", "--wait")
    assert "2 of 2 tasks of report-1 did not end well: t0: failed: no \\x1b" in done.stderr
    assert molprof("jobs", "logs", "1", "t1").stdout == "== 1 t1\n(nothing yet)\n"


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (2, ["t0: running on n", "t1: pending: Resources", "t0: failed: no file", "t1: ok"]),
        (21, ["{id}: 1 running, 20 pending", "t0: failed: no file", "{id}: 20 ok, 1 failed"]),
    ],
)
def test_of_many_tasks_counts_are_told(
    slurm: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path, tasks: int, said: list[str]
) -> None:
    job = job_in(tmp_path / "jobs", tasks)
    waiting = "".join(f"\n7_{number}|PENDING|Resources" for number in range(1, tasks))
    slurm(f"7_0|RUNNING|None{waiting}")
    write_json(job.record_path(0), {"attempt": 0, "state": "running", "node": "n"})

    def ending() -> None:
        write_json(job.record_path(0), {"attempt": 0, "state": "failed", "message": "no file"})
        for number in range(1, tasks):
            write_json(job.record_path(number), {"attempt": 0, "state": "ok"})

    timer = threading.Timer(0.5, ending)
    timer.start()
    assert follow(job).finished
    timer.join()
    assert capsys.readouterr().err.splitlines() == [line.format(id=job.id) for line in said]


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

    arguments = ["-n", "3", "--submit", "h100", "--no-cache", "--slurm=time=5", "--slurm", "cpus=1", "--detach", "-n4"]
    arguments += ["--off", "--on", "--fail", "a", "--fail=b", "-o", "x"]
    found = json.loads(CliRunner().invoke(command, arguments).output)
    assert found == ["-n", "4", "--no-cache", "--on", "--fail", "a", "--fail", "b"]


def test_commands_become_tasks_and_nothing_is_submitted_twice(
    slurm: Callable[..., None], molprof: Cli, tmp_path: Path
) -> None:
    jobs = tmp_path / ".molprof/jobs"
    submitting = ("--submit", "slurm", "--slurm", "cpus=1", "--slurm", "parallel=2", "--detach")
    (tmp_path / "grid.toml").write_text('[grid]\nmodel = ["qwen"]\nprocessor = ["none", "lp"]\n')
    sweep = ("sweep", "grid.toml", *submitting)
    assert molprof(*sweep).stdout == "sweep-1\n"
    slurm("7_0|RUNNING|None\n7_1|PENDING|None")
    twice = molprof(*sweep)
    assert (twice.returncode, twice.stderr.splitlines()[0]) == (
        2, "molprof: error: sweep-1 has not finished 2 cases of grid",
    )  # fmt: skip
    again = molprof(*sweep, "--resume")
    assert again.stderr == "skipped 2 cases that sweep-1 has not finished: molprof jobs collect sweep-1\n"
    slurm("7_0|TIMEOUT|None\n7_1|CANCELLED|None")
    done = molprof("jobs", "collect", "sweep-1")
    assert "2 of 2 tasks of sweep-1 did not end well: none: timed out" in done.stderr
    assert [(entry.status, entry.job) for entry in read_sweep(tmp_path / "grid").results] == [
        ("timed out", "sweep-1"), ("cancelled", "sweep-1"),
    ]  # fmt: skip
    measured = ("sweep", "batch", "--model", "qwen", "--batch-size", "1,8", "--tasks", "2", *submitting)
    assert molprof(*measured).stdout == "sweep-2\n"
    own = ("sweep", "batch", "--model", "qwen", "--batch-size", "1,8", "--resume", "--share")
    assert [task.arguments for task in find_job(jobs, "2").tasks] == [
        (*own, f"{number}/2", "-o", "batch") for number in (1, 2)
    ]
    bench = ("bench", "sdpa", "--backend", "math,flash", "--device", "cpu", "-o", "b.jsonl", "--tasks", "2")
    assert molprof(*bench, *submitting).stdout == "bench-3\n"
    job = find_job(jobs, "3")
    own = ("bench", "sdpa", "--backend", "math,flash", "--device", "cpu", "--resume", "--share")
    assert [task.arguments for task in job.tasks] == [
        (*own, f"{number}/2", "-o", str(tmp_path / f"b.{number}-of-2.jsonl")) for number in (1, 2)
    ]
    assert (job.slurm.cpus, job.slurm.parallel) == (1, 2)
    capture = ("capture", "--model", "qwen", "--lp", "-n", "1", "-o", "a.json")
    assert molprof(*capture, *submitting).stdout == "capture-4\n"
    assert find_job(jobs, "4").tasks == (Task("a", capture, str(tmp_path / "a.json")),)
    script = next((jobs / "capture-4/attempt-1").glob("*.sh")).read_text()
    assert "#SBATCH --job-name=molprof-capture-4" in script
    assert "#SBATCH --cpus-per-task=1" in script
    slurm("7|COMPLETED|None")
    collected = molprof("jobs", "collect", "capture-4")
    assert (
        "a: failed: Slurm says COMPLETED, and the task wrote no reason; see molprof jobs logs capture-4 0"
        in collected.stderr
    )
    (tmp_path / "slurm/refused").touch()
    refused = molprof(*capture, *submitting)
    assert "Slurm refused the job: no such partition" in refused.stderr
    refused = molprof("report", "rows", "a.json", "--no-cache", "--on", "slurm")
    assert (refused.returncode, "Slurm refused the job: no such partition" in refused.stderr) == (3, True)
    both = molprof("report", "a.json", "--on", "slurm", "--submit", "slurm")
    assert (both.returncode, "--on waits for what others read" in both.stderr) == (2, True)
    assert sorted(path.name for path in jobs.iterdir()) == ["bench-3", "capture-4", "sweep-1", "sweep-2"]


def test_ranks_are_read_by_tasks(slurm: Callable[..., None], molprof: Cli, tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path / f"{rank}.json", rank, events(late=20 * rank), world_size=2)
    command = ("ranks", "0.json", "1.json", "--format", "json", "--parts", "parts")
    assert molprof("ranks", "0.json", "--format", "json", "--parts", "parts").returncode == 0
    sent = molprof(*command, "--submit", "slurm", "--detach")
    assert sent.stderr.startswith("parts has 1 of 2 files\nsubmitted ranks-1: Slurm job 7, 1 task; ")
    (task,) = find_job(tmp_path / ".molprof/jobs", "1").tasks
    assert task.arguments == ("ranks", "1.json", "--parts", "parts")
    slurm("7|RUNNING|None")
    busy = molprof(*command, "--submit", "slurm", "--detach")
    assert "ranks-1 has not read 1 file yet" in busy.stderr


def test_states_are_counted_in_their_order() -> None:
    tasks = tuple(TaskStatus(number, "x", state) for number, state in enumerate(("failed", "ok", "pending", "ok")))
    found = JobStatus(Job(Path("x"), "report", "slurm", SlurmSettings(), "", WHEN, ()), tasks)
    assert (found.summary, found.finished, found.good) == ("2 ok, 1 failed, 1 pending", False, False)
    assert found.failed() == (0,)
