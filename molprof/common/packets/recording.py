"""The events of a Perfetto trace in file order: times and tracks as arrays, the rest as compressed JSON lines.

Also which end belongs to which begin of its slices.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
from isal import isal_zlib

_LEVEL = 1
_BLOCK_EVENTS = 4096
# Kinds of events; those of slices have a begin and an end.
BEGIN, END, COMPLETE, INSTANT, COUNTER = 1, 2, 3, 4, 5
OPEN = -1  # duration of a slice without an end
CALLS = frozenset({"cuda_runtime", "cuda_driver"})
WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_encode = msgspec.json.Encoder().encode


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
