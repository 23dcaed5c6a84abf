"""The second pass over a trace: events go to the engine with exact times, on their lanes."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from molprof.analysis.engine import Engine
from molprof.analysis.reader.document import Document
from molprof.analysis.reader.survey import Id, Survey, fed
from molprof.analysis.reader.text import has_escape, may_have_wide_integer, needs_plain, plain, plain_text
from molprof.errors import TraceError

# Ids of the file are kept below this; above are those made up for lanes and for ids that the
# engine would change: text, negative, huge, and tid 0, which it takes for the thread with tid = pid.
_FIRST_MADE_UP = 2**31
# The key, in the args of a slice on a lane, of the tid of the track that it belongs to.
HOME_TID = "molprof_tid"
# Blocks that wait for the engine: enough to keep it busy, few enough to stay small.
_WAITING_BLOCKS = 2
_FLOWS = frozenset("stf")


class _Full(msgspec.Struct, omit_defaults=True, gc=False):
    """An event as it is passed on. What comes in as Raw is copied as text, never decoded."""

    ph: str = ""
    cat: str | int | None = None
    name: msgspec.Raw = msgspec.Raw()
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = msgspec.Raw()
    id: msgspec.Raw = msgspec.Raw()
    id2: msgspec.Raw = msgspec.Raw()
    bp: msgspec.Raw = msgspec.Raw()
    s: msgspec.Raw = msgspec.Raw()
    bind_id: msgspec.Raw = msgspec.Raw()
    flow_in: msgspec.Raw = msgspec.Raw()
    flow_out: msgspec.Raw = msgspec.Raw()


_RAW_FIELDS = ("name", "args", "id", "id2", "bp", "s", "bind_id", "flow_in", "flow_out")


@dataclass(frozen=True)
class _Places:
    """Where the tracks of the file go: arrays by track number, and what has a name."""

    pids: np.ndarray
    tids: np.ndarray
    lane_tids: dict[tuple[int, int], int]  # by track number and lane
    lane_starts: dict[tuple[int, int], int]  # the lane of the slice that starts there, by track number and ns
    names: list[dict[str, Any]]  # metadata events


def feed_events(path: Path, engine: Engine, found: Survey, stacks: bool) -> None:
    """Reads the file again and feeds what the survey found. Raises TraceError, EngineError.

    The engine works in a thread of its own (it needs no Python there) while this one decodes.
    """
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(max_workers=1) as pool:
        for chunk in _chunks(path, found, stacks):
            waiting.append(pool.submit(engine.feed, chunk))
            if len(waiting) > _WAITING_BLOCKS:
                waiting.popleft().result()
        for future in waiting:
            future.result()
    engine.finish()


def _chunks(path: Path, found: Survey, stacks: bool) -> Iterator[bytes]:
    """The trace as the engine gets it: Chrome JSON, times in us from the earliest event."""
    places = _places(found)
    encode = msgspec.json.Encoder().encode
    yield b'{"traceEvents":['
    comma = b""
    if places.names:
        yield encode(places.names)[1:-1]
        comma = b","
    total = len(found.starts_ns)
    done = 0
    for block, text in Document(path, _Full, partial=found.problem is not None).blocks():
        if done == total:
            break
        events = fed(block, stacks)[: total - done]
        _fill(events, found, places, slice(done, done + len(events)))
        done += len(events)
        if has_escape(text) or may_have_wide_integer(text):
            for event in events:
                _make_plain(event)
        if events:
            yield comma + encode(events)[1:-1]
            comma = b","
    if done != total:
        raise TraceError(f"{path} changed while it was read: {total} events first, then {done}")
    yield b"]}"


def _fill(events: list[_Full], found: Survey, places: _Places, span: slice) -> None:
    """Puts the times and places that the survey found into the events of one block."""
    tracks = found.tracks[span]
    # A float64 that is an exact multiple of 1/1000 rounded once is written back with three decimals.
    starts_us = (found.starts_ns[span] / 1000).tolist()
    durations_us = (found.durations_ns[span] / 1000).tolist()
    pids = places.pids[tracks].tolist()
    tids = places.tids[tracks].tolist()
    for event, start, duration, pid, tid in zip(events, starts_us, durations_us, pids, tids, strict=True):
        event.ts = start
        event.dur = duration if event.ph == "X" else None
        event.pid = pid
        event.tid = tid
        if event.cat.__class__ is int:
            event.cat = str(event.cat)
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
        if event.ph in _FLOWS:
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


def _make_plain(event: _Full) -> None:
    if isinstance(event.cat, str):
        event.cat = plain_text(event.cat)
    for field in _RAW_FIELDS:
        value = getattr(event, field)
        if needs_plain(bytes(value)):
            setattr(event, field, plain(value))


def _places(found: Survey) -> _Places:
    """Gives every track and lane the pid and tid under which the engine sees it."""
    made_up = itertools.count(_FIRST_MADE_UP)
    pids_by_id: dict[Id, int] = {}
    pids: list[int] = []
    tids: list[int] = []
    names: list[dict[str, Any]] = []
    for track, (pid, tid) in enumerate(found.track_ids):
        if pid not in pids_by_id:
            pids_by_id[pid] = _kept(pid) or (next(made_up) if pid else 0)
            name = found.process_names.get(pid) or (str(pid) if pids_by_id[pid] >= _FIRST_MADE_UP else "")
            _add_name(names, "process_name", pids_by_id[pid], pids_by_id[pid], name)
        pids.append(pids_by_id[pid])
        tid = pid if tid is None else tid
        own = pid == tid and pids[-1]  # the process's own thread
        tids.append(own or _kept(tid) or (next(made_up) if tid or pids[-1] else 0))
        name = found.thread_names.get(track) or (str(tid) if tids[-1] >= _FIRST_MADE_UP else "")
        _add_name(names, "thread_name", pids[-1], tids[-1], name)
    lane_tids: dict[tuple[int, int], int] = {}
    on_lane = np.flatnonzero(found.lanes)
    pairs = np.stack([found.tracks[on_lane], found.lanes[on_lane]], axis=1)
    for track, lane in np.unique(pairs, axis=0).tolist():
        lane_tids[track, lane] = next(made_up)
        home = found.thread_names.get(track) or f"tid {found.track_ids[track][1]}"
        _add_name(names, "thread_name", pids[track], lane_tids[track, lane], f"{home} (lane {lane + 1})")
    starts = zip(pairs[:, 0].tolist(), found.starts_ns[on_lane].tolist(), strict=True)
    lane_starts = dict(zip(starts, pairs[:, 1].tolist(), strict=True))
    return _Places(np.array(pids, dtype=np.int64), np.array(tids, dtype=np.int64), lane_tids, lane_starts, names)


def _kept(value: Id) -> int:
    """The id itself where the engine keeps it, else 0."""
    return value if isinstance(value, int) and 0 < value < _FIRST_MADE_UP else 0


def _add_name(names: list[dict[str, Any]], kind: str, pid: int, tid: int, name: str) -> None:
    if name:
        names.append({"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": plain_text(name)}})
