"""Partial results: one small file for each trace, named by the hash of its content and by molprof's version.

So a rerun finds what is done on any machine, a retry writes the same file, and a trace that is copied or renamed is not
read again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from molprof import __version__
from molprof.analysis.reader.remote import digest, is_remote
from molprof.common.cache import file_digest
from molprof.common.values import counted

# Reasons that a line tells, each once.
_REASONS = 3


def digest_of(path: Path) -> str | None:
    """Return the hash of a file's bytes; None if it cannot be read."""
    with suppress(OSError):
        return digest(path) if is_remote(path) else file_digest(path)
    return None


def part_path(folder: Path, digest: str, partial: bool, ending: str) -> Path:
    """Return the path of what is kept of a trace with this content, read with or without --partial."""
    version = re.sub(r"[^\w.+-]", "-", __version__)
    return folder / f"{digest[:32]}-{version}{'-partial' if partial else ''}{ending}"


def reading_summary(total: int, problems: Sequence[tuple[str, str]], noun: str = "trace") -> str:
    """Return how many of `total` were read, and why others were not: the most frequent reasons first.

    problems: of each that failed the reason without its name, and the whole text.
    """
    groups: dict[str, list[str]] = {}
    for reason, text in problems:
        groups.setdefault(reason, []).append(text)
    sorted_groups = sorted(groups.values(), key=len, reverse=True)
    reasons = [f"{len(group):,} failed because {group[0]}" for group in sorted_groups[:_REASONS]]
    if rest := sum(map(len, sorted_groups[_REASONS:])):
        reasons.append(f"{rest:,} failed for other reasons")
    return ", ".join([f"{total - len(problems):,} of {counted(total, noun)} read", *reasons])


def reason_of(name: str, problem: str) -> str:
    """Return a problem without the file's name before it."""
    return problem.removeprefix(f"{name}: ").removeprefix(f"{name} ")
