"""Watches a job until it has come to its end, and what is new since the last look."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from molprof.profiler.cluster.job import Job
from molprof.profiler.cluster.scheduler import SchedulerError
from molprof.profiler.cluster.status import JobStatus, job_status

# Soon while something may fail at once, then as seldom as a scheduler that many ask likes it.
_FIRST_S, _LAST_S, _GROWTH = 1.0, 15.0, 1.3
PATIENCE_S = 60.0


def watch(job: Job, patience_s: float = PATIENCE_S) -> Iterator[JobStatus]:
    """How the job stands, again and again until every task has come to its end.

    Args:
        patience_s: how long the scheduler may be without an answer.

    Raises:
        SchedulerError: it did not answer for that long, and not every task has ended by its own word; the job goes on.
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
                hint=f"nothing is lost: its tasks write their results themselves; later: molprof collect {job.id}",
            )
        time.sleep(pause)
        pause = min(pause * _GROWTH, _LAST_S)


class LogTail:
    """What a growing log holds more than at the last look."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._offset = 0
        self._begun = b""

    def new_lines(self, path: Path | None) -> list[str]:
        """Whole lines only; of another file than last time, from its beginning."""
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
