"""Tracks in the UI: sub-tracks next to their track, and names for people.

The UI sorts the threads of a process by number, and shows the number behind the name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain, count

import numpy as np
from msgspec.structs import replace

from molprof.analysis.reader.places import TrackTargets, find_places
from molprof.analysis.reader.survey import SurveyedTrace
from molprof.analysis.reader.text import plain_text

_NEVER = 1 << 62  # no thread's number


@dataclass(frozen=True)
class UiTracks:
    """The numbers and names of a file's tracks in the UI."""

    places: TrackTargets  # numbers and names, for the writer
    pids: frozenset[int]
    gpu: tuple[str, ...]  # tracks with GPU work, each lane behind its track
    sequences: dict[tuple[int, int], str]  # token tracks by the reader's process and thread number
    hosts: tuple[str, ...]  # processes with operators


def arrange_tracks(survey: SurveyedTrace, before: str, taken: frozenset[int]) -> UiTracks:
    """Give every track and sub-track a number and a name, with `before` in front, by which two files differ.

    taken: process numbers of the other files.
    """
    base = find_places(survey)
    pids = _free_pids(base.pids.tolist(), taken)
    lanes = _beside(base)
    lane_count = Counter(track for track, _ in lanes)
    on_gpu = _tracks_of(survey, "kernel", "gpu_memcpy", "gpu_memset")
    with_tokens = _tracks_of(survey, "molprof.sequence")
    gpu: list[tuple[int, int, int, str]] = []
    sequences: dict[tuple[int, int], str] = {}
    names: dict[tuple[int, int | None], str] = {}
    for track, (pid, tid) in enumerate(zip(base.pids.tolist(), base.tids.tolist(), strict=True)):
        shown = home = base.names.get((pid, tid), "")
        if track in on_gpu:
            home = f"{before}GPU {pid} {home.strip() or f'stream {tid}'}"
            shown = home.removesuffix(f" {tid}")  # which the UI adds
            gpu.append((pid, tid, 0, f"{shown} {tid}"))
        elif track in with_tokens:
            shown = f"{before}{home or 'sequence'}, track"
            sequences[pid, tid] = f"{shown} {tid}"
        names[pids[pid], tid] = shown
        for lane in range(1, 1 + lane_count[track]):
            shown, beside = f"{home or f'thread {tid}'} (overlapping {lane + 1}), track", lanes[track, lane]
            names[pids[pid], beside] = shown
            if track in on_gpu:
                gpu.append((pid, tid, lane, f"{shown} {beside}"))
    host_pids = {int(base.pids[track]) for track in _tracks_of(survey, "cpu_op")}
    gpu_pids = {int(base.pids[track]) for track in on_gpu}
    hosts = []
    for pid, new in pids.items():
        name = base.names.get((pid, None), "")
        if pid in gpu_pids:
            # torch numbers a device's process as the device.
            name = "GPU" if new == pid else f"GPU {pid}, process"
        shown = f"{before}{name or 'process'}" if name or before else ""
        names[new, None] = shown
        if pid in host_pids:
            hosts.append(f"{shown or 'Process'} {new}")
    new_pids = np.array([pids[pid] for pid in base.pids.tolist()], dtype=np.int64)
    shown_names = {thread: plain_text(name) for thread, name in names.items() if name}
    targets = replace(base, pids=new_pids, lane_tids=lanes, names=shown_names)
    return UiTracks(targets, frozenset(pids.values()), tuple(name for *_, name in sorted(gpu)), sequences, tuple(hosts))


def _tracks_of(survey: SurveyedTrace, *categories: str) -> set[int]:
    wanted = survey.has_label(label.category in categories for label in survey.labels)
    return set(np.unique(survey.tracks[wanted]).tolist())


def _free_pids(pids: list[int], taken: frozenset[int]) -> dict[int, int]:
    """Map each process number to itself, or to a free one if another file has it."""
    used = taken | set(pids)
    chosen: dict[int, int] = {}
    for pid in sorted(set(pids)):
        chosen[pid] = next(number for number in count(pid + 1) if number not in used) if pid in taken else pid
        used |= {chosen[pid]}
    return chosen


def _beside(base: TrackTargets) -> dict[tuple[int, int], int]:
    """Return for each sub-track a free thread number next to its track's: after it, else before it, else at the end."""
    homes: dict[int, set[int]] = {}
    for pid, tid in zip(base.pids.tolist(), base.tids.tolist(), strict=True):
        homes.setdefault(pid, set()).add(tid)
    used = {pid: set(tids) for pid, tids in homes.items()}
    chosen = {}
    for track, lane in sorted(base.lane_tids):
        pid, tid = int(base.pids[track]), int(base.tids[track])
        following = min((other for other in homes[pid] if other > tid), default=_NEVER)
        before = max((other for other in homes[pid] if other < tid), default=0)
        candidates = chain(range(tid + 1, following), range(tid - 1, before, -1), count(tid + 1))
        chosen[track, lane] = number = next(candidate for candidate in candidates if candidate not in used[pid])
        used[pid].add(number)
    return chosen
