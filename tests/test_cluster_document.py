"""Jobs and their tasks as documents: a line for each, and the documented JSON."""

from __future__ import annotations

import json
from pathlib import Path

from molprof.analysis.render import render
from molprof.profiler.jobs.document import jobs_document, tasks_document
from molprof.profiler.jobs.job import Job, Task
from molprof.profiler.jobs.resources import SlurmSettings
from molprof.profiler.jobs.status import JobStatus, TaskStatus

TASKS = (Task("a", ("report", "a.json"), "a.txt"), Task("b", ("report", "b.json"), None))
JOB = Job(Path("/p/.molprof/jobs/report-1"), "report", "slurm", SlurmSettings(), "/p", "2026-01-02T03:04:05Z", TASKS)
STATUS = JobStatus(JOB, (TaskStatus(0, "a", "ok", node="n1", slurm_id="7_0"), TaskStatus(1, "b", "failed", "no \x1b")))


def test_jobs() -> None:
    document = jobs_document([STATUS])
    assert render(document).splitlines()[-1].split() == [
        "report-1", "slurm", "2026-01-02T03:04:05Z", *STATUS.summary.split(), "/p",
    ]  # fmt: skip
    (job,) = json.loads(render(document, "json"))
    assert (job["id"], job["kind"], job["folder"]) == ("report-1", "report", "/p/.molprof/jobs/report-1")
    assert [(task["arguments"], task["output"]) for task in job["tasks"]] == [
        (["report", "a.json"], "a.txt"),
        (["report", "b.json"], None),
    ]


def test_tasks() -> None:
    assert render(tasks_document(STATUS)) == (
        "  task  name  state   slurm  node  message\n"
        "  ----  ----  ------  -----  ----  -------\n"
        "     0  a     ok      7_0    n1\n"
        "     1  b     failed  -      -     no \\x1b\n"
    )
