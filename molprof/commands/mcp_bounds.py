"""What an assistant may reach and how much it gets: traces below given folders, answers of limited size."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from molprof.common.errors import UsageError

MOST_CHARACTERS = 24_000  # of an answer as JSON
_MOST_TEXT = 2_000  # of one text in a list
MOST_FILES = 2_000  # that are listed
_ENDINGS = (".json", ".json.gz", ".json.zst", ".pftrace", ".pftrace.gz", ".perfetto-trace")


class Folders:
    """The folders whose files may be read. Links are followed first: what counts is where a file really is."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._roots = tuple(dict.fromkeys(folder.resolve(strict=True) for folder in folders))

    def find(self, name: str) -> Path:
        """Return the real path of a file below the folders, from its path in one of them or a whole one.

        Raises UsageError where there is no such file below the folders; the message is the same for files elsewhere.
        """
        for root in self._roots:
            try:
                path = (root / name).resolve(strict=True)
                inside = any(path.is_relative_to(allowed) for allowed in self._roots)
                if inside and stat.S_ISREG(path.stat().st_mode):
                    return path
            except (OSError, RuntimeError, ValueError):  # missing, a circle of links, a null character
                continue
        raise UsageError(f"no file {name!r} below the folders of this server", hint="the tool `traces` lists them")

    def files(self) -> Iterator[tuple[str, int]]:
        """Path and size in bytes of each file that has a trace's ending, in order of name; links are left out."""
        for root in self._roots:
            for folder, inner, names in os.walk(root):
                inner.sort()
                for name in sorted(names):
                    path = Path(folder, name)
                    if not name.endswith(_ENDINGS) or path.is_symlink():
                        continue
                    yield str(path.relative_to(root) if len(self._roots) == 1 else path), path.stat().st_size


def bounded(data: dict[str, Any], most: int = MOST_CHARACTERS) -> bytes:
    """The answer as JSON of at most `most` characters.

    The longest list is halved until all fits; `left_out` says how many entries of which list are missing.
    """
    data = {key: _cut(value) for key, value in data.items()}
    left_out: dict[str, Any] = dict(data.get("left_out") or {})
    while True:
        text = msgspec.json.encode({**data, "left_out": left_out})
        if len(text) <= most:
            return text
        sizes = {
            key: len(msgspec.json.encode(value)) for key, value in data.items() if isinstance(value, list) and value
        }
        if not sizes:
            raise UsageError("the answer is too large", hint="ask for less")
        longest = max(sizes, key=lambda key: sizes[key])
        kept = len(data[longest]) // 2
        left_out[longest] = left_out.get(longest, 0) + len(data[longest]) - kept
        data[longest] = data[longest][:kept]


def limited(data: dict[str, Any], key: str, items: Sequence[Any], limit: int) -> None:
    """Add the first `limit` items as `key`, and to `left_out` how many are missing."""
    data[key] = list(items[:limit])
    if len(items) > limit:
        data.setdefault("left_out", {})[key] = len(items) - limit


def _cut(value: Any) -> Any:
    """The value with long texts inside lists cut."""
    if isinstance(value, str):
        return value if len(value) <= _MOST_TEXT else f"{value[:_MOST_TEXT]}... ({len(value) - _MOST_TEXT} more)"
    if isinstance(value, (list, tuple)):
        return [_cut(item) for item in value]
    return {key: _cut(item) for key, item in value.items()} if isinstance(value, dict) else value
