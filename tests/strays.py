"""Processes that a test started and that still live, found by a mark in their environment."""

from __future__ import annotations

import os
from pathlib import Path

MARK = "MOLPROF_TEST_MARK"


def strays(mark: str) -> list[str]:
    """Command lines of living processes that carry the mark, this one apart."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                carried = f"{MARK}={mark}".encode() in (entry / "environ").read_bytes()
                if carried and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
