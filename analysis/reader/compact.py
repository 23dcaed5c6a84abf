"""Events in Fuchsia's trace format (64-bit words), which the engine reads three times as fast as JSON.

Format: https://fuchsia.dev/fuchsia-src/reference/tracing/trace-format. Times are integers of ns. An event without a
category gets an empty one, which SQL comparisons treat alike.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from molprof.analysis.reader.events import NUMBERS
from molprof.analysis.reader.part import NO_NUMBER, Label
from molprof.analysis.reader.places import HOME_TID, Places
from molprof.analysis.reader.survey import Survey
from molprof.analysis.reader.text import exact_float, plain_text

# Events per piece, each with at most two texts besides the names of args that many have; the format numbers 32767.
_EVENTS = 16000
_MAX_TEXTS = 32766
_NAMES = frozenset(f"args.{name}" for name in NUMBERS)
# Well below the format's limits: 4095 words per record, 15 args per event.
_MAX_NAME_BYTES = 32000
_MAX_ARGS_BYTES = 8000
_MAX_ARGS = 12
_INITIALIZATION, _STRING, _EVENT, _KERNEL_OBJECT = 1, 2, 4, 7
_INSTANT, _COMPLETE, _ASYNC_INSTANT = 0, 4, 6
_PROCESS, _THREAD = 1, 2
_INT64, _DOUBLE, _TEXT, _KOID = 3, 5, 6, 8
_INLINE = 0x8000
_MAGIC = 0x0016547846040010
# Instants of the whole trace or a process have no thread.
_WIDE_SCOPES = (b'"s":"g"', b'"s":"p"')
_CORRELATION_VALUE = 5  # word of a record
_decode_args = msgspec.json.Decoder(dict[str, Any], float_hook=exact_float).decode


def fits(found: Survey, places: Places) -> bool:
    """Whether the format can hold all events: it has no counters, and no separate begin and end without names."""
    return (
        not found.drafts
        and all(map(_label_fits, found.labels))
        and all(len(item["args"]["name"]) <= _MAX_NAME_BYTES // 4 for item in places.names)
    )


def _label_fits(label: Label) -> bool:
    return (
        label.phase in ("X", "i", "I", "R")
        and (not label.more or (label.phase != "X" and label.more in _WIDE_SCOPES))
        and len(label.name or "") <= _MAX_NAME_BYTES // 4
        and len(label.category or "") <= _MAX_NAME_BYTES // 4
        and len(label.args) <= _MAX_ARGS_BYTES
        and _args_fit(label)
    )


def _args_fit(label: Label) -> bool:
    if b"[" not in label.args and label.args.count(b":") <= _MAX_ARGS and label.args.count(b",") <= _MAX_ARGS:
        return True
    args = _decode_args(label.args)
    # The engine's JSON reader gives all elements of an array one flat key, which this format cannot.
    return not _has_array(args) and sum(1 for _ in _flat("args", args)) <= _MAX_ARGS


def _has_array(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and any(map(_has_array, value.values())))


def compact_chunks(found: Survey, places: Places) -> Iterator[bytes]:
    """The trace for the engine by start, the longer event first: the engine nests slices in this order."""
    texts = _Texts()
    yield _words(_MAGIC, _INITIALIZATION | 2 << 4, 10**9)  # ticks per second
    yield _named(places, texts)
    for begin in range(0, len(found.order), _EVENTS):
        yield _records(found, places, texts, found.order[begin : begin + _EVENTS])


def _records(found: Survey, places: Places, texts: _Texts, events: np.ndarray) -> bytes:
    """The records of some events: templates of their kinds, with times, places and numbers filled in."""
    labels = found.label_of[events]
    numbers = found.correlations[events]
    has_number = numbers != NO_NUMBER
    tracks = found.tracks[events]
    pids = places.pids[tracks]
    tids = places.tids[tracks]
    # A kind: label, whether there is a number, and for a slice on a lane the tid of its own track.
    kinds = labels.astype(np.int64) * 2 + has_number
    first_moved = 2 * len(found.labels)
    moved: dict[tuple[int, int], int] = {}
    for position in np.flatnonzero(found.lanes[events]).tolist():
        key = int(kinds[position]), int(tids[position])
        kinds[position] = moved.setdefault(key, first_moved + len(moved))
        tids[position] = places.lane_tids[int(tracks[position]), int(found.lanes[events[position]])]
    # numpy.unique sorts, which takes longer than all else here.
    is_there = np.zeros(first_moved + len(moved), dtype=np.bool_)
    is_there[kinds] = True
    distinct = np.flatnonzero(is_there)
    kind_of = (np.cumsum(is_there) - 1)[kinds]
    keys = [(kind, -1) for kind in distinct.tolist() if kind < first_moved] + list(moved)
    new_texts = texts.begin(2 * len(keys) + len(_NAMES))
    templates = [_template(found.labels[kind // 2], bool(kind % 2), home, texts) for kind, home in keys]
    lengths = np.array([len(template) for template in templates])
    begins = np.cumsum(lengths) - lengths
    sizes = lengths[kind_of]
    ends = np.cumsum(sizes)
    at = ends - sizes
    words = np.concatenate(templates)[np.repeat(begins[kind_of] - at, sizes) + np.arange(int(ends[-1]))]
    starts = found.starts_ns[events]
    words[at + 1] = starts
    words[at + 2] = pids
    words[at + 3] = tids
    words[at[has_number] + _CORRELATION_VALUE] = numbers[has_number]
    is_complete = np.array([found.labels[kind // 2].phase == "X" for kind, _ in keys])[kind_of]
    words[ends[is_complete] - 1] = (starts + found.durations_ns[events])[is_complete]
    return b"".join([*new_texts, words.tobytes()])


def _template(label: Label, has_number: bool, home: int, texts: _Texts) -> np.ndarray:
    """The words of an event, int64, with 0 for what differs between events of one kind."""
    args = [_arg("args.correlation", 0, texts)] if has_number else []
    given = _decode_args(label.args)
    if "device" in given and given["device"] is None:
        given["device"] = "None"  # a device, unlike a missing one
    args += [_arg(key, value, texts) for key, value in _flat("args", given)]
    if home >= 0:
        args.append(_arg(f"args.{HOME_TID}", home, texts))
    kind = _COMPLETE if label.phase == "X" else _ASYNC_INSTANT if label.more else _INSTANT
    body = b"".join(args) + (b"" if kind == _INSTANT else _words(0))  # end, or number of an async event
    size = 4 + len(body) // 8
    category = texts[label.category or ""]
    name = texts[label.name or "[No name]"]  # as the engine's JSON reader names it
    head = _EVENT | size << 4 | kind << 16 | len(args) << 20 | category << 32 | name << 48
    return np.frombuffer(_words(head, 0, 0, 0) + body, dtype=np.int64)


def _flat(key: str, value: Any) -> Iterator[tuple[str, int | float | str]]:
    """Args under the keys that the engine's JSON reader gives them."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(f"{key}.{plain_text(name)}", item)
    elif isinstance(value, str):
        yield key, plain_text(value)
    elif isinstance(value, int):
        yield key, int(value) if -(2**63) <= value < 2**63 else str(value)
    elif value is not None:
        yield key, value


