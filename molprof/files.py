"""Where molprof keeps files of its own, and how it writes any file: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from molprof.errors import UsageError


def cache_dir() -> Path:
    """The user's cache directory for molprof (`MOLPROF_CACHE`, else `XDG_CACHE_HOME/molprof`, else `~/.cache`).

    It need not exist, and may not be writable: a cache is an optimisation, and its absence is no error.
    """
    if own := os.environ.get("MOLPROF_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "molprof"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and is gone when it does not.

    An interrupt, a full disk or a crash inside the block leaves `path` as it was.
    """
    path = Path(os.path.realpath(path))  # a link goes on pointing where it did
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)  # mkstemp makes files private; a result gets the user's usual mode
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def check_output(path: Path, force: bool) -> None:
    """Refuses, before any work, an output path that cannot or must not be written.

    Raises:
        UsageError: its folder is missing or not writable, it is a folder, or it exists and `force` is off.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="name a file")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a regular file", hint="name another, or leave -o out to write to stdout")
    parent = path.parent
    if not parent.is_dir():
        raise UsageError(f"the directory {parent} does not exist", hint=f"mkdir -p {parent}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"the directory {parent} is not writable")
    if path.exists() and not force:
        raise UsageError(f"{path} already exists", hint="choose another name, or --force to replace it")
