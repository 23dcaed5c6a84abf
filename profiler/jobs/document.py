"""Jobs that were submitted to a cluster, and the tasks of one, as documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from molprof.common.document import Column, Document, Section, Table
from molprof.profiler.jobs.status import JobStatus


def jobs_document(statuses: Sequence[JobStatus]) -> Document:
    """A line for each job."""
    columns = tuple(map(Column, ("id", "cluster", "created", "tasks", "folder")))
    rows = [(item.job.id, item.job.cluster, item.job.created, item.summary, item.job.cwd) for item in statuses]
    return Document("", (Section("", table=Table(columns, rows)),), lambda: [_data(item) for item in statuses])


def tasks_document(status: JobStatus) -> Document:
    """A line for each task of a job."""
    columns = (Column("task", "index"), *map(Column, ("name", "state", "slurm", "node", "message")))
    rows = [(task.number, task.name, task.state, task.slurm_id, task.node, task.message or "") for task in status.tasks]
    return Document("", (Section("", table=Table(columns, rows, missing="-")),), lambda: [_data(status)])


def _data(status: JobStatus) -> dict[str, Any]:
    job = status.job
    return {
        "id": job.id,
        "kind": job.kind,
        "cluster": job.cluster,
        "created": job.created,
        "folder": str(job.folder),
        "finished": status.finished,
        "problem": status.problem,
        "tasks": [
            {**asdict(task), "arguments": list(item.arguments), "output": item.output}
            for task, item in zip(status.tasks, job.tasks, strict=True)
        ],
    }
