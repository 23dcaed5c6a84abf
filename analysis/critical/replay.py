"""Replay of a trace with changed times, its dependencies kept, and the critical path of the result.

A launch follows the host time before it; work follows its launch, the work before it on its stream, and work of another
stream that it waited for; a host sync follows the work that it waits for. What none of these explains stays as long as
recorded, so that a replay without changes is the trace. Kernels of one stream keep their order, and so do calls of one
thread. This is the model of Daydream (Zhu et al., USENIX ATC 2020) on the events of torch.profiler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from molprof.analysis.critical.changes import (
    CALLS,
    GPU,
    GRAPH_PAUSE_NS,
    HOST,
    LAUNCHES,
    OPERATORS,
    SYNCS,
    WhatIfChange,
    is_pattern,
    matches,
)
from molprof.analysis.critical.recorded import NONE, RecordedTrace, Thread, ThreadInterval, unions
from molprof.analysis.facts.phases import Phases, innermost
from molprof.analysis.union import Union
from molprof.common.errors import UsageError

ON_GPU, ON_HOST, BETWEEN = "GPU", "CPU", "between"
LATENCY, PAUSE, RETURN = "from launch to start", "between GPU work", "return from a sync"
RUNTIME, OPERATOR, REST = "runtime calls", "operators", "Python and other"
_ALWAYS = Union([-(1 << 62)], [1 << 62])
_START, _WORK, _END = range(3)


class Piece(NamedTuple):
    """A part of the path: its thread or stream, its class of GPU work or kind of host time, and the phase."""

    where: str
    what: str
    phase: str | None = None


@dataclass(frozen=True)
class Replayed:
    """Result of a replay. length_ns: from the start of the recorded range to the end of its last work or host time."""

    length_ns: float
    path: Mapping[Piece, float]  # ns; adds up to the length

    def share(self, where: str) -> float:
        """Return the part of the path at one location, of the whole; 0 if changes leave no time at all."""
        return sum(ns for piece, ns in self.path.items() if piece.where == where) / (self.length_ns or 1)


class Replay:
    """Replays of one trace. Each costs a pass over its calls and work in Python."""

    def __init__(self, recorded: RecordedTrace) -> None:
        self.recorded = recorded
        self.classes = frozenset(recorded.work_class)
        self.phases = frozenset(item.name for item in recorded.phases)
        starts, ends = recorded.call_start, recorded.call_end
        launch = np.where(recorded.call_of == NONE, 0, starts[recorded.call_of] if len(starts) else 0)
        calls, work = np.arange(len(starts)), np.arange(len(launch))
        keys = np.concatenate([starts, np.maximum(recorded.work_start, launch), ends])
        kinds = np.repeat([_START, _WORK, _END], [len(calls), len(work), len(calls)])
        indices = np.concatenate([calls, work, calls])
        # At one moment a call ends before the next begins, and work begins after its own call and before later ones.
        turns = np.concatenate([3 * calls, 3 * recorded.call_of + 1, 3 * calls + 2])
        order = np.lexsort((indices, turns, keys))
        self._order = list(zip(kinds[order].tolist(), indices[order].tolist(), strict=True))

    def run(self, changes: Sequence[WhatIfChange] = ()) -> Replayed:
        """Replay the trace with changes. Raises UsageError if a change selects nothing."""
        return _ReplayRun(self, changes).replayed()

    @cached_property
    def operators(self) -> dict[Thread, Union]:
        """The spans of operators by thread."""
        return unions(self.recorded.operators)

    @cached_property
    def named_phases(self) -> dict[str, dict[Thread, Union]]:
        """The time of each phase, that of phases inside included."""
        intervals: defaultdict[str, list[ThreadInterval]] = defaultdict(list)
        for item in self.recorded.phases:
            intervals[item.name].append(item)
        return {name: unions(items) for name, items in intervals.items()}

    @cached_property
    def innermost(self) -> dict[Thread, dict[str, Union]]:
        """The time of each phase without that of phases inside, by thread."""
        phases: list[ThreadInterval] = sorted(self.recorded.phases, key=lambda item: (item.start_ns, -item.end_ns))
        threads: dict[Thread, int] = {}
        rows = [(threads.setdefault(item.thread, len(threads)), item.start_ns, item.end_ns) for item in phases]
        lanes = innermost(Phases(np.arange(len(rows)), *np.array(rows, dtype=np.int64).reshape(-1, 3).T))
        intervals: defaultdict[str, list[ThreadInterval]] = defaultdict(list)
        for index, start, end in zip(lanes.id.tolist(), lanes.ts.tolist(), lanes.ts_end.tolist(), strict=True):
            intervals[phases[index].name].append(phases[index]._replace(start_ns=start, end_ns=end))
        unions_of: defaultdict[Thread, dict[str, Union]] = defaultdict(dict)
        for name, items in intervals.items():
            for thread, union in unions(items).items():
                unions_of[thread][name] = union
        return unions_of


class _ReplayRun:
    """One replay: times of its calls and work, and the dependency that decided each start."""

    def __init__(self, replay: Replay, changes: Sequence[WhatIfChange]) -> None:
        self.replay, self.recorded, self.changes = replay, replay.recorded, changes
        self.selected = self._selected()

    def _selected(self) -> dict[Thread, list[tuple[Union, float]]]:
        """Return the changed host time by thread: for each change the union with those before it, and its factor."""
        recorded, replay = self.recorded, self.replay
        selected: defaultdict[Thread, list[tuple[Union, float]]] = defaultdict(list)
        for change in self.changes:
            if change.factor is None or change.name in {GPU, CALLS, *replay.classes}:
                continue
            if change.name == HOST:
                chosen = dict.fromkeys({*recorded.call_thread, *recorded.ends_ns}, _ALWAYS)
            elif change.name == OPERATORS:
                chosen = replay.operators
            elif change.name in replay.phases:
                chosen = replay.named_phases[change.name]
            else:
                chosen = unions([item for item in recorded.named if matches(item.name, change.name)])
                if not chosen:
                    names = ", ".join(sorted({*replay.classes, *replay.phases})) or "none"
                    raise UsageError(
                        f"{change} selects nothing of this trace",
                        hint=f"classes of GPU work and phases here: {names}; or an operator or Python function,"
                        " with * for any text",
                    )
            for thread, union in chosen.items():
                before = selected[thread]
                before.append((before[-1][0] | union if before else union, change.factor))
        return selected

    def _host_ns(self, thread: Thread, start: Any, end: Any, within: Union | None = None) -> Any:
        """Return the host time between moments after the changes, within `within`; shape of `start`."""
        changed = self.selected.get(thread, ())
        length = end - start if within is None else within.covered(start, end)
        host_ns, before = length * 1.0, np.zeros(np.shape(start))
        for union, factor in changed:
            both = union.covered(start, end)
            if within is not None:
                both = both + length - (union | within).covered(start, end)
            host_ns = host_ns - (1 - factor) * (both - before)
            before = both
        return host_ns

    def _work_factors(self) -> np.ndarray:
        recorded, replay = self.recorded, self.replay
        factors = np.full(len(recorded.work_class), np.nan)
        classes = np.array(recorded.work_class, dtype=object)
        for change in self.changes:
            if change.factor is None or change.name in {HOST, CALLS, OPERATORS}:
                continue
            if change.name == GPU:
                chosen = np.ones(len(factors), dtype=bool)
            elif change.name in replay.classes:
                chosen = classes == change.name
            else:
                chosen = self._launched_in(change)
            factors[chosen & np.isnan(factors)] = change.factor
        return np.where(np.isnan(factors), 1.0, factors)

    def _launched_in(self, change: WhatIfChange) -> np.ndarray:
        """Return the work whose call begins in host time that a change selects."""
        recorded = self.recorded
        one = _ReplayRun(self.replay, [change._replace(factor=0.0)]).selected
        launched = np.array(
            [
                thread in one and bool(one[thread][0][0].covered(start, start + 1))
                for thread, start in zip(recorded.call_thread, recorded.call_start.tolist(), strict=True)
            ],
            dtype=bool,
        )
        has_call = recorded.call_of != NONE
        is_selected = np.zeros(len(has_call), dtype=bool)
        is_selected[has_call] = launched[recorded.call_of[has_call]]
        return is_selected

    def _calls(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return for each call the one before it, the host time since that ended, its own, and since when."""
        recorded = self.recorded
        before = recorded.before.copy()
        start, end = recorded.call_start, recorded.call_end
        since = np.where(before == NONE, recorded.start_ns, end[before] if len(end) else 0)
        gap, length = np.zeros(len(start)), np.zeros(len(start))
        for thread, indices in self._by_thread.items():
            gap[indices] = self._host_ns(thread, since[indices], start[indices])
            length[indices] = self._host_ns(thread, start[indices], end[indices])
        for change in self.changes:
            if change.name == CALLS and change.factor is not None:
                length = length * change.factor
            elif change.name == LAUNCHES:
                first = np.searchsorted(recorded.segment, recorded.segment)
                later = first != np.arange(len(first))
                before[later], gap[later], length[later] = first[later], 0, 0
                since = np.where(later, start, since)
        return before, gap, length, since

    @cached_property
    def _by_thread(self) -> dict[Thread, np.ndarray]:
        indices: defaultdict[Thread, list[int]] = defaultdict(list)
        for index, thread in enumerate(self.recorded.call_thread):
            indices[thread].append(index)
        return {thread: np.array(members) for thread, members in indices.items()}

    def replayed(self) -> Replayed:
        """Replay all times, then follow the path back from what ends last."""
        recorded = self.recorded
        before, gap, length, since = self._calls()
        waits = recorded.target != NONE
        if any(change.name == SYNCS for change in self.changes):
            waits = np.zeros(len(waits), dtype=bool)
        target_end = np.where(waits, recorded.work_end[recorded.target] if len(recorded.work_end) else 0, 0)
        returned = recorded.call_end - target_end
        waited = waits & recorded.waited
        usual = float(np.median(returned[waited])) if waited.any() else 0.0
        returned = np.where(waited, returned, np.minimum(returned, usual))
        quick = recorded.is_sync & ~recorded.waited
        least = float(np.median(length[quick])) if quick.any() else 0.0
        length = np.where(recorded.waited & recorded.is_sync, np.minimum(length, least), length)

        lag, pauses, factors = *self._lags(), self._work_factors()
        duration = ((recorded.work_end - recorded.work_start) * factors).tolist()
        lists = [array.tolist() for array in (before, gap, length, waits, recorded.target, returned)]
        befores, gaps, lengths, waiting, targets, returns = lists
        call_of, previous, other = (array.tolist() for array in (recorded.call_of, recorded.previous, recorded.other))
        start_ns, latency = float(recorded.start_ns), recorded.latency_ns
        call_start, call_end = [0.0] * len(befores), [0.0] * len(befores)
        work_start, work_end = [0.0] * len(duration), [0.0] * len(duration)
        first = recorded.work_start.tolist()
        for kind, index in self.replay._order:
            if kind == _START:
                at = befores[index]
                call_start[index] = (call_end[at] if at != NONE else start_ns) + gaps[index]
            elif kind == _END:
                ready = call_start[index] + lengths[index]
                if waiting[index]:
                    ready = max(ready, work_end[targets[index]] + returns[index])
                call_end[index] = ready
            else:
                call, last, beside = call_of[index], previous[index], other[index]
                ready = -1.0
                if call != NONE:
                    ready = call_start[call] + latency
                if last != NONE:
                    ready = max(ready, work_end[last] + pauses[index])
                if beside != NONE:
                    ready = max(ready, work_end[beside])
                begin = ready + lag[index] if ready >= 0 else float(first[index])
                work_start[index], work_end[index] = begin, begin + duration[index]
        moments = call_start, call_end, work_start, work_end
        times = _Times(befores, since, waiting, targets, returns, lengths, pauses, *moments)
        return self._path(times, duration)

    def _lags(self) -> tuple[list[float], list[int]]:
        """Return the unexplained time before each piece of work, and the least time after the work before it, ns."""
        recorded = self.recorded
        ready = np.full(len(recorded.work_start), np.iinfo(np.int64).min)
        for index, ends, more in (
            (recorded.call_of, recorded.call_start, recorded.latency_ns),
            (recorded.previous, recorded.work_end, recorded.pause_ns),
            (recorded.other, recorded.work_end, 0),
        ):
            has_index = index != NONE
            ready[has_index] = np.maximum(ready[has_index], ends[index[has_index]] + more)
        lag = recorded.work_start - np.where(ready < 0, recorded.work_start, ready)
        pauses = np.full(len(lag), recorded.pause_ns)
        if any(change.name == LAUNCHES for change in self.changes):
            # In a graph no launch of its own delays work.
            last = recorded.previous
            both = (recorded.call_of != NONE) & (last != NONE) & (recorded.call_of[last] != NONE)
            both[both] = recorded.segment[recorded.call_of[both]] == recorded.segment[recorded.call_of[last[both]]]
            lag[both], pauses[both] = 0, min(recorded.pause_ns, GRAPH_PAUSE_NS)
        lags: list[float] = lag.tolist()
        return lags, pauses.tolist()

    def _path(self, times: _Times, duration: list[float]) -> Replayed:
        recorded = self.recorded
        last_call = {
            thread: int(indices[np.argmax(recorded.call_end[indices])]) for thread, indices in self._by_thread.items()
        }
        ends: list[tuple[float, Thread, int, int]] = []
        for thread, end in recorded.ends_ns.items():
            call = last_call.get(thread, NONE)
            since = int(recorded.call_end[call]) if call != NONE else recorded.start_ns
            rest = float(self._host_ns(thread, np.array([since]), np.array([max(end, since)]))[0])
            ends.append(((times.call_end[call] if call != NONE else recorded.start_ns) + rest, thread, call, end))
        final_host = max(ends, default=None, key=lambda item: item[0])
        final_work = int(np.argmax(times.work_end)) if times.work_end else NONE
        pieces: defaultdict[Piece, float] = defaultdict(float)
        host: defaultdict[Thread, list[tuple[int, int]]] = defaultdict(list)
        if final_work != NONE and (final_host is None or times.work_end[final_work] >= final_host[0]):
            length, at = times.work_end[final_work], (_WORK, final_work)
        else:
            assert final_host is not None
            length, thread, call, end = final_host
            since = int(recorded.call_end[call]) if call != NONE else recorded.start_ns
            host[thread].append((since, max(end, since)))
            at = (_END, call)
        while at[1] != NONE:
            kind, index = at
            if kind == _WORK:
                at = self._before_work(times, index, duration, pieces)
            elif kind == _END:
                at = self._before_end(times, index, pieces)
            else:
                host[recorded.call_thread[index]].append((int(times.since[index]), int(recorded.call_start[index])))
                at = (_END, times.before[index])
        self._host_pieces(host, pieces)
        return Replayed(length - recorded.start_ns, dict(pieces))

    def _before_work(
        self, times: _Times, work: int, duration: list[float], pieces: dict[Piece, float]
    ) -> tuple[int, int]:
        """Return the dependency that decided when a piece of work starts: other work, or the start of a call."""
        recorded = self.recorded
        pieces[Piece(ON_GPU, recorded.work_class[work])] += duration[work]
        call, previous, other = (int(index[work]) for index in (recorded.call_of, recorded.previous, recorded.other))
        candidates = []  # when it was ready, what for, and since when it waited
        if call != NONE:
            candidates.append(
                (times.call_start[call] + recorded.latency_ns, LATENCY, times.call_start[call], (_START, call))
            )
        if previous != NONE:
            end = times.work_end[previous]
            candidates.append((end + times.pause[work], PAUSE, end, (_WORK, previous)))
        if other != NONE:
            candidates.append((times.work_end[other], PAUSE, times.work_end[other], (_WORK, other)))
        _, what, since, at = max(candidates, default=(0, PAUSE, float(recorded.start_ns), (_WORK, NONE)))
        pieces[Piece(BETWEEN, what)] += times.work_start[work] - since
        return at

    def _before_end(self, times: _Times, call: int, pieces: dict[Piece, float]) -> tuple[int, int]:
        """Return the dependency that decided when a call ends: work, or its own start."""
        end, target = times.call_end[call], times.target[call]
        if times.waits[call] and end > times.call_start[call] + times.length[call]:
            pieces[Piece(BETWEEN, RETURN)] += end - times.work_end[target]
            return _WORK, target
        pieces[Piece(ON_HOST, RUNTIME)] += end - times.call_start[call]
        return _START, call

    def _host_pieces(self, host: Mapping[Thread, list[tuple[int, int]]], pieces: dict[Piece, float]) -> None:
        """Add host time on the path by phase, in operators and outside."""
        for thread, spans in host.items():
            start, end = (np.array([item[side] for item in spans]) for side in (0, 1))
            operators = self.replay.operators.get(thread, Union((), ()))
            rest = [self._host_ns(thread, start, end, operators).sum(), self._host_ns(thread, start, end).sum()]
            for phase, union in self.replay.innermost.get(thread, {}).items():
                both = self._host_ns(thread, start, end, _common(union, operators)).sum()
                whole = self._host_ns(thread, start, end, union).sum()
                pieces[Piece(ON_HOST, OPERATOR, phase)] += both
                pieces[Piece(ON_HOST, REST, phase)] += whole - both
                rest = [rest[0] - both, rest[1] - whole]
            pieces[Piece(ON_HOST, OPERATOR)] += rest[0]
            pieces[Piece(ON_HOST, REST)] += rest[1] - rest[0]


class _Times(NamedTuple):
    """Times of a replay, ns: dependencies of calls, start and end of calls and work."""

    before: list[int]
    since: np.ndarray
    waits: list[bool]
    target: list[int]
    returned: list[float]
    length: list[float]
    pause: list[int]  # of each piece of work, after the one before it
    call_start: list[float]
    call_end: list[float]
    work_start: list[float]
    work_end: list[float]


def _common(first: Union, second: Union) -> Union:
    """Return the moments that are in both."""
    moments = np.unique(np.concatenate([first.starts_ns, first.ends_ns, second.starts_ns, second.ends_ns]))
    if len(moments) < 2:
        return Union((), ())
    starts, ends = moments[:-1], moments[1:]
    inside = (first.covered(starts, ends) > 0) & (second.covered(starts, ends) > 0)
    return Union(starts[inside], ends[inside])


def needs_names(replay: Replay, changes: Sequence[WhatIfChange]) -> bool:
    """Return True if changes select operators and functions by their names."""
    return any(is_pattern(change, replay.classes, replay.phases) for change in changes)
