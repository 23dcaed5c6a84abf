"""The facts of one trace: read from the engine's base tables when one is asked for first, and kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from molprof.analysis.facts import gaps
from molprof.analysis.facts.chains import NO_CHAINS, Chains, Form, find_chains
from molprof.analysis.facts.gaps import NO_STREAM, NONE, Array
from molprof.analysis.facts.graphs import UNKNOWN, GraphWork, Nodes, Replays, replays
from molprof.analysis.facts.intervals import Coverage, distinct_of, on_one_line, shared
from molprof.analysis.facts.patterns import Glob, first_matches, lowered
from molprof.analysis.facts.phases import Phases, innermost
from molprof.analysis.facts.slices import DRIVER, KERNEL, OPERATOR, RECORDED, RUNTIME, Slices, read_slices
from molprof.queries import PACKAGE

if TYPE_CHECKING:
    from molprof.analysis.trace_processor import TraceProcessor

_WORK = f"""
SELECT id, IIF(EXISTS(SELECT 1 FROM _molprof_only_device), 0, device) AS device,
  IFNULL(stream, {NO_STREAM}) AS stream, IFNULL(call_id, -1) AS call_id
FROM _molprof_work
"""
_DEVICES = "SELECT device FROM _molprof_work GROUP BY device ORDER BY device"
_CALLS = "SELECT id FROM _molprof_call ORDER BY id"
_TRACKS = "SELECT id, upid, tid FROM _molprof_thread_track"
_THREADS = """
SELECT track.id, thread.upid, thread.tid FROM thread_track AS track JOIN thread USING (utid) ORDER BY track.id
"""
_RANKS = "SELECT track_id, rank FROM molprof_track_rank"
_SYNCS = "SELECT id FROM molprof_host_sync"
# The names around each call, as a number.
_CALL_STACKS = """
SELECT slice.stack_id FROM _molprof_call AS call CROSS JOIN slice WHERE slice.id = call.id ORDER BY call.id
"""
_PHASES = """
SELECT id, ts, ts + dur AS ts_end, upid, tid, phase
FROM _molprof_marked_phase
ORDER BY id
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
# Names of the phases in which masks of constrained decoding are made.
_MASK_PHASES = ("mask_", "grammar_")
# Operators are counted where no GPU calls are recorded, and in a captured run.
_IS_CAPTURED = "SELECT EXISTS(SELECT 1 FROM molprof_annotation WHERE source = 'molprof')"
_DEPTHS = "SELECT depth FROM slice WHERE category = 'cpu_op' ORDER BY id"
_STEP_LANES = "SELECT id, ts, ts_end, upid, tid FROM _molprof_step_lane"
_GRAPH_WORK = f"""
SELECT id, IFNULL(graph_id, {UNKNOWN}) AS graph_id, IFNULL(node_id, {UNKNOWN}) AS node_id
FROM _molprof_graph_work
"""
_COLLECTIVES = "SELECT id FROM molprof_collective"


# Rows of id, start, end, process and thread.
Lanes = list[tuple[int, int, int, int | None, int | None]]


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


def _looked_up(numbers: Array, values: Mapping[int, int]) -> Array:
    """The value of each number, which are small and at least -1; NONE where it has none."""
    table = np.full(int(numbers.max(initial=-1)) + 2, NONE)  # the last is that of -1
    for number, value in values.items():
        if number < len(table) - 1:
            table[number] = value
    return table[numbers]


def _memory_class(category: str, name: str) -> str:
    """The class of a copy or set: what a copy's name says before its kinds of memory, `memcpy DtoH`."""
    return "memset" if category == "gpu_memset" else name.partition(" (")[0].replace("Memcpy", "memcpy")


