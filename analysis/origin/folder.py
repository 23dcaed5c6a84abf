"""A folder of captures, a trace for each batch size and rank: those that hold the graphs which a trace replays.

vLLM (`capture_torch_profiler`), SGLang (`--enable-profile-cuda-graph`), ATOM (`--mark-trace`) and xDiT write
`capture_traces/`: `graph_capture_rank_0.*.json.gz`, `bs_32_rank0.json.gz`. The size stands in the index that TraceLens
writes beside them, in the name, or in the names of ranges in the trace: `capture_32_FULL`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from molprof.analysis.origin.match import Segment
from molprof.analysis.reader.source import is_other, open_source, traces_in
from molprof.common.errors import TraceError, UsageError
from molprof.common.values import counted

INDEX = "execution_details.json"
_NAME = re.compile(r"(?<![a-z])(?:bs|batch_size|capture)[_=-]?(\d{1,9})(?![0-9])", re.IGNORECASE)
_RANGE = re.compile(rb'"capture_(\d{1,9})_')
_LONGEST = 64  # bytes of what _RANGE finds


class CaptureFile(NamedTuple):
    """A trace of the capture of graphs."""

    path: Path
    rank: int | None  # None: not known
    sizes: frozenset[int]  # of the batches, in sequences or tokens as its program counts; empty: not known


class _Entry(msgspec.Struct):
    """A trace in the index."""

    file: str
    batch_size: int | None = None


def read_folder(
    folder: Path,
    batches: Collection[int],
    trace: Path,
    read: Callable[[Path], list[Segment]],
    rank_of: Callable[[Path], int | None],
) -> tuple[list[Segment], list[str]]:
    """Return the captures in a folder that fit a trace, and remarks on what is left out or lacking.

    batches: sizes of those whose graphs the trace replays; empty: not known. read: the captures in a file. rank_of: the
    rank of a file. Raises UsageError for a folder without traces, TraceError where one, or the index, cannot be read.
    """
    files, remarks = fitting(_capture_files(folder, rank_of), rank_of(trace), batches)
    return [segment for file in files for segment in _with_size(read(file.path), file)], remarks


def _capture_files(folder: Path, rank_of: Callable[[Path], int | None]) -> list[CaptureFile]:
    listed = _index(folder / INDEX)
    paths = [item for item in traces_in(folder) if item.name != INDEX and not is_other(item)]
    if not paths:
        raise UsageError(f"{folder} holds no traces", hint="give the folder of captures, such as capture_traces")
    files = []
    for path in paths:
        size = listed.get(path.name) or next((int(number) for number in _NAME.findall(path.name)), None)
        files.append(CaptureFile(path, rank_of(path), frozenset({size}) if size else _sizes_inside(path)))
    return files


def _index(path: Path) -> dict[str, int]:
    """Return the batch sizes by name of the file; empty without an index."""
    if not path.is_file():
        return {}
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=list[_Entry])
    except (msgspec.DecodeError, OSError) as error:
        raise TraceError(f"{path} is no index of captures: {error}", hint="delete it: sizes stand in traces") from error
    return {entry.file: entry.batch_size for entry in entries if entry.batch_size}


def _sizes_inside(path: Path) -> frozenset[int]:
    sizes: set[int] = set()
    last = b""
    with open_source(path) as source:
        for block in source.blocks if not source.is_perfetto else ():
            sizes |= {int(number) for number in _RANGE.findall(last + block)}
            last = block[-_LONGEST:]
    return frozenset(sizes)


def fitting(
    files: Sequence[CaptureFile], rank: int | None, batches: Collection[int]
) -> tuple[list[CaptureFile], list[str]]:
    """Return the captures that may hold the graphs of a trace, and remarks on what is left out or lacking.

    rank: of the trace; None: not known. batches: as for `read_folder`. An engine replays the smallest graph that a
    batch fits into.
    """
    remarks = []
    ranks = {file.rank for file in files if file.rank is not None}
    if ranks and rank not in ranks:
        what = "its rank is not recorded" if rank is None else f"it is of rank {rank}"
        if rank is not None or len(ranks) > 1:
            remarks.append(
                f"{what}: the captures are of rank {min(ranks)}" + ", the lowest of several" * (len(ranks) > 1)
            )
        rank = min(ranks)
    of_rank = [file for file in files if file.rank in (rank, None)] if ranks else list(files)
    known = frozenset().union(*(file.sizes for file in of_rank))
    chosen: set[int] = set()
    lacking: set[int] = set()
    for size in batches:
        fit = padded(size, known)
        (lacking if fit is None else chosen).add(size if fit is None else fit)
    if lacking and known:
        sizes = ", ".join(f"{size:,}" for size in sorted(lacking))
        remarks.append(f"no capture holds a batch of {sizes}: the largest is of {max(known):,}")
    if not batches:
        return of_rank, remarks
    read = [file for file in of_rank if not file.sizes or file.sizes & chosen]
    if len(read) < len(of_rank):
        sizes = ", ".join(f"{size:,}" for size in sorted(chosen)) or "no known size"
        remarks.append(f"read {len(read):,} of {counted(len(of_rank), 'capture')}: of {sizes}")
    return read, remarks


def padded(size: int, captured: Iterable[int]) -> int | None:
    """Return the size of the graph that an engine replays for a batch: the smallest that holds it; None: none does."""
    return min((item for item in captured if item >= size), default=None)


def _with_size(segments: Sequence[Segment], file: CaptureFile) -> list[Segment]:
    """Return the captures of a file; those whose name tells no size have the file's, and its name."""
    if len(file.sizes) != 1:
        return list(segments)
    sizes = frozenset(map(str, file.sizes))
    return [
        item if item.sizes else replace(item, sizes=sizes, name=f"{item.name} of {file.path.name}") for item in segments
    ]
