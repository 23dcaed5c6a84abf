"""The facts of one trace: each is read from the engine's base tables on first use, and kept."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from msgspec.structs import replace

from molprof.analysis.facts import gaps, syncs
from molprof.analysis.facts.compiled import CompiledCode, compiled_code
from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.intervals import Coverage, distinct_of, ends_before, key_sums, shared
from molprof.analysis.facts.memory import MemoryFacts
from molprof.analysis.facts.nesting import Nesting
from molprof.analysis.facts.phases import Phases, innermost
from molprof.analysis.facts.recording import is_own_mark, recorded_spans
from molprof.analysis.facts.slices import COMPILED, DATA, DRIVER, OPERATOR, RECORDED, RUNTIME
from molprof.analysis.facts.source import Lanes, looked_up
from molprof.analysis.facts.steps import StepMarks, Steps, busy_marks, lanes_of, steps_of, whole_steps

_PHASES = """
SELECT id, ts, ts + dur AS ts_end, upid, tid, phase
FROM _molprof_marked_phase
ORDER BY id
"""
# Of an engine in a captured run, inside phases of the run.
_INNER_PHASES = """
SELECT id
FROM _molprof_constraint_phase
WHERE id NOT IN (SELECT id FROM _molprof_marked_phase)
ORDER BY id
"""
# Names of the phases in which masks of constrained decoding are made.
MASK_PHASES = ("mask_", "grammar_")
# The phase in which a worker of an engine waits for the scheduler, in another process.
SCHEDULER_WAIT = "scheduler_wait"
# And of those in which logits processors run, of any program.
PROCESSOR_PHASES = "processor"
_STEP_MARKS = """
SELECT id, rank, form, source IN (SELECT source FROM molprof_step_function) AS of_engine, upid, tid, ts,
  ts + dur AS ts_end
