"""Reader: streams a trace file into the trace processor without losing an event.

SQL sees the names of Perfetto's own reader of Chrome JSON, so a query also runs on the raw file in the Perfetto UI:

- `slice`: one row per complete event (ph X). `ts` and `dur` are exact ns, `ts` from the earliest event of the file
  (`TraceInfo.origin_ns`); a missing `dur` is 0, a missing `cat` a NULL `category`. Instant events (ph i) have `dur` 0.
  GPU work, calls and operators that are not complete events have another category, such as `kernel (incomplete)`.
- args: `EXTRACT_ARG(arg_set_id, 'args.correlation')`, `'args.External id'`, `'args.grid[0]'`; true and false are 1 and
  0; null, {} and [] have no row.
- `thread.tid` and `process.pid` are the file's where these are integers from 1 to 2**31 - 1, or pid 0 with its tid 0.
  Any other (text, negative, huge, tid 0 of another process, a tid of more than 64 processes) becomes a number from
  2**31 on, and the name of the thread or process, unless metadata name it.
- lanes: a slice that partly overlaps another on its track, or has 500 others around it, is on another thread of the
  same process, named like `stream 7 (lane 2)`; its `args.molprof_tid` is the `thread.tid` of its own track.
- `flow`: flow events (ph s, t, f); `counter`: ph C; asynchronous slices (ph b, e, n) are on tracks without a thread.
- text: see `molprof.analysis.reader.text`. Of a name or category of more than 65,536 characters only the beginning, the
  length and a hash are read; `TraceInfo.long_names` counts them, and notes say so.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from itertools import islice
from typing import Any

from msgspec import Struct, field

from molprof.analysis.reader.remote import remote_text
from molprof.common.text import shortened
from molprof.common.values import counted

STDIN = "-"
# Categories that a message names.
_LISTED = 8


@dataclass(frozen=True)
class Reading:
    """Options of reading a trace."""

    native_path: str | None = None  # of a `trace_processor_shell` to use instead of the embedded one
    partial: bool = False  # take the intact part of a damaged file
    cached: bool = False  # use the user's cache, and fill it
    stacks: bool = False  # read Python stacks too, often most events; no figure needs them
    processes: int | None = None  # that read a large trace together; None: one per processor


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return True if the path can be read only once: standard input, a pipe, a terminal."""
    if str(path) == STDIN:
        return True
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # nothing there, no name of a file
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def path_text(path: object) -> str:
    """Return a path as people read it."""
    return "standard input" if str(path) == STDIN else remote_text(path)


def long_names_text(count: int) -> str:
    """Return the remark on `TraceInfo.long_names` as text."""
    return f"{counted(count, 'name')} of more than 65,536 characters: the beginning, the length and a hash are read"


class ClockTicks(Struct, frozen=True):
    """The unit of times of GPU work, or of the host's operators and calls: all are multiples of it."""

    step_ns: int  # of starts and lengths; 1 where they are too few to tell
    start_step_ns: int  # of starts alone, which some tools write with fewer digits
    is_float32: bool  # the step is that of 32-bit numbers that large
    events: int
    time_ns: int  # sum of their durations
    without_length: int  # events of 0 ns


class Condition(Struct, frozen=True):
    """The state of a file, by its events and times."""

    has_span: bool = False  # the profiler's own, which torch writes behind all else
    gpu: ClockTicks | None = None  # None: no such events
    host: ClockTicks | None = None


class TraceInfo(Struct, frozen=True):
    """Counts and properties of a trace file that the reader found."""

    path: str
    bytes: int  # of the file as it is stored
    events_by_category: dict[str, int]  # complete events (ph X) in the file; 'None' for those without category
    complete: bool  # the whole file could be read, and its capture went through
    problem: str | None  # where the file is damaged, or what failed
    slices: dict[str, int]  # that the engine must show, by the category that it shows
    slices_ns: int | None  # the sum of their durations; None where some are begin and end events of their own
    lost_events: int = 0  # of these slices, those that the engine does not show
    lanes: int = 0  # slices on another lane
    stacks: bool = True  # Python stacks are in the engine; events_by_category counts them in any case
    # Events that no figure counts, by category ('None' for none). Their kind (ph) or category is not known, or they are
    # GPU work, calls or operators that are not complete (ph X).
    not_read: dict[str, int] = field(default_factory=dict)
    # Categories of older versions of Kineto and of other devices: their complete events by the category that SQL reads.
    read_as: dict[str, dict[str, int]] = field(default_factory=dict)
    memory_events: int = 0  # allocations and frees (profile_memory); in the engine if all args are
    deep_events: int = 0  # of the host, with 500 others around them: those on a lane of their own have no parent
    long_names: int = 0  # names and categories of events, and names of tracks, of which only the beginning is kept
    native: bool = False  # in Perfetto's own format, which has no keys
    origin_ns: int = 0  # time in the file = SQL time + origin_ns
    condition: Condition = Condition()
    manifest: dict[str, Any] | None = None  # the key `molprof`
    devices: list[dict[str, Any]] = field(default_factory=list)  # torch's `deviceProperties`
    keys: dict[str, Any] = field(default_factory=dict)  # all other top-level keys

    @property
    def head(self) -> dict[str, Any]:
        """Properties of the file that the JSON of any subject holds."""
        return {"path": self.path, "complete": self.complete, "problem": self.problem}

    @property
    def not_read_text(self) -> str:
        """Events that were not read, as text: `not read: 3 events of category kernel`."""
        listed = [
            counted(count, "event")
            + (" without category" if category == "None" else f" of category {shortened(category)}")
            for category, count in islice(self.not_read.items(), _LISTED)
        ]
        if others := sum(islice(self.not_read.values(), _LISTED, None)):
            listed.append(f"{counted(others, 'event')} of {len(self.not_read) - _LISTED:,} other categories")
        return f"not read: {', '.join(listed)}"

    def notes(self) -> list[str]:
        """Return reasons why less of the trace may be shown than expected."""
        notes = []
        if not self.complete:
            notes.append(f"{path_text(self.path)} is damaged, and only its whole part was read: {self.problem}")
        if self.not_read:
            notes.append(f"{path_text(self.path)}: {self.not_read_text}")
        if self.long_names:
            notes.append(f"{path_text(self.path)} has {long_names_text(self.long_names)}")
        if not self.events_by_category:
            notes.append(f"{path_text(self.path)} holds no events with a duration, so nothing was recorded")
        return notes
