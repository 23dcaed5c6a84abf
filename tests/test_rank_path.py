"""The critical path over ranks is right for a constructed job, and has no gaps for a real one."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rank_traces import events, gpu, write_rank

from molprof import api
from molprof.analysis.documents.ranks import ranks_document

CORPUS = Path(os.environ.get("MOLPROF_CORPUS", "absent"), "ranks")


def written(folder: Path, *ranks: list[dict[str, Any]]) -> Path:
    """A folder with a file for each rank."""
    folder.mkdir(exist_ok=True)
    for rank, content in enumerate(ranks):
        write_rank(folder / f"{rank}.json", rank, content)
    return folder


def test_the_path_goes_through_the_rank_that_the_others_wait_for(tmp_path: Path) -> None:
    job = api.ranks([written(tmp_path / "job", events(), events(late=60, clock=5_000))])
    late, last = job.path
    # Rank 1 computes until it begins at 160; rank 0 goes on from there to the end at 400.
    assert (late.rank, late.start_ns, late.end_ns, late.compute_ns, late.idle_ns) == (1, 10_000, 160_000, 150_000, 0)
    assert (last.rank, last.end_ns, last.compute_ns, last.idle_ns) == (0, 400_000, 100_000, 20_000)
    assert (last.exposed_ns, last.waiting_ns, late.crossing) == (120_000, 0, None)
    crossing = last.crossing
    assert crossing is not None
    assert (crossing.rank, crossing.last_rank, crossing.waited_ns) == (0, 1, 60_000)
    assert crossing.kernels == (("gemm", 60_000),)
    notes = next(item.notes for item in ranks_document(job).sections if item.title == "Critical path over ranks")
    assert notes[1] == "Rank 0 waits 60.0 µs in allreduce for rank 1, which computed (gemm 60.0 µs)"
    # With work of its own until then, rank 0 does not wait.
    busy = [*events(), gpu("gemm", 90, 80, 9, 8)]
    (only,) = api.ranks([written(tmp_path / "busy", busy, events(late=60))]).path
    assert (only.rank, only.start_ns, only.end_ns, only.crossing) == (0, 10_000, 400_000, None)


@pytest.mark.skipif(not CORPUS.exists(), reason="MOLPROF_CORPUS is not set")
def test_the_path_of_a_real_job_has_no_gap() -> None:
    job = api.ranks([CORPUS])
    path = job.path
    assert all(before.end_ns == after.start_ns for before, after in pairwise(path))
    parts = ("compute", "exposed", "waiting", "idle")
    assert all(item.wall_ns == sum(getattr(item, f"{part}_ns") for part in parts) for item in path)
    assert path[-1].end_ns - path[0].start_ns >= max(rank.end_ns - rank.start_ns for rank in job.ranks)
