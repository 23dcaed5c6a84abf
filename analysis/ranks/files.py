"""The files of a job's ranks: found by content, kept as small files (parts), and checked as a set.

A part (reader/parts.py) holds what is kept of a file's ranks: read once, on any machine, and put together later.
"""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from molprof import __version__
from molprof.analysis.ranks.read import RankTrace, told_rank
from molprof.analysis.reader import is_stream, path_text
from molprof.analysis.reader.parts import digest_of, part_path
from molprof.analysis.reader.remote import content, is_remote, listed, remote_text, write_content
from molprof.analysis.reader.source import ENDINGS, is_trace, left_out
from molprof.common.errors import TraceError, UsageError
from molprof.common.values import time_text

_HINT = "name the files of one recording: molprof ranks FILE FILE..."
# Clocks of two nodes differ less than this, unless one counts from its start.
_APART_NS = 600 * 10**9
ENDING = ".rank.json.gz"
SCHEMA = 2
KIND = "molprof rank"
_HEAD = b'{"kind":"%b"' % KIND.encode()


@dataclass(frozen=True)
class FileRanks:
    """The ranks of a file, and which content that was."""

    kind: str
    schema: int
    version: str  # of molprof
    digest: str  # hash of the file's bytes
    partial: bool  # read with --partial
    ranks: tuple[RankTrace, ...]


def rank_files(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the files to read, those in folders included, and a remark on skipped files.

    Raises UsageError, TraceError.
    """
    files: list[Path] = []
    remarks: list[str] = []
    for path in paths:
        if is_stream(path):
            raise UsageError(f"ranks are read from files, not from {path_text(path)}", hint="molprof ranks DIR")
        in_bucket = listed(path, ENDINGS) if is_remote(path) else []
        if not in_bucket and not path.is_dir():
            files.append(path)
            continue
        inside = in_bucket or _files(path)
        parts = [item for item in inside if is_part(item)]
        traces = [item for item in inside if item not in parts and (in_bucket or is_trace(item))]
        if not in_bucket:
            remarks += left_out(path, [item for item in inside if item not in {*traces, *parts}])
        traces = traces or parts
        if not traces:
            raise UsageError(f"{path} holds no traces", hint="give the folder with one trace for each rank")
        files += traces
    twice = sorted({str(path) for path in files if files.count(path) > 1})
    if twice:
        raise UsageError(f"{twice[0]} is named twice", hint="name each file once")
    return files, remarks


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder and its direct subfolders: some programs make one for each rank."""
    files = (item for item in [*folder.glob("*"), *folder.glob("*/*")] if item.is_file())
    return sorted(item for item in files if not any(part.startswith(".") for part in item.relative_to(folder).parts))


def holds_ranks(path: Path) -> bool:
    """Return True for a folder of traces that name several ranks before their events, as torch does."""
    if not path.is_dir():
        return False
    telling = (item for item in _files(path) if told_rank(item) is not None)
    return len(list(itertools.islice(telling, 2))) == 2


def ranks_path(folder: Path, digest: str, partial: bool) -> Path:
    """Return the path of the part of a file with this content."""
    return part_path(folder, digest, partial, ENDING)


def is_part(path: Path) -> bool:
    """Return True if a file is a part, by its content; one in a bucket by its name."""
    if is_remote(path):
        return path.name.endswith(ENDING)
    try:
        with gzip.open(path) as file:
            return file.read(len(_HEAD)) == _HEAD
    except (OSError, EOFError, zlib.error):
        return False


def write_part(folder: Path, source: Path, partial: bool, ranks: list[RankTrace]) -> None:
    """Write the part of a file, whole or not at all. Raises TraceError where the file is gone."""
    if (digest := digest_of(source)) is None:
        raise TraceError(f"{source} cannot be read any more, so that no part of it is kept")
    part = FileRanks(KIND, SCHEMA, __version__, digest, partial, tuple(ranks))
    write_content(ranks_path(folder, digest, partial), gzip.compress(msgspec.json.encode(part), 6, mtime=0))


def read_part(path: Path) -> FileRanks:
    """Return the part in a file. Raises TraceError where it is damaged, or of another schema."""
    hint = "delete it, and read the trace again"
    try:
        text = gzip.decompress(content(path))
        schema = msgspec.json.decode(text, type=dict[str, Any]).get("schema")
        if schema != SCHEMA:
            what = f"a part of schema {schema!r}; this molprof reads {SCHEMA}"
            raise TraceError(f"{remote_text(path)} is {what}", hint)
        return msgspec.json.decode(text, type=FileRanks)
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise TraceError(f"{remote_text(path)} is no whole part of a rank: {error}", hint) from error


def known_ranks(folder: Path | None, path: Path, partial: bool) -> list[RankTrace] | None:
    """Return the ranks of a file that is a part, or has one of its content in the folder; else None."""
    if is_part(path):
        return list(read_part(path).ranks)
    if folder is None or (digest := digest_of(path)) is None:
        return None
    with suppress(TraceError, UsageError):  # it is written, or written again
        part = read_part(ranks_path(folder, digest, partial))
        if (part.version, part.digest, part.partial) == (__version__, digest, partial):
            return [replace(rank, path=str(path)) for rank in part.ranks]
    return None


def checked(ranks: Sequence[RankTrace]) -> tuple[list[RankTrace], list[str]]:
    """Return the ranks in order, and remarks on the set. Raises TraceError where they are not of one job."""
    ordered = sorted(ranks, key=lambda item: item.rank)
    for one, two in itertools.pairwise(ordered):
        if one.rank == two.rank:
            what = f"{one.path} and {two.path} are both of rank {one.rank}: other recordings, or another job's"
            raise TraceError(what, hint=_HINT)
    sized = [item for item in ranks if item.world_size is not None]
    for item in sized:
        if item.world_size != sized[0].world_size:
            what = f"{sized[0].path} is of a job of {sized[0].world_size} ranks, {item.path} of one of"
            raise TraceError(f"{what} {item.world_size}", hint=_HINT)
    named = [item.rank for item in ordered if item.is_named]
    which = "the file does" if len(named) == 1 else "the files do"
    remarks = [f"{which} not record the rank of {_ranges(named)}: told by name"] if named else []
    if not sized:
        remarks.append("the number of ranks of the job is not recorded")
    elif missing := sorted(set(range(sized[0].world_size or 0)) - {item.rank for item in ranks}):
        text = f"{len(ranks)} of {sized[0].world_size} ranks are here; {'rank' if len(missing) == 1 else 'ranks'}"
        remarks.append(f"{text} {_ranges(missing)} missing: who waits for a missing rank is shown as moving data")
    first = ordered[0]
    for item in ordered[1:]:
        apart = max(item.start_ns - first.end_ns, first.start_ns - item.end_ns)
        if apart > _APART_NS:
            why = "another job's file, or clocks that count from the start of their machine"
            remarks.append(f"{item.path}: rank {item.rank} is {time_text(apart)} from rank {first.rank}: {why}")
    return ordered, remarks


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers in order as text: `1, 4-7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
