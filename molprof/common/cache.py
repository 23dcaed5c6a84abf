"""The user's cache: entries under keys of what made them, intact or not there, in folders of bounded size.

A folder that someone else can write is not used, nor a link in place of one: entries could be forged, and the files of
another folder overwritten or removed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from molprof import __version__
from molprof.common.files import cache_dir

# What tells whether a content is intact.
Digest = Callable[["bytes | memoryview"], bytes]

_DIGEST_BYTES = 32
# Of known files: 64 bytes each.
_FILES, _FILES_BYTES = "files", 1 << 20
# A file changed this recently may change again within the resolution of its time stamps, so its hash is not stored.
_SETTLED_NS = 2_000_000_000
_PACKAGES = ("molprof.analysis", "molprof.commands", "molprof.common", "molprof.queries")


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def cache_key(paths: Iterable[Path], *facts: object) -> str | None:
    """Return a hash of the files, of molprof's code and of facts that change the result.

    None if a file cannot be read.
    """
    with contextlib.suppress(OSError):
        parts = [__version__, code_digest(), *map(file_digest, paths), *map(repr, facts)]
        return _digest("\0".join(parts).encode()).hex()
    return None


def read_entry(folder: str, key: str, digest: Digest = _digest) -> memoryview | None:
    """Return the content stored under `key` with this digest, mapped from its file; None without an intact one."""
    size = len(digest(b""))
    # An empty file cannot be mapped. Others are replaced or removed, never changed.
    with (
        contextlib.suppress(OSError, ValueError),
        private_folder(cache_dir() / folder) as directory,
        open(os.open(key, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory), "rb") as file,
    ):
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if data[:size] == digest(data[size:]):
            os.utime(file.fileno())  # the least recently used entries are removed first
            return data[size:]
    return None


def write_entry(folder: str, key: str, content: bytes, most_bytes: int, digest: Digest = _digest) -> None:
    """Store `content`, if it fits, in a folder of at most `most_bytes`."""
    if len(content) <= most_bytes:
        store(cache_dir() / folder, key, (digest(content), content), most_bytes)


def store(folder: Path, name: str, parts: Iterable[bytes], most_bytes: int) -> None:
    """Write the parts as a file of a private folder, whole or not at all.

    The least recently used files beyond `most_bytes` are removed. A folder that cannot be written costs only time.
    """
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with private_folder(folder) as directory:
            part = f".{os.urandom(8).hex()}"  # a killed process leaves it, to be removed as the others
            try:
                with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory), "wb") as file:
                    file.writelines(parts)
                os.replace(part, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=directory)
                raise
            _prune(directory, most_bytes)


@contextlib.contextmanager
def private_folder(path: Path) -> Iterator[int]:
    """Open the folder, so that its files are reached whatever becomes of the path.

    Raises OSError if it is a link, or others can write it.
    """
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not is_private(os.fstat(directory)):
            raise PermissionError
        yield directory
    finally:
        os.close(directory)


def is_private(status: os.stat_result) -> bool:
    """Return True if only this user can write a file with this status."""
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.getuid() and not shared and not stat.S_ISLNK(status.st_mode)


def _prune(directory: int, most_bytes: int) -> None:
    with os.scandir(directory) as entries:
        by_use = sorted(
            ((entry.stat(follow_symlinks=False), entry.name) for entry in entries),
            key=lambda item: item[0].st_mtime_ns,
            reverse=True,
        )
    total = 0
    for status, name in by_use:
        total += status.st_size
        if total > most_bytes:
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                os.unlink(name, dir_fd=directory)


@functools.cache
def code_digest() -> str:
    """Return a hash of the paths, sizes and times of all code that makes and shows figures; content takes longer."""
    files = []
    for package in _PACKAGES:
        spec = find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            for folder, _, names in os.walk(root):
                for path in (os.path.join(folder, name) for name in names if not name.endswith(".pyc")):
                    status = os.stat(path)
                    files.append((path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return _digest(repr(sorted(files)).encode()).hex()


def file_digest(path: Path) -> str:
    """Return the hash of the file's bytes; not read again if it is unchanged. Raises OSError."""
    status = path.stat()
    state = (str(path.resolve()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    key = _digest(repr(state).encode()).hex()
    if stored := read_entry(_FILES, key):
        return bytes(stored).hex()
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS and path.stat() == status:
        write_entry(_FILES, key, digest.digest(), _FILES_BYTES)
    return digest.hexdigest()
