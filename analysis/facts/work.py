"""Facts about GPU work and the calls that started it, each computed once."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from molprof.analysis.facts import GPU_WORK, coverage, gaps
from molprof.analysis.facts.calls import WAITING_COPY, CallFacts, waits
from molprof.analysis.facts.chains import NO_CHAINS, Chains, Form, find_chains
from molprof.analysis.facts.gaps import NO_STREAM, NONE, Array
from molprof.analysis.facts.graphs import UNKNOWN, GraphWork, Nodes, Replays, replays
from molprof.analysis.facts.intervals import Coverage
from molprof.analysis.facts.links import LinkedCalls, Links, link
from molprof.analysis.facts.patterns import Glob, first_matches, lowered
from molprof.analysis.facts.slices import DRIVER, KERNEL, RUNTIME

# The device of the first work of each track and named device.
_DEVICES = """
SELECT _molprof_device!(slice.track_id, slice.arg_set_id) AS device
FROM json_each('{ids}') AS one CROSS JOIN slice
WHERE slice.id = one.value
ORDER BY one.key
"""
# What torch calls after a copy that waits, to wait for it again.
_WAITS_AGAIN = Glob("*StreamSynchronize*")
# The names around each call, as a number.
_CALL_STACKS = """
SELECT stack_id FROM slice WHERE category IN ('cuda_runtime', 'cuda_driver') ORDER BY id
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
_CHAINS = (
    "SELECT chain, form, position, pattern, unless FROM molprof_chain_kernel ORDER BY chain, form, position, pattern"
)
_GRAPH_WORK = f"""
SELECT id, IFNULL(graph_id, {UNKNOWN}) AS graph_id, IFNULL(node_id, {UNKNOWN}) AS node_id
FROM _molprof_graph_work
"""
_COLLECTIVES = "SELECT id FROM molprof_collective"
# What torch records around a call of a library of collectives; gloo and mpi run on the CPU.
_COLLECTIVE_CALLS = """
SELECT id FROM slice
WHERE (category = 'cpu_op' AND name = 'record_param_comms') OR (category = 'user_annotation' AND name GLOB '*ccl:*')
"""
OTHER, COLLECTIVE, PERHAPS = "other", "collective", "perhaps communication"
# Classes of kernels in which devices exchange data, by their name or perhaps.
COMMUNICATION = (COLLECTIVE, PERHAPS)
# What a stream of collectives runs too: it prepares and moves their data.
_AROUND_COLLECTIVES = ("copy", "cat", "fill", "index/scatter/gather", "sort/top-k")


class WorkName(Struct, frozen=True):
    """A distinct name of GPU work, with its category."""

    category: str
    name: str
    work_class: str


def _memory_class(category: str, name: str) -> str:
    """Return the class of a copy or set: the part of its name before the kinds of memory, such as `memcpy DtoH`."""
    return "memset" if category == "gpu_memset" else name.partition(" (")[0].replace("Memcpy", "memcpy")


