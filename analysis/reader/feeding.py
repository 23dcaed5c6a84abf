"""The events of a surveyed trace go to the engine with exact times, on their lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np

from molprof.analysis.engine import Engine
from molprof.analysis.reader.events import ABSENT, FLOW_PHASES
from molprof.analysis.reader.places import Places, find_places
from molprof.analysis.reader.survey import Survey

# The key, in the args of a slice on a lane, of the tid of the track that it belongs to.
HOME_TID = "molprof_tid"
# Blocks that wait for the engine: enough to keep it busy, few enough to stay small.
_WAITING_BLOCKS = 2


class _Fed(msgspec.Struct, omit_defaults=True, gc=False):
    """An event as it is passed on."""

    ph: str = ""
    cat: msgspec.Raw = ABSENT
    name: msgspec.Raw = ABSENT
    pid: Any = None
    tid: Any = None
    ts: float | None = None
    dur: float | None = None
    args: msgspec.Raw = ABSENT
    id: msgspec.Raw = ABSENT
    id2: msgspec.Raw = ABSENT
    bp: msgspec.Raw = ABSENT
    s: msgspec.Raw = ABSENT
    bind_id: msgspec.Raw = ABSENT
    flow_in: msgspec.Raw = ABSENT
    flow_out: msgspec.Raw = ABSENT


def feed_events(engine: Engine, found: Survey) -> None:
    """Feeds what the survey found, whose drafts are gone afterwards. Raises EngineError.

    The engine works in a thread of its own (it needs no Python there) while this one encodes.
    """
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(max_workers=1) as pool:
        for chunk in _chunks(found):
            waiting.append(pool.submit(engine.feed, chunk))
            if len(waiting) > _WAITING_BLOCKS:
                waiting.popleft().result()
        for future in waiting:
            future.result()
    engine.finish()


def _chunks(found: Survey) -> Iterator[bytes]:
    """The trace as the engine gets it: Chrome JSON, times in us from the earliest event."""
    places = find_places(found)
    encode = msgspec.json.Encoder().encode
    decode = msgspec.json.Decoder(list[_Fed]).decode
    yield b'{"traceEvents":['
    comma = b""
    if places.names:
        yield encode(places.names)[1:-1]
        comma = b","
    done = 0
    for text in found.texts():
        events = decode(text)
        _fill(events, found, places, slice(done, done + len(events)))
        done += len(events)
        yield comma + encode(events)[1:-1]
        comma = b","
    yield b"]}"


def _fill(events: list[_Fed], found: Survey, places: Places, span: slice) -> None:
    """Puts the times and places that the survey found into the events of one block."""
    tracks = found.tracks[span]
    # A float64 that is an exact multiple of 1/1000 rounded once is written back with three decimals.
    starts_us = (found.starts_ns[span] / 1000).tolist()
    durations_us = (found.durations_ns[span] / 1000).tolist()
    pids = places.pids[tracks].tolist()
    tids = places.tids[tracks].tolist()
    for event, start, duration, pid, tid in zip(events, starts_us, durations_us, pids, tids, strict=True):
        event.ts = start
        if event.ph == "X":
            event.dur = duration
        event.pid = pid
        event.tid = tid
    if not places.lane_tids:
        return
    lanes = found.lanes[span]
    for position in np.flatnonzero(lanes).tolist():
        event = events[position]
        event.args = _with_home(event.args, event.tid)
        event.tid = places.lane_tids[int(tracks[position]), int(lanes[position])]
    # A flow event belongs to the slice that it starts with: it goes where that went.
    starts_ns = found.starts_ns[span]
    for position in np.flatnonzero(np.isin(tracks, [track for track, _ in places.lane_tids])).tolist():
        event = events[position]
        if event.ph in FLOW_PHASES:
            track = int(tracks[position])
            lane = places.lane_starts.get((track, int(starts_ns[position])))
            if lane is not None:
                event.tid = places.lane_tids[track, lane]


def _with_home(args: msgspec.Raw, tid: int) -> msgspec.Raw:
    text = bytes(args).strip()
    if text.startswith(b"{"):
        rest = text[1:].lstrip()
        return msgspec.Raw(b'{"%b":%d%b%b' % (HOME_TID.encode(), tid, b"" if rest == b"}" else b",", rest))
    return msgspec.Raw(b'{"%b":%d}' % (HOME_TID.encode(), tid)) if text in (b"", b"null") else args
