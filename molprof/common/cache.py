"""The user's cache: entries under keys of what made them, intact or not there, in folders of bounded size."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import mmap
import os
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from molprof import __version__
from molprof.common.files import cache_dir, replacing

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
    """A hash of the files, of molprof's code and of facts that change the result; None if a file cannot be read."""
    with contextlib.suppress(OSError):
        parts = [__version__, code_digest(), *map(file_digest, paths), *map(repr, facts)]
        return _digest("\0".join(parts).encode()).hex()
    return None


def read_entry(folder: str, key: str, digest: Digest = _digest) -> memoryview | None:
    """The content stored under `key` with this digest, mapped from its file; None without an intact one."""
    entry, size = cache_dir() / folder / key, len(digest(b""))
    # An empty file cannot be mapped. Others are replaced or removed, never changed.
    with contextlib.suppress(OSError, ValueError), entry.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if data[:size] == digest(data[size:]):
            os.utime(entry)  # the least recently used entries are removed first
            return data[size:]
    return None


def write_entry(folder: str, key: str, content: bytes, most_bytes: int, digest: Digest = _digest) -> None:
    """Store `content`, if it fits, in a folder of at most `most_bytes`.

    A cache that cannot be written costs only time.
    """
    if len(content) > most_bytes:
        return
    with contextlib.suppress(OSError):
        place = cache_dir() / folder
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(place / key) as part, part.open("wb") as file:
            file.write(digest(content))
            file.write(content)
        prune(place, most_bytes)


def prune(place: Path, most_bytes: int) -> None:
    """Remove the least recently used entries of a folder beyond `most_bytes`. Raises OSError."""
    known = sorted(
        ((entry.stat(), entry) for entry in place.iterdir()), key=lambda item: item[0].st_mtime_ns, reverse=True
    )
    total = 0
    for status, entry in known:
        total += status.st_size
        if total > most_bytes:
            entry.unlink(missing_ok=True)


@functools.cache
def code_digest() -> str:
    """Hash of the paths, sizes and times of all code that makes and shows figures. To read it takes thrice the time."""
    known = []
    for package in _PACKAGES:
        spec = find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            for folder, _, names in os.walk(root):
                for path in (os.path.join(folder, name) for name in names if not name.endswith(".pyc")):
                    status = os.stat(path)
                    known.append((path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return _digest(repr(sorted(known)).encode()).hex()


def file_digest(path: Path) -> str:
    """Hash of the file's bytes; not read again if it is unchanged. Raises OSError."""
    status = path.stat()
    place = (str(path.resolve()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    key = _digest(repr(place).encode()).hex()
    if known := read_entry(_FILES, key):
        return bytes(known).hex()
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS and path.stat() == status:
        write_entry(_FILES, key, digest.digest(), _FILES_BYTES)
    return digest.hexdigest()
