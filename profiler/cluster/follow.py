"""Watch a job until it has ended, and read the new lines of its log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from molprof.profiler.cluster.job import Job
from molprof.profiler.cluster.scheduler import SchedulerError
from molprof.profiler.cluster.status import JobStatus, job_status

# Often at first, when a job may fail at once; then rarely, because many users ask the same scheduler.
_FIRST_S, _LAST_S, _GROWTH = 1.0, 15.0, 1.3
PATIENCE_S = 60.0


def watch(job: Job, patience_s: float = PATIENCE_S) -> Iterator[JobStatus]:
    """Yield the job's status again and again until every task has ended.

    SchedulerError if the scheduler fails to answer for `patience_s`; the job goes on.
    """
    pause, silent_since = _FIRST_S, None
    while True:
        status = job_status(job)
        yield status
        if status.finished:
            return
        now = time.monotonic()
        silent_since = None if status.problem is None else silent_since or now
        if silent_since is not None and now - silent_since >= patience_s:
            raise SchedulerError(
                f"{job.id} can no longer be followed: {status.problem}",
                hint=f"its tasks go on and write their results; collect them later with molprof collect {job.id}",
            )
        time.sleep(pause)
        pause = min(pause * _GROWTH, _LAST_S)


class LogTail:
    """Reads what a growing log holds more than the last time."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._offset = 0
        self._begun = b""

    def new_lines(self, path: Path | None) -> list[str]:
        """Return the new whole lines; from the beginning if it is another file than last time."""
        if path is None:
            return []
        if path != self._path:
            self._path, self._offset, self._begun = path, 0, b""
        with path.open("rb") as file:
            file.seek(self._offset)
            block = file.read()
        self._offset += len(block)
        *lines, self._begun = (self._begun + block).split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]
