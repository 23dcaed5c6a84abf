"""Targets of a file's tracks and sub-tracks in the engine: process and thread numbers, and names."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
from msgspec import Struct

from molprof.analysis.reader.events import LINKED_CATEGORIES, Id
from molprof.analysis.reader.packets.runs import rank_key
from molprof.analysis.reader.survey import SurveyedTrace
from molprof.analysis.reader.text import plain_text

# Ids of the file are kept below this. Above are those of lanes, and those for ids that the engine would change: text,
# negative, huge, and tid 0, which it takes for the thread with tid = pid.
_FIRST_MADE_UP = 2**31
# Threads of as many processes may have one number.
_MOST_OF_ONE_TID = 64
# The arg of a slice on a lane that holds the tid of its own track.
HOME_TID = "molprof_tid"


def told_ranks(survey: SurveyedTrace) -> dict[Id, int]:
    """Return the rank of each process of a merged trace that names it.

    Empty unless several are told, and all that matter.

    A label of several numbers (`[TP01-PP00]`) is no rank: such processes are numbered in the order of their labels.
    """
    pids = {pid for pid, _ in survey.track_ids} | set(survey.process_names)
    keys = {pid: rank_key(str(pid)) or rank_key(survey.process_names.get(pid, "")) for pid in pids}
    keys = {pid: key for pid, key in keys.items() if key}
    wanted = survey.has_label(label.category in LINKED_CATEGORIES for label in survey.labels)
    linked = {survey.track_ids[track][0] for track in set(survey.tracks[wanted].tolist())}
    if len({keys.get(pid) for pid in linked}) < 2 or not linked <= keys.keys():
        return {}
    if all(len(key) == 1 for key in keys.values()):
        return {pid: key[0] for pid, key in keys.items()}
    order = {key: number for number, key in enumerate(sorted(set(keys.values())))}
    return {pid: order[key] for pid, key in keys.items()}


class TrackTargets(Struct, frozen=True):
    """Process and thread in the engine of each track of the file: arrays by track number."""

    pids: np.ndarray
    tids: np.ndarray
    lane_tids: dict[tuple[int, int], int]  # by track number and lane
    lane_starts: dict[tuple[int, int], int]  # the lane of a slice by its track number and start
    names: dict[tuple[int, int | None], str]  # of the thread by pid and tid, of the process by pid and None


def find_places(survey: SurveyedTrace) -> TrackTargets:
    """Return the pid and tid under which the engine sees every track and sub-track."""
    made_up = itertools.count(_FIRST_MADE_UP)
    pids_by_id: dict[Id, int] = {}
    pids: list[int] = []
    tids: list[int] = []
    names: dict[tuple[int, int | None], str] = {}
    ranks = told_ranks(survey)
    # The engine looks through all threads of one number for each event.
    shared = {tid for tid, count in Counter(tid for _, tid in survey.track_ids).items() if count > _MOST_OF_ONE_TID}
    for track, (pid, tid) in enumerate(survey.track_ids):
        if pid not in pids_by_id:
            pids_by_id[pid] = _kept(pid) or (next(made_up) if pid else 0)
            name = survey.process_names.get(pid) or (str(pid) if pids_by_id[pid] >= _FIRST_MADE_UP else "")
            if pid in ranks:  # as queries/process_ranks.sql reads it
                name = f"rank {ranks[pid]}: {name or pid}"
            if name:
                names[pids_by_id[pid], None] = name
        pids.append(pids_by_id[pid])
        tid = pid if tid is None else tid
        main_tid = pid == tid and pids[-1]  # the process's own thread
        is_kept = main_tid or (_kept(tid) and tid not in shared)
        tids.append(main_tid or (_kept(tid) if is_kept else next(made_up) if tid or pids[-1] else 0))
        if name := survey.thread_names.get(track) or (str(tid) if tids[-1] >= _FIRST_MADE_UP else ""):
            names[pids[-1], tids[-1]] = name
    lane_tids: dict[tuple[int, int], int] = {}
    on_lane = np.flatnonzero(survey.lanes)
    tracks, lanes = survey.tracks[on_lane].tolist(), survey.lanes[on_lane].tolist()
    for track, lane in sorted(set(zip(tracks, lanes, strict=True))):
        lane_tids[track, lane] = next(made_up)
        home = survey.thread_names.get(track) or f"tid {survey.track_ids[track][1]}"
        names[pids[track], lane_tids[track, lane]] = f"{home} (lane {lane + 1})"
    starts = zip(tracks, survey.starts_ns[on_lane].tolist(), strict=True)
    lane_starts = dict(zip(starts, lanes, strict=True))
    names = {thread: plain_text(name) for thread, name in names.items()}
    return TrackTargets(np.array(pids, dtype=np.int64), np.array(tids, dtype=np.int64), lane_tids, lane_starts, names)


def _kept(value: Id) -> int:
    """Return the id itself if the engine keeps it, else 0."""
    return value if isinstance(value, int) and 0 < value < _FIRST_MADE_UP else 0
