"""Reports in the user's cache."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from molprof.analysis.figures.model import Report
from molprof.common.cache import cache_key, read_entry, write_entry

# About a thousand reports.
MAX_BYTES = 64 << 20
_FOLDER = "reports"
# One object, created at import: two threads that make msgspec (0.22) inspect the same dataclass at once crash the
# process.
decode_report = msgspec.json.Decoder(Report).decode
encode_report = msgspec.json.encode


def report_key(path: Path, *options: object) -> str | None:
    """The key of a report: its file, molprof's code, and options that change figures."""
    return cache_key((path,), *options)


def read_report(key: str, path: Path) -> Report | None:
    """The report under `key`, as one of the file at `path`; None without an intact one."""
    if (text := read_entry(_FOLDER, key)) is None:
        return None
    report = decode_report(text)
    return replace(report, trace=replace(report.trace, path=str(path)))


def write_report(key: str, report: Report) -> None:
    """Store a report."""
    write_entry(_FOLDER, key, encode_report(report), MAX_BYTES)