class WorkFacts(CallFacts):
    """GPU work and its names."""

    @cached_property
    def devices(self) -> tuple[str | None, ...]:
        """Names of the devices with work, in order."""
        return self._devices[0]

    @cached_property
    def _devices(self) -> tuple[tuple[str | None, ...], Array]:
        """Names of the devices with work, in order, and the index of each slice of work's device."""
        row = self._work_rows
        gpu = self.slices.gpu
        named, track = gpu.device[row] - NONE, self.slices.track[gpu.id[row]] - NONE  # NONE is no key
        _, first, which = np.unique(track * (named.max(initial=0) + 1) + named, return_index=True, return_inverse=True)
        if not len(row):
            return (), row
        ids = gpu.id[row[first]].tolist()
        texts = self._read(_DEVICES.format(ids=ids), "process_ranks")["device"].tolist()
        devices = sorted(set(texts), key=lambda text: (text is not None, text))
        number = {device: number for number, device in enumerate(devices)}
        return tuple(devices), np.array([number[text] for text in texts], dtype=np.int64)[which.reshape(-1)]

    @cached_property
    def _work_rows(self) -> Array:
        """Indices of the GPU work among calls and work, in order of slice."""
        gpu = self.slices.gpu
        rows: Array = np.flatnonzero(
            np.array([category in GPU_WORK for category, _ in gpu.labels], dtype=bool)[gpu.label]
        )
        return rows

    @cached_property
    def links(self) -> Links:
        """Links from calls to the work that they started; the work is in order of slice."""
        calls, gpu, rows = self.calls, self.slices.gpu, self._work_rows
        is_launch = np.zeros(len(calls.id), dtype=bool)
        is_launch[self.launches] = is_launch[self.graph_launches] = True
        track = calls.track
        linked = LinkedCalls(
            self.ranks_of(track), calls.number, is_launch, self.processes(track), calls.ts, calls.ts_end
        )
        return link(linked, self.ranks_of(self.slices.track[gpu.id[rows]]), gpu.number[rows])

    @cached_property
    def linked_work(self) -> tuple[Array, Array]:
        """The slices of work in order, and the slice of the call that started each; NONE."""
        return self.slices.gpu.id[self._work_rows], np.append(self.calls.id, NONE)[self.links.call]

    @cached_property
    def work(self) -> gaps.GpuWork:
        """GPU work in order of device, start and slice."""
        gpu, rows = self.slices.gpu, self._work_rows
        ids, device = gpu.id[rows], self._devices[1]
        ts, ts_end = self.slices.ts[ids], self.slices.ts_end[ids]
        order = np.lexsort((ids, ts, device))
        ts, ts_end = ts[order], ts_end[order]
        call = self.links.call[order]
        has_call = call != NONE
        return gaps.GpuWork(
            id=ids[order],
            device=device[order],
            stream=gpu.stream[rows][order],
            ts=ts,
            ts_end=ts_end,
            call=call,
            call_ts=np.where(has_call, self.calls.ts[call], ts) if has_call.any() else ts,
            call_end=np.where(has_call, self.calls.ts_end[call], ts) if has_call.any() else ts,
        )

    @cached_property
    def work_numbers(self) -> Array:
        """The correlation number of each piece of work, or NO_NUMBER."""
        gpu = self.slices.gpu
        numbers: Array = gpu.number[np.searchsorted(gpu.id, self.work.id)]
        return numbers

    @cached_property
    def syncs(self) -> Array:
        """Indices of the calls that are host syncs, also of those that only continue the one before.

        queries/host_syncs.sql explains which they are.
        """
        return np.union1d(self.calls.named(waits), self._waiting_copies)

    @cached_property
    def _waiting_copies(self) -> Array:
        """Indices of the calls of copies that return when the copy is done."""
        is_waiting = np.array([WAITING_COPY.matches(name) for _, name in self.slices.names], dtype=bool)
        call = self.links.call[is_waiting[self.slices.name[self.linked_work[0]]]]
        return np.unique(call[call != NONE])

    @cached_property
    def repeated_syncs(self) -> tuple[Array, Array]:
        """Indices of copies that wait, and of the sync that waits for each again: both are one host sync.

        It is the next call of the thread.
        """
        calls = self.calls
        kind = np.full(len(calls.id), NONE)
        kind[self._waiting_copies] = 0
        kind[calls.named(_WAITS_AGAIN.matches)] = 1
        order = np.lexsort((calls.id, calls.ts, calls.own_track))
        same = calls.own_track[order][1:] == calls.own_track[order][:-1]
        again = same & (kind[order][:-1] == 0) & (kind[order][1:] == 1)
        return order[:-1][again], order[1:][again]

    @cached_property
    def call_stacks(self) -> Array:
        """A number for the names that enclose each call, its own included; equal ones have one number."""
        (stacks,) = self.numbers(_CALL_STACKS, None)
        if len(self.repeated_calls):
            stacks = stacks[np.isin(self.slices.of(RUNTIME, DRIVER), self.calls.id)]
        return np.unique(stacks, return_inverse=True)[1].reshape(-1)

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
        """Classes of work in order, and the index of each piece of work's class."""
        classes = sorted({name.work_class for name in self.names})
        of_name = np.array([classes.index(name.work_class) for name in self.names], dtype=np.int64)
        return classes, of_name[self.name_of]

    def _kernel_classes(self, kernels: list[str]) -> dict[str, str]:
        """Return the class of each kernel: by its name, else by the operator that launched the first of that name."""
        rows = self.rows(_CLASSES, "kernel_patterns")
        patterns, names = [row[0] for row in rows], [row[1] for row in rows]
        classes = {
            kernel: None if number is None else names[number]
            for kernel, number in zip(kernels, first_matches(kernels, patterns), strict=True)
        }
        unknown = [kernel for kernel, work_class in classes.items() if work_class is None]
        operators = self._operators_of_first(unknown)
        distinct = list(dict.fromkeys(operators.values()))
        match_of = dict(zip(distinct, first_matches(distinct, patterns), strict=True))
        for kernel in unknown:
            number = match_of.get(operators.get(kernel, ""))
            classes[kernel] = OTHER if number is None else names[number]
        class_of = {kernel: work_class or OTHER for kernel, work_class in classes.items()}
        return class_of | dict.fromkeys(self._perhaps_communication(class_of), PERHAPS)

    def _perhaps_communication(self, classes: dict[str, str]) -> list[str]:
        """Return unknown kernels of which at least half run on a stream of collectives or are called inside one.

        A stream of collectives runs at least one, and no kernel that computes.
        """
        kernels = [classes.get(name) if category == "kernel" else None for category, name in sorted(self.slices.names)]
        if OTHER not in kernels:
            return []
        work = self.work
        is_other, is_collective, computes = (
            np.array(chosen, dtype=bool)[self.name_of]
            for chosen in (
                [kind == OTHER for kind in kernels],
                [kind == COLLECTIVE for kind in kernels],
                [kind not in (None, OTHER, COLLECTIVE, *_AROUND_COLLECTIVES) for kind in kernels],
            )
        )
        streams, stream = np.unique(work.stream, return_inverse=True)
        stream = work.device * len(streams) + stream.reshape(-1)
        size = len(self.devices) * len(streams)
        collectives, others = (np.bincount(stream, chosen, size) for chosen in (is_collective, computes))
        is_of_collectives = ((collectives > 0) & (others == 0))[stream] & (work.stream != NO_STREAM)
        inside = (is_of_collectives | self._is_called_in_collective)[is_other]
        count, where = (np.bincount(self.name_of[is_other], weights, len(kernels)) for weights in (None, inside))
        names = [name for _, name in sorted(self.slices.names)]
        return [names[number] for number in np.flatnonzero((count > 0) & (2 * where >= count)).tolist()]

    @property
    def _is_called_in_collective(self) -> Array:
        """True for each piece of work whose call lies in a call of a library of collectives."""
        (ids,) = self.numbers(_COLLECTIVE_CALLS, None)
        track = self.own_tracks(self.slices.track[ids])
        has_track = track != NONE
        around = Coverage(track[has_track], self.slices.ts[ids][has_track], self.slices.ts_end[ids][has_track])
        calls, call = self.calls, self.work.call
        if not has_track.any() or not len(calls.id):
            return np.zeros(len(call), dtype=bool)
        inside = around.covered(np.maximum(calls.own_track, 0), calls.ts, calls.ts + 1) > 0
        inside &= calls.own_track != NONE
        is_inside: Array = (call != NONE) & inside[call]
        return is_inside

    def _operators_of_first(self, kernels: list[str]) -> dict[str, str]:
        """Return the innermost operator that encloses the call of the first kernel of each name."""
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
        call_ids = {kernel: int(self.calls.id[call]) for kernel, call in calls.items() if call != NONE}
        return {kernel: operator_of[item] for kernel, item in call_ids.items() if operator_of.get(item) is not None}

    @cached_property
    def name_of(self) -> Array:
        """The index of each piece of work's name."""
        order = {name: number for number, name in enumerate(sorted(self.slices.names))}
        number_of = np.array([order[name] for name in self.slices.names], dtype=np.int64)
        numbers: Array = number_of[self.slices.name[self.work.id]]
        return numbers

    @cached_property
    def is_kernel(self) -> Array:
        """True for each piece of work that is a kernel, not a copy or set."""
        is_kernel: Array = self.slices.category[self.work.id] == KERNEL
        return is_kernel

    @cached_property
    def overlaps(self) -> Array:
        """True for each piece of work that overlaps other work of its device."""
        return coverage.overlapping(self.work)

    @cached_property
    def is_collective(self) -> Array:
        """True for each piece of work that is a collective."""
        return np.isin(self.work.id, self.numbers(_COLLECTIVES, "collectives")[0])

    @cached_property
    def chains(self) -> Chains:
        """Chains of kernels that one kernel of a library could replace."""
        texts = [lowered(name.name) for name in self.names]
        taken: dict[tuple[str, str], frozenset[int]] = {}
        forms: dict[tuple[str, int], dict[int, frozenset[int]]] = {}
        for chain, form, position, *patterns in self.rows(_CHAINS, "chain_names"):
            key = patterns[0], patterns[1]
            if key not in taken:
                glob, unless = map(Glob, key)
                taken[key] = frozenset(
                    number for number, text in enumerate(texts) if glob.matches(text) and not unless.matches(text)
                )
            names_at = forms.setdefault((chain, form), {})
            names_at[position] = names_at.get(position, frozenset()) | taken[key]
        complete = [
            Form(chain, tuple(names_at[position] for position in sorted(names_at)))
            for (chain, _), names_at in forms.items()
            if all(names_at.values())
        ]
        return find_chains(self.work, self.name_of, complete) if complete else NO_CHAINS

    @cached_property
    def fused(self) -> dict[str, frozenset[int]]:
        """The names of work, as indices, that do all the work of a chain, by the chain."""
        texts = [lowered(name.name) for name in self.names]
        fused: dict[str, frozenset[int]] = {}
        for chain, pattern in self.rows(_FUSED, "chain_names"):
            glob = Glob(pattern)
            mine = frozenset(number for number, text in enumerate(texts) if glob.matches(text))
            fused[chain] = fused.get(chain, frozenset()) | mine
        return {chain: names for chain, names in fused.items() if names}

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
        """Replays of graphs, and the position of each piece of graph work in its graph."""
        return replays(self.graph_work)

    @cached_property
    def gaps(self) -> gaps.Gaps:
        """Gaps of each device between two pieces of work."""
        return gaps.device_gaps(self.work)
