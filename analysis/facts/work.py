"""Facts about GPU work and the calls that started it, each computed once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from molprof.analysis.facts import gaps
from molprof.analysis.facts.chains import NO_CHAINS, Chains, Form, find_chains
from molprof.analysis.facts.gaps import NO_STREAM, NONE, Array
from molprof.analysis.facts.graphs import UNKNOWN, GraphWork, Nodes, Replays, replays
from molprof.analysis.facts.patterns import Glob, first_matches, lowered
from molprof.analysis.facts.slices import KERNEL
from molprof.analysis.facts.source import Source

if TYPE_CHECKING:
    pass

_WORK = f"""
SELECT id, IIF(EXISTS(SELECT 1 FROM _molprof_only_device), 0, device) AS device,
  IFNULL(stream, {NO_STREAM}) AS stream, IFNULL(call_id, -1) AS call_id
FROM _molprof_work
"""
_DEVICES = "SELECT device FROM _molprof_work GROUP BY device ORDER BY device"
_CALLS = "SELECT id FROM _molprof_call ORDER BY id"
_SYNCS = "SELECT id FROM _molprof_waiting_call"
# Copies that wait for their end, and what may wait for them again: torch does so after each.
_WAITING = """
SELECT work.call_id AS id, 0 AS is_again
FROM slice AS copy CROSS JOIN _molprof_work AS work
WHERE copy.name GLOB 'Memcpy DtoH*Pageable*' AND work.id = copy.id AND work.call_id IS NOT NULL
UNION
SELECT id, 1 FROM _molprof_call WHERE name GLOB '*StreamSynchronize*'
"""
# The names around each call, as a number.
_CALL_STACKS = """
SELECT slice.stack_id FROM _molprof_call AS call CROSS JOIN slice WHERE slice.id = call.id ORDER BY call.id
"""
_CLASSES = "SELECT pattern, class FROM molprof_kernel_pattern ORDER BY priority, pattern"
_OPERATORS_AROUND = """
SELECT call.value AS id, (
  SELECT around.name
  FROM ancestor_slice(call.value) AS around
  WHERE around.category = 'cpu_op'
  ORDER BY around.depth DESC
  LIMIT 1
) AS operator
FROM json_each('{ids}') AS call
"""
_FUSED = "SELECT chain, pattern FROM molprof_fused_kernel"
_CHAINS = "SELECT chain, form, place, pattern, unless FROM molprof_chain_kernel ORDER BY chain, form, place, pattern"
_GRAPH_WORK = f"""
SELECT id, IFNULL(graph_id, {UNKNOWN}) AS graph_id, IFNULL(node_id, {UNKNOWN}) AS node_id
FROM _molprof_graph_work
"""
_COLLECTIVES = "SELECT id FROM molprof_collective"


class WorkName(Struct, frozen=True):
    """A name of GPU work."""

    category: str
    name: str
    work_class: str


class Calls(Struct, frozen=True):
    """Calls of the runtime and driver in order of slice: arrays of int64, and the track of each one's thread."""

    id: Array
    ts: Array
    ts_end: Array
    track: Array  # on which it is recorded
    own_track: Array  # of its thread: another one where it partly overlaps another slice

    def index(self, ids: Array) -> Array:
        """Return the index of the call of each slice; NONE for others."""
        if not len(self.id):
            return np.full(len(ids), NONE)
        found = np.minimum(np.searchsorted(self.id, ids), len(self.id) - 1)
        return np.where(self.id[found] == ids, found, NONE)


def _memory_class(category: str, name: str) -> str:
    """The class of a copy or set: what a copy's name says before its kinds of memory, `memcpy DtoH`."""
    return "memset" if category == "gpu_memset" else name.partition(" (")[0].replace("Memcpy", "memcpy")


