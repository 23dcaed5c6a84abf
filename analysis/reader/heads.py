"""Whether a file is a trace, by its beginning, and which files of a folder are left out for not being one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from molprof.analysis.reader.source import ENDINGS, open_source
from molprof.common.errors import TraceError

_HEAD_BYTES = 4 << 20
_NAMED = 8


def head_of(path: Path) -> bytes | None:
    """The beginning of a trace, of a native one empty; None of another file. A damaged trace is one."""
    head = bytearray()
    try:
        with open_source(path) as source:
            if source.is_perfetto:
                return b""
            for block in source.blocks:
                head += block
                if b'"traceEvents"' in head or (head.lstrip()[:1] == b"[" and b'"ph"' in head):
                    return bytes(head)
                if len(head) > _HEAD_BYTES:
                    return None
    except TraceError:
        return bytes(head) if b'"ph"' in head else None
    return None


def is_trace(path: Path) -> bool:
    """Whether a file begins as a trace does."""
    return head_of(path) is not None


def traces_in(folder: Path) -> list[Path]:
    """The files of a folder that are named as traces, in order of their names; without any the folder."""
    found = (item for item in folder.iterdir() if item.name.lower().endswith(ENDINGS) and item.is_file())
    return sorted(found) or [folder]


def left_out(folder: Path, files: Sequence[Path]) -> str:
    """The remark on files of a folder that are no traces."""
    names = [str(item.relative_to(folder)) for item in files]
    shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")
    return f"left out of {folder}: {shown} ({'not a trace' if len(names) == 1 else 'not traces'})"
