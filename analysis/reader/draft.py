"""Events as JSON lines that wait for their times and places."""

from __future__ import annotations

from typing import Any

import msgspec

from molprof.analysis.reader.events import ABSENT, MORE_FIELDS, Event
from molprof.analysis.reader.text import needs_plain, plain_json

_NO_DEVICE = b'"device":null'
_encode_lines = msgspec.json.Encoder().encode_lines


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


def plain_lines(text: bytes) -> bytes:
    """The lines in the form that the engine keeps."""
    if _NO_DEVICE in text:
        # A device of its own, unlike none at all; the engine has no null. Quotes inside a text are escaped.
        text = text.replace(_NO_DEVICE, b'"device":"None"')
    return b"".join(plain_json(line) + b"\n" for line in text.split(b"\n")[:-1]) if needs_plain(text) else text
