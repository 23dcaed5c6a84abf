"""The cluster's end of a task: runs its command line, and writes how it stands and how it ended beside the job."""

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
from molprof.profiler.cluster.job import TaskRecord, read_job, write_json
from molprof.profiler.cluster.scheduler import job_fields

# What shells return for a process that a signal ended, and what Slurm's own accounting shows as failed.
_STOPPED_CODE = 128 + signal.SIGTERM


class _StoppedError(BaseException):
    """Slurm ends the task: its time is up, it was cancelled, or another needs its place."""


def run_task(folder: str, number: int) -> NoReturn:
    """Runs task `number` of the job that is kept in `folder`, and ends the process with its exit code.

    The record says `running` from the first moment on, so that a task that was killed without a word can be told from
    one that never started. Slurm's SIGTERM, which comes before its SIGKILL, is what it says about the reason.
    """
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # submitit's, for what can be resumed in the middle
    job = read_job(Path(folder))
    record = TaskRecord(
        job.attempt_of(number),
        "running",
        number,
        _slurm_id(),
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
        code = _STOPPED_CODE
    write_json(path, asdict(replace(record, state=state, ended=now(), exit_code=code, message=message)))
    sys.exit(code if code >= 0 else 128 - code)


def _stop(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough, and writing the record must not be cut short
    raise _StoppedError


def _why_stopped() -> tuple[str, str | None]:
    """`timed out`, `preempted` or `cancelled`; `stopped` where the scheduler does not say."""
    fields = job_fields(os.environ.get("SLURM_JOB_ID", ""))
    if fields is None:
        return "stopped", "ended by Slurm, which did not say why"
    if fields.get("Reason") == "TimeLimit":
        return "timed out", f"the limit was {fields.get('TimeLimit', 'reached')}"
    if fields.get("PreemptTime", "None") not in ("None", "N/A", "Unknown"):
        return "preempted", None
    return "cancelled", None


def _slurm_id() -> str:
    """As squeue names the task."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ.get("SLURM_JOB_ID", "")
