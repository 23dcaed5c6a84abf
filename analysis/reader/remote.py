"""Remote traces: `s3://`, `gs://` and `http(s)://`, read by fsspec as streams, with its own credentials.

A place is a `Path` whose text is the address without what may be secret: a user, a password, the query. These are kept
in this process alone, and no message has them.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import itertools
import os
import re
from pathlib import Path
from typing import Any

from molprof.common.errors import MissingExtraError, TraceError, UsageError
from molprof.common.files import replacing

# `Path` makes one slash of two.
_ADDRESS = re.compile(r"(s3|gs|https?):/{1,2}(?=[^/])")
_BLOCK_BYTES = 4 << 20
# Whole addresses by their texts without secrets.
_whole: dict[str, str] = {}


def placed(path: str | os.PathLike[str]) -> Path:
    """Return the path of a local file, or of a remote one without the secrets of its address."""
    text = os.fspath(path)
    if isinstance(path, Path) or not _ADDRESS.match(text):
        return Path(path)
    from urllib.parse import urlsplit, urlunsplit

    parts, shown = urlsplit(text), text
    if parts.scheme.startswith("http"):  # elsewhere `?` and `@` may be part of a name
        shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    # Addresses that differ in what is left out stay apart.
    names = (shown if number == 1 else f"{shown}#{number}" for number in itertools.count(1))
    path_text = next(name for name in names if _whole.setdefault(remote_text(Path(name)), text) == text)
    return Path(path_text)


def is_remote(path: object) -> bool:
    """Return True if a path is of a remote file."""
    return _ADDRESS.match(str(path)) is not None


def has_secret(path: object) -> bool:
    """Return True if the address has secrets, which only this process knows."""
    return is_remote(path) and _address(path) != remote_text(path)


def remote_text(path: object) -> str:
    """Return the path as people read it: an address with both slashes."""
    return _ADDRESS.sub(r"\1://", str(path), count=1)


def _address(path: object) -> str:
    return _whole.get(remote_text(path), remote_text(path))


def opened(path: Path) -> tuple[io.BufferedReader, int | None]:
    """Return the file at an address, to be read in order, and its size if known. Raises UsageError, TraceError."""
    raw = _RemoteFile(path)
    return io.BufferedReader(raw, 256 * 1024), raw.size


def digest(path: Path) -> str:
    """Return the hash of a file's bytes, the same as of a local copy. Raises OSError."""
    hasher = hashlib.blake2b(digest_size=32)
    try:
        with opened(path)[0] as file:
            while block := file.read(_BLOCK_BYTES):
                hasher.update(block)
    except (TraceError, UsageError) as error:
        raise OSError(str(error)) from error
    return hasher.hexdigest()


def listed(path: Path, endings: tuple[str, ...]) -> list[Path]:
    """Return the files of a folder in a bucket with these endings, in order of their names; none if it is no folder."""
    scheme = remote_text(path).partition("://")[0]
    if scheme.startswith("http") or path.name.lower().endswith(endings):
        return []
    try:
        system = _system(scheme)
        names = system.ls(remote_text(path), detail=False)
    except Exception as error:
        raise _problem(path, error) from error
    return sorted(placed(f"{scheme}://{name}") for name in names if name.lower().endswith(endings))


def size_and_time(path: Path) -> tuple[int, int]:
    """Return the bytes of a file in another place, and when it was written, ns; 0 where that is not told."""
    try:
        info = _system(remote_text(path).partition("://")[0]).info(_address(path))
    except Exception as error:
        raise _problem(path, error) from error
    when = info.get("LastModified")
    return int(info.get("size") or 0), int(when.timestamp() * 1e9) if isinstance(when, datetime.datetime) else 0


def content(path: Path) -> bytes:
    """Return the bytes of a small file, local or remote. Raises OSError, TraceError, UsageError."""
    if not is_remote(path):
        return path.read_bytes()
    with opened(path)[0] as file:
        return file.read()


def write_content(path: Path, data: bytes) -> None:
    """Write a small file, local or remote, whole or not at all. Raises UsageError, TraceError."""
    if not is_remote(path):
        with replacing(path) as part:
            part.write_bytes(data)
        return
    scheme = remote_text(path).partition("://")[0]
    if scheme.startswith("http"):
        raise UsageError(f"cannot write {remote_text(path)}", hint="name a folder, or one of s3:// or gs://")
    try:
        _system(scheme).pipe_file(_address(path), data)
    except Exception as error:
        raise _problem(path, error, doing="write") from error


class _RemoteFile(io.RawIOBase):
    """A file that fsspec opens. An end before its stated size is an error."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._at = path, 0
        address = _address(path)
        try:
            system = _system(address.partition("://")[0])
            self._file = system.open(address, "rb", block_size=_BLOCK_BYTES, cache_type="readahead")
        except Exception as error:
            raise _problem(path, error) from error
        size = getattr(self._file, "size", None)
        self.size: int | None = size if isinstance(size, int) else None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read(len(buffer))
        except Exception as error:
            raise _problem(self._path, error, self._at) from error
        if not data and self.size is not None and self._at < self.size:
            raise TraceError(f"{remote_text(self._path)} ends after {self._at:,} of {self.size:,} bytes", _AGAIN)
        self._at += len(data)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()


_AGAIN = "repeat the command; or copy the file here"


def _system(scheme: str) -> Any:
    """Return the file system of a scheme, without caches of listings."""
    import fsspec

    options = {"skip_instance_cache": True} if scheme in ("s3", "gs") else {}
    return fsspec.filesystem(scheme, use_listings_cache=False, **options)


def _problem(path: Path, error: Exception, at: int = 0, doing: str = "read") -> Exception:
    """Return the error with this cause.

    Its text may have secrets, such as a signed address, so its kind alone is told.
    """
    text = remote_text(path)
    if isinstance(error, ImportError):
        return MissingExtraError("fsspec", "remote", f"{doing.rstrip('e')}ing {text}")
    if isinstance(error, FileNotFoundError):
        return UsageError(f"cannot {doing} {text}: there is no such file", hint="check the address")
    if isinstance(error, PermissionError) or "Credential" in type(error).__name__:
        hint = (
            "credentials are those of fsspec: AWS_PROFILE, AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, ~/.netrc"
        )
        return UsageError(f"cannot {doing} {text}: access is denied ({type(error).__name__})", hint)
    status = getattr(error, "status", None)
    what = f"{type(error).__name__}{'' if status is None else f', status {status}'}"
    after = f" after {at:,} bytes" if at else ""
    return TraceError(f"cannot {doing} {text}{after}: the connection failed ({what})", _AGAIN)