def _arg(name: str, value: int | float | str, texts: _Texts) -> bytes:
    if name in _NAMES:  # by number: the engine need not look it up
        place, text = texts[name], b""
    else:
        text = name.encode()
        place = _INLINE | len(text)
    if isinstance(value, str):
        content = value.encode()
        kind, info, words = _TEXT, _INLINE | len(content), _padded(content)
    elif isinstance(value, int):
        kind, info, words = _INT64, 0, struct.pack("<q", value)
    else:
        kind, info, words = _DOUBLE, 0, struct.pack("<d", value)
    words = _padded(text) + words
    return _words(kind | 1 + len(words) // 8 << 4 | place << 16 | info << 32) + words


class _Texts(dict[str, int]):
    """Numbers for the texts that the engine knows at a place of the trace."""

    def begin(self, most: int) -> list[bytes]:
        """Makes room for `most` new texts; returns the list to which their records will be added."""
        if len(self) + most > _MAX_TEXTS:
            self.clear()
        self[""] = 0
        self._records: list[bytes] = []
        return self._records

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        content = plain_text(text).encode()
        words = _padded(content)
        self._records.append(_words(_STRING | 1 + len(words) // 8 << 4 | number << 16 | len(content) << 32) + words)
        return number


def _named(places: Places, texts: _Texts) -> bytes:
    """The records that name processes and threads."""
    chunks = []
    for item in places.names:
        records = texts.begin(2)
        name = texts[item["args"]["name"]]
        if item["name"] == "process_name":
            words = _words(_KERNEL_OBJECT | 2 << 4 | _PROCESS << 16 | name << 24, item["pid"])
        else:
            head = _KERNEL_OBJECT | 4 << 4 | _THREAD << 16 | name << 24 | 1 << 40
            words = _words(head, item["tid"], _KOID | 2 << 4 | texts["process"] << 16, item["pid"])
        chunks += [*records, words]
    return b"".join(chunks)


def _padded(text: bytes) -> bytes:
    return text + bytes(-len(text) % 8)


def _words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)
