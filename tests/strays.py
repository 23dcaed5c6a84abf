"""Processes that a test leaves behind, found by a mark in their environment."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

MARK = "MOLPROF_TEST_MARK"


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Every process that a test starts, and those that they start, carry this."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    return value


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
