"""A run of a program that was timed and not recorded, as its process hands it on."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from molprof.common.manifest import MachineSpan, Repeat


class TimedRun(Struct, frozen=True):
    """A run of a program under host timestamps alone."""

    repeat: Repeat
    spans: list[MachineSpan]
    steps: list[int]  # by call of `generate`
    tokens: int
    switched_off: list[str]
    problem: str | None  # what ended the program early

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))
