"""The ranks of a job from many files: known ones from parts, others read here or by workers, and kept as parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from molprof.analysis.ranks import RankedJob, RankTrace, Unread, job_of_files
from molprof.analysis.ranks.files import known_ranks, rank_files, write_part
from molprof.analysis.ranks.read import HINT, at_once, ranks_of
from molprof.analysis.reader import Reading
from molprof.analysis.trace import Trace, each_trace
from molprof.common.errors import MolprofError

if TYPE_CHECKING:
    from molprof.common.jobs import JobExecutor


def read_ranks(
    paths: Sequence[Path],
    reading: Reading,
    parts: Path | None,
    progress: Callable[[int, int], None],
    executor: JobExecutor | None,
) -> RankedJob:
    """Return the job of all files, those in folders included. Arguments and errors are those of `api.ranks`."""
    files, left_out = rank_files(paths)
    rank_traces: list[RankTrace] = []
    unread: list[Unread] = []
    from_parts: set[Path] = set()

    def kept(path: Path) -> list[RankTrace] | None:
        if (ranks := known_ranks(parts, path, reading.partial)) is not None:
            from_parts.add(path)
        return ranks

    each = each_trace(
        files,
        ranks_of_trace,
        replace(reading, cached=False, stacks=False, processes=1),
        known=kept,
        at_once=at_once(files),
        hint=HINT,
        executor=executor,
    )
    for done, (path, read) in enumerate(zip(files, each, strict=True), 1):
        if isinstance(read, MolprofError):
            if len(unread) + 1 == len(files):
                raise read
            unread.append(Unread(str(path), str(read)))
        else:
            if parts is not None and path not in from_parts:
                write_part(parts, path, reading.partial, read)
            rank_traces += read
        progress(done, len(files))
    return job_of_files(rank_traces, left_out, unread, len(files))


def ranks_of_trace(trace: Trace) -> list[RankTrace]:
    """Return the ranks in a file: a job of `each_trace`."""
    return trace.read(ranks_of)
