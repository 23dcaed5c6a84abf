"""The ranks of one job side by side: their files found, read, aligned by collectives, and their time split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from molprof.analysis.ranks.find import checked, rank_files
from molprof.analysis.ranks.model import RankTrace
from molprof.analysis.ranks.read import ReadOptions, read_ranks

__all__ = ["Job", "RankTrace", "ReadOptions", "load_job"]


@dataclass(frozen=True)
class Job:
    """The ranks that are here, in order."""

    ranks: tuple[RankTrace, ...]
    world_size: int | None  # None: not recorded
    remarks: tuple[str, ...]  # what a reader must know of the set
    left_out: tuple[str, ...] = ()  # which files of the folders were not read


def load_job(paths: Sequence[Path], options: ReadOptions | None = None) -> Job:
    """The job whose ranks' files, or folders with them, are at `paths`.

    Raises UsageError where there are no traces, TraceError where they cannot be read or are not the ranks of one job,
    EngineError.
    """
    files, left_out = rank_files(paths)
    ranks, wrong = checked(read_ranks(files, options or ReadOptions()))
    damaged = [
        f"{item.path} is damaged, and only its whole part was read: {item.problem}" for item in ranks if item.problem
    ]
    world_size = next((item.world_size for item in ranks if item.world_size is not None), None)
    return Job(tuple(ranks), world_size, (*damaged, *wrong), tuple(left_out))
