"""Folders of molprof's own files, and writing of any file: whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import gzip
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from molprof.common.errors import MolprofError, TakenError, UsageError

# Of a name, as long as file systems allow, a longer one could not be made.
_NAME_CHARACTERS = 40
# Higher levels of gzip take several times as long and make traces hardly smaller.
_LEVEL = 6
_ELSEWHERE = "send it to a file: > FILE, or -o OUT where the command has it"
_SCRATCH = ".molprof-part"
# A full disk, a quota, a limit on the size of files.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_written: list[Path] = []
_cleaned: set[Path] = set()  # folders in which this process has looked for files that killed ones left


def cache_dir() -> Path:
    """Return the user's cache directory for molprof: `MOLPROF_CACHE`, else `user_cache_dir`.

    It need not exist, and may not be writable: a cache is an optimisation, and its absence is no error.
    """
    folder = os.environ.get("MOLPROF_CACHE")
    return Path(folder) if folder else user_cache_dir()


def user_cache_dir() -> Path:
    """Return the system's cache folder for molprof: `~/.cache/molprof`, on macOS `~/Library/Caches/molprof`."""
    from platformdirs import user_cache_path  # on use: start-up needs none

    return user_cache_path("molprof")


def check_stdin() -> None:
    """Raise UsageError where the process was started with a closed stdin."""
    if sys.stdin is None:
        raise UsageError("cannot read standard input: it is closed", hint="start it without <&-")


def refuse_stream(path: Path) -> None:
    """Raise UsageError for a pipe or the like, where a file is read more than once."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UsageError(f"{path} is not a regular file", hint="name a file: it is read more than once")


def read_text(path: Path, hint: str | None = None) -> str:
    """Return the text of a UTF-8 file, without a byte order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror or problem}", hint) from problem
    except UnicodeDecodeError as problem:
        raise UsageError(f"{path} is not UTF-8 text: {problem.reason} at byte {problem.start}", hint) from problem


@contextmanager
def replacing(path: Path, force: bool = True) -> Iterator[Path]:
    """Make a temporary file next to `path`; if the block succeeds, it replaces `path`, else it is deleted.

    An interrupt, a full disk or a crash inside the block leaves `path` as it was. Without `force`, a file that another
    process wrote to `path` meanwhile stays too: the new one gets the next free name, which the TakenError tells.
    """
    named_path, path = path, Path(os.path.realpath(path))  # a link goes on pointing where it did
    with scratch_file(path) as part:
        try:
            yield part
            kept = _placed(part, path, force)
            _written.append(named_path if kept == path else kept)
            if kept != path:
                raise TakenError(f"another process wrote {named_path} meanwhile; this result is kept: {kept}", kept)
        except OSError as error:
            # A name that tells the user nothing, or none.
            if error.filename in (str(part), part) or (error.filename is None and error.errno in FULL):
                raise OSError(error.errno, error.strerror, str(named_path)) from error
            raise


def written_files() -> list[Path]:
    """Return the files that this process has written, without those of the user's cache."""
    return [*dict.fromkeys(_written)]


def _placed(part: Path, path: Path, force: bool) -> Path:
    """Rename the file `part` to `path`, or without `force` to the next free name, and return the new path."""
    if force:
        return part.replace(path)
    while True:
        path = next_free(path)
        try:
            os.link(part, path)  # fails where a file has the name, which renaming would replace
        except FileExistsError:
            continue
        except OSError:  # a file system without links
            part.replace(path)
        return path


@contextmanager
def replacing_packed(path: Path, force: bool = True) -> Iterator[BinaryIO]:
    """Open a file as `replacing` does, packed by gzip where `path` ends in `.gz`."""
    with replacing(path, force) as part, part.open("wb") as file:
        if path.suffix.lower() != ".gz":
            yield file
            return
        # No time and no temporary name in the header: the same content gives the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=_LEVEL, mtime=0) as packed:
            yield packed  # type: ignore[misc]


