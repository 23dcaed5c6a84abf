"""The events of a Perfetto trace in file order: times and tracks as arrays, the rest as compressed JSON lines."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from isal import isal_zlib

_LEVEL = 1
_BLOCK_EVENTS = 4096
# Kinds of events; those of slices have a begin and an end.
BEGIN, END, COMPLETE, INSTANT, COUNTER = 1, 2, 3, 4, 5
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
