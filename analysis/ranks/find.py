"""The files of a job's ranks: found by content, and what is wrong with the set of them."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from molprof.analysis.ranks.model import RankTrace
from molprof.analysis.ranks.parts import is_part
from molprof.analysis.reader import STDIN
from molprof.analysis.reader.source import head_of, is_trace, left_out
from molprof.common.errors import TraceError, UsageError
from molprof.common.values import time_text

_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*"rank"\s*:\s*(\d{1,9})\b')
# `rank3.pftrace`, `trace-rank-3_0.json`, `rank_3/trace.json`.
_NAME = re.compile(r"(?<![a-z])rank[\s_:#=-]*(\d{1,6})(?!\d)", re.IGNORECASE)
_HINT = "name the files of one recording: molprof ranks FILE FILE..."
# Clocks of two nodes differ less than this, unless one counts from its start.
_APART_NS = 600 * 10**9


def rank_files(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The files to read, those in folders included, and a remark on what is left out. Raises UsageError, TraceError."""
    found: list[Path] = []
    remarks: list[str] = []
    for path in paths:
        if str(path) == STDIN:
            raise UsageError("ranks are read from files, not from standard input", hint="molprof ranks DIR")
        if not path.is_dir():
            found.append(path)
            continue
        inside = _files(path)
        parts = [item for item in inside if is_part(item)]
        traces = [item for item in inside if item not in parts and is_trace(item)]
        if others := [item for item in inside if item not in {*traces, *parts}]:
            remarks.append(left_out(path, others))
        traces = traces or parts
        if not traces:
            raise UsageError(f"{path} holds no traces", hint="give the folder with one trace for each rank")
        found += traces
    twice = sorted({str(path) for path in found if found.count(path) > 1})
    if twice:
        raise UsageError(f"{twice[0]} is named twice", hint="name each file once")
    return found, remarks


def _files(folder: Path) -> list[Path]:
    """The files of a folder, and those of the folders in it: some programs make one for each rank."""
    found = (item for item in [*folder.glob("*"), *folder.glob("*/*")] if item.is_file())
    return sorted(item for item in found if not any(part.startswith(".") for part in item.relative_to(folder).parts))


def holds_ranks(path: Path) -> bool:
    """Whether it is a folder with traces of several ranks, which name them before their events, as torch does."""
    if not path.is_dir():
        return False
    telling = (item for item in _files(path) if told_rank(item) is not None)
    return len(list(itertools.islice(telling, 2))) == 2


def told_rank(path: Path) -> int | None:
    """The rank that a trace names before its events, or a native one, which records none, by its name; else None."""
    head = head_of(path)
    if head == b"":
        return named_rank(path)
    match = _RANK.search(head or b"")
    return int(match[1]) if match else None


def named_rank(path: Path) -> int | None:
    """The rank that the name of a file tells, or of its folder; else None."""
    path = path.absolute()
    match = _NAME.search(path.name) or _NAME.search(path.parent.name)
    return int(match[1]) if match else None


def checked(ranks: Sequence[RankTrace]) -> tuple[list[RankTrace], list[str]]:
    """The ranks in order, and what a reader must know of the set. Raises TraceError where it is not one of one job."""
    by_rank: dict[int, list[RankTrace]] = defaultdict(list)
    for item in ranks:
        by_rank[item.rank].append(item)
    for rank, items in sorted(by_rank.items()):
        if len(items) > 1:
            what = f"{items[0].path} and {items[1].path} are both of rank {rank}: other recordings, or another job's"
            raise TraceError(what, hint=_HINT)
    sizes: dict[int, list[RankTrace]] = defaultdict(list)
    for item in ranks:
        if item.world_size is not None:
            sizes[item.world_size].append(item)
    if len(sizes) > 1:
        first, second = list(sizes)[:2]
        what = f"{sizes[first][0].path} is of a job of {first} ranks, {sizes[second][0].path} of one of {second}"
        raise TraceError(what, hint=_HINT)
    ordered = [by_rank[rank][0] for rank in sorted(by_rank)]
    named = [item for item in ordered if item.is_named]
    told = "the file does" if len(named) == 1 else "the files do"
    names = [f"{told} not record the rank of {_ranges([item.rank for item in named])}: told by name"] if named else []
    return ordered, [*names, *_missing(ordered, next(iter(sizes), None)), *_apart(ordered)]


def _missing(ranks: Sequence[RankTrace], world_size: int | None) -> list[str]:
    if world_size is None:
        return ["the number of ranks of the job is not recorded"]
    missing = sorted(set(range(world_size)) - {item.rank for item in ranks})
    if not missing:
        return []
    shown = _ranges(missing)
    text = f"{len(ranks)} of {world_size} ranks are here; {'rank' if len(missing) == 1 else 'ranks'} {shown} missing"
    return [f"{text}: who waits for a missing rank is shown as moving data"]


def _apart(ranks: Sequence[RankTrace]) -> list[str]:
    """Ranks that were recorded at another time than the first."""
    first, remarks = ranks[0], []
    for item in ranks[1:]:
        apart = max(item.start_ns - first.end_ns, first.start_ns - item.end_ns)
        if apart > _APART_NS:
            why = "another job's file, or clocks that count from the start of their machine"
            remarks.append(f"{item.path}: rank {item.rank} is {time_text(apart)} from rank {first.rank}: {why}")
    return remarks


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in order as text: `1, 4-7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