@contextmanager
def writing_stdout() -> Iterator[None]:
    """Raise MolprofError unless all output printed so far and in the block reaches stdout."""
    if sys.stdout is None:  # as Python has it where the process was started with a closed one
        raise MolprofError("cannot write to stdout: it is closed", hint=_ELSEWHERE)
    problem: OSError | None = None
    try:
        yield
    except OSError as raised:
        problem = raised
    problem = stdout_problem() or problem
    if problem is not None and not isinstance(problem, BrokenPipeError):  # its reader (head, less) has what it wanted
        raise MolprofError(f"cannot write to stdout: {problem.strerror or problem}", hint=_ELSEWHERE) from problem


def stdout_problem() -> OSError | None:
    """Return why stdout did not accept the output; None if it did."""
    try:
        sys.stdout.flush()
    except OSError as problem:
        # Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return problem
    return None


@contextmanager
def scratch_file(path: Path) -> Iterator[Path]:
    """Make an empty hidden file next to `path`, deleted after the block with all files whose names begin with its name.

    A lock on it tells other processes that it is in use: those that killed processes left are removed.
    """
    from molprof.common.process import interrupts_held  # on use: start-up needs none

    if path.parent not in _cleaned:  # once: one may write thousands of files into a folder
        _cleaned.add(path.parent)
        remove_stale(path.parent)
    handle = None
    try:
        with interrupts_held():  # one that came when the file is there, and not yet known here, would leave it
            part, handle = _new_scratch(path)
        yield part
    finally:
        if handle is not None:
            with interrupts_held():
                _remove(part)
                os.close(handle)


def _new_scratch(path: Path) -> tuple[Path, int]:
    """Return a scratch file next to `path`, and its open handle, which is locked."""
    numbers = itertools.count()
    while True:
        part = path.with_name(f".{path.name[:_NAME_CHARACTERS]}.{os.getpid()}-{next(numbers)}{_SCRATCH}")
        try:
            handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:  # of another thread, or of a process on another machine
            continue
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}", hint="name another file with -o OUT") from error
        with suppress(OSError):  # a file system without locks, where nothing counts as left
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return part, handle
        os.close(handle)  # another process took it for a left one before it was locked


def remove_stale(folder: Path) -> None:
    """Remove the scratch files in a folder that killed processes left."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if not (name.startswith(".") and name.endswith(_SCRATCH)):
                continue
            with suppress(OSError), (folder / name).open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
                _remove(folder / name)


def _remove(part: Path) -> None:
    """Remove a scratch file that has not got its name, and files with longer names that a library wrote for it."""
    try:
        part.unlink()
    except FileNotFoundError:
        return
    with suppress(OSError):
        for name in os.listdir(part.parent):
            if name.startswith(part.name):
                part.with_name(name).unlink()


def next_free(path: Path, taken: Callable[[Path], bool] = os.path.lexists) -> Path:
    """Return the path, or if it exists the first free name: `x-2.json.gz`, `x-3.json.gz`, ..."""
    ending = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    stem = path.name.removesuffix(ending)
    names = itertools.chain((path.name,), (f"{stem}-{number}{ending}" for number in itertools.count(2)))
    return next(candidate for name in names if not taken(candidate := path.with_name(name)))


def is_same(path: Path, other: Path) -> bool:
    """Return True if both paths are of one file."""
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # one of them is not there, or no name of a file
        return False


def check_output(path: Path, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Refuse, before any work, an output path that cannot be written or is an input."""
    try:
        if any(is_same(path, item) for item in inputs):
            raise UsageError(f"{path} is an input of this command, which would be lost", hint="name another file")
        if path.is_dir():
            raise UsageError(f"{path} is a directory", hint="name a file")
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is not a regular file", hint="name another, or leave -o out to write to stdout")
        if path.parent.exists() and not path.parent.is_dir():
            raise UsageError(f"cannot write {path}: {path.parent} is not a directory", hint="name another with -o OUT")
        if not path.parent.is_dir():
            raise UsageError(f"the directory {path.parent} does not exist", hint=f"mkdir -p {path.parent}")
        if path.exists() and not force:
            raise UsageError(
                f"{path} already exists", hint="choose another name, or --force (in Python force=True) to replace it"
            )
        # Permissions alone do not tell: root has them all in /proc, and nobody on a file system that is read-only.
        with scratch_file(Path(os.path.realpath(path))):
            pass
    except OSError as error:  # a name too long, a folder that may not be looked into
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="name another file with -o OUT") from error
