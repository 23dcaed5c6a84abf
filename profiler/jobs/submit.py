"""Submit command lines of molprof to Slurm as one job array, and requeue those that did not end well."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from molprof.common.errors import MissingExtraError, UsageError
from molprof.common.values import now
from molprof.profiler.jobs.job import Attempt, Job, Task, new_job_folder
from molprof.profiler.jobs.resources import SlurmSettings
from molprof.profiler.jobs.scheduler import SchedulerError, check_reachable
from molprof.profiler.jobs.worker import run_task

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
    """Submit `molprof ARGUMENTS` of every task, to run in the current folder; return when Slurm has them.

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


def _attempt(job: Job, tasks: tuple[int, ...]) -> Job:
    """The job with one more attempt. Its file is written before Slurm is asked, and again with Slurm's id."""
    import submitit

    folder = job.attempt_folder(len(job.attempts))
    try:
        folder.mkdir()
    except FileExistsError as error:
        raise UsageError(f"{job.id} is being requeued by another process", hint=f"molprof jobs {job.id}") from error
    started = replace(job, attempts=(*job.attempts, Attempt(tasks, None, now())))
    started.save()
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
        raise SchedulerError(
            f"Slurm refused the job: {reason}",
            hint="sinfo lists partitions and limits; scontrol show config: MaxArraySize, MaxJobCount",
        ) from error
    done = replace(started.attempts[-1], slurm_id=sent[0].job_id.split("_")[0])
    submitted = replace(started, attempts=(*job.attempts, done))
    submitted.save()
    return submitted


@contextlib.contextmanager
def _outside_of_a_job() -> Iterator[None]:
    """Hide the Slurm job that this process runs in: sbatch passes the environment on, where the memory or tasks of an
    interactive job would contradict those of the new one."""
    names = [name for name in os.environ if name.startswith(_OF_A_JOB) and name not in _OF_THE_CLUSTER]
    kept = {name: os.environ.pop(name) for name in names} if "SLURM_JOB_ID" in os.environ else {}
    try:
        yield
    finally:
        os.environ.update(kept)


def _check() -> None:
    try:
        import submitit  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("submitit", "slurm", "submitting to Slurm") from error
    check_reachable()
