"""Numbers by which events of one file belong together, changed so that another file's in the same trace are others."""

from __future__ import annotations

import re
import zlib

import msgspec
from isal import isal_zlib

from molprof.analysis.reader.survey import Survey

_DRAFT_LEVEL = 1
# Between the ids of two files: more than any that torch gives, and few enough for the engine's 64 bits.
_SHIFT = 1 << 48
_NUMBERED = re.compile(rb'\{"ph":"[stfbne]"|.*"bind_id":')
_FIELDS = ("id", "bind_id")


def separate_ids(survey: Survey, number: int) -> None:
    """Changes the ids of flows and asynchronous slices among the drafts; `number` tells the file, from 1."""
    shift = number * _SHIFT
    for place, text in enumerate(survey.drafts):
        lines = isal_zlib.decompress(text).splitlines(keepends=True)
        lines = [_moved(line, shift) if _NUMBERED.match(line) else line for line in lines]
        survey.drafts[place] = isal_zlib.compress(b"".join(lines), _DRAFT_LEVEL)


def _moved(line: bytes, shift: int) -> bytes:
    event = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    for field in _FIELDS:
        if field in event:
            event[field] = _shifted(event[field], shift)
    if "id2" in event:
        scopes = msgspec.json.decode(event["id2"], type=dict[str, msgspec.Raw])
        event["id2"] = msgspec.Raw(msgspec.json.encode({key: _shifted(raw, shift) for key, raw in scopes.items()}))
    return msgspec.json.encode(event) + b"\n"


def _shifted(raw: msgspec.Raw, shift: int) -> msgspec.Raw:
    """A number that is written as text, in hexadecimal perhaps, is one to the engine as well."""
    try:
        value = int(bytes(raw).strip(b'"'), 0)
    except ValueError:
        value = zlib.crc32(raw)
    return msgspec.Raw(b"%d" % (value + shift))
