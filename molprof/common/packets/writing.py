"""The events of a recording as Chrome JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from molprof.common.packets.recording import BEGIN, COMPLETE, END, INSTANT, OPEN, Recording
from molprof.common.packets.tracks import Place

_PHASES = {BEGIN: "X", COMPLETE: "X", INSTANT: "i"}
_ARGS = b'"args":{'
_encode = msgspec.json.Encoder().encode


class Counted(Struct, frozen=True):
    """The track of a counter: its name and its process."""

    name: str
    pid: int | str


def event_texts(
    recording: Recording, homes: Sequence[Place | Counted], lasting: np.ndarray, numbers: dict[int, int]
) -> Iterator[bytes]:
    """Blocks of events, each behind a comma; slices without an end are left out.

    homes: of the track numbers. lasting: ns of each slice. numbers: correlations to add, by position.
    """
    heads = {
        (kind, track): _head(kind, home)
        for kind, track in set(zip(recording.kinds, recording.tracks, strict=True))
        if kind != END
        for home in [homes[track]]
    }
    durations: list[int] = lasting.tolist()
    position = 0
    for lines in recording.lines():
        events: list[bytes] = []
        for line in lines:
            kind = recording.kinds[position]
            if kind != END and (kind != BEGIN or durations[position] != OPEN):
                if position in numbers:
                    line = _with_number(line, numbers[position])
                time = b"%d.%03d" % divmod(recording.times_ns[position], 1000)
                if kind in (BEGIN, COMPLETE):
                    time += b',"dur":%d.%03d' % divmod(durations[position], 1000)
                events.append(b"%b%b,%b" % (heads[kind, recording.tracks[position]], time, line))
            position += 1
        if events:
            yield b",\n" + b",\n".join(events)
    yield from _flows(recording, homes, lasting)


def _head(kind: int, home: Place | Counted) -> bytes:
    """An event up to its time."""
    if isinstance(home, Counted):
        keys = {"ph": "C", "name": home.name, "pid": home.pid}
    else:
        keys = {"ph": _PHASES.get(kind, "C"), "pid": home.pid, "tid": home.tid}
        if kind == INSTANT:
            keys["s"] = "t"
    return _encode(keys)[:-1] + b',"ts":'


def _with_number(line: bytes, number: int) -> bytes:
    """The event with a correlation among its args."""
    before, _, behind = line.partition(_ARGS)
    return b'%b%b"correlation":%d%b%b' % (before, _ARGS, number, b"" if behind.startswith(b"}") else b",", behind)


def _flows(recording: Recording, homes: Sequence[Place | Counted], lasting: np.ndarray) -> Iterator[bytes]:
    """Flows as torch.profiler writes them: from the first event of a number to each of the others."""
    linked = {event.position: event for event in recording.linked}
    ends: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, position in recording.flows:
        if recording.kinds[position] != BEGIN or lasting[position] != OPEN:
            ends[number].append((recording.times_ns[position], position))
    for number, found in ends.items():
        if len(found) < 2:
            continue
        found.sort()
        numbers = {linked[position].number if position in linked else None for _, position in found}
        # From a call to its work; from operators to those of the backward pass; among the nodes of a graph.
        kind = "ac2g" if numbers == {number} else "fwdbwd" if numbers == {None} else "graph"
        for place, (time, position) in enumerate(found):
            home = homes[recording.tracks[position]]
            assert isinstance(home, Place)
            keys: dict[str, Any] = {"ph": "f" if place else "s", "cat": kind, "name": kind, "id": number}
            keys |= {"bp": "e"} if place else {}
            head = _encode(keys | {"pid": home.pid, "tid": home.tid})[:-1]
            yield b',\n%b,"ts":%d.%03d}' % (head, *divmod(time, 1000))
