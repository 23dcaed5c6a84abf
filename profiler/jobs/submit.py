"""Submits command lines of molprof to Slurm as one job array, runs each there, and requeues failed ones."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from molprof.common.errors import MissingExtraError, UsageError
from molprof.common.process import TIMED_OUT, command_line, run_line
from molprof.common.values import now
from molprof.profiler.jobs.job import Attempt, Job, Task, TaskRecord, new_job_folder, read_job, write_json
from molprof.profiler.jobs.resources import SlurmSettings
from molprof.profiler.jobs.scheduler import SchedulerError, check_reachable, job_fields

# Slurm's variables of a job. In a job that is submitted from it, srun would take them for options.
_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_")
# Of these, the variables of the cluster and of the user.
_OF_THE_CLUSTER = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_TIME_FORMAT"})


def submit(
    jobs: Path,
    kind: str,
    tasks: Sequence[Task],
    cluster: str,
    slurm: SlurmSettings,
    data: Mapping[str, Any] | None = None,
) -> Job:
    """Submit `molprof ARGUMENTS` of every task, to run in the current folder; return when Slurm has accepted them.

    The cluster's nodes must see the folder `jobs`. If Slurm refuses, no job is left.
    """
    if not tasks:
        raise UsageError("there is nothing to submit")
    _check()
    folder = new_job_folder(jobs, kind)
    job = Job(folder, kind, cluster, slurm, str(Path.cwd()), now(), tuple(tasks), data=data)
    try:
        return _attempt(job, tuple(range(len(tasks))))
    except SchedulerError:
        shutil.rmtree(folder)
        raise


def requeue(job: Job, tasks: Sequence[int]) -> Job:
    """Submit tasks of a job again, as one array. Their logs stay, their records are overwritten."""
    _check()
    return _attempt(job, tuple(tasks))


def _check() -> None:
    try:
        import submitit  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("submitit", "slurm", "submitting to Slurm") from error
    check_reachable()


def _attempt(job: Job, tasks: tuple[int, ...]) -> Job:
    """Return the job with one more attempt; its file is written before submitting, and again with Slurm's id."""
    import submitit

    folder = job.attempt_folder(len(job.attempts))
    try:
        folder.mkdir()
    except FileExistsError as error:
        raise UsageError(f"{job.id} is being requeued by another process", hint=f"molprof jobs {job.id}") from error
    attempt = Attempt(tasks, None, now())
    replace(job, attempts=(*job.attempts, attempt)).save()
    executor = submitit.SlurmExecutor(folder=folder)
    executor.update_parameters(
        **job.slurm.parameters(),
        job_name=f"molprof-{job.id}",
        stderr_to_stdout=True,
        signal_delay_s=0,  # a task cannot be resumed, so it needs no warning before SIGTERM
        wckey=None,
        # Not the current folder, whose files Python would import before its packages.
        additional_parameters={**job.slurm.sbatch, "chdir": str(folder)},
    )
    try:
        # submitit prints what it raises.
        with _outside_of_a_job(), contextlib.redirect_stderr(io.StringIO()):
            sent = executor.map_array(run_task, [str(job.folder)] * len(tasks), tasks)
    except (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedSubmissionError, OSError) as error:
        shutil.rmtree(folder)
        job.save()
        said = (line.strip().removeprefix("sbatch: error: ") for line in str(error).splitlines())
        reason = "; ".join(filter(None, said)) or type(error).__name__
        hint = "sinfo lists partitions and limits; scontrol show config: MaxArraySize, MaxJobCount"
        raise SchedulerError(f"Slurm refused the job: {reason}", hint) from error
    submitted = replace(attempt, slurm_id=sent[0].job_id.split("_")[0])
    done = replace(job, attempts=(*job.attempts, submitted))
    done.save()
    return done


@contextlib.contextmanager
def _outside_of_a_job() -> Iterator[None]:
    """Hide the Slurm job that this process runs in.

    sbatch passes the environment on, where the memory or tasks of an interactive job would contradict those of the new
    one.
    """
    names = [name for name in os.environ if name.startswith(_OF_A_JOB) and name not in _OF_THE_CLUSTER]
    kept = {name: os.environ.pop(name) for name in names} if "SLURM_JOB_ID" in os.environ else {}
    try:
        yield
    finally:
        os.environ.update(kept)


class _StoppedError(BaseException):
    """Slurm ends the task: by its time limit, a cancellation or preemption."""


def run_task(folder: str, number: int) -> NoReturn:
    """Run task `number` of the job in `folder`, on the cluster, and exit with its exit code.

    The record says `running` from the beginning, which tells a task that was killed from one that never started. After
    Slurm's SIGTERM, which comes before its SIGKILL, the task asks Slurm for the reason.
    """
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # submitit's, for tasks that can be resumed
    job, node = read_job(Path(folder)), os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    record = TaskRecord(job.attempt_of(number), "running", node, started=now())
    path = job.record_path(number)
    write_json(path, asdict(record))
    try:
        ending = run_line(command_line(job.tasks[number].arguments), job.cwd, sys.stdout.buffer)
        state, code, message = ending.state, ending.exit_code, ending.message
    except _StoppedError:
        state, message = _why_stopped()
        code = 128 + signal.SIGTERM  # as of shells; Slurm's accounting shows the task as failed
    write_json(path, asdict(replace(record, state=state, ended=now(), exit_code=code, message=message)))
    sys.exit(code if code >= 0 else 128 - code)


def _stop(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing may interrupt the writing of the record
    raise _StoppedError


def _why_stopped() -> tuple[str, str | None]:
    """Return `timed out`, `preempted` or `cancelled`; `stopped` if Slurm does not say."""
    fields = job_fields(os.environ.get("SLURM_JOB_ID", ""))
    if fields is None:
        return "stopped", "stopped by Slurm for an unknown reason"
    if fields.get("Reason") == "TimeLimit":
        return TIMED_OUT, f"the limit was {fields.get('TimeLimit', 'reached')}"
    if fields.get("PreemptTime", "None") not in ("None", "N/A", "Unknown"):
        return "preempted", None
    return "cancelled", None
