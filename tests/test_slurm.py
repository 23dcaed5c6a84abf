"""Jobs on a real Slurm of one node: tasks that end well, fail, are stopped or forgotten are reported as such.

The tasks are command lines that need no model. One that goes on until the test lets it end reads a pipe.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from conftest import Cli
from slurm_node import SlurmNode, missing
from tiny_trace import document, write

from molprof.common.jobs.job import Job, Task, find_job
from molprof.common.jobs.resources import SlurmSettings
from molprof.common.jobs.scheduler import SchedulerError
from molprof.common.jobs.status import JobStatus, job_status, watch
from molprof.common.jobs.submit import requeue, submit

absent = missing()
pytestmark = [
    pytest.mark.skipif(
        bool(absent), reason=f"no Slurm is installed (Debian: slurm-wlm, munge): {', '.join(absent)} not found"
    ),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can start the daemons of a Slurm"),
]
ONE_CORE = SlurmSettings(cpus=1, time="10")
# All that `overdue` leaves, which itself is where nothing can push it aside.
ALL_CORES = SlurmSettings(cpus=3, time="10")
URGENT = SlurmSettings(partition="urgent", cpus=1, time="10")


def report(name: str) -> Task:
    """A task that reports `NAME.json` into `NAME.out.json`."""
    output = str(Path(f"{name}.out.json").absolute())
    return Task(name, ("report", f"{name}.json", "--no-cache", "--format", "json", "-o", output), output)


def endless(name: str) -> Task:
    """A task that runs until something is written into its pipe."""
    os.mkfifo(f"{name}.json")
    return report(name)


def until(job: Job, condition: Callable[[JobStatus], bool]) -> JobStatus:
    """The first status that satisfies the condition; a job that ends without it is the test's failure."""
    for status in watch(job):
        if condition(status):
            return status
    raise AssertionError(f"{job.id} ended without: {status}")


def ended(job: Job) -> JobStatus:
    return until(job, lambda status: status.finished)


def running(status: JobStatus) -> bool:
    """Every task runs, and has said so itself."""
    return all(task.state == "running" and task.node for task in status.tasks)


def states(status: JobStatus) -> list[str]:
    return [task.state for task in status.tasks]


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmNode]:
    """The daemons, in a folder whose name is short enough for a socket; none of their processes may stay."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    node = SlurmNode(folder)
    try:
        node.start()
        yield node
    finally:
        left = node.stop()
        shutil.rmtree(folder)
    assert left == []


@pytest.fixture(scope="module")
def overdue(slurm: SlurmNode, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job whose time is up at once, which Slurm acts upon within half a minute."""
    folder = tmp_path_factory.mktemp("overdue")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        job = submit(folder / "jobs", "report", [endless("late")], "slurm", URGENT)
    until(job, running)
    end = (datetime.now() + timedelta(seconds=3)).isoformat(timespec="seconds")
    subprocess.run(["scontrol", "update", f"jobid={job.slurm_task_id(0)}", f"EndTime={end}"], check=True)
    return job


