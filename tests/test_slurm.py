"""Jobs on a real Slurm of one node: what a user sees of tasks that end well, fail, are stopped or forgotten.

The tasks are command lines that need no model. One that goes on until the test lets it end reads a pipe.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from conftest import Cli
from rank_traces import events, write_rank
from slurm_jobs import ONE_CORE, ended, endless, report, running, states, until
from slurm_node import SlurmNode, missing
from tiny_trace import document, slice_, write

from molprof.common.errors import MissingExtraError, UsageError
from molprof.profiler.jobs.index import Entry, read_index, write_index
from molprof.profiler.jobs.job import Job, find_job
from molprof.profiler.jobs.resources import SlurmSettings
from molprof.profiler.jobs.scheduler import SchedulerError
from molprof.profiler.jobs.status import job_status, watch
from molprof.profiler.jobs.submit import requeue, submit

absent = missing()
pytestmark = [
    pytest.mark.skipif(
        bool(absent), reason=f"no Slurm is installed (Debian: slurm-wlm, munge): {', '.join(absent)} not found"
    ),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can start the daemons of a Slurm"),
]
# All that `overdue` leaves, which itself is where nothing can push it aside.
ALL_CORES = SlurmSettings(cpus=3, time_minutes=10)
URGENT = SlurmSettings(partition="urgent", cpus=1, time_minutes=10)


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
    """An empty project folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_command_follows_its_job_and_leaves_its_result(here: Path, molprof: Cli) -> None:
    write(here / "a.json", document())
    (here / "molprof.toml").write_text('[slurm.small]\ntime = 5\ncpus = 1\nsetup = ["echo prepared"]\n')
    done = molprof("report", "a.json", "--format", "json", "-o", "out.json", "--submit", "small")
    assert done.returncode == 0, done.stderr
    assert json.loads((here / "out.json").read_text())["counts"]["launches"] == 4
    assert (done.stdout, "submitted report-1: Slurm job " in done.stderr) == ("", True)
    assert "a: ok\nreport-1: 1 ok\n" in done.stderr
    log = molprof("logs", "1").stdout
    assert log.startswith("prepared\n")
    assert log.endswith("\nwrote out.json\n")
    (listed,) = json.loads(molprof("jobs", "--format", "json").stdout)
    assert (listed["id"], listed["cluster"], listed["finished"]) == ("report-1", "small", True)
    assert [(task["state"], task["exit_code"]) for task in listed["tasks"]] == [("ok", 0)]


def test_a_job_may_be_submitted_from_inside_another_one(
    here: Path, molprof: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here / "a.json", document())
    # As in an interactive job; srun refuses both kinds of memory together.
    for name, value in (
        ("JOB_ID", "77"), ("MEM_PER_CPU", "100"), ("MEM_PER_NODE", "200"), ("NTASKS", "4"), ("CPUS_PER_TASK", "3"),
        ("ARRAY_JOB_ID", "70"), ("ARRAY_TASK_ID", "7"),
    ):  # fmt: skip
        monkeypatch.setenv(f"SLURM_{name}", value)
    done = molprof("report", "a.json", "--format", "json", "-o", "out.json", "--submit", "slurm", "--slurm", "cpus=1")
    assert done.returncode == 0, done.stderr
    record = json.loads((here / ".molprof/jobs/report-1/tasks/0.json").read_text())
    job = find_job(here / ".molprof/jobs", "1")
    assert (record["state"], record["slurm_id"]) == ("ok", job.slurm_task_id(0))


def test_a_detached_job_is_collected_by_its_id(here: Path, molprof: Cli) -> None:
    write(here / "a.json", document())
    write(here / "b.json", document())
    sent = molprof(
        "report", "a.json", "b.json", "absent.json", *("-o", "reports", "--format", "csv", "--submit", "slurm"),
        *("--slurm", "cpus=1", "--slurm", "parallel=2", "--detach"),
    )  # fmt: skip
    assert (sent.returncode, sent.stdout) == (0, "report-1\n")
    collected = molprof("collect", "report-1", "--wait")
    assert collected.returncode == 3
    assert [line.split()[1:3] for line in collected.stdout.splitlines()[2:]] == [
        ["a", "ok"],
        ["b", "ok"],
        ["absent", "failed"],
    ]
    assert "1 of 3 tasks of report-1 did not end well: absent: failed: cannot read absent.json" in collected.stderr
    assert sorted(path.name for path in (here / "reports").iterdir()) == ["a.csv", "b.csv"]
    assert "molprof: error: cannot read absent.json" in molprof("logs", "1", "absent").stdout


