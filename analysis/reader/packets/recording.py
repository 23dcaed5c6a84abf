"""The events of a Perfetto trace in file order: times and tracks as arrays, the rest as compressed JSON lines.

Also which end belongs to which begin of its slices, and whether they are of one run, once: in each, a correlation
number stands for one call and its GPU work.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from isal import isal_zlib

from molprof.common.errors import TraceError

_LEVEL = 1
_BLOCK_EVENTS = 4096
# Kinds of events; those of slices have a begin and an end.
BEGIN, END, COMPLETE, INSTANT, COUNTER = 1, 2, 3, 4, 5
OPEN = -1  # duration of a slice without an end
CALLS = frozenset({"cuda_runtime", "cuda_driver"})
WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_encode = msgspec.json.Encoder().encode
_HINT = "export each run or process into a file of its own, and compare the files: molprof compare"
# `rank3_1234`, `Rank 3: python`; `[TP03] 1234`, as SGLang's merger writes; `r3:1234`; `3_1234`.
_RANK = re.compile(r"\brank[\s_:#=-]*(\d{1,9})(?!\d)", re.IGNORECASE)
_LABEL = re.compile(r"\s*\[((?:[A-Z]{2}-?\d{1,6})(?:-[A-Z]{2}-?\d{1,6})*)\]")
_SHORT = re.compile(r"\s*[rR]?(\d{1,9})\s*[:_|/]\s*\S")
_NUMBER = re.compile(r"\d+")


class Place(NamedTuple):
    """The process and the thread of a track in Chrome JSON."""

    pid: int | str
    tid: int | str


class Linked(NamedTuple):
    """An event that shares its correlation with others: a call, or GPU work."""

    position: int
    number: int
    is_work: bool
    device: Any  # of GPU work
    is_graph: bool  # a call that may start work on several devices


class Recording:
    """Events as they are found."""

    def __init__(self) -> None:
        self.kinds = array("b")
        self.times_ns = array("q")
        self.durations_ns = array("q")  # of complete events
        self.tracks = array("q")
        self.packets = array("q")  # where each stands in the trace
        self.linked: list[Linked] = []
        self.flows: list[tuple[int, int]] = []  # number and position
        self.stages: dict[int, int] = {}  # GPU render stages without a correlation: their event number to position
        self.calls: list[int] = []  # positions of those without a correlation
        self.submitted: list[tuple[int, list[int]]] = []  # positions of calls, and the event numbers they started
        self._lines: list[bytes] = []
        self._packed: list[bytes] = []

    def __len__(self) -> int:
        return len(self.kinds)

    def add(
        self, kind: int, time_ns: int, track: int, packet: int, event: dict[str, Any] | None, lasting_ns: int = 0
    ) -> int:
        """Adds an event: category, name and args, or None of an end. Returns its position."""
        self.kinds.append(kind)
        self.times_ns.append(time_ns)
        self.durations_ns.append(lasting_ns)
        self.tracks.append(track)
        self.packets.append(packet)
        self._lines.append(b"" if event is None else _encode(event)[1:])
        if len(self._lines) == _BLOCK_EVENTS:
            self._pack()
        return len(self.kinds) - 1

    def link(self, position: int, event: dict[str, Any]) -> None:
        """Notes the correlation of an event that is a call or GPU work."""
        category, args = event.get("cat"), event["args"]
        if category not in CALLS and category not in WORK:
            return
        number = args.get("correlation")
        if isinstance(number, int) and 0 <= number < 2**63:
            is_graph = "GraphLaunch" in event["name"]
            self.linked.append(Linked(position, number, category in WORK, args.get("device"), is_graph))
        elif number is None and category in CALLS:
            self.calls.append(position)

    def missing_numbers(self) -> dict[int, int]:
        """Correlations by position, where calls name the GPU render stages that they started.

        A stage without one gets that of its call, or where this has none both get the number of the call's first stage.
        All others that lack one get one of their own: they have no call, or no work.
        """
        if not self.submitted:
            return {}
        known = {event.position: event.number for event in self.linked}
        numbers: dict[int, int] = {}
        for call, stages in self.submitted:
            work = [self.stages[stage] for stage in stages if stage in self.stages]
            if work:
                number = known.get(call, stages[0])
                numbers |= dict.fromkeys(work, number)
                if call not in known:
                    numbers[call] = number
        for stage, position in self.stages.items():
            numbers.setdefault(position, stage)
        last = max([*self.stages, *known.values(), *numbers.values()], default=0)
        for place, position in enumerate(self.calls, 1):
            numbers.setdefault(position, last + place)
        return numbers

    def lines(self) -> Iterator[list[bytes]]:
        """The texts in blocks, without their opening brace; freed one by one."""
        self._pack()
        self._packed.reverse()
        while self._packed:
            yield isal_zlib.decompress(self._packed.pop()).split(b"\n")

    def _pack(self) -> None:
        if self._lines:
            self._packed.append(isal_zlib.compress(b"\n".join(self._lines), _LEVEL))
            self._lines.clear()


def durations(kinds: np.ndarray, times_ns: np.ndarray, tracks: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The time that each begin lasts, OPEN where it has no end; and the positions of ends without a begin.

    kinds, times_ns, tracks: of the events in file order, of which only begins and ends count. An end closes the latest
    slice of its track that is open at its time; of equal times, the order of the file counts.
    """
    lasting = np.full(len(kinds), OPEN, dtype=np.int64)
    places = np.flatnonzero((kinds == BEGIN) | (kinds == END))
    pairs = _grouped(kinds[places], times_ns[places], tracks[places])
    if pairs is not None:
        begins, ends = places[pairs[0]], places[pairs[1]]
        lasting[begins] = times_ns[ends] - times_ns[begins]
        return lasting, []
    strays: list[int] = []
    order = places[np.argsort(times_ns[places], kind="stable")]
    stacks: dict[int, list[int]] = defaultdict(list)
    is_begin = (kinds[order] == BEGIN).tolist()
    for position, begin, track in zip(order.tolist(), is_begin, tracks[order].tolist(), strict=True):
        if begin:
            stacks[track].append(position)
        elif stacks[track]:
            opened = stacks[track].pop()
            lasting[opened] = times_ns[position] - times_ns[opened]
        else:
            strays.append(position)
    return lasting, strays


def _grouped(kinds: np.ndarray, times_ns: np.ndarray, tracks: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Positions of begins and of their ends, in a file that writes all begins of a group, then their ends in order.

    There the order of the file says more than the times: of two slices that touch, the begin of the second may come
    before the end of the first. None for any other file: a group of several slices in order of time nests them.
    """
    starts = np.flatnonzero(np.diff(kinds, prepend=END if len(kinds) else []))
    lengths = np.diff(starts, append=len(kinds))
    if not len(kinds) or kinds[0] != BEGIN or not np.array_equal(lengths[::2], lengths[1::2]):
        return None
    backwards = np.flatnonzero(times_ns[1:] < times_ns[:-1])
    unordered = np.zeros(len(starts) // 2, dtype=np.bool_)
    groups = np.searchsorted(starts[::2], np.arange(len(kinds)), side="right") - 1
    unordered[groups[backwards[groups[backwards] == groups[backwards + 1]]]] = True
    if not np.all(unordered | (lengths[::2] == 1)):
        return None
    begins, ends = np.flatnonzero(kinds == BEGIN), np.flatnonzero(kinds == END)
    if not np.array_equal(tracks[begins], tracks[ends]) or np.any(times_ns[ends] < times_ns[begins]):
        return None
    return begins, ends


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
