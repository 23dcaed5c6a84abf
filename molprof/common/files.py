"""Where molprof keeps files of its own, and how it writes any file: whole or not at all."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from molprof.common.errors import UsageError

# Of a name, as long as file systems allow, a longer one could not be made.
_NAME_CHARACTERS = 40
# Higher levels of gzip take several times as long and make traces hardly smaller.
_LEVEL = 6


def cache_dir() -> Path:
    """The user's cache directory for molprof (`MOLPROF_CACHE`, else `XDG_CACHE_HOME/molprof`, else `~/.cache`).

    It need not exist, and may not be writable: a cache is an optimisation, and its absence is no error.
    """
    if own := os.environ.get("MOLPROF_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "molprof"


def read_text(path: Path, hint: str | None = None) -> str:
    """The text of a UTF-8 file, without a byte order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror or problem}", hint) from problem
    except UnicodeDecodeError as problem:
        raise UsageError(f"{path} is not UTF-8 text: {problem.reason} at byte {problem.start}", hint) from problem


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and is gone when it does not.

    An interrupt, a full disk or a crash inside the block leaves `path` as it was.
    """
    given, path = path, Path(os.path.realpath(path))  # a link goes on pointing where it did
    part = scratch_file(path, ".part")
    try:
        yield part
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)  # mkstemp makes files private; a result gets the user's usual mode
        part.replace(path)
    except OSError as error:
        if error.filename in (str(part), part):  # a name that tells the user nothing
            raise OSError(error.errno, error.strerror, str(given)) from error
        raise
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def replacing_packed(path: Path) -> Iterator[BinaryIO]:
    """`replacing`, as an open file: what is written to it is packed by gzip where `path` ends in `.gz`."""
    with replacing(path) as part, part.open("wb") as file:
        if path.suffix.lower() != ".gz":
            yield file
            return
        # No time and no temporary name in the header: the same content gives the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=_LEVEL, mtime=0) as packed:
            yield packed  # type: ignore[misc]


def scratch_file(path: Path, suffix: str) -> Path:
    """A new empty file beside `path`, hidden, its name ending in `suffix`; whoever asks for it removes it."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:_NAME_CHARACTERS]}.", suffix=suffix, dir=path.parent)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="name another file with -o OUT") from error
    os.close(handle)
    return Path(name)


def check_output(path: Path, force: bool) -> None:
    """Refuses, before any work, an output path that cannot or must not be written."""
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a directory", hint="name a file")
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is not a regular file", hint="name another, or leave -o out to write to stdout")
        if not path.parent.is_dir():
            raise UsageError(f"the directory {path.parent} does not exist", hint=f"mkdir -p {path.parent}")
        if path.exists() and not force:
            raise UsageError(f"{path} already exists", hint="choose another name, or --force to replace it")
        # Permissions alone do not tell: root has them all in /proc, and nobody on a file system that is read-only.
        scratch_file(Path(os.path.realpath(path)), ".part").unlink()
    except OSError as error:  # a name too long, a folder that may not be looked into
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="name another file with -o OUT") from error