def test_ranks_are_read_by_an_array_and_put_together(here: Path, molprof: Cli) -> None:
    paths = [write_rank(here / f"{rank}.json", rank, events(late=20 * rank), world_size=3) for rank in range(3)]
    whole = paths[2].read_bytes()
    paths[2].write_bytes(whole[:-200])
    command = ("ranks", *(path.name for path in paths), "--format", "json")
    on_cluster = (*command, "--parts", "parts", "--submit", "slurm", "--slurm", "cpus=1")
    assert "1 of 3 tasks of ranks-1 did not end well: 2: failed: 2.json is" in molprof(*on_cluster).stderr
    paths[2].write_bytes(whole)
    done = molprof(*on_cluster)  # reads what is missing
    assert "parts has 2 of 3 files\nsubmitted ranks-2: Slurm job" in done.stderr
    assert done.stdout == molprof(*command).stdout
    next((here / "parts").iterdir()).unlink()
    assert molprof(*on_cluster, "--detach").stdout == "ranks-3\n"
    assert "next, once all ranks are read: molprof ranks /" in molprof("collect", "3", "--wait").stderr


def test_failed_and_cancelled_tasks_are_told_and_queued_again(here: Path, molprof: Cli) -> None:
    write(here / "good.json", document())
    job = submit(here / ".molprof/jobs", "report", [report("good"), report("bad"), endless("long")], "slurm", ONE_CORE)
    until(job, lambda status: states(status) == ["ok", "failed", "running"] and status.tasks[2].node is not None)
    early = molprof("collect", "1")
    assert (early.returncode, "report-1 has not ended" in early.stderr) == (3, True)
    assert molprof("jobs", "1", "--cancel").stderr == "cancelled 1 of 3 tasks of report-1\n"
    status = ended(job)
    assert states(status) == ["ok", "failed", "cancelled"]
    assert status.summary == "1 ok, 1 failed, 1 cancelled"
    assert status.tasks[1].message is not None
    assert status.tasks[1].message.startswith("cannot read bad.json")
    for name in ("bad", "long"):
        (here / f"{name}.json").unlink(missing_ok=True)
        write(here / f"{name}.json", document())
    assert "submitted 2 of 3 tasks of report-1 again" in molprof("jobs", "1", "--requeue").stderr
    again = find_job(here / ".molprof/jobs", "report-1")
    assert [attempt.tasks for attempt in again.attempts] == [(0, 1, 2), (1, 2)]
    assert states(ended(again)) == ["ok", "ok", "ok"]
    assert molprof("collect", "1").returncode == 0
    assert molprof("jobs", "1", "--requeue").returncode == 2