@pytest.fixture
def here(slurm: SlurmNode, overdue: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder, which is the current one, as if from inside an interactive job."""
    monkeypatch.chdir(tmp_path)
    # srun refuses both kinds of memory together.
    for name, value in (
        ("JOB_ID", "77"), ("MEM_PER_CPU", "100"), ("MEM_PER_NODE", "200"), ("NTASKS", "4"), ("CPUS_PER_TASK", "3"),
        ("ARRAY_JOB_ID", "70"), ("ARRAY_TASK_ID", "7"),
    ):  # fmt: skip
        monkeypatch.setenv(f"SLURM_{name}", value)
    return tmp_path


def test_a_command_follows_its_job_and_leaves_its_results(here: Path, molprof: Cli) -> None:
    (here / "molprof.toml").write_text('[slurm.small]\ntime = 5\ncpus = 1\nsetup = ["echo prepared"]\n')
    names = [write(here / f"{name}.json", document()).name for name in "ab"]
    done = molprof("report", *names, "absent.json", "-o", "out", "--format", "csv", "--submit", "small")
    assert (done.returncode, done.stdout) == (3, "")
    assert "submitted report-1: Slurm job " in done.stderr
    assert "1 of 3 tasks of report-1 did not end well: absent: failed: cannot read absent.json" in done.stderr
    assert sorted(path.name for path in (here / "out").iterdir()) == ["a.csv", "b.csv"]
    log = molprof("jobs", "logs", "1", "absent").stdout
    assert log.startswith("== 2 absent\nprepared\n")
    assert "molprof: error: cannot read absent.json" in log
    (listed,) = json.loads(molprof("jobs", "--format", "json").stdout)
    assert (listed["id"], listed["cluster"], listed["finished"]) == ("report-1", "small", True)
    assert [(task["state"], task["exit_code"]) for task in listed["tasks"]] == [("ok", 0), ("ok", 0), ("failed", 2)]
    job = find_job(here / ".molprof/jobs", "1")
    assert json.loads(job.record_path(0).read_text())["state"] == "ok"


def test_tasks_read_the_traces_of_a_command_that_waits(here: Path, molprof: Cli) -> None:
    write(here / "a.json", document())
    (here / "cut.json").write_text('{"traceEvents": [')
    rows = ("report", "rows", "a.json", "cut.json", "--no-cache", "--format", "json")
    there = molprof(*rows, "--on", "slurm", "--slurm", "cpus=1")
    assert (there.returncode, there.stdout) == (3, molprof(*rows).stdout)
    assert "1 of 2 traces read, 1 failed because cut.json is truncated" in there.stderr
    job = find_job(here / ".molprof/jobs", "rows-1")
    assert [task.name for task in job.tasks] == ["a.json", "cut.json"]
    assert states(job_status(job)) == ["ok", "ok"]


def test_failed_and_cancelled_tasks_are_told_and_queued_again(here: Path, molprof: Cli) -> None:
    silent = SlurmSettings(cpus=1, time="10", setup=("exit 7",))
    never = submit(here / ".molprof/jobs", "report", [report("a")], "slurm", silent)
    job = submit(here / ".molprof/jobs", "report", [report("bad"), endless("long")], "slurm", ONE_CORE)
    until(job, lambda status: states(status) == ["failed", "running"] and status.tasks[1].node is not None)
    assert molprof("jobs", "cancel", "2").stderr == "cancelled 1 of 2 tasks of report-2\n"
    assert states(ended(job)) == ["failed", "cancelled"]
    for name in ("bad", "long"):
        (here / f"{name}.json").unlink(missing_ok=True)
        write(here / f"{name}.json", document())
    assert "submitted 2 of 2 tasks of report-2 again" in molprof("jobs", "requeue", "2").stderr
    again = find_job(here / ".molprof/jobs", "report-2")
    assert [attempt.tasks for attempt in again.attempts] == [(0, 1), (0, 1)]
    assert states(ended(again)) == ["ok", "ok"]
    assert molprof("jobs", "collect", "2").returncode == 0
    nothing = molprof("jobs", "requeue", "2")
    assert (nothing.returncode, "has no task to submit again: 2 ok" in nothing.stderr) == (2, True)
    (task,) = ended(never).tasks
    message = "Slurm says FAILED, and the task wrote no reason; see molprof jobs logs report-1 0"
    assert (task.state, task.message) == ("failed", message)


def test_a_task_that_others_push_aside_is_preempted(here: Path) -> None:
    job = submit(here / "jobs", "report", [endless("a")], "slurm", ALL_CORES)
    until(job, running)
    command = ["sbatch", "--partition=urgent", "--cpus-per-task=3", "--output=/dev/null", "--wrap=true"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=clean)
    assert states(ended(job)) == ["preempted"]
    (here / "a.json").unlink()
    write(here / "a.json", document())
    assert states(ended(requeue(job, [0]))) == ["ok"]


def test_what_slurm_refuses_leaves_nothing(here: Path, molprof: Cli) -> None:
    write(here / "a.json", document())
    refused = molprof("report", "a.json", "-o", "a.txt", "--submit", "slurm", "--slurm", "partition=nowhere")
    assert refused.returncode == 3
    assert "Slurm refused the job: invalid partition specified: nowhere; Batch job" in refused.stderr
    assert "sbatch: error" not in refused.stderr
    assert list((here / ".molprof/jobs").iterdir()) == []


def test_a_task_beyond_its_time_has_timed_out(overdue: Job) -> None:
    (task,) = ended(overdue).tasks
    assert (task.state, (task.message or "").startswith("the limit was 0")) == ("timed out", True)


def test_the_scheduler_is_killed_in_the_middle(here: Path, slurm: SlurmNode, molprof: Cli) -> None:
    job = submit(here / ".molprof/jobs", "report", [endless("a"), endless("b")], "slurm", ONE_CORE)
    until(job, running)
    slurm.kill_controller(str(job.attempts[0].slurm_id))
    try:
        with pytest.raises(SchedulerError, match=r"scontrol: Slurmctld.* is DOWN"):
            submit(here / ".molprof/jobs", "report", [report("c")], "slurm", ONE_CORE)
        assert [path.name for path in (here / ".molprof/jobs").iterdir()] == ["report-1"]
        # A task ends well meanwhile, and says so without a scheduler.
        (here / "a.json").write_text(json.dumps(document()))
        while job_status(job).tasks[0].state != "ok":
            time.sleep(0.5)
        collected = molprof("jobs", "collect", "1")
        assert (collected.returncode, "Slurm does not answer" in collected.stderr) == (3, True)
        assert [line.split(maxsplit=3)[2] for line in collected.stdout.splitlines()[2:]] == ["ok", "unknown"]
    finally:
        slurm.start_controller()
    (here / "b.json").write_text(json.dumps(document()))
    assert states(ended(job)) == ["ok", "ok"]
    assert {path.name for path in here.glob("*.out.json")} == {"a.out.json", "b.out.json"}
