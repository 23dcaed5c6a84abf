"""Facts about calls of the runtime and driver: which are counted, their kinds by name, and their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import msgspec
import numpy as np
from msgspec import Struct

from molprof.analysis.facts import GPU_CALLS
from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.patterns import Glob
from molprof.analysis.facts.slices import Total
from molprof.analysis.facts.source import SourceFacts

LAUNCH, GRAPH_LAUNCH = "launch", "graph_launch"
# What an XPU's runtime asks of the driver (zeCommandListAppendLaunchKernel).
_DRIVER_NAME = "ze"
_REPEATED = """
SELECT call.id
FROM json_each('{ids}') AS one
CROSS JOIN slice AS call
CROSS JOIN slice AS caller
WHERE call.id = one.value AND caller.id = call.parent_id AND caller.category = 'cuda_runtime'
ORDER BY call.id
"""
_TOTALS = f"""
SELECT category, IFNULL(name, '(no name)') AS name, COUNT() AS count, SUM(dur) AS time_ns
FROM slice
WHERE category IN {("cpu_op", *GPU_CALLS)}
GROUP BY category, name
"""
_KINDS = "SELECT _molprof_kind!(value) AS kind FROM json_each('{names}') ORDER BY key"
_SYNCHRONIZE, _COPY = Glob("*[Ss]ynchronize*"), Glob("*Memcpy*")
_NOT_WAITING = tuple(map(Glob, ("*Async*", "*DtoD*", "*Enqueue*")))
# Into pageable host memory; that waits for its end.
WAITING_COPY = Glob("Memcpy DtoH*Pageable*")


class Calls(Struct, frozen=True):
    """Calls of the runtime and driver in order of slice: arrays of int64, and the track of each one's thread."""

    id: Array
    ts: Array
    ts_end: Array
    track: Array  # on which it is recorded
    own_track: Array  # of its thread: another one where it partly overlaps another slice
    number: Array  # correlation number; NO_NUMBER where none is recorded
    name: Array  # index into `names`
    names: tuple[str | None, ...]  # distinct ones

    def index(self, ids: Array) -> Array:
        """Return the index of the call of each slice; NONE for others."""
        if not len(self.id):
            return np.full(len(ids), NONE)
        index = np.minimum(np.searchsorted(self.id, ids), len(self.id) - 1)
        return np.where(self.id[index] == ids, index, NONE)

    def named(self, matches: Callable[[str], bool]) -> Array:
        """Return the indices of the calls that have one of these names."""
        return self.of_names([name is not None and matches(name) for name in self.names])

    def of_names(self, is_wanted: list[bool]) -> Array:
        """Return the indices of the calls of the wanted names. is_wanted: bool for each name."""
        indices: Array = np.flatnonzero(np.array(is_wanted, dtype=bool)[self.name])
        return indices


def waits(name: str) -> bool:
    """Return True for calls that return when the GPU is done: synchronize, and copies that are not asynchronous."""
    if _SYNCHRONIZE.matches(name):
        return True
    return _COPY.matches(name) and not any(pattern.matches(name) for pattern in _NOT_WAITING)


class CallFacts(SourceFacts):
    """Calls of the runtime and driver."""

    @cached_property
    def host_totals(self) -> Sequence[Total]:
        """Operators and calls by category and name."""
        totals = self.slices.totals
        return self.rows(_TOTALS, None) if totals is None else totals

    @cached_property
    def repeated_calls(self) -> Array:
        """Slices of calls that repeat another one: on an XPU the driver records the runtime's call once more."""
        gpu = self.slices.gpu
        is_repeated = [
            category == "cuda_driver" and (name or "").startswith(_DRIVER_NAME) for category, name in gpu.labels
        ]
        ids = gpu.id[np.array(is_repeated, dtype=bool)[gpu.label]]
        return self.numbers(_REPEATED.format(ids=ids.tolist()), None)[0] if len(ids) else ids

    @cached_property
    def calls(self) -> Calls:
        """Calls of the runtime and driver."""
        gpu, slices = self.slices.gpu, self.slices
        is_call = np.array([category in GPU_CALLS for category, _ in gpu.labels], dtype=bool)[gpu.label]
        if len(self.repeated_calls):
            is_call &= ~np.isin(gpu.id, self.repeated_calls)
        ids = gpu.id[is_call]
        names: dict[str | None, int] = {}
        name_of = np.array([names.setdefault(name, len(names)) for _, name in gpu.labels], dtype=np.int64)
        track = slices.track[ids]
        return Calls(
            ids, slices.ts[ids], slices.ts_end[ids], track, self.own_tracks(track), gpu.number[is_call],
            name_of[gpu.label[is_call]], tuple(names),
        )  # fmt: skip

    @cached_property
    def call_kinds(self) -> list[str | None]:
        """LAUNCH, GRAPH_LAUNCH or None for each name of calls."""
        names, kinds = self.calls.names, list[str | None]([None] * len(self.calls.names))
        used = np.unique(self.calls.name).tolist()  # of GPU work there may be more text than a query can have
        text = msgspec.json.encode([names[number] for number in used]).decode().replace("'", "''")
        for number, kind in zip(used, self._read(_KINDS.format(names=text), "gpu_calls")["kind"], strict=True):
            kinds[number] = kind
        return kinds

    @cached_property
    def launches(self) -> Array:
        """Indices of the calls that launch a kernel."""
        return self._of_kind(LAUNCH)

    @cached_property
    def graph_launches(self) -> Array:
        """Indices of the calls that launch a graph."""
        return self._of_kind(GRAPH_LAUNCH)

    def _of_kind(self, wanted: str) -> Array:
        return self.calls.of_names([kind == wanted for kind in self.call_kinds])
