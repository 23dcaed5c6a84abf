"""One trace of what several processes recorded: on one clock, each process with its own number and name.

torch writes times of the system's clock, which it reads once per recording against a faster counter. Each recording has
marks with the time of CLOCK_MONOTONIC, which all processes of a machine share: by them, it is moved onto the clock of
the first one. The marks are not in the merged trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from molprof.common.errors import RunError
from molprof.profiler.recording.hook import CLOCK_MARK
from molprof.profiler.recording.tracefile import ExportedFile, OutputFile, read_exported, write_trace

PROCESSES_KEY = "molprof_processes"
# Categories of calls and work that share numbers, which each process counts for itself.
_LINKED = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver"})
_HOST = frozenset({"cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver", "cpu_instant_event"})
# Numbers of flows of one recording are below this.
_FLOWS = 1 << 40
_NAME_CHARACTERS = 100
_decode = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.encode


class ProcessNote(Struct):
    """What a process said of itself: see `hook.py`."""

    pid: int
    parent: int
    command: list[str]
    name: str = ""
    torch: bool = False
    parts: int = 0
    ended: bool = False  # it wrote all that it had
    rank: int | None = None
    others: list[int] = []
    problems: list[str] = []

    @property
    def text(self) -> str:
        """Number and name, as people read them."""
        return f"{self.pid} ({self.title})"

    @property
    def title(self) -> str:
        """What it runs."""
        title = " ".join([*([f"{self.name}:"] if self.name else []), *self.command])
        return title if len(title) <= _NAME_CHARACTERS else title[: _NAME_CHARACTERS - 3] + "..."


class _Marks(Struct):
    """Time in a file less that of CLOCK_MONOTONIC, ns, at the first and the last mark of a recording."""

    first_ns: int
    last_ns: int

    @property
    def offset_ns(self) -> int:
        return (self.first_ns + self.last_ns) // 2


class _Part(Struct):
    """A recording of a process."""

    note: ProcessNote
    exported: ExportedFile
    marks: _Marks | None
    base_ns: int  # that times of the file count from
    hosts: set[str]  # numbers that it has for its own process
    is_linked: bool

    @classmethod
    def read(cls, path: Path, note: ProcessNote, output: OutputFile) -> _Part:
        exported = read_exported(path, output)
        base_ns = int(bytes(exported.keys.get("baseTimeNanoseconds", b"0")))
        offsets: list[int] = []
        hosts, is_linked, mark = {str(note.pid)}, False, f'"{CLOCK_MARK}'.encode()
        for event in exported.events:
            fields = _decode(event)
            category = _text(fields.get("cat"))
            is_linked |= category in _LINKED
            if category in _HOST:
                hosts.add(_text(fields.get("pid")))
            name = bytes(fields.get("name", b""))
            if name.startswith(mark):
                offsets.append(base_ns + _ns(fields["ts"]) - int(name[len(mark) : -1]))
        half = len(offsets) // 2
        marks = _Marks(min(offsets[:half]), min(offsets[half:])) if half else None
        return cls(note, exported, marks, base_ns, hosts, is_linked)

    def moved(self, number: int, base_ns: int, clock_ns: int, rank: int | None) -> Iterator[bytes]:
        """Yield its events as they stand in the merged trace."""
        move_ns, mark = self.base_ns + clock_ns - base_ns, f'"{CLOCK_MARK}'.encode()
        for event in self.exported.events:
            fields = _decode(event)
            name = bytes(fields.get("name", b""))
            pid = _text(fields.get("pid"))
            is_host = pid in self.hosts
            if name.startswith(mark) or (is_host and name == b'"process_name"'):
                continue
            if is_host:
                fields["pid"] = Raw(b"%d" % self.note.pid)
            elif rank is not None:
                fields["pid"] = Raw(_encode(f"rank{rank}_{pid}"))
            if move_ns and "ts" in fields:
                fields["ts"] = Raw(_us(_ns(fields["ts"]) + move_ns))
            if number and (flow := bytes(fields.get("id", b""))).isdigit():
                fields["id"] = Raw(b"%d" % (int(flow) + number * _FLOWS))
            yield _encode(fields)


class MergedTrace(Struct):
    """What was written, and what its readers must know."""

    path: Path
    events: dict[int, int]  # by process
    moved_ns: int  # the most that a recording was moved by its marks
    apart_ns: int  # the most that the marks of a recording are apart: the error of times of two processes
    unmarked: list[int]  # processes whose clock is torch's alone


def merge(parts: Sequence[tuple[Path, ProcessNote]], output: OutputFile) -> MergedTrace:
    """Write one trace of the recordings at these paths. Raises RunError where none can be read."""
    read = [_Part.read(path, note, output) for path, note in parts]
    if not read:
        raise RunError("no process recorded anything")
    base_ns = read[0].base_ns
    marked = [(part, part.marks) for part in read if part.marks is not None]
    moves = {id(part): marked[0][1].offset_ns - marks.offset_ns for part, marks in marked}
    ranks = _ranks([part.note for part in read if part.is_linked])
    counts: dict[int, int] = {}
    events: list[Any] = []
    for number, part in enumerate(read):
        note, before = part.note, len(events)
        rank = ranks.get(note.pid) if part.is_linked else None
        if note.pid not in counts:
            title = note.title if rank is None else f"rank {rank}: {note.title}"
            events.append(_encode({"ph": "M", "name": "process_name", "pid": note.pid, "args": {"name": title}}))
        events += part.moved(number, base_ns, moves.get(id(part), 0), rank)
        counts[note.pid] = counts.get(note.pid, 0) + len(events) - before
    keys = {name: value for name, value in read[0].exported.keys.items() if name != "distributedInfo"}
    about = [
        {
            **{name: getattr(note, name) for name in ("pid", "parent", "command", "name", "rank", "problems")},
            "clock_moved_ns": max((moves.get(id(part), 0) for part in read if part.note is note), key=abs),
        }
        for note in {part.note.pid: part.note for part in read}.values()
    ]
    path = write_trace(ExportedFile(keys, events, {}), output, (), {PROCESSES_KEY: about})
    return MergedTrace(
        path,
        counts,
        max(map(abs, moves.values()), default=0),
        max((abs(marks.first_ns - marks.last_ns) for _, marks in marked), default=0),
        sorted({part.note.pid for part in read if part.marks is None}),
    )


def _ranks(linked: Sequence[ProcessNote]) -> dict[int, int]:
    """Return the rank of each process with GPU work; none where there is one such process."""
    notes = {note.pid: note for note in linked}
    if len(notes) < 2:
        return {}
    told = {note.rank for note in notes.values() if note.rank is not None}
    if len(told) == len(notes):
        return {pid: note.rank for pid, note in notes.items() if note.rank is not None}
    return {pid: number for number, pid in enumerate(notes)}


def _text(value: Raw | None) -> str:
    return "" if value is None else bytes(value).decode().strip('"')


def _ns(us: Raw) -> int:
    return int(Decimal(bytes(us).decode()) * 1000)


def _us(ns: int) -> bytes:
    return b"%d.%03d" % divmod(ns, 1000)
