"""Reports in the user's cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import msgspec

from molprof import __version__
from molprof.analysis.figures.model import Report
from molprof.common.files import cache_dir, replacing

# About a thousand reports.
MAX_BYTES = 64 << 20
_DIGEST_BYTES = 32
# A file changed this recently may change again within the resolution of its time stamps, so its hash is not stored.
_SETTLED_NS = 2_000_000_000
# One object, created at import: two threads that make msgspec (0.22) inspect the same dataclass at once crash the
# process.
decode_report = msgspec.json.Decoder(Report).decode
encode_report = msgspec.json.encode


def report_key(path: Path, *options: object) -> str | None:
    """A hash of the file, of molprof's code and of options that change figures; None if the file cannot be read."""
    with contextlib.suppress(OSError):
        parts = [__version__, _code_digest(), _content_digest(path), *map(repr, options)]
        return _digest("\0".join(parts).encode()).hex()
    return None


def read_report(key: str, path: Path) -> Report | None:
    """The report under `key`, as one of the file at `path`; None without an intact one."""
    entry = _folder() / f"{key}.json"
    with contextlib.suppress(OSError, msgspec.DecodeError):
        data = entry.read_bytes()
        digest, text = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if digest != _digest(text):
            return None
        report = decode_report(text)
        os.utime(entry)  # the least recently used entries are removed first
        return replace(report, trace=replace(report.trace, path=str(path)))
    return None


def write_report(key: str, report: Report) -> None:
    """Store a report. A cache that cannot be written costs only time."""
    text = encode_report(report)
    with contextlib.suppress(OSError):
        _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(_folder() / f"{key}.json") as part:
            part.write_bytes(_digest(text) + text)
        _prune(_folder().iterdir())


def _folder() -> Path:
    return cache_dir() / "reports"


def _prune(entries: Iterable[Path]) -> None:
    """Remove the least recently used entries beyond MAX_BYTES."""
    known = sorted(((entry.stat(), entry) for entry in entries), key=lambda item: item[0].st_mtime_ns, reverse=True)
    total = 0
    for status, entry in known:
        total += status.st_size
        if total > MAX_BYTES:
            entry.unlink(missing_ok=True)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


@functools.cache
def _code_digest() -> str:
    """Hash of all code that figures depend on."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for package in ("molprof.analysis", "molprof.common", "molprof.queries"):
        for source in sorted(Path(str(files(package))).rglob("*")):
            if source.suffix in (".py", ".sql"):
                digest.update(source.read_bytes())
    return digest.hexdigest()


def _content_digest(path: Path) -> str:
    """Hash of the file's bytes; not read again if it is unchanged."""
    status = path.stat()
    place = (str(path.resolve()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    note = _folder() / f"{_digest(repr(place).encode()).hex()}.hash"
    with contextlib.suppress(OSError):
        known = note.read_text()
        if len(known) == 2 * _DIGEST_BYTES:
            os.utime(note)
            return known
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    result = digest.hexdigest()
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS and path.stat() == status:
        with contextlib.suppress(OSError):
            note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(note) as part:
                part.write_text(result)
    return result
