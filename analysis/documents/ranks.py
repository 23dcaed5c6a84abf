"""The ranks of a job as a document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from molprof.analysis.ranks import Job
from molprof.common.document import Column, Document, Section, Table
from molprof.common.values import counted

SCHEMA = 1


def ranks_document(job: Job) -> Document:
    """Return the ranks side by side."""
    table = _ranks(job)
    of = "" if job.world_size is None else f" of {job.world_size}"
    return Document(
        f"molprof ranks: {len(job.ranks)}{of} {'rank' if len(job.ranks) == 1 else 'ranks'}",
        (
            Section("Ranks", notes=_notes(), table=table),
            Section("Files", notes=job.left_out, table=_files(job), detail=True),
        ),
        data=lambda: _data(job),
        records=lambda: table,
        warnings=job.remarks,
    )


def _notes() -> tuple[str, ...]:
    return ("span = compute + exposed communication + idle; compute: all kernels, copies and sets but collectives",)


def _ranks(job: Job) -> Table:
    columns = (
        Column("rank", "index"),
        Column("device"),
        Column("kernels", "count"),
        Column("collectives", "count"),
        Column("span", "ns"),
        Column("compute", "ns"),
        Column("exposed communication", "ns"),
        Column("hidden communication", "ns"),
        Column("idle", "ns"),
    )
    rows = [
        (
            rank.rank,
            times.device,
            times.kernels,
            times.collectives,
            times.span_ns,
            times.compute_ns,
            times.exposed_ns,
            times.hidden_ns,
            times.idle_ns,
        )
        for rank in job.ranks
        for times in rank.times
    ]
    return Table(columns, rows)


def _files(job: Job) -> Table:
    columns = (Column("rank", "index"), Column("file"), Column("steps"))
    rows = [(rank.rank, rank.path, counted(len(rank.steps), "step")) for rank in job.ranks]
    return Table(columns, rows, wide=True)


def _data(job: Job) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "world_size": job.world_size,
        "remarks": list(job.remarks),
        "left_out": list(job.left_out),
        "ranks": [
            {
                "rank": rank.rank,
                "path": rank.path,
                "backend": rank.backend,
                "complete": rank.problem is None,
                "devices": {times.device: _times(asdict(times)) for times in rank.times},
            }
            for rank in job.ranks
        ],
    }


def _times(times: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in times.items() if name != "device"}
