"""Check that a Perfetto trace is one run, once: a correlation number means one call and its GPU work.

Otherwise work would be attributed to the wrong call.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from molprof.common.errors import TraceError

_RUNS_HINT = "export each run or process into a file of its own, and compare the files: molprof compare"
# `rank3_1234`, `Rank 3: python`; `[TP03] 1234`, as SGLang's merger writes; `r3:1234`; `3_1234`.
_RANK = re.compile(r"\brank[\s_:#=-]*(\d{1,9})(?!\d)", re.IGNORECASE)
_LABEL = re.compile(r"\s*\[((?:[A-Z]{2}-?\d{1,6})(?:-[A-Z]{2}-?\d{1,6})*)\]")
_SHORT = re.compile(r"\s*[rR]?(\d{1,9})\s*[:_|/]\s*\S")
_NUMBER = re.compile(r"\d+")


class Linked(NamedTuple):
    """An event that shares its correlation number with others: a call, or GPU work."""

    position: int
    number: int
    is_work: bool
    device: Any  # of GPU work
    is_graph: bool  # a call that may start work on several devices


def rank_key(text: str) -> tuple[int, ...]:
    """Return the numbers in a process's number or name that identify its rank; empty if there are none."""
    if match := _LABEL.match(text):
        return tuple(map(int, _NUMBER.findall(match[1])))
    match = _RANK.search(text) or _SHORT.match(text)
    return (int(match[1]),) if match else ()


def check_one_run(
    name: str, linked: Iterable[Linked], pids: Sequence[int | str], process_names: Mapping[int | str, str]
) -> None:
    """Refuse a trace in which calls of several processes, or work of several runs, share a number.

    pids: of each of `linked`. Processes whose names hold their ranks count for themselves. Raises TraceError.
    """
    ranks = {pid: rank_key(str(pid)) or rank_key(process_names.get(pid, "")) for pid in set(pids)}
    are_told = all(ranks.values())
    users_of: defaultdict[tuple[bool, object, int], set[tuple[int | str, object]]] = defaultdict(set)
    graphs: set[tuple[object, int]] = set()
    for event, pid in zip(linked, pids, strict=True):
        rank = ranks[pid] if are_told else None
        users_of[event.is_work, rank, event.number].add((pid, event.device))
        if event.is_graph and not event.is_work:
            graphs.add((rank, event.number))
    for (is_work, owner, number), users in sorted(users_of.items(), key=lambda item: item[0][0]):
        processes = sorted(map(str, {pid for pid, _ in users}))
        # One graph launch may start work on several devices.
        is_of_graph = is_work and (owner, number) in graphs and len({device for _, device in users}) >= len(processes)
        if len(processes) > 1 and not is_of_graph:
            what = f"{'GPU work' if is_work else 'calls'} of process {processes[0]} and process {processes[1]}"
            problem = "holds several runs, whose calls and kernels cannot be told apart"
            raise TraceError(f"{name} {problem}: {what} have the same correlation number, {number}", _RUNS_HINT)


def check_written_once(name: str, events: np.ndarray, slices: np.ndarray, calls: np.ndarray) -> None:
    """Refuse a trace that was appended to itself: it repeats, all of its slices are there twice, or any of its calls.

    All are rows of numbers. events: what tells events apart, such as times, in file order. slices: track, time and
    duration. calls: the same and the correlation number. Raises TraceError.
    """
    if what := _repetition(events, slices, calls):
        hint = "give the file as it was written"
        raise TraceError(f"{name} is a trace that was appended to itself: {what}", hint)


def _repetition(events: np.ndarray, slices: np.ndarray, calls: np.ndarray) -> str:
    """Return the repeated item as text; empty if nothing repeats."""
    # First: where slices touch or nest, begins and ends of both copies pair up with each other.
    copies = np.flatnonzero((events == events[0]).all(axis=1)) if len(slices) else slices[:0, 0]
    for length in copies[1:].tolist():
        if len(events) % length == 0 and np.array_equal(events[length:], events[:-length]):
            return f"its events are in it {len(events) // length} times"
    # Comparing one column, or one slice, clears most traces; comparing all rows takes a second for a million.
    if len(np.unique(calls[:, -1])) < len(calls):
        rows, times = np.unique(calls, axis=0, return_counts=True)
        if times.max() > 1:
            number = rows[np.argmax(times > 1), -1]
            return f"a call is in it more than once, at the same time and with the same correlation number, {number}"
    if (slices == slices[:1]).all(axis=1).sum() > 1 and np.unique(slices, axis=0, return_counts=True)[1].min() > 1:
        return "each slice is in it more than once"
    return ""
