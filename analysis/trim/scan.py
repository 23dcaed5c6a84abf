"""The first pass over a trace that is to be trimmed: its annotations, and which events belong together."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from molprof.analysis.reader.document import Document
from molprof.analysis.reader.events import ABSENT, FLOW_PHASES
from molprof.analysis.reader.part import Part, WrongEventError, or_zero, times_ns
from molprof.analysis.reader.source import open_source
from molprof.common.errors import TraceError

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
ANNOTATION = "user_annotation"
_MAX_NUMBER = 2**63  # of an int64
Array = np.ndarray


class _Args(msgspec.Struct, gc=False):
    correlation: Any = None


class _Event(msgspec.Struct, gc=False):
    ph: str | None = None
    cat: str | int | None = None
    name: str | None = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    id: msgspec.Raw = ABSENT
    args: _Args | None = None

    @property
    def correlation(self) -> int | None:
        """The number that a call and the GPU work that it started have in common."""
        number = None if self.args is None else self.args.correlation
        return number if isinstance(number, int) and 0 <= number < _MAX_NUMBER else None

    @property
    def flow_correlation(self) -> int:
        """The same of a flow from a call to its GPU work; -1 of any other flow."""
        digits = bytes(self.id)
        return int(digits) if self.cat == "ac2g" and digits.isdigit() and int(digits) < _MAX_NUMBER else -1


_decode_texts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_events = msgspec.json.Decoder(list[_Event]).decode


class Block:
    """A block of events: each as text, and decoded as far as needed."""

    def __init__(self, text: bytes) -> None:
        if not text.isascii():
            text.decode()  # the decoder does not check what is copied
        self.texts = _decode_texts(text)
        self.events = _decode_events(text)

        # ns, int64; 0 for events without a time, such as metadata.
        self.starts = times_ns(self.events, or_zero([event.ts for event in self.events]), "ts")
        self.ends = self.starts + times_ns(self.events, or_zero([event.dur for event in self.events]), "dur")


def flow_key(event: Any) -> int:
    """What the ends of one flow have in common, as a number of 63 bits."""
    text = f"{event.cat}\0{event.name}\0".encode() + bytes(event.id)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class Scan:
    """What the first pass has found. Times are ns as in the file."""

    def __init__(self) -> None:
        self.origin_ns: int | None = None  # start of the earliest event
        self.last_ns = 0  # start of the latest
        self.annotations: list[bytes] = []  # annotations and metadata, as text
        self.categories: dict[str | int | None, int] = {}  # name to number
        self.events_by_category: Counter[str] = Counter()  # complete events
        # Calls and work with a correlation: it, start, end, number of the category. Flows, each end: key, start,
        # correlation or -1.
        self._tables = {"calls": array("q"), "work": array("q"), "flows": array("q")}

    def read(self, text: bytes) -> Part:
        """Takes a block of events, a JSON array."""
        block = Block(text)
        starts, ends = block.starts, block.ends
        timed = np.array([event.ph != "M" for event in block.events], dtype=np.bool_)
        if timed.any():
            first = int(starts[timed].min())
            self.origin_ns = first if self.origin_ns is None else min(first, self.origin_ns)
            self.last_ns = max(self.last_ns, int(starts[timed].max()))
        for place, (event, start, end) in enumerate(zip(block.events, starts.tolist(), ends.tolist(), strict=True)):
            if event.ph == "M":
                self.annotations.append(bytes(block.texts[place]))
            elif event.ph in FLOW_PHASES:
                self._tables["flows"].extend((flow_key(event), start, event.flow_correlation))
            elif event.ph == "X":
                self.events_by_category[str(event.cat)] += 1
                if event.cat == ANNOTATION:
                    self.annotations.append(bytes(block.texts[place]))
                number = event.correlation
                if number is not None:
                    category = self.categories.setdefault(event.cat, len(self.categories))
                    target = "work" if event.cat in GPU_CATEGORIES else "calls"
                    self._tables[target].extend((number, start, end, category))
        return Part(events=len(block.events))

    def table(self, name: str) -> Array:
        """int64, a row per event."""
        return np.array(self._tables[name], dtype=np.int64).reshape(-1, 3 if name == "flows" else 4)


def pass_over(path: Path, read: Any) -> dict[str, Any]:
    """Gives every block of events to `read`; returns the other top-level keys. Raises TraceError."""
    with open_source(path) as source:
        document = Document(source.name, source.blocks, read, partial=False)
        done = 0
        try:
            for part in document.parts():
                done += part.events
        except WrongEventError as error:
            raise TraceError(f"{source.name}: {error.message(done)}") from None
        return document.keys
