"""What is kept of a file's ranks as a small file, a part: read once, on any machine, and put together later."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from molprof.analysis.ranks.model import RankTrace
from molprof.common.errors import TraceError
from molprof.common.files import replacing

ENDING = ".rank.json.gz"
SCHEMA = 1
KIND = "molprof rank"
_HEAD = b'{"kind":"%b"' % KIND.encode()


@dataclass(frozen=True)
class Part:
    """The ranks of a file, and which file that was."""

    kind: str
    schema: int
    path: str  # absolute
    bytes: int
    modified_ns: int
    partial: bool  # read with --partial
    ranks: tuple[RankTrace, ...]


def part_path(folder: Path, source: Path) -> Path:
    """Where the part of a file is in a folder. Files of one name in several folders do not share it."""
    absolute = str(source.absolute())
    return folder / f"{source.name.split('.')[0]}-{zlib.crc32(absolute.encode()):08x}{ENDING}"


def is_part(path: Path) -> bool:
    """Whether a file is a part, by its content."""
    try:
        with gzip.open(path) as file:
            return file.read(len(_HEAD)) == _HEAD
    except (OSError, EOFError, zlib.error):
        return False


def write_part(folder: Path, source: Path, partial: bool, ranks: list[RankTrace]) -> None:
    """Writes the part of a file, whole or not at all."""
    part = Part(KIND, SCHEMA, ranks=tuple(ranks), partial=partial, **_identity(source))
    with replacing(part_path(folder, source)) as place:
        place.write_bytes(gzip.compress(msgspec.json.encode(part), 6, mtime=0))


def read_part(path: Path) -> Part:
    """The part in a file. Raises TraceError where it is damaged, or of another schema."""
    hint = "delete it, and read the trace again"
    try:
        text = gzip.decompress(path.read_bytes())
        schema = msgspec.json.decode(text, type=dict[str, Any]).get("schema")
        if schema != SCHEMA:
            raise TraceError(f"{path} is a part of schema {schema!r}; this molprof reads {SCHEMA}", hint)
        return msgspec.json.decode(text, type=Part)
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise TraceError(f"{path} is no whole part of a rank: {error}", hint) from error


def known_ranks(folder: Path | None, path: Path, partial: bool) -> list[RankTrace] | None:
    """The ranks of a file that is a part, or has one in the folder; else None."""
    if is_part(path):
        return list(read_part(path).ranks)
    return None if folder is None else kept_part(folder, path, partial)


def kept_part(folder: Path, source: Path, partial: bool) -> list[RankTrace] | None:
    """The ranks of a file from its part; None where there is none of the file as it is now."""
    place = part_path(folder, source)
    if not place.exists():
        return None
    try:
        part = read_part(place)
    except TraceError:
        return None  # it is written again
    now = {name: getattr(part, name) for name in ("path", "bytes", "modified_ns")}
    if part.partial != partial or now != _identity(source):
        return None
    return [replace(rank, path=str(source)) for rank in part.ranks]


def _identity(source: Path) -> dict[str, Any]:
    try:
        found = source.stat()
    except OSError as error:
        raise TraceError(f"{source} cannot be read: {error.strerror}") from error
    return {"path": str(source.absolute()), "bytes": found.st_size, "modified_ns": found.st_mtime_ns}
