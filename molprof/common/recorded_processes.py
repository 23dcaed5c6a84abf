"""The processes whose recordings one trace holds, as stored in a trace of `molprof run --processes`."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from molprof.common.typed_json import read_typed

PROCESSES_KEY = "molprof_processes"


class RecordedProcess(Struct, frozen=True):
    """A process, and how its times were moved onto the clock of the first one."""

    pid: int
    parent: int
    command: list[str]
    name: str = ""  # that multiprocessing has for it
    rank: int | None = None  # of torch.distributed
    clock_moved_ns: int | None = None  # None: its clock is torch's alone, and may differ from the others'
    clock_apart_ns: int | None = None  # between the marks at its begin and its end: the error of the clock
    problems: list[str] = []  # why less of it may be recorded


def from_json(raw: Any) -> list[RecordedProcess]:
    """Return what a trace's `molprof_processes` holds. Raises TraceError."""
    return read_typed(raw, list[RecordedProcess], PROCESSES_KEY)