class WorkFacts(Source):
    """GPU work, its names, and the calls of the runtime and driver."""

    @cached_property
    def devices(self) -> tuple[str | None, ...]:
        """Names of the devices with work, in order."""
        return tuple(self._read(_DEVICES, "gpu_work")["device"].tolist())

    @cached_property
    def work(self) -> gaps.Work:
        """GPU work in order of device, start and slice."""
        columns = self._read(_WORK, "gpu_work")
        if columns["device"].dtype == object:
            numbers = {name: number for number, name in enumerate(self.devices)}
            device = np.array([numbers[name] for name in columns["device"].tolist()], dtype=np.int64)
        else:
            device = columns["device"].astype(np.int64)
        ids, stream, call_id = (columns[name].astype(np.int64) for name in ("id", "stream", "call_id"))
        ts, ts_end = self.slices.ts[ids], self.slices.ts_end[ids]
        order = np.lexsort((ids, ts, device))
        ts, ts_end = ts[order], ts_end[order]
        call = self.calls.index(call_id[order])
        known = call != NONE
        return gaps.Work(
            id=ids[order],
            device=device[order],
            stream=stream[order],
            ts=ts,
            ts_end=ts_end,
            call=call,
            call_ts=np.where(known, self.calls.ts[call], ts) if known.any() else ts,
            call_end=np.where(known, self.calls.ts_end[call], ts) if known.any() else ts,
        )

    @cached_property
    def calls(self) -> Calls:
        """Calls of the runtime and driver."""
        (ids,) = self.numbers(_CALLS, "gpu_calls")
        track = self.slices.track[ids]
        return Calls(ids, self.slices.ts[ids], self.slices.ts_end[ids], track, self._own_tracks(track))

    @cached_property
    def launches(self) -> Array:
        """Indices of the calls that launch a kernel."""
        return self.calls.index(self.numbers("SELECT id FROM _molprof_launch_call", "gpu_calls")[0])

    @cached_property
    def graph_launches(self) -> Array:
        """Indices of the calls that launch a graph."""
        return self.calls.index(self.numbers("SELECT id FROM _molprof_graph_call", "gpu_calls")[0])

    @cached_property
    def syncs(self) -> Array:
        """Indices of the calls that are host syncs, also of those that only go on with the one before."""
        return self.calls.index(self.numbers(_SYNCS, "host_syncs")[0])

    @cached_property
    def repeated_syncs(self) -> tuple[Array, Array]:
        """Indices of copies that wait for their end, and of the call that waits for each again: both are one host sync.

        It is the next call of the thread.
        """
        ids, is_again = self.numbers(_WAITING, "gpu_work")
        call, calls = self.calls.index(ids), self.calls
        kind = np.full(len(calls.id), NONE)
        kind[call] = is_again
        order = np.lexsort((calls.id, calls.ts, calls.own_track))
        same = calls.own_track[order][1:] == calls.own_track[order][:-1]
        again = same & (kind[order][:-1] == 0) & (kind[order][1:] == 1)
        return order[:-1][again], order[1:][again]

    @cached_property
    def call_stacks(self) -> Array:
        """A number of the names around each call, its own included: equal ones have one number."""
        return np.unique(self.numbers(_CALL_STACKS, "gpu_calls")[0], return_inverse=True)[1].reshape(-1)

    @cached_property
    def ranks(self) -> Array:
        """The rank of each piece of work; NONE unless the trace is of several."""
        return self.ranks_of(self.slices.track[self.work.id])

    @cached_property
    def names(self) -> tuple[WorkName, ...]:
        """The distinct names of work, by category and name."""
        kernels = [name for category, name in sorted(self.slices.names) if category == "kernel"]
        classes = self._kernel_classes(kernels)
        return tuple(
            WorkName(category, name, classes[name] if category == "kernel" else _memory_class(category, name))
            for category, name in sorted(self.slices.names)
        )

    @cached_property
    def classes(self) -> tuple[list[str], Array]:
        """Classes of work in order, and the index of that of each piece of work."""
        classes = sorted({name.work_class for name in self.names})
        of_name = np.array([classes.index(name.work_class) for name in self.names], dtype=np.int64)
        return classes, of_name[self.name_of]

    def _kernel_classes(self, kernels: list[str]) -> dict[str, str]:
        """The class of each kernel: by its name, else by the operator that launched the first of that name."""
        rows = self.rows(_CLASSES, "kernel_patterns")
        patterns, names = [row[0] for row in rows], [row[1] for row in rows]
        classes = {
            kernel: None if number is None else names[number]
            for kernel, number in zip(kernels, first_matches(kernels, patterns), strict=True)
        }
        unknown = [kernel for kernel, work_class in classes.items() if work_class is None]
        operators = self._operators_of_first(unknown)
        distinct = list(dict.fromkeys(operators.values()))
        known = dict(zip(distinct, first_matches(distinct, patterns), strict=True))
        for kernel in unknown:
            number = known.get(operators.get(kernel, ""))
            classes[kernel] = "other" if number is None else names[number]
        return {kernel: work_class or "other" for kernel, work_class in classes.items()}

    def _operators_of_first(self, kernels: list[str]) -> dict[str, str]:
        """The innermost operator around the call that started the first kernel of each name, where there is one."""
        if not kernels:
            return {}
        slices = self.slices
        work = np.flatnonzero(slices.name >= 0)
        first = np.full(len(slices.names), len(slices.ts))
        np.minimum.at(first, slices.name[work], work)
        number_of = {name: number for number, (category, name) in enumerate(slices.names) if category == "kernel"}
        call_of = dict(zip(self.work.id.tolist(), self.work.call.tolist(), strict=True))
        calls = {kernel: call_of[int(first[number_of[kernel]])] for kernel in kernels}
        ids = sorted({int(self.calls.id[call]) for call in calls.values() if call != NONE})
        operator_of = dict(self.rows(_OPERATORS_AROUND.format(ids=ids), None))
        found = {kernel: operator_of.get(int(self.calls.id[call])) for kernel, call in calls.items() if call != NONE}
        return {kernel: operator for kernel, operator in found.items() if operator is not None}

    @cached_property
    def name_of(self) -> Array:
        """The index of each piece of work's name."""
        order = {name: number for number, name in enumerate(sorted(self.slices.names))}
        number_of = np.array([order[name] for name in self.slices.names], dtype=np.int64)
        found: Array = number_of[self.slices.name[self.work.id]]
        return found

    @cached_property
    def is_kernel(self) -> Array:
        """Whether each piece of work is a kernel, and no copy or set."""
        found: Array = self.slices.category[self.work.id] == KERNEL
        return found

    @cached_property
    def is_collective(self) -> Array:
        """Whether each piece of work is a collective."""
        return np.isin(self.work.id, self.numbers(_COLLECTIVES, "collectives")[0])

    @cached_property
    def chains(self) -> Chains:
        """Chains of kernels that one kernel of a library does."""
        texts = [lowered(name.name) for name in self.names]
        taken: dict[tuple[str, str], frozenset[int]] = {}
        forms: dict[tuple[str, int], dict[int, frozenset[int]]] = {}
        for chain, form, place, *patterns in self.rows(_CHAINS, "chain_names"):
            key = patterns[0], patterns[1]
            if key not in taken:
                glob, unless = map(Glob, key)
                taken[key] = frozenset(
                    number for number, text in enumerate(texts) if glob.matches(text) and not unless.matches(text)
                )
            places = forms.setdefault((chain, form), {})
            places[place] = places.get(place, frozenset()) | taken[key]
        known = [
            Form(chain, tuple(places[place] for place in sorted(places)))
            for (chain, _), places in forms.items()
            if all(places.values())
        ]
        return find_chains(self.work, self.name_of, known) if known else NO_CHAINS

    @cached_property
    def fused(self) -> dict[str, frozenset[int]]:
        """The names of work, as indices, that do all that a chain does, by the chain."""
        texts = [lowered(name.name) for name in self.names]
        found: dict[str, frozenset[int]] = {}
        for chain, pattern in self.rows(_FUSED, "chain_names"):
            glob = Glob(pattern)
            mine = frozenset(number for number, text in enumerate(texts) if glob.matches(text))
            found[chain] = found.get(chain, frozenset()) | mine
        return {chain: names for chain, names in found.items() if names}

    @cached_property
    def graph_work(self) -> GraphWork:
        """The work of graph launches."""
        work = self.work
        ids, graph_id, node_id = self.numbers(_GRAPH_WORK, "graphs")
        by_id = np.argsort(work.id)
        index = by_id[np.searchsorted(work.id[by_id], ids)]
        order = np.lexsort((ids, work.ts[index], work.call[index]))
        index = index[order]
        texts = sorted({name.name for name in self.names})
        numbers = {text: number for number, text in enumerate(texts)}
        text_of = np.array([numbers[name.name] for name in self.names], dtype=np.int64)
        name = self.name_of[index]
        return GraphWork(
            work.id[index], work.call[index], work.ts[index], work.ts_end[index], work.device[index], name,
            text_of[name], self.is_kernel[index], graph_id[order], node_id[order],
        )  # fmt: skip

    @cached_property
    def graphs(self) -> tuple[Replays, Nodes]:
        """Replays of graphs, and what each piece of graph work is in its graph."""
        return replays(self.graph_work)

    @cached_property
    def gaps(self) -> gaps.Gaps:
        """Gaps of each device between two pieces of work."""
        return gaps.device_gaps(self.work)
