"""A task on the cluster: run its command line, and write its state beside the job."""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

from molprof.common.process import run_child
from molprof.common.values import now
from molprof.profiler.jobs.job import TaskRecord, read_job, write_json
from molprof.profiler.jobs.scheduler import job_fields


class _StoppedError(BaseException):
    """Slurm ends the task: its time is up, it was cancelled or preempted."""


def run_task(folder: str, number: int) -> NoReturn:
    """Run task `number` of the job in `folder`, and exit with its exit code.

    The record says `running` from the beginning, which tells a task that was killed from one that never started. After
    Slurm's SIGTERM, which comes before its SIGKILL, the task asks Slurm for the reason.
    """
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # submitit's, for tasks that can be resumed
    job = read_job(Path(folder))
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    record = TaskRecord(
        job.attempt_of(number),
        "running",
        number,
        f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ.get("SLURM_JOB_ID", ""),
        int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        os.getpid(),
        now(),
    )
    path = job.record_path(number)
    write_json(path, asdict(record))
    try:
        ending = run_child(job.tasks[number].arguments, job.cwd, sys.stdout.buffer)
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
    """`timed out`, `preempted` or `cancelled`; `stopped` if Slurm does not say."""
    fields = job_fields(os.environ.get("SLURM_JOB_ID", ""))
    if fields is None:
        return "stopped", "stopped by Slurm for an unknown reason"
    if fields.get("Reason") == "TimeLimit":
        return "timed out", f"the limit was {fields.get('TimeLimit', 'reached')}"
    if fields.get("PreemptTime", "None") not in ("None", "N/A", "Unknown"):
        return "preempted", None
    return "cancelled", None