FROM molprof_step_mark
ORDER BY id
"""
# Operators are counted where no GPU calls are recorded, and in a captured run.
_IS_CAPTURED = "SELECT EXISTS(SELECT 1 FROM molprof_annotation WHERE source = 'molprof')"
_FRAMES_OF_MARKS = """
SELECT id, name FROM slice WHERE category = 'python_function' AND name GLOB '*profiler/recording/*.py(*' ORDER BY id
"""
_DEPTHS = "SELECT depth FROM slice WHERE category = 'cpu_op' ORDER BY id"


class Facts(MemoryFacts):
    """Facts of the trace that an engine holds, each computed once."""

    @cached_property
    def recorded(self) -> tuple[Array, Array, Array]:
        """Rank, first and last recorded moment; one row of rank NONE where the trace is not of several ranks."""
        rows = self.slices.of(*RECORDED)
        if not len(rows):
            return rows, rows, rows
        ts, ts_end = self.slices.ts[rows], self.slices.ts_end[rows]
        if self.has_ranks:
            ranks = self.ranks_of(self.slices.track[rows])
        else:  # functions that mark phases may be around all of it
            # A worker's wait for its scheduler goes on when nothing is recorded any more.
            waits = [number for number, name in self.phase_names.items() if name == SCHEDULER_WAIT]
            phases = self.phases.some(~np.isin(self.phases.id, waits))
            ts = np.array([min(ts.min(), phases.ts.min(initial=ts[0]))])
            ts_end = np.array([max(ts_end.max(), phases.ts_end.max(initial=ts_end[0]))])
            ranks = np.full(1, NONE)
        ranks, starts, ends = recorded_spans((ranks, ts, ts_end), self.work, self.ranks, self.profiler_spans)
        has_span = (ranks != NONE) | (not self.has_ranks)
        return ranks[has_span], starts[has_span], ends[has_span]

    @cached_property
    def phase_bound(self) -> tuple[Array, Array, Array]:
        """For each phase: its slice, its own time with no device at work, and the part of that in host syncs.

        As in `phase_own`, molprof's own marks are no time of it.
        """
        columns = map(self._bound, self._lanes_of_phases)
        phase, idle, waited = map(np.concatenate, zip(*columns, strict=True))
        return phase, idle, waited

    def _bound(self, lanes: Phases) -> tuple[Array, Array, Array]:
        """Return the same for phases that do not overlap, with threads as tracks."""
        phase, track, ts, ts_end = (getattr(lanes, name) for name in lanes.__struct_fields__)
        calls = self.calls
        sync = self.syncs
        # Syncs that began in a phase.
        began = Coverage(track, ts, ts_end).covered(calls.own_track[sync], calls.ts[sync], calls.ts[sync] + 1) > 0
        sync = sync[began]
        waits = Coverage(calls.own_track[sync], calls.ts[sync], calls.ts_end[sync])
        phases, which = np.unique(phase, return_inverse=True)
        idle, waited = (np.zeros(len(phases), dtype=np.int64) for _ in range(2))
        np.add.at(idle, which, self._all_idle(ts, ts_end))
        marks = self._own_marks
        lane, _, begin, end = shared((track, ts, ts_end), (marks.keys, marks.starts, marks.ends))
        np.subtract.at(idle, which[lane], self._all_idle(begin, end))
        lane, _, begin, end = shared((track, ts, ts_end), (waits.keys, waits.starts, waits.ends))
        np.add.at(waited, which[lane], self._all_idle(begin, end))
        return phases, idle, waited

    def _all_idle(self, starts: Array, ends: Array) -> Array:
        """Return the time of each window in which no device worked, ns."""
        none = np.zeros(len(starts), dtype=np.int64)
        idle: Array = ends - starts - self._busy.covered(none, starts, ends)
        return idle

    @cached_property
    def _busy(self) -> Coverage:
        """Time in which any device worked."""
        return Coverage(np.zeros(len(self.work.ts), dtype=np.int64), self.work.ts, self.work.ts_end)

    @cached_property
    def work_phases(self) -> tuple[list[str], Array]:
        """Names of phases in order, and for each piece of work the index of the phase in which its call began; NONE."""
        name_of = self.phase_names
        texts = sorted(set(name_of.values()))
        number_of = {phase: texts.index(name) for phase, name in name_of.items()}
        numbers = looked_up(self.call_phases, number_of)
        return texts, np.append(numbers, NONE)[self.work.call]

    @cached_property
    def span(self) -> tuple[int, int]:
        """The first and the last recorded moment; (0, 0) where nothing is recorded."""
        _, starts, ends = self.recorded
        return (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)

    @cached_property
    def long_waits(self) -> gaps.Windows:
        """The part of long gaps in which nothing is queued, each with the thread that is waited for.

        Without GPU work the time in which no thread is in an operator, on the thread with most time in them.
        """
        if len(self.work.id):
            windows = self.windows
            some = self.idle.is_long[windows.idle] & (self.idle.position[windows.idle] == 0)
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
        numbers = {thread: number for number, thread in enumerate(self.phase_places)}
        threads = zip(columns["upid"].tolist(), columns["tid"].tolist(), strict=True)
        return Phases(ids, np.array([numbers[thread] for thread in threads], dtype=np.int64), ts, ts_end)

    @cached_property
    def inner_phases(self) -> Phases:
        """Phases of masks and grammars of an engine in a captured run, inside its own phases; threads are tracks."""
        phases = self.on_threads(self.numbers(_INNER_PHASES, "marked_phases")[0])
        return Phases(phases.id, phases.thread, phases.ts, phases.ts_end)

    @cached_property
    def phase_names(self) -> dict[int, str]:
        """The name of each phase, by its slice."""
        return dict(zip(self.phases.id.tolist(), self._phase_columns["phase"].tolist(), strict=True))

    @cached_property
    def _phase_columns(self) -> dict[str, Any]:
        return self._read(_PHASES, "marked_phases")

    @cached_property
    def phase_places(self) -> list[tuple[int | None, int | None]]:
        """Process and thread number of the threads with phases, in order."""
        threads = set(zip(self._phase_columns["upid"].tolist(), self._phase_columns["tid"].tolist(), strict=True))
        return sorted(threads, key=lambda thread: [-1 if number is None else number for number in thread])

    @cached_property
    def steps(self) -> Steps:
        """The steps, by the marks that count as steps (queries/step_marks.sql)."""
        rows = self.rows(_STEP_MARKS, "step_marks")
        rank = min((row[1] for row in rows), default=NONE)
        rows = [row for row in rows if row[1] == rank]
        forms, phases = {row[2] for row in rows}, self.phases
        threads = {ids: number for number, ids in enumerate(self.phase_places)}
        for row in rows:
            threads.setdefault(row[4:6], len(threads))
        ids, ranks, ts, ts_end = (np.array([row[column] for row in rows], dtype=np.int64) for column in (0, 1, 6, 7))
        thread = np.array([threads[row[4:6]] for row in rows], dtype=np.int64)
        marks = StepMarks(ids, ranks, np.array([row[2] == "loop" for row in rows], dtype=bool), thread, ts, ts_end)
        if "function" in forms:
            # A call with nothing to run is no step: it launches nothing, or, where nothing is, runs no operators.
            launches = np.append(self.launches, self.graph_launches)
            slices = self.calls.id[launches] if len(launches) else self.slices.of(OPERATOR)
            process = np.array([NONE if row[4] is None else row[4] for row in rows], dtype=np.int64)
            of = self.processes(self.slices.track[slices])
            marks = marks.some(busy_marks(process, marks, of, self.slices.ts[slices]))
        steps = steps_of(marks)
        ts, ts_end, is_whole = steps.ts, steps.ts_end, np.ones(len(steps.id), dtype=bool)
        if "loop" not in forms and any(row[3] for row in rows):
            zeros = np.zeros(len(phases.id), dtype=np.int64)
            spans = StepMarks(phases.id, zeros, zeros, phases.thread, phases.ts, phases.ts_end)
            names = self.phase_names
            is_schedule = np.array([names[number] == "schedule" for number in phases.id.tolist()], dtype=bool)
            ts, ts_end, is_whole = whole_steps(steps, spans.some(is_schedule), spans)
        order = np.argsort(steps.id)
        thread_ids = list(threads)
        times = steps.id[order], ts[order], ts_end[order]
        lanes = lanes_of(*times, [thread_ids[number] for number in steps.thread[order].tolist()])
        return Steps(*times, is_whole[order], rank, lanes, "function" in forms)

    @cached_property
    def step_lanes(self) -> Lanes:
        """The time of each step, in order of their slices."""
        return self.steps.lanes

    @cached_property
    def phase_lanes(self) -> Lanes:
        """The innermost phase of threads at each moment, in order of thread and start."""
        lanes = self.innermost_phases
        rows = zip(*(column.tolist() for column in (lanes.id, lanes.ts, lanes.ts_end, lanes.thread)), strict=True)
        return [(*row, *self.phase_places[thread]) for *row, thread in rows]

    @cached_property
    def innermost_phases(self) -> Phases:
        """The same with the threads as numbers."""
        return innermost(self.phases)

    @property
    def _lanes_of_phases(self) -> tuple[Phases, Phases]:
        """The innermost phases, and those that are inside them, at each moment, with threads as tracks."""
        tracks = np.array([self._threads.get(thread, NONE) for thread in self.phase_places], dtype=np.int64)
        lanes = self.innermost_phases
        return replace(lanes, thread=tracks[lanes.thread]), innermost(self.inner_phases)

    @cached_property
    def phase_own(self) -> tuple[Array, Array]:
        """Phases, and their time outside those that they contain and outside molprof's own marks, where recorded."""
        parts = []
        for phases, lanes in zip((self.phases, self.inner_phases), self._lanes_of_phases, strict=True):
            lane_ns = lanes.ts_end - lanes.ts - self._own_marks.covered(lanes.thread, lanes.ts, lanes.ts_end)
            own_ns = key_sums(np.searchsorted(phases.id, lanes.id), lane_ns, len(phases.id))
            differ = own_ns != phases.ts_end - phases.ts
            parts.append((phases.id[differ], own_ns[differ]))
        ids, own_ns = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return ids, own_ns

    @cached_property
    def _own_marks(self) -> Coverage:
        """Time in which molprof marked phases, by track. Only with Python functions is that known."""
        frames = self.rows(_FRAMES_OF_MARKS, None) if len(self.phases.id) else []
        ids = np.array([number for number, name in frames if is_own_mark(name)], dtype=np.int64)
        return Coverage(self.own_tracks(self.slices.track[ids]), self.slices.ts[ids], self.slices.ts_end[ids])

    @cached_property
    def call_steps(self) -> Array:
        """The slice of the step in which each call began; NONE for calls outside steps."""
        return self.placed(self.calls.id, self.step_lanes)

    @cached_property
    def call_phases(self) -> Array:
        """The slice of the innermost phase of its thread in which each call began; NONE for calls outside phases."""
        return self.placed(self.calls.id, self.phase_lanes)

    def call_sums(self, group_of: Array) -> dict[int, list[int]]:
        """Return launches, graph launches, kernels, GPU time, host syncs and their time of the calls of each group.

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
        np.add.at(sums[4], which[np.setdiff1d(self.syncs, self.repeated_syncs[1])], 1)
        np.add.at(sums[5], which[self.syncs], (calls.ts_end - calls.ts)[self.syncs])
        return dict(zip((groups + NONE).tolist(), sums.T.tolist(), strict=True))

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

    def outermost_operators(self, leaves: Array) -> Array:
        """Return the outermost operator that encloses each of these operators, itself if none does."""
        ids = self.slices.of(OPERATOR)
        if not len(leaves):
            return leaves
        ts, ts_end, track = self.slices.ts[ids], self.slices.ts_end[ids], self.slices.track[ids]
        depth = self.numbers(_DEPTHS, None)[0]
        order = np.lexsort((ids, depth, ts, track))
        ids, track = ids[order], track[order]
        # The engine nests slices of no length in those of their moment.
        around = ends_before(track, ts[order], np.maximum(ts_end, ts + 1)[order])
        is_top = (around == NONE) | (ts[order] >= np.maximum(ts_end, ts + 1)[order][around])
        top = np.maximum.accumulate(np.where(is_top, np.arange(len(ids)), 0))
        by_id = np.argsort(ids)
        row = by_id[np.searchsorted(ids[by_id], leaves)]
        outermost: Array = ids[top[row]]
        return outermost

    @cached_property
    def counts_operators(self) -> bool:
        """True if operators are counted: no GPU calls are recorded, or molprof captured the trace."""
        if not len(self.slices.of(RUNTIME, DRIVER)):
            return True
        return bool(self.rows(_IS_CAPTURED, "annotations")[0][0])

    @cached_property
    def host(self) -> gaps.HostTime:
        """Time of threads by activity: syncs, calls, operators and others."""
        slices, calls, syncs = self.slices, self.calls, self.syncs
        data = np.flatnonzero(slices.region == DATA)
        rows = slices.of(OPERATOR, RUNTIME, DRIVER)
        # The innermost first: each covers what those before it do.
        intervals = {
            "masks": self._masks,
            "data": (slices.track[data], slices.ts[data], slices.ts_end[data]),
            "syncs": (calls.track[syncs], calls.ts[syncs], calls.ts_end[syncs]),
            "calls": (calls.track, calls.ts, calls.ts_end),
            "compiled": self._in_compiled,
            "any": (slices.track[rows], slices.ts[rows], slices.ts_end[rows]),
        }
        coverages: dict[str, Coverage] = {}
        inner = tuple(np.empty(0, dtype=np.int64) for _ in range(3))
        for name, more in intervals.items():
            if not coverages or len(more[0]):
                union = Coverage(*(np.concatenate(pair) for pair in zip(inner, more, strict=True)))
                inner = union.keys, union.starts, union.ends
            coverages[name] = union
        return gaps.HostTime(**coverages)

    @cached_property
    def compiled(self) -> CompiledCode:
        """Signs of torch.compile in the trace."""
        kinds = np.unique(self.slices.region)
        kernels = (name for category, name in self.slices.names if category == "kernel")
        return compiled_code((kinds[kinds >= COMPILED] - COMPILED).tolist(), kernels)

    @cached_property
    def _in_compiled(self) -> tuple[Array, Array, Array]:
        """Track, start and end of the time in which threads run code that torch.compile generated, and no operator.

        The code that launches compiled kernels is Python, and what is recorded around it is no operator of its own.
        """
        slices = self.slices
        is_compiled = slices.region >= COMPILED
        # Only what begins in such code can be inside it.
        code = np.flatnonzero(is_compiled & (slices.track >= 0))
        spans = Coverage(slices.track[code], slices.ts[code], slices.ts_end[code])
        rows = slices.touching(*spans.of_any_key)
        rows = rows[is_compiled[rows] | np.isin(slices.category[rows], (OPERATOR, RUNTIME, DRIVER))]
        rows = rows[spans.holds(slices.track[rows], slices.ts[rows])]
        nesting = Nesting(slices.track[rows], slices.ts[rows], slices.ts_end[rows], is_compiled[rows].astype(np.int64))
        segments = nesting.segments
        mine = nesting.names[segments.owners] == 1
        return segments.threads[mine], segments.starts[mine], segments.ends[mine]

    @cached_property
    def idle(self) -> gaps.Idle:
        """All idle time of devices."""
        ranks, starts, ends = self.recorded
        work, of_work = self.work, self.ranks
        order = np.argsort(ranks, kind="stable")
        index = order[np.minimum(np.searchsorted(ranks[order], of_work), len(ranks) - 1)] if len(ranks) else of_work
        # Of a rank without a span, nothing is known to lie before or after its work.
        has_span = ranks[index] == of_work if len(ranks) else np.zeros(len(of_work), dtype=bool)
        bounds = [
            np.where(has_span, bound[index], work_bound) if len(ranks) else work_bound
            for bound, work_bound in ((starts, work.ts), (ends, work.ts_end))
        ]
        return gaps.idle_time(work, self.gaps, (bounds[0], bounds[1]))

    @cached_property
    def windows(self) -> gaps.Windows:
        """Time in which nothing is queued, each with the thread that is waited for."""
        return gaps.host_windows(self.idle, self.calls.own_track)

    @cached_property
    def waited(self) -> gaps.Windows:
        """The windows again, with the thread that is waited for at each moment until the window's own thread begins."""
        return gaps.waited_for(self.idle, self.windows, self.host, self.calls.own_track)

    @cached_property
    def parts(self) -> gaps.Parts:
        """Idle time by cause."""
        parts = gaps.idle_parts(self.work, self.idle, self.windows, self.waited, self.host)
        if not len(self.long_syncs.call):
            return parts
        devices, first = np.unique(self.work.device, return_index=True)
        return syncs.not_recorded(parts, self.idle, self.long_syncs.windows(devices, self.ranks[first]))

    @cached_property
    def long_syncs(self) -> syncs.LongSyncs:
        """Host syncs that last longer than all recorded work that they can have waited for."""
        calls, sync = self.calls, np.sort(self.syncs)
        spans = calls.ts[sync], calls.ts_end[sync]
        return syncs.long_syncs(self.work, self.ranks, sync, self.ranks_of(calls.track[sync]), spans)

    @cached_property
    def _masks(self) -> tuple[Array, Array, Array]:
        """Track, start and end of the time in which threads are in masks of constrained decoding."""
        return self._time_in(MASK_PHASES)

    def _time_in(self, beginnings: str | tuple[str, ...]) -> tuple[Array, Array, Array]:
        """Return track, start and end of the time in which threads are in phases whose names begin with a prefix."""
        phases = {number for number, name in self.phase_names.items() if name.startswith(beginnings)}
        rows = [row for row in self.phase_lanes if row[0] in phases]
        tracks = np.array([self._threads.get(row[3:], NONE) for row in rows], dtype=np.int64)
        starts, ends = (np.array([row[column] for row in rows], dtype=np.int64) for column in (1, 2))
        return tracks, starts, ends

    @cached_property
    def in_processors(self) -> Array:
        """Time of each idle interval, ns, with nothing queued while the CPU computes in a logits processor."""
        lanes, calls, syncs = self._time_in(PROCESSOR_PHASES), self.calls, self.syncs
        time_ns = np.zeros(len(self.idle.ts), dtype=np.int64)
        if not len(lanes[0]):
            return time_ns
        lane, _, starts, ends = shared(lanes, (calls.own_track[syncs], calls.ts[syncs], calls.ts_end[syncs]))
        waits = Coverage(lanes[0][lane], starts, ends)
        waits_for_own = gaps.until_own(self.windows, self.waited)
        windows = waits_for_own.track, waits_for_own.ts, waits_for_own.ts_end
        np.add.at(time_ns, waits_for_own.idle, Coverage(*lanes).covered(*windows) - waits.covered(*windows))
        return time_ns
