"""Late ranks are named, but not beyond what the clocks can show."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rank_traces import ALLREDUCE, SIZES, events, gpu, launch
from test_ranks import Events, written
from tiny_trace import slice_

from molprof import api
from molprof.analysis.documents.ranks import ranks_document

CORPUS = Path(os.environ.get("MOLPROF_CORPUS", "absent"), "more")
needs_traces = pytest.mark.skipif(not CORPUS.exists(), reason="MOLPROF_CORPUS is not set")


def test_lateness_below_the_error_of_the_clocks_is_said_in_its_place(tmp_path: Path) -> None:
    """One of two allreduces ends 50 µs later on rank 1: that it began 20 µs later tells nothing."""
    unsure = events(late=20)
    unsure[4] = gpu(ALLREDUCE, 120, 130, 2, 20, **SIZES)
    job = api.ranks([written(tmp_path / "unsure", events(), unsure)])
    assert job.stragglers
    assert all(item.error_ns >= item.late_ns and not item.is_sure for item in job.stragglers)
    document = ranks_document(job)
    assert any("seems late" in line and "below the error of the clocks" in line for line in document.summary)
    (section,) = [item for item in document.sections if item.title == "Stragglers"]
    assert any("its lateness is below the error" in note for note in section.notes)
    (sure,) = api.ranks([written(tmp_path / "sure", events(), events(late=60))]).stragglers
    assert (sure.late_ns, sure.error_ns, sure.is_sure) == (60_000, 0, True)


def test_every_rank_that_others_waited_for_is_named(tmp_path: Path) -> None:
    """Rank 2 makes the others wait for 9 % of all waiting, rank 1 for the rest."""
    step, times = 100_000.0, {1: (60.0, 0.0), 2: (0.0, 6.0)}
    content: list[Events] = []
    for rank in range(3):
        late = times.get(rank, (0.0, 0.0))
        made = [slice_("user_annotation", "ProfilerStep#1", 0, step)]
        for place, (start, by) in enumerate(zip((0, 1_000), late, strict=True)):
            number = 10 * place
            made += [launch(start + 1, number + 1), gpu("gemm", start + 10, 90 + by, number + 1)]
            made += [launch(start + 5, number + 2), gpu(ALLREDUCE, start + 100 + by, 100 - by, number + 2, 20, **SIZES)]
        content.append(made)
    job = api.ranks([written(tmp_path, *content, world_size=3)])
    assert [item.rank for item in job.stragglers] == [1, 2]
    shares = [item.waited_ns / sum(item.waited_ns for item in job.stragglers) for item in job.stragglers]
    assert shares == [pytest.approx(10 / 11), pytest.approx(1 / 11)]


@needs_traces
def test_clocks_of_a_job_that_are_further_apart_than_its_ranks_are_late() -> None:
    job = api.ranks([CORPUS / "a100_moe_rank0.json.gz", CORPUS / "a100_moe_rank1.json.gz"])
    assert [(item.rank, item.is_sure) for item in job.stragglers] == [(0, False), (1, False)]
