"""Memory events: the allocation that each free ends, and how much of the recorded totals they explain."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.frames import FrameFacts
from molprof.analysis.facts.gaps import NONE, Array
from molprof.common.errors import QueryError

_EVENTS = """
SELECT slice.id,
  IIF(
    EXTRACT_ARG(slice.arg_set_id, 'args.Device Type') = 0,
    'cpu',
    CAST(EXTRACT_ARG(slice.arg_set_id, 'args.Device Id') AS TEXT)
  ) AS device,
  EXTRACT_ARG(slice.arg_set_id, 'args.Bytes') AS bytes,
  EXTRACT_ARG(slice.arg_set_id, 'args.Addr') AS address,
  EXTRACT_ARG(slice.arg_set_id, 'args.Total Allocated') AS total_bytes,
  EXTRACT_ARG(slice.arg_set_id, 'args.Total Reserved') AS reserved_bytes
FROM slice
WHERE slice.category = 'cpu_instant_event' AND slice.name = '[memory]'
ORDER BY slice.id
"""
_EXACT = 1 << 53  # a float below it is the number that was written
_IS_TRAINED = "SELECT EXISTS(SELECT 1 FROM slice WHERE name GLOB 'autograd::engine::*') AS is_trained"


class MemoryEvents(Struct, frozen=True):
    """Allocations and frees in order of time and slice. What is not recorded is None."""

    id: Array
    ts: Array
    upid: list[int | None]
    device: list[str | None]
    address: list[int | None]
    size: list[int | None]  # bytes; below 0: freed
    total: list[int | None]  # bytes that live then on the device, as recorded
    reserved: list[int | None]


class Lifetimes(Struct, frozen=True):
    """Lifetime of each event's allocation."""

    allocation: Array  # of a free: index of the event that allocated what it frees; NONE
    next: Array  # index of the next event at its address; NONE
    is_freed: Array  # it is an allocation that the next event frees: bool
    unexplained: list[int | None]  # bytes by which the total differs from the one before and this event's


def lifetimes(events: MemoryEvents) -> Lifetimes:
    """Return the allocation that each memory event frees, the next event at its address, and unexplained bytes.

    A free ends the event before it at its address, where that allocated as much. The total is that of a process and
    device; None for the first of one, and where any of the three amounts is not recorded.
    """
    allocation, following = (np.full(len(events.id), NONE) for _ in range(2))
    is_freed = np.zeros(len(events.id), dtype=bool)
    unexplained: list[int | None] = []
    last: dict[tuple[int | None, str | None, int | None], int] = {}
    totals: dict[tuple[int | None, str | None], int | None] = {}
    columns = zip(events.upid, events.device, events.address, events.size, events.total, strict=True)
    for row, (upid, device, address, size, total) in enumerate(columns):
        before = last.get((upid, device, address), NONE)
        last[upid, device, address] = row
        if before != NONE:
            following[before] = row
            if size is not None and size < 0 and events.size[before] == -size:
                allocation[row], is_freed[before] = before, True
        last_total = totals.get((upid, device))
        totals[upid, device] = total
        unexplained.append(None if last_total is None or total is None or size is None else total - size - last_total)
    return Lifetimes(allocation, following, is_freed, unexplained)


def _whole(values: list[object], name: str) -> list[int | None]:
    """Return amounts as whole numbers; 3.0 is one. Raises QueryError naming the first that is none."""
    amounts: list[int | None] = []
    for value in values:
        if value is None or isinstance(value, int):
            amounts.append(value)
        elif isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
            amounts.append(int(value))
        else:
            raise QueryError(f"memory events have {value!r} as {name}, which is no whole number of 53 bits")
    return amounts


class MemoryFacts(FrameFacts):
    """Memory events of a trace."""

    @cached_property
    def allocations(self) -> MemoryEvents:
        """All memory events. Raises QueryError for text in place of a number."""
        columns = self._read(_EVENTS, None)
        ids = columns["id"].astype(np.int64)
        ts, track = self.slices.ts[ids], self.slices.track[ids]
        upid = [None if number == NONE else number for number in self.processes(track).tolist()]
        lists = {name: column.tolist() for name, column in columns.items()}
        for name in ("bytes", "address", "total_bytes", "reserved_bytes"):
            lists[name] = _whole(lists[name], name.replace("_", " "))
        return MemoryEvents(
            ids, ts, upid, lists["device"], lists["address"], lists["bytes"], lists["total_bytes"],
            lists["reserved_bytes"],
        )  # fmt: skip

    @cached_property
    def layer_ends(self) -> Array:
        """Ends of layers and of the models around them, in order, each once; empty where anything is trained."""
        if self.rows(_IS_TRAINED, None)[0][0]:
            return np.empty(0, dtype=np.int64)
        frames, modules = self.frames, self.modules
        is_end = np.array(
            [
                frames.labels[name].kind == "module"
                and (modules.outer[module] == NONE or modules.own_layer[module] is not None)
                for name, module in zip(frames.name.tolist(), modules.of_path, strict=True)
            ],
            dtype=bool,
        )
        some = np.append(is_end, False)[frames.path] & (frames.label != NONE)
        ends: Array = np.unique(self.slices.ts_end[frames.id[some]])
        return ends