class Facts:
    """Facts of the trace that an engine holds, each computed once."""

    def __init__(self, engine: TraceProcessor) -> None:
        self._engine = engine

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
    def slices(self) -> Slices:
        """All slices by id."""
        return read_slices(self._engine)

    @cached_property
    def ranks(self) -> Array:
        """The rank of each piece of work; NONE unless the trace is of several."""
        return self.ranks_of(self.slices.track[self.work.id])

    @cached_property
    def recorded(self) -> tuple[Array, Array, Array]:
        """Rank, first and last recorded moment; one row of rank NONE where the trace is not of several ranks.

        Recorded are operators, calls, annotations and GPU work; of a trace that is not of several ranks also phases,
        as functions that mark them may be around all of it.
        """
        rows = self.slices.of(*RECORDED)
        ts, ts_end = self.slices.ts[rows], self.slices.ts_end[rows]
        if not len(rows):
            return rows, ts, ts_end
        if not self._track_ranks:
            first, last = np.append(self.phases.ts, ts).min(), np.append(self.phases.ts_end, ts_end).max()
            return np.array([NONE]), np.array([first]), np.array([last])
        ranks, which = np.unique(self.ranks_of(self.slices.track[rows]), return_inverse=True)
        starts, ends = np.full(len(ranks), np.iinfo(np.int64).max), np.zeros(len(ranks), dtype=np.int64)
        np.minimum.at(starts, which, ts)
        np.maximum.at(ends, which, ts_end)
        known = ranks != NONE
        return ranks[known], starts[known], ends[known]

    @cached_property
    def _track_ranks(self) -> dict[int, int]:
        return dict(self.rows(_RANKS, "process_ranks"))

    def ranks_of(self, tracks: Array) -> Array:
        """The rank of each track; NONE where it has none."""
        if not self._track_ranks:
            return np.full(len(tracks), NONE)
        return _looked_up(tracks, self._track_ranks)

    @cached_property
    def names(self) -> tuple[WorkName, ...]:
        """The distinct names of work, by category and name."""
        kernels = [name for category, name in sorted(self.slices.names) if category == "kernel"]
        classes = self._kernel_classes(kernels)
        return tuple(
            WorkName(category, name, classes[name] if category == "kernel" else _memory_class(category, name))
            for category, name in sorted(self.slices.names)
        )

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
        return number_of[self.slices.name[self.work.id]]

    @cached_property
    def is_kernel(self) -> Array:
        """Whether each piece of work is a kernel, and no copy or set."""
        return self.slices.category[self.work.id] == KERNEL

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
    def phase_bound(self) -> tuple[Array, Array, Array]:
        """Of each phase: its slice, its own time with no device at work, and the part of that in host syncs."""
        rows = self.phase_lanes
        phase, ts, ts_end = (np.array([row[place] for row in rows], dtype=np.int64) for place in range(3))
        track = np.array([self._threads.get(row[3:], NONE) for row in rows], dtype=np.int64)
        calls = self.calls
        sync = self.syncs
        # Syncs that began in a phase.
        began = Coverage(track, ts, ts_end).covered(calls.own_track[sync], calls.ts[sync], calls.ts[sync] + 1) > 0
        sync = sync[began]
        waits = Coverage(calls.own_track[sync], calls.ts[sync], calls.ts_end[sync])
        phases, which = np.unique(phase, return_inverse=True)
        idle, waited = (np.zeros(len(phases), dtype=np.int64) for _ in range(2))
        np.add.at(idle, which, self._all_idle(ts, ts_end))
        lane, _, begin, end = shared((track, ts, ts_end), (waits.keys, waits.starts, waits.ends))
        np.add.at(waited, which[lane], self._all_idle(begin, end))
        return phases, idle, waited

    def _all_idle(self, starts: Array, ends: Array) -> Array:
        """How long no device worked in each window, ns."""
        none = np.zeros(len(starts), dtype=np.int64)
        return ends - starts - self._busy.covered(none, starts, ends)

    @cached_property
    def _busy(self) -> Coverage:
        """When any device worked."""
        return Coverage(np.zeros(len(self.work.ts), dtype=np.int64), self.work.ts, self.work.ts_end)

    @cached_property
    def work_phases(self) -> tuple[list[str], Array]:
        """Names of phases in order, and the index of the phase in which each piece of work's call began; NONE."""
        name_of = self.phase_names
        texts = sorted(set(name_of.values()))
        number_of = {phase: texts.index(name) for phase, name in name_of.items()}
        numbers = _looked_up(self.call_phases, number_of)
        return texts, np.append(numbers, NONE)[self.work.call]

    @cached_property
    def span(self) -> tuple[int, int]:
        """The first and the last recorded moment; (0, 0) where nothing is recorded."""
        _, starts, ends = self.recorded
        return (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)

    @cached_property
    def long_waits(self) -> gaps.Windows:
        """The part of long gaps, and of the ends, in which nothing is queued, each with the thread that is waited for.

        Without GPU work the time in which no thread is in an operator, on the thread with most time in them.
        """
        if len(self.work.id):
            windows = self.windows
            some = self.idle.is_long[windows.idle]
            return gaps.Windows(*(getattr(windows, name)[some] for name in gaps.Windows.__struct_fields__))
        rows = self.slices.of(OPERATOR)
        if not len(rows):
            return gaps.Windows(rows, rows, rows, rows)
        ts, ts_end = self.slices.ts[rows], self.slices.ts_end[rows]
        tracks, which = np.unique(self.slices.track[rows], return_inverse=True)
        times = np.zeros(len(tracks), dtype=np.int64)
        np.add.at(times, which, ts_end - ts)
        starts, ends = gaps.between_all(ts, ts_end, *self.span)
        return gaps.Windows(np.arange(len(starts)), starts, ends, np.full(len(starts), tracks[times.argmax()]))

    @cached_property
    def phases(self) -> Phases:
        """All phases."""
        columns = self._phase_columns
        ids, ts, ts_end = (columns[name].astype(np.int64) for name in ("id", "ts", "ts_end"))
        numbers = {place: number for number, place in enumerate(self._phase_places)}
        places = zip(columns["upid"].tolist(), columns["tid"].tolist(), strict=True)
        return Phases(ids, np.array([numbers[place] for place in places], dtype=np.int64), ts, ts_end)

    @cached_property
    def phase_names(self) -> dict[int, str]:
        """The name of each phase, by its slice."""
        return dict(zip(self.phases.id.tolist(), self._phase_columns["phase"].tolist(), strict=True))

    @cached_property
    def _phase_columns(self) -> dict[str, Any]:
        return self._read(_PHASES, "marked_phases")

    @cached_property
    def _phase_places(self) -> list[tuple[int | None, int | None]]:
        """Process and thread number of the threads with phases, in order."""
        places = set(zip(self._phase_columns["upid"].tolist(), self._phase_columns["tid"].tolist(), strict=True))
        return sorted(places, key=lambda place: [-1 if number is None else number for number in place])

    @cached_property
    def step_lanes(self) -> Lanes:
        """The time of each step."""
        return self.rows(_STEP_LANES, "step_lanes")

    @cached_property
    def phase_lanes(self) -> Lanes:
        """The innermost phase of threads at each moment, in order of thread and start."""
        lanes = self.innermost_phases
        rows = zip(*(column.tolist() for column in (lanes.id, lanes.ts, lanes.ts_end, lanes.thread)), strict=True)
        return [(*row, *self._phase_places[thread]) for *row, thread in rows]

    @cached_property
    def innermost_phases(self) -> Phases:
        """The same with the threads as numbers."""
        return innermost(self.phases)

    @cached_property
    def call_steps(self) -> Array:
        """The slice of the step in which each call began; NONE for calls outside steps."""
        return self.placed(self.calls.id, self.step_lanes)

    @cached_property
    def call_phases(self) -> Array:
        """The slice of the innermost phase of its thread in which each call began; NONE for calls outside phases."""
        return self.placed(self.calls.id, self.phase_lanes)

    def placed(self, ids: Array, lanes: Lanes) -> Array:
        """Return the id of the lane in which each slice began; NONE for none.

        lanes: those of a thread, or of a process where the thread is None, do not overlap each other.
        """
        found = np.full(len(ids), NONE)
        if not lanes:
            return found
        start, track = self.slices.ts[ids], self.slices.track[ids]
        for is_thread in (False, True):
            chosen = [lane for lane in lanes if (lane[4] is not None) == is_thread]
            if not chosen:
                continue
            key = self._own_tracks(track) if is_thread else self.processes(track)
            lane_key = np.array([self._threads.get(lane[3:], NONE) if is_thread else lane[3] for lane in chosen])
            lane_id, ts, ts_end = (np.array([lane[column] for lane in chosen], dtype=np.int64) for column in range(3))
            order = np.lexsort((ts, lane_key))
            lane_id, ts_end, lane_key = lane_id[order], ts_end[order], lane_key[order]
            begins, moments = on_one_line([lane_key, key], [ts[order], start])
            last = np.searchsorted(begins, moments, side="right") - 1
            inside = (last >= 0) & (lane_key[last] == key) & (start < ts_end[last]) & (found == NONE)
            found[inside] = lane_id[last[inside]]
        return found

    def call_sums(self, group_of: Array) -> dict[int, list[int]]:
        """Launches, graph launches, kernels, GPU time, host syncs and their time of the calls of each group.

        group_of: the group of each call. The GPU work that a call started is its own. Group NONE is all that is in no
        group, work without a recorded call too.
        """
        calls, work = self.calls, self.work
        groups, which = distinct_of(np.append(group_of, NONE) - NONE)  # the last is that of no call
        sums = np.zeros((6, len(groups)), dtype=np.int64)
        started = which[work.call]
        for row, launches in enumerate((self.launches, self.graph_launches)):
            np.add.at(sums[row], which[launches], 1)
        np.add.at(sums[2], started, self.is_kernel)
        np.add.at(sums[3], started, work.ts_end - work.ts)
        np.add.at(sums[4], which[self.syncs], 1)
        np.add.at(sums[5], which[self.syncs], (calls.ts_end - calls.ts)[self.syncs])
        return dict(zip((groups + NONE).tolist(), sums.T.tolist(), strict=True))

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
        """Indices of the calls that are host syncs."""
        return self.calls.index(self.numbers(_SYNCS, "host_syncs")[0])

    @cached_property
    def leaf_operators(self) -> Array:
        """Slices of the operators that call no other, in order."""
        ids = self.slices.of(OPERATOR)
        if not len(ids):
            return ids
        ts, ts_end, track = self.slices.ts[ids], self.slices.ts_end[ids], self.slices.track[ids]
        depth = self.numbers(_DEPTHS, None)[0]
        # The first operator that an operator calls is the next one of its track.
        order = np.lexsort((ids, depth, ts, track))
        ts, ts_end, track, depth = ts[order], ts_end[order], track[order], depth[order]
        calls = np.append((track[1:] == track[:-1]) & (depth[1:] > depth[:-1]), False)
        calls[:-1] &= ts[1:] < np.maximum(ts_end, ts + 1)[:-1]
        return np.sort(ids[order[~calls]])

    @cached_property
    def counts_operators(self) -> bool:
        """Whether operators are counted: no GPU calls are recorded, or molprof captured the trace."""
        if not len(self.slices.of(RUNTIME, DRIVER)):
            return True
        return bool(self.rows(_IS_CAPTURED, "annotations")[0][0])

    @cached_property
    def call_stacks(self) -> Array:
        """A number of the names around each call, its own included: equal ones have one number."""
        return np.unique(self.numbers(_CALL_STACKS, "gpu_calls")[0], return_inverse=True)[1].reshape(-1)

    @cached_property
    def calls(self) -> Calls:
        """Calls of the runtime and driver."""
        (ids,) = self.numbers(_CALLS, "gpu_calls")
        track = self.slices.track[ids]
        return Calls(ids, self.slices.ts[ids], self.slices.ts_end[ids], track, self._own_tracks(track))

    @cached_property
    def gaps(self) -> gaps.Gaps:
        """Gaps of each device between two pieces of work."""
        return gaps.device_gaps(self.work)

    @cached_property
    def host(self) -> gaps.HostTime:
        """What threads did when."""
        slices, masks = self.slices, self._masks
        rows = slices.of(OPERATOR, RUNTIME, DRIVER)
        calls, syncs = self.calls, self.syncs

        def coverage(tracks: Array, starts: Array, ends: Array) -> Coverage:
            both = zip((tracks, starts, ends), masks, strict=True)
            return Coverage(*(np.concatenate(pair) for pair in both))

        return gaps.HostTime(
            any=coverage(slices.track[rows], slices.ts[rows], slices.ts_end[rows]),
            calls=coverage(calls.track, calls.ts, calls.ts_end),
            syncs=coverage(calls.track[syncs], calls.ts[syncs], calls.ts_end[syncs]),
            masks=Coverage(*masks),
        )

    @cached_property
    def idle(self) -> gaps.Idle:
        """All idle time of devices."""
        ranks, starts, ends = self.recorded
        work, of_work = self.work, self.ranks
        order = np.argsort(ranks, kind="stable")
        index = order[np.minimum(np.searchsorted(ranks[order], of_work), len(ranks) - 1)] if len(ranks) else of_work
        # Of a rank without a span, nothing is known to lie before or after its work.
        known = ranks[index] == of_work if len(ranks) else np.zeros(len(of_work), dtype=bool)
        bounds = [
            np.where(known, bound[index], own) if len(ranks) else own
            for bound, own in ((starts, work.ts), (ends, work.ts_end))
        ]
        return gaps.idle_time(work, self.gaps, (bounds[0], bounds[1]))

    @cached_property
    def windows(self) -> gaps.Windows:
        """Time in which nothing is queued, each with the thread that is waited for."""
        return gaps.host_windows(self.idle, self.calls.own_track)

    @cached_property
    def waited(self) -> gaps.Windows:
        """The same with the threads that are waited for until the one of the window begins."""
        return gaps.waited_for(self.idle, self.windows, self.host, self.calls.own_track)

    @cached_property
    def parts(self) -> gaps.Parts:
        """Idle time by cause."""
        return gaps.idle_parts(self.work, self.idle, self.windows, self.waited, self.host)

    @cached_property
    def _threads(self) -> dict[tuple[int, int], int]:
        """The track of each thread by process and thread number: its first."""
        found: dict[tuple[int, int], int] = {}
        for track, upid, tid in self.rows(_THREADS, None):
            found.setdefault((upid, tid), track)
        return found

    @cached_property
    def _tracks(self) -> list[tuple[int, int, int]]:
        """Each track of a thread, with process and thread number; a sub-track with those of its thread."""
        return self.rows(_TRACKS, "annotations")

    def processes(self, tracks: Array) -> Array:
        """Return the process of the thread of each track; NONE where it has none."""
        return _looked_up(tracks, {track: upid for track, upid, _ in self._tracks if upid is not None})

    def _own_tracks(self, tracks: Array) -> Array:
        """Return the track of the thread whose slices each track holds; NONE where it has none."""
        own = {track: self._threads.get((upid, tid), NONE) for track, upid, tid in self._tracks}
        return _looked_up(tracks, own)

    @cached_property
    def _masks(self) -> tuple[Array, Array, Array]:
        """Track, start and end of the time in which threads are in masks of constrained decoding."""
        masks = {number for number, name in self.phase_names.items() if name.startswith(_MASK_PHASES)}
        rows = [row for row in self.phase_lanes if row[0] in masks]
        tracks = np.array([self._threads.get(row[3:], NONE) for row in rows], dtype=np.int64)
        starts, ends = (np.array([row[place] for row in rows], dtype=np.int64) for place in (1, 2))
        return tracks, starts, ends

    def rows(self, sql: str, module: str | None) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return list(zip(*(column.tolist() for column in self._read(sql, module).values()), strict=True))

    def numbers(self, sql: str, module: str | None) -> list[Array]:
        """The columns of a query of integers."""
        return [column.astype(np.int64) for column in self._read(sql, module).values()]

    def _read(self, sql: str, module: str | None) -> dict[str, Any]:
        """The columns of a query, which may use a module of the package."""
        include = f"INCLUDE PERFETTO MODULE {PACKAGE}.{module};\n" if module else ""
        return self._engine.query(include + sql)
