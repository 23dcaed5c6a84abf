"""Tasks of Slurm as an executor: what is submitted becomes a job array, whose tasks can be submitted again.

A job is kept in a folder, with the states and logs of its tasks, so that it needs no process that waits for it.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from molprof.common.errors import MissingExtraError, UsageError
from molprof.common.files import replacing
from molprof.common.jobs import JobExecutor
from molprof.common.jobs.job import Attempt, Job, Task, TaskRecord, new_job_folder, read_job, write_json
from molprof.common.jobs.resources import SlurmSettings
from molprof.common.jobs.scheduler import SchedulerError, check_reachable, job_fields
from molprof.common.jobs.status import UNFINISHED, JobStatus, TaskStatus, cancel_unfinished, job_status, watch
from molprof.common.process import OK, TIMED_OUT, Ending, interrupts_held, run_line
from molprof.common.process.workers import WorkerError, answer
from molprof.common.values import now

# Slurm's variables of a job. In a job that is submitted from it, srun would take them for options.
_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_")
# Of these, the variables of the cluster and of the user.
_OF_THE_CLUSTER = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_TIME_FORMAT"})


# Tasks of an array: a cluster takes 1,001 by default (`MaxArraySize`), and `each_trace` gives three calls at a time.
_AT_ONCE = 300
T = TypeVar("T")


def run_command(task: Task) -> Ending:
    """Run the command line of a task in the current folder, with its output on this process's stdout."""
    return run_line(task.line, Path.cwd(), sys.stdout.buffer)


class SlurmExecutor(JobExecutor):
    """Tasks of Slurm. What is submitted waits for `send`, or for the first result that is asked for.

    Args:
        jobs: folder of jobs, which the nodes see.
        kind: the command that submits.
        cluster: name of the table of `slurm`.
        data: what that command needs to finish the results.
        limit_s: time limit of each call.
    """

    at_once = _AT_ONCE

    def __init__(
        self,
        jobs: Path,
        kind: str,
        cluster: str,
        slurm: SlurmSettings,
        data: Mapping[str, Any] | None = None,
        limit_s: float | None = None,
    ) -> None:
        _check()
        self._jobs = jobs
        self._about: dict[str, Any] = {
            "kind": kind, "cluster": cluster, "slurm": slurm, "data": data, "limit_s": limit_s,
        }  # fmt: skip
        self._waiting: list[tuple[SlurmFuture[Any], Callable[[Any], Any], Any]] = []
        self._sent: list[_SentJob] = []

    def submit(self, function: Callable[[Any], T], /, item: Any) -> SlurmFuture[T]:  # type: ignore[override]
        """Return the future of a call: of `run_command` with a `Task`, or of another function of a module."""
        future = SlurmFuture[T](self)
        self._waiting.append((future, function, item))
        return future

    def send(self) -> Job:
        """Submit what waits as one job array; return its job when Slurm has it. If Slurm refuses, no job is left."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            raise UsageError("there is nothing to submit")
        folder = new_job_folder(self._jobs, self._about["kind"])
        try:
            tasks = [_task(folder, number, function, item) for number, (_, function, item) in enumerate(waiting)]
            job = Job(folder, cwd=str(Path.cwd()), created=now(), tasks=tuple(tasks), **self._about)
            with interrupts_held():  # or Slurm would have a job of which nothing is known
                sent = _SentJob(_attempt(job, tuple(range(len(tasks)))))
                self._sent.append(sent)
        except SchedulerError:
            shutil.rmtree(folder)
            raise
        for number, (future, *_) in enumerate(waiting):
            future.sent, future.number = sent, number
        return sent.job

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the tasks to Slurm, or cancel those that have not ended."""
        if cancel_futures:
            self._waiting.clear()
            with contextlib.suppress(SchedulerError):
                for sent in self._sent:
                    cancel_unfinished(job_status(sent.job))

    def __exit__(self, kind: type[BaseException] | None, *problem: object) -> None:
        """Cancel tasks whose results nobody waits for after an error."""
        self.shutdown(cancel_futures=kind is not None)


class _SentJob:
    """A job that Slurm has, and the latest status of its tasks."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._statuses = watch(job)
        self._status: JobStatus | None = None

    def ended(self, number: int) -> TaskStatus:
        """Wait until a task has ended. Raises SchedulerError if Slurm no longer answers."""
        while self._status is None or self._status.tasks[number].state in UNFINISHED:
            self._status = next(self._statuses)
        return self._status.tasks[number]


class SlurmFuture(Future[T]):
    """The result of a call in a task of Slurm, of which `sent.job` has the folder, states and logs."""

    def __init__(self, executor: SlurmExecutor) -> None:
        super().__init__()
        self._executor, self.number = executor, 0
        self.sent: _SentJob | None = None

    def result(self, timeout: float | None = None) -> T:
        """Return the result when the task has ended; a call that has not been sent is sent with all that wait."""
        if self.sent is None:
            self._executor.send()
        assert self.sent is not None
        ended, task = self.sent.ended(self.number), self.sent.job.tasks[self.number]
        returned: Any = Ending(ended.state, ended.message, ended.exit_code or 0)
        if task.call is None:
            return returned  # type: ignore[no-any-return]
        if ended.state != OK:
            raise WorkerError(f"{ended.state}: {ended.message}" if ended.message else ended.state)
        returned, error = pickle.loads(task.answer.read_bytes())
        if error is not None:
            raise error
        return returned  # type: ignore[no-any-return]


def _task(folder: Path, number: int, function: Callable[[Any], Any], item: Any) -> Task:
    """Return the task of a call; one of a function has it in a file."""
    if function is run_command and isinstance(item, Task):
        return item
    path = folder / "tasks" / f"{number}.call"
    path.write_bytes(pickle.dumps((function, (item,))))
    return Task(getattr(item, "name", str(number)), (), call=str(path))


def submit(
    jobs: Path,
    kind: str,
    tasks: Sequence[Task],
    cluster: str,
    slurm: SlurmSettings,
    data: Mapping[str, Any] | None = None,
) -> Job:
    """Submit the command lines of tasks, to run in the current folder; return when Slurm has them."""
    executor = SlurmExecutor(jobs, kind, cluster, slurm, data)
    for task in tasks:
        executor.submit(run_command, task)
    return executor.send()


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
    """Return the job with one more attempt. Its file is written before Slurm is asked, and again with Slurm's id."""
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


def answer_call() -> None:
    """In the process of a task: make the call of the file that it is given, and write what it returned or raised."""
    path = Path(sys.argv[1])
    with replacing(Path(f"{path}.answer")) as part:
        part.write_bytes(answer(path.read_bytes()))


class _StoppedError(BaseException):
    """Slurm ends the task: its time is up, it was cancelled or preempted."""


def run_task(folder: str, number: int) -> NoReturn:
    """On the cluster: run task `number` of the job in `folder`, and exit with its exit code.

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
        ending = run_line(job.tasks[number].line, job.cwd, sys.stdout.buffer, job.limit_s)
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