def test_a_task_that_others_push_aside_is_preempted(here: Path) -> None:
    job = submit(here / "jobs", "report", [endless("a")], "slurm", ALL_CORES)
    until(job, running)
    subprocess.run(
        ["sbatch", "--partition=urgent", "--cpus-per-task=3", "--output=/dev/null", "--wrap=true"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert states(ended(job)) == ["preempted"]
    (here / "a.json").unlink()
    write(here / "a.json", document())
    assert states(ended(requeue(job, [0]))) == ["ok"]


def test_a_task_that_was_killed_without_a_word_has_failed(here: Path) -> None:
    silent = SlurmSettings(cpus=1, time_minutes=10, setup=("exit 7",))
    never = submit(here / "jobs", "report", [report("a")], "slurm", silent)
    job = submit(here / "jobs", "report", [endless("b")], "slurm", ONE_CORE)
    until(job, running)
    os.kill(json.loads(job.record_path(0).read_text())["pid"], signal.SIGKILL)
    for item, number in ((never, 1), (job, 2)):
        status = ended(item)
        assert states(status) == ["failed"]
        assert status.tasks[0].message == (
            f"Slurm says FAILED, and the task wrote no reason; see molprof logs report-{number} 0"
        )


def test_the_scheduler_is_killed_in_the_middle(here: Path, slurm: SlurmNode, molprof: Cli) -> None:
    job = submit(here / ".molprof/jobs", "report", [endless("a"), endless("b")], "slurm", ONE_CORE)
    until(job, running)
    slurm.kill_controller(str(job.attempts[0].slurm_id))
    try:
        with pytest.raises(SchedulerError, match=r"can no longer be followed: scontrol: .* is DOWN") as raised:
            list(watch(job, patience_s=0))
        assert raised.value.hint == (
            "its tasks go on and write their results; collect them later with molprof collect report-1"
        )
        with pytest.raises(SchedulerError, match=r"scontrol: Slurmctld.* is DOWN"):
            submit(here / ".molprof/jobs", "report", [report("c")], "slurm", ONE_CORE)
        assert [path.name for path in (here / ".molprof/jobs").iterdir()] == ["report-1"]
        # A task ends well meanwhile, and says so without a scheduler.
        (here / "a.json").write_text(json.dumps(document()))
        while job_status(job).tasks[0].state != "ok":
            time.sleep(0.5)
        collected = molprof("collect", "1")
        assert collected.returncode == 3
        assert "Slurm does not answer" in collected.stderr
        assert [line.split(maxsplit=3)[2] for line in collected.stdout.splitlines()[2:]] == ["ok", "unknown"]
        assert "it was running" in collected.stdout
    finally:
        slurm.start_controller()
    (here / "b.json").write_text(json.dumps(document()))
    assert states(ended(job)) == ["ok", "ok"]
    assert molprof("collect", "1").returncode == 0
    assert {path.name for path in here.glob("*.out.json")} == {"a.out.json", "b.out.json"}


def test_an_interrupt_leaves_the_job(here: Path) -> None:
    long = [slice_("cpu_op", "aten::mm", 2 * place, 1) for place in range(400_000)]  # takes some seconds
    write(here / "a.json", {"traceEvents": long})
    arguments = ["report", "a.json", "--no-cache", "-o", "a.txt", "--submit", "slurm", "--slurm", "cpus=1"]
    client = subprocess.Popen(
        [sys.executable, "-m", "molprof", *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert client.stderr is not None
    for line in client.stderr:
        if "running" in line:
            break
    os.kill(client.pid, signal.SIGINT)
    text = client.stderr.read()
    client.stderr.close()
    assert client.wait(30) == 130
    assert "report-1 goes on; its results: molprof collect report-1" in text
    job = find_job(here / ".molprof/jobs", "1")
    assert states(job_status(job)) == ["running"]
    assert states(ended(job)) == ["ok"]
    assert (here / "a.txt").is_file()


def test_what_slurm_refuses_leaves_nothing(here: Path, molprof: Cli) -> None:
    write(here / "a.json", document())
    refused = molprof("report", "a.json", "-o", "a.txt", "--submit", "slurm", "--slurm", "partition=nowhere")
    assert refused.returncode == 3
    assert "Slurm refused the job: invalid partition specified: nowhere; Batch job" in refused.stderr
    assert "sbatch: error" not in refused.stderr
    assert list((here / ".molprof/jobs").iterdir()) == []


def test_a_capture_on_the_cluster_finds_its_model_by_its_short_name(here: Path, molprof: Cli) -> None:
    (here / "molprof.toml").write_text('[models.mine]\npath = "qwen"\nprocessor = "generic"\n[slurm.one]\ncpus = 1\n')
    options = ("-n", "1", "--repeats", "1", "--warmup", "0", "--max-new-tokens", "4", "--threads", "1")
    sent = molprof("capture", "--model", "mine", "--lp", *options, "-o", "a.json", "--submit", "one", "--detach")
    assert (sent.returncode, sent.stdout) == (0, "capture-1\n"), sent.stderr
    collected = molprof("collect", "capture-1", "--wait")
    assert collected.returncode == 0, collected.stderr
    manifest = json.loads((here / "a.json").read_text())["molprof"]
    assert manifest["resolved"]["processor"] == "generic"
    assert manifest["command"] == ["molprof", "capture", "--model", "mine", "--lp", *options, "-o", "a.json"]


def test_a_sweep_goes_on_on_a_cluster_and_its_folder_stands_for_its_traces(here: Path, molprof: Cli) -> None:
    (here / "grid.toml").write_text('[grid]\nmodel = ["qwen"]\nprocessor = ["none", "lp", "grammar"]\n')
    (here / "molprof.toml").write_text('[slurm.broken]\nsetup = ["exit 3"]\ncpus = 1\n')
    (here / "grid").mkdir()
    write(here / "grid/none.json.gz", document())
    arguments = ("--model", "qwen", "--no-lp")
    write_index(here / "grid", [Entry("none", "none.json.gz", {}, arguments, "ok", seconds=1.5)])
    done = molprof("sweep", "grid.toml", "--resume", "--submit", "broken")
    assert done.returncode == 3
    assert "2 of 2 tasks of sweep-1 did not end well: lp: failed: Slurm says FAILED" in done.stderr
    cases = json.loads((here / "grid/index.json").read_text())["cases"]
    assert [(case["name"], case["state"], case["seconds"]) for case in cases] == [
        ("none", "ok", 1.5),
        ("lp", "failed", None),
        ("grammar", "failed", None),
    ]
    reported = molprof("report", "grid", "--format", "json")
    assert reported.returncode == 0, reported.stderr
    assert json.loads(reported.stdout)["run"]["generated_tokens"] == 5
    assert "grid: no trace of lp (failed: Slurm says FAILED" in reported.stderr


def test_a_benchmark_runs_in_shares_whose_results_are_put_together(here: Path, molprof: Cli) -> None:
    (here / "molprof.toml").write_text('[slurm.node]\ncpus = 1\ntime = "0:10:00"\n')
    grid = ("--shape", "1x1x1x8x8", "--backend", "math,flash-attn", "--phase", "decode", "--mask", "none")
    done = molprof(
        "bench", "sdpa", *grid, "--device", "cpu", "--repeats", "1", "--submit", "node", "--tasks", "2", "-o", "b.jsonl"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (here / "b.jsonl").read_text().splitlines()]
    ended = {item["label"].split()[0]: item["status"] for item in records if item["record"] == "result"}
    assert ended == {"math": "ok", "flash-attn": "unsupported"}
    assert sorted(here.glob("b.*")) == [here / "b.jsonl"]
    # What is collected is not run again.
    again = molprof(
        "bench", "sdpa", *grid, "--device", "cpu", "--repeats", "1", "--submit", "node", "-o", "b.jsonl", "--resume"
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "nothing left to run" in again.stderr
    assert [json.loads(line) for line in (here / "b.jsonl").read_text().splitlines()] == records
    (here / "b.1-of-1.jsonl").touch()
    other = molprof("bench", "sdpa", *grid, "--submit", "node", "-o", "b.jsonl")
    assert other.returncode == 2
    assert "b.1-of-1.jsonl exists from an earlier submission" in other.stderr


def test_what_a_cluster_still_has_is_not_submitted_again(here: Path, molprof: Cli) -> None:
    (here / "grid.toml").write_text('[grid]\nmodel = ["qwen"]\nprocessor = ["none", "lp"]\n')
    (here / "molprof.toml").write_text('[slurm.slow]\nsetup = ["sleep 300"]\ncpus = 1\n')
    sweep = ("sweep", "grid.toml", "--submit", "slow", "--detach")
    assert molprof(*sweep).stdout == "sweep-1\n"
    twice = molprof(*sweep)
    assert twice.returncode == 2
    assert twice.stderr.startswith("molprof: error: sweep-1 has not finished 2 cases of grid\n")
    again = molprof(*sweep, "--resume")
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == "skipped 2 cases that sweep-1 has not finished: molprof collect sweep-1\n"
    assert molprof("jobs", "1", "--cancel").returncode == 0
    assert states(ended(find_job(here / ".molprof/jobs", "1"))) == ["cancelled", "cancelled"]
    assert molprof(*sweep, "--resume").stdout == "sweep-2\n"
    assert [entry.job for entry in read_index(here / "grid") or ()] == ["sweep-2", "sweep-2"]


def test_without_submitit_the_extra_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtraError) as raised:
        submit(here / "jobs", "report", [report("a")], "slurm", ONE_CORE)
    assert raised.value.hint == "pip install 'molprof[slurm]'"
    with pytest.raises(UsageError, match="nothing to submit"):
        submit(here / "jobs", "report", [], "slurm", ONE_CORE)


def test_a_task_beyond_its_time_has_timed_out(overdue: Job) -> None:
    status = ended(overdue)
    assert states(status) == ["timed out"]
    assert status.tasks[0].message is not None
    assert status.tasks[0].message.startswith("the limit was 0")
