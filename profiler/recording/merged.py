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
from msgspec import Raw, Struct, to_builtins

from molprof.common.recorded_processes import PROCESSES_KEY, RecordedProcess
from molprof.profiler.recording.hook import CLOCK_MARK
from molprof.profiler.recording.tracefile import ExportedFile, OutputFile, read_exported, write_trace

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


class _Part(Struct):
    """A recording of a process."""

    note: ProcessNote
    exported: ExportedFile
    # Time in the file less that of CLOCK_MONOTONIC, ns, at the first and the last mark.
    clock_ns: tuple[int, int] | None
    base_ns: int  # that times of the file count from
    hosts: set[str]  # numbers that it has for its own process
    is_linked: bool

    @classmethod
    def read(cls, path: Path, note: ProcessNote, output: OutputFile) -> _Part:
        exported = read_exported(path, output)
        base_ns = int(bytes(exported.keys.get("baseTimeNanoseconds", b"0")))
        offsets: list[int] = []
        hosts, is_linked, mark = {str(note.pid), *map(str, note.others)}, False, f'"{CLOCK_MARK}'.encode()
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
        clock_ns = (min(offsets[:half]), min(offsets[half:])) if half else None
        return cls(note, exported, clock_ns, base_ns, hosts, is_linked)

    @property
    def middle_ns(self) -> int:
        """The mean of `clock_ns`."""
        return 0 if self.clock_ns is None else sum(self.clock_ns) // 2

    @property
    def apart_ns(self) -> int:
        """How far `clock_ns` are apart."""
        return 0 if self.clock_ns is None else abs(self.clock_ns[0] - self.clock_ns[1])

    def moved(self, number: int, move_ns: int, rank: int | None) -> Iterator[bytes]:
        """Yield its events as they stand in the merged trace."""
        mark, others = f'"{CLOCK_MARK}'.encode(), {*map(str, self.note.others)}
        for event in self.exported.events:
            fields = _decode(event)
            name = bytes(fields.get("name", b""))
            pid = _text(fields.get("pid"))
            is_host = pid in self.hosts
            # A fork has names of the threads of the process that it is of.
            is_other = pid in others and _text(fields.get("ph")) == "M"
            if name.startswith(mark) or is_other or (is_host and name == b'"process_name"'):
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
    """What was written."""

    path: Path
    processes: list[RecordedProcess]
    events: dict[int, int]  # by process number


def merge(parts: Sequence[tuple[Path, ProcessNote]], output: OutputFile) -> MergedTrace:
    """Write one trace of the recordings at these paths. Raises RunError where one cannot be read."""
    read = [_Part.read(path, note, output) for path, note in parts]
    base_ns = read[0].base_ns
    first = next((part for part in read if part.clock_ns is not None), None)
    ranks = _ranks([part.note for part in read if part.is_linked])
    processes: dict[int, RecordedProcess] = {}
    counts: dict[int, int] = {}
    events: list[Any] = []
    for number, part in enumerate(read):
        note, before = part.note, len(events)
        rank = ranks.get(note.pid) if part.is_linked else None
        if note.pid not in counts:
            title = note.title if rank is None else f"rank {rank}: {note.title}"
            events.append(_encode({"ph": "M", "name": "process_name", "pid": note.pid, "args": {"name": title}}))
        moved_ns = first.middle_ns - part.middle_ns if first is not None and part.clock_ns is not None else None
        events += part.moved(number, part.base_ns - base_ns + (moved_ns or 0), rank)
        counts[note.pid] = counts.get(note.pid, 0) + len(events) - before
        earlier = processes.get(note.pid)
        processes[note.pid] = RecordedProcess(
            **{name: getattr(note, name) for name in ("pid", "parent", "command", "name", "rank", "problems")},
            clock_moved_ns=moved_ns,
            clock_apart_ns=None if moved_ns is None else max(part.apart_ns, (earlier and earlier.clock_apart_ns) or 0),
        )
    keys = {name: value for name, value in read[0].exported.keys.items() if name != "distributedInfo"}
    added = {PROCESSES_KEY: to_builtins(list(processes.values()))}
    path = write_trace(ExportedFile(keys, events, {}), output, (), added)
    return MergedTrace(path, list(processes.values()), counts)


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
