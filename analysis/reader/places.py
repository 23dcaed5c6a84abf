"""Where the tracks of a file and their lanes go in the engine: process and thread numbers, and names."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from msgspec import Struct

from molprof.analysis.reader.events import Id
from molprof.analysis.reader.merged import told_ranks
from molprof.analysis.reader.survey import Survey
from molprof.analysis.reader.text import plain_text

# Ids of the file are kept below this. Above are those of lanes, and those for ids that the engine would change: text,
# negative, huge, and tid 0, which it takes for the thread with tid = pid.
_FIRST_MADE_UP = 2**31
# The arg of a slice on a lane that holds the tid of its own track.
HOME_TID = "molprof_tid"


class Places(Struct, frozen=True):
    """Where the tracks of the file go: arrays by track number."""

    pids: np.ndarray
    tids: np.ndarray
    lane_tids: dict[tuple[int, int], int]  # by track number and lane
    lane_starts: dict[tuple[int, int], int]  # the lane of a slice by its track number and start
    names: list[dict[str, Any]]  # metadata events


def find_places(found: Survey) -> Places:
    """Gives every track and lane the pid and tid under which the engine sees it."""
    made_up = itertools.count(_FIRST_MADE_UP)
    pids_by_id: dict[Id, int] = {}
    pids: list[int] = []
    tids: list[int] = []
    names: list[dict[str, Any]] = []
    ranks = told_ranks(found)
    for track, (pid, tid) in enumerate(found.track_ids):
        if pid not in pids_by_id:
            pids_by_id[pid] = _kept(pid) or (next(made_up) if pid else 0)
            name = found.process_names.get(pid) or (str(pid) if pids_by_id[pid] >= _FIRST_MADE_UP else "")
            if pid in ranks:  # as queries/process_ranks.sql reads it
                name = f"rank {ranks[pid]}: {name or pid}"
            add_name(names, "process_name", pids_by_id[pid], pids_by_id[pid], name)
        pids.append(pids_by_id[pid])
        tid = pid if tid is None else tid
        own = pid == tid and pids[-1]  # the process's own thread
        tids.append(own or _kept(tid) or (next(made_up) if tid or pids[-1] else 0))
        name = found.thread_names.get(track) or (str(tid) if tids[-1] >= _FIRST_MADE_UP else "")
        add_name(names, "thread_name", pids[-1], tids[-1], name)
    lane_tids: dict[tuple[int, int], int] = {}
    on_lane = np.flatnonzero(found.lanes)
    tracks, lanes = found.tracks[on_lane].tolist(), found.lanes[on_lane].tolist()
    for track, lane in sorted(set(zip(tracks, lanes, strict=True))):
        lane_tids[track, lane] = next(made_up)
        home = found.thread_names.get(track) or f"tid {found.track_ids[track][1]}"
        add_name(names, "thread_name", pids[track], lane_tids[track, lane], f"{home} (lane {lane + 1})")
    starts = zip(tracks, found.starts_ns[on_lane].tolist(), strict=True)
    lane_starts = dict(zip(starts, lanes, strict=True))
    return Places(np.array(pids, dtype=np.int64), np.array(tids, dtype=np.int64), lane_tids, lane_starts, names)


def _kept(value: Id) -> int:
    """The id itself where the engine keeps it, else 0."""
    return value if isinstance(value, int) and 0 < value < _FIRST_MADE_UP else 0


def add_name(names: list[dict[str, Any]], kind: str, pid: int, tid: int, name: str) -> None:
    """Adds the metadata event `kind`, unless the name is empty."""
    if name:
        names.append({"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": plain_text(name)}})
