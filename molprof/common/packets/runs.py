"""Whether a trace holds one run, once: in each, a correlation number stands for one call and its GPU work."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from molprof.common.errors import TraceError
from molprof.common.packets.recording import Linked
from molprof.common.packets.tracks import Place

_HINT = "export each run or process into a file of its own, and compare the files: molprof compare"
# `rank3_1234`, `Rank 3: python`; `[TP03] 1234`, as SGLang's merger writes; `r3:1234`; `3_1234`.
_RANK = re.compile(r"\brank[\s_:#=-]*(\d{1,9})(?!\d)", re.IGNORECASE)
_LABEL = re.compile(r"\s*\[((?:[A-Z]{2}-?\d{1,6})(?:-[A-Z]{2}-?\d{1,6})*)\]")
_SHORT = re.compile(r"\s*[rR]?(\d{1,9})\s*[:_|/]\s*\S")
_NUMBER = re.compile(r"\d+")


def rank_key(text: str) -> tuple[int, ...]:
    """The numbers by which the number or name of a process tells its rank; empty if it tells none."""
    if match := _LABEL.match(text):
        return tuple(map(int, _NUMBER.findall(match[1])))
    match = _RANK.search(text) or _SHORT.match(text)
    return (int(match[1]),) if match else ()


def check_one_run(
    name: str, linked: Sequence[Linked], places: Sequence[Place], process_names: Mapping[int | str, str]
) -> None:
    """Refuses a trace in which calls of several processes, or work of several runs, share a number.

    places: of each of `linked`. Processes whose names tell their ranks count for themselves. Raises TraceError: work
    would be attributed to the wrong call.
    """
    ranks = {pid: rank_key(str(pid)) or rank_key(process_names.get(pid, "")) for pid in {place.pid for place in places}}
    told = all(ranks.values())
    calls: defaultdict[tuple[object, int], set[int | str]] = defaultdict(set)
    devices: defaultdict[tuple[object, int], set[tuple[int | str, object]]] = defaultdict(set)
    graphs: set[tuple[object, int]] = set()
    for event, place in zip(linked, places, strict=True):
        mine: tuple[object, int] = (ranks[place.pid] if told else None, event.number)
        if event.is_work:
            devices[mine].add((place.pid, event.device))
        else:
            calls[mine].add(place.pid)
            if event.is_graph:
                graphs.add(mine)
    for key, pids in calls.items():
        if len(pids) > 1:
            raise _refusal(name, "calls", key[1], pids)
    for key, found in devices.items():
        pids = {pid for pid, _ in found}
        # One graph launch may start work on several devices.
        if len(pids) > 1 and (key not in graphs or len({device for _, device in found}) < len(pids)):
            raise _refusal(name, "GPU work", key[1], pids)


def check_written_once(name: str, events: Sequence[np.ndarray], slices: np.ndarray, calls: np.ndarray) -> None:
    """Refuses a trace that was appended to itself: it repeats, all of its slices are there twice, or any of its calls.

    events: columns of numbers that tell events apart, such as times, in file order. slices: rows of track, time and
    duration. calls: those of calls, with their number. Raises TraceError.
    """
    hint = "give the file as it was written"
    # Asked first: where slices touch or nest, begins and ends of both copies pair up with each other.
    if len(slices) and (copies := _copies(events)) > 1:
        raise TraceError(f"{name} is a trace that was appended to itself: its events are in it {copies} times", hint)
    # Comparing one column, or one slice, clears most traces; comparing all rows takes a second for a million.
    if len(np.unique(calls[:, -1])) < len(calls):
        found, times = np.unique(calls, axis=0, return_counts=True)
        if (times > 1).any():
            number = found[np.argmax(times > 1), -1]
            what = f"a call is in it more than once, at the same time and with the same correlation number, {number}"
            raise TraceError(f"{name} is a trace that was appended to itself: {what}", hint)
    if len(slices) and (slices == slices[0]).all(axis=1).sum() > 1:
        _, times = np.unique(slices, axis=0, return_counts=True)
        if times.min() > 1:
            what = "each slice is in it more than once"
            raise TraceError(f"{name} is a trace that was appended to itself: {what}", hint)


def _copies(columns: Sequence[np.ndarray]) -> int:
    """How often the columns repeat as a whole, one copy behind the other."""
    count = len(columns[0])
    like_first = np.logical_and.reduce([column == column[0] for column in columns])
    lengths: list[int] = np.flatnonzero(like_first)[1:].tolist()
    for length in lengths:
        if count % length == 0 and all(np.array_equal(column[length:], column[:-length]) for column in columns):
            return count // length
    return 1


def _refusal(name: str, what: str, number: int, pids: set[int | str]) -> TraceError:
    first, second = sorted(map(str, pids))[:2]
    shared = f"{what} of process {first} and process {second} have the same correlation number, {number}"
    return TraceError(f"{name} holds several runs, whose calls and kernels cannot be told apart: {shared}", _HINT)
