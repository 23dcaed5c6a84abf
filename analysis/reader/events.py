"""What is decoded of each event, and which events and args go to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from molprof.analysis.reader.text import exact_float, plain_lines

STACK_CATEGORY = "python_function"
# Phases of the Chrome trace format that the trace processor reads, apart from M (names).
SLICE_PHASES = frozenset("XBbniIR")  # each becomes a slice
FLOW_PHASES = frozenset("stf")
FED_PHASES = SLICE_PHASES | FLOW_PHASES | frozenset("EeC")

# The args that the SQL modules read, all that a report needs: the engine takes ten times as long
# over an event with all args as over one with these. A module that reads another one needs it here.
# `name` is the one that metadata events carry.
NEEDED_ARGS = ("correlation", "device", "stream", "bytes", "name")
# Categories whose args are kept whole: molprof's own token tracks.
WHOLE_CATEGORIES = ("molprof.sequence", "molprof.token")
# Categories of which no module reads any arg: operators and Python stacks, most of all events.
ARGLESS_CATEGORIES = frozenset({"cpu_op", STACK_CATEGORY})
_ARGLESS_PHASES = frozenset("XiIR")
_WHOLE_MARKS = tuple(f'"{category}"'.encode() for category in WHOLE_CATEGORIES)

Id = int | str | None
ABSENT = msgspec.Raw()

NeededArgs = msgspec.defstruct(
    "NeededArgs", [(name, Any, msgspec.UNSET) for name in NEEDED_ARGS], omit_defaults=True, gc=False
)


class Event(msgspec.Struct, omit_defaults=True, gc=False):
    """An event of the file with all its args. What is Raw is copied as text, never decoded."""

    ph: str | None = None
    cat: str | int | None = None
    name: str | None = None
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    args: msgspec.Raw = ABSENT
    id: msgspec.Raw = ABSENT
    id2: msgspec.Raw = ABSENT
    bp: msgspec.Raw = ABSENT
    s: msgspec.Raw = ABSENT
    bind_id: msgspec.Raw = ABSENT
    flow_in: msgspec.Raw = ABSENT
    flow_out: msgspec.Raw = ABSENT


# What some phases need besides, as text.
MORE_FIELDS = ("id", "id2", "bp", "s", "bind_id", "flow_in", "flow_out")


class BriefEvent(Event, omit_defaults=True, gc=False):
    """The same with the needed args only."""

    args: NeededArgs | msgspec.UnsetType | None = msgspec.UNSET  # type: ignore[valid-type,assignment]


@dataclass(frozen=True)
class Wanted:
    """What of a trace goes to the engine.

    stacks: Python stacks too. all_args: whole args and flow events too, not only what the SQL modules read.
    """

    stacks: bool = True
    all_args: bool = True

    def chosen(self, events: list[Event]) -> list[Event]:
        """Those of `events` that the engine gets."""
        phases = FED_PHASES if self.all_args else FED_PHASES - FLOW_PHASES
        if self.stacks:
            return [event for event in events if event.ph in phases]
        return [event for event in events if event.cat != STACK_CATEGORY and event.ph in phases]


_whole = msgspec.json.Decoder(list[Event])
_brief = msgspec.json.Decoder(list[BriefEvent], float_hook=exact_float)
_encode_lines = msgspec.json.Encoder().encode_lines
_needed_args = msgspec.json.Decoder(NeededArgs | None, float_hook=exact_float)


def decode_whole(text: bytes) -> list[Event]:
    """The events of a JSON array. Raises msgspec.DecodeError, UnicodeDecodeError."""
    return _whole.decode(text)


def decode_brief(text: bytes) -> list[Any]:
    """The same without the args that no module reads; those of molprof's own tracks are copied as text."""
    if b'"molprof.' in text and any(mark in text for mark in _WHOLE_MARKS):
        events: list[Any] = [_shortened(event) for event in _whole.decode(text)]
    else:
        events = _brief.decode(text)
    for event in events:
        if event.cat in ARGLESS_CATEGORIES and event.ph in _ARGLESS_PHASES:
            event.args = msgspec.UNSET
    return events


def _shortened(event: Event) -> Event:
    if event.args and event.cat not in WHOLE_CATEGORIES:
        event.args = msgspec.Raw(msgspec.json.encode(_needed_args.decode(event.args)))
    return event


def draft(events: list[Event]) -> bytes:
    """One line per event, without its times and places, which the events lose."""
    absent = ABSENT
    for event in events:
        event.ts = absent
        event.dur = absent
        event.pid = None
        event.tid = None
    text = _encode_lines(events)
    if text.count(b"\n") != len(events):  # what is copied as text may be spread over lines
        for event in events:
            for field in ("args", *MORE_FIELDS):
                value: Any = getattr(event, field)
                if isinstance(value, msgspec.Raw) and value:
                    setattr(event, field, msgspec.Raw(bytes(value).replace(b"\n", b" ")))
        text = _encode_lines(events)
    return plain_lines(text)
