"""Prediction of a run on another GPU: its operators become kernels and host times, and a replay makes the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import Struct

from molprof.analysis.critical.changes import GPU, LAUNCHES, WhatIfChange
from molprof.analysis.critical.recorded import NONE, RecordedTrace, ThreadInterval, union
from molprof.analysis.critical.replay import ON_GPU, Replay, Replayed
from molprof.analysis.predict.fused import FUSED_ERROR, Pair, compiled
from molprof.analysis.predict.run import SYNCS, CallSequence, OperatorCall, attention_on, named
from molprof.analysis.predict.table import CostTable, Estimate, HeldOutCheck
from molprof.analysis.roofline.peaks import DEVICES, Peaks, peaks_of
from molprof.analysis.union import Union
from molprof.common.errors import TraceError, UsageError

# More of the run's time in operators that neither traces nor formulas know: no prediction.
MOST_UNKNOWN = 0.1
# This share of the held-out predictions is within the interval.
COVERAGE = 0.8
LAUNCH_FIGURE, GPU_FIGURE, LENGTH_FIGURE, BUSY_FIGURE = "launches", "gpu_ns", "length_ns", "busy_ratio"
LIMIT_FIGURE, COPY_FIGURE, SYNC_FIGURE = "gpu_limits", "copies", "syncs"
# Host time of a launch and of a sync that waits for nothing, within the host time of its operator.
_CALL_NS, _RETURN_NS = 3000, 5000
FORWARD = ("prefill", "forward")
_VIEWS = ("as_strided", "expand", "permute", "select", "slice", "t", "transpose", "unsqueeze", "view")


class PredictedFigure(Struct, frozen=True):
    """A predicted figure, and its interval from the errors on held-out traces."""

    value: float
    low: float
    high: float


class CompiledRun(Struct, frozen=True):
    """A run with its forwards compiled by torch.compile, in graphs. kernels: before and after."""

    kernels: tuple[int, int]
    gpu_ns: PredictedFigure
    length_ns: PredictedFigure
    replayed: Replayed


class Share(Struct, frozen=True):
    """The calls of one operator. evidence: calls on the device's traces; 0: by the formula of its family alone."""

    operator: str
    calls: int
    launches: int
    gpu_ns: float
    evidence: int


@dataclass(frozen=True)
class Prediction:
    """A run on a device. Times: ns.

    Attributes:
        host_factor: host time between operators, as a multiple of the run's.
        graphs: the same with the launches between two syncs in one graph; graph_ns: its length.
        compiled: in graphs, and forwards compiled; None where there is no forward or nothing to fuse.
        changed: with what the user asks for, and changed_ns, its length; None without.
        host_ns: what the host alone would take.
        copies, syncs: copies by the driver, on the GPU and between it and the host; waits of the host for the GPU.
        known_ratio: of the run's time in operators, what traces or formulas know; left_out: names of the others.
        checks: the held-out predictions that the intervals come from.
        measured: calls whose GPU time was measured on the device, by themselves.
    """

    run: CallSequence
    device: Peaks
    shown: bool
    models: Sequence[str]
    host_factor: float
    launches: PredictedFigure
    copies: PredictedFigure
    syncs: PredictedFigure
    gpu_ns: PredictedFigure
    length_ns: PredictedFigure
    busy_ratio: PredictedFigure
    limit: str
    host_ns: float
    replayed: Replayed
    graphs: Replayed
    graph_ns: PredictedFigure
    compiled: CompiledRun | None
    changes: tuple[WhatIfChange, ...]
    changed: Replayed | None
    changed_ns: PredictedFigure | None
    shares: tuple[Share, ...]
    known_ratio: float
    left_out: tuple[str, ...]
    checks: Sequence[HeldOutCheck]
    measured: int


def device_of(text: str) -> Peaks:
    """Return the peaks of a GPU by a word such as h100 or mi300. Raises UsageError for one that is not known."""
    if (peaks := known_devices().get(text.lower())) is not None:
        return replace(peaks, name=text)
    for name in (text, text.upper(), f"{text.upper()}X"):
        if (peaks := peaks_of(name)).source:
            return peaks
    raise UsageError(f"no figures are known of the device {text!r}", hint=f"one of {', '.join(known_devices())}")


def predict(
    run: CallSequence, table: CostTable, checks: Sequence[HeldOutCheck], changes: Sequence[WhatIfChange] = ()
) -> Prediction:
    """Predict a run. Raises TraceError where operators without any known cost take too much of its time."""
    each = (call for call in run.calls if call.times)
    calls = [call._replace(operator=attention_on(call.operator, table.device, run.torch)) for call in each]
    estimates = [table.estimate(call) for call in calls]
    pairs = [(call, one) for call, one in zip(calls, estimates, strict=True) if one is not None]
    lost = sum(call.end_ns - call.start_ns for call, one in zip(calls, estimates, strict=True) if one is None)
    unknown = sum(time for _, time in run.unknown.values()) + lost
    whole = run.known_ns - lost + unknown
    names = [name for name, _ in sorted(run.unknown.items(), key=lambda item: -item[1][1])]
    names += sorted({call.operator for call, one in zip(calls, estimates, strict=True) if one is None})
    if not pairs or unknown > MOST_UNKNOWN * whole:
        raise TraceError(
            f"{unknown / max(whole, 1):.0%} of the time in operators is in those that no trace has shown:"
            f" {', '.join(names[:6])}",
            hint=f"a prediction needs {1 - MOST_UNKNOWN:.0%} in operators that the table of the package knows",
        )
    if sum(run.unseen.values()) > MOST_UNKNOWN * run.gpu_ns:
        started = [name for name, time in run.unseen.items() if time > MOST_UNKNOWN * run.gpu_ns]
        raise TraceError(
            f"{sum(run.unseen.values()) / run.gpu_ns:.0%} of the run's GPU time is in no operator that is known, but"
            f" started by {', '.join(started) or 'other calls'}",
            hint="record the run without graphs: vLLM's enforce_eager=True, SGLang's --disable-cuda-graph",
        )
    factor = host_factor(run, table)
    recorded = made_up(run, pairs, table, factor)
    replay = Replay(recorded)
    replayed = replay.run()
    gpu_ns = sum(one.gpu_ns for _, one in pairs)
    used = [check for check in checks if check.shown == table.shown]
    length, work = _figure(LENGTH_FIGURE, replayed.length_ns, used), _figure(GPU_FIGURE, gpu_ns, used)
    busy = _figure(BUSY_FIGURE, min(gpu_ns / replayed.length_ns, 1), used)
    length, work, busy = possible(length, work, busy)
    graphs = replay.run([WhatIfChange(LAUNCHES, None)])
    changed = replay.run(changes) if changes else None
    host_ns = replay.run([WhatIfChange(GPU, 0.0)]).length_ns
    return Prediction(
        run,
        table.device,
        table.shown,
        table.models,
        factor,
        _figure(LAUNCH_FIGURE, sum(one.kernels for _, one in pairs), used),
        _figure(COPY_FIGURE, sum(one.kind.startswith("memcpy") for _, one in pairs), used),
        _figure(SYNC_FIGURE, int(recorded.is_sync.sum()), used),
        work,
        length,
        busy,
        limit_of(gpu_ns, host_ns),
        host_ns,
        replayed,
        graphs,
        _of_both(graphs, work, length),
        _compiled(run, pairs, table, factor, (work, length)),
        tuple(changes),
        changed,
        None if changed is None else _of_both(changed, work, length),
        _shares(pairs),
        1 - unknown / whole,
        tuple(names),
        used,
        sum(named(call) in table.measured for call, _ in pairs),
    )


def possible(
    length: PredictedFigure, work: PredictedFigure, busy: PredictedFigure
) -> tuple[PredictedFigure, PredictedFigure, PredictedFigure]:
    """Return time, GPU time and busy share, with intervals cut to values that are possible together.

    Nothing takes less time than the GPU's work in it, and the busy share is the one over the other.
    """
    low, high = max(length.low, work.low), min(work.high, length.high)
    length, work = (
        PredictedFigure(length.value, min(low, length.value), length.high),
        PredictedFigure(work.value, work.low, high),
    )
    ends = max(busy.low, work.low / length.high), min(busy.high, work.high / length.low, 1.0)
    return length, work, PredictedFigure(busy.value, min(ends[0], busy.value), max(ends[1], busy.value))


def limit_of(gpu_ns: float, host_ns: float) -> str:
    """Return the one of the two that alone would take longer."""
    return "GPU" if gpu_ns > host_ns else "host"


def host_factor(run: CallSequence, table: CostTable) -> float:
    """Return the traces' host time as a multiple of the run's, by operators that only make views of tensors."""
    own_ns = run.quiet.medians()
    each = [(table.quiet.get(f"aten::{name}"), own_ns.get(f"aten::{name}")) for name in _VIEWS]
    ratios = [other / run_ns for other, run_ns in each if other and run_ns]
    return float(np.median(ratios)) if ratios else 1.0


def _figure(name: str, value: float, checks: Sequence[HeldOutCheck]) -> PredictedFigure:
    """Return a figure with its error: of a share as a difference, of others as a factor."""
    each = [(check.predicted, check.recorded) for check in checks if check.figure == name]
    if not each:
        return PredictedFigure(value, value, value)
    if name == BUSY_FIGURE:
        error = float(np.quantile([abs(one - other) for one, other in each], COVERAGE))
        return PredictedFigure(value, max(value - error, 0.0), min(value + error, 1.0))
    if name in (COPY_FIGURE, SYNC_FIGURE):  # there may be none
        error = float(np.quantile([abs(np.log1p(one) - np.log1p(other)) for one, other in each], COVERAGE))
        low, high = (float(np.expm1(np.log1p(value) + side * error)) for side in (-1, 1))
        return PredictedFigure(value, max(low, 0.0), high)
    error = float(np.quantile([abs(np.log(one / other)) for one, other in each], COVERAGE))
    return PredictedFigure(value, value * float(np.exp(-error)), value * float(np.exp(error)))


def _of_both(replayed: Replayed, gpu_ns: PredictedFigure, length_ns: PredictedFigure) -> PredictedFigure:
    """Return the length of a replay.

    Of its path, GPU time is as wrong as GPU time is, the rest as the time of a run is.
    """
    share = replayed.share(ON_GPU)
    ends = (
        replayed.length_ns * (share * work / gpu_ns.value + (1 - share) * length / length_ns.value)
        for work, length in ((gpu_ns.low, length_ns.low), (gpu_ns.high, length_ns.high))
    )
    return PredictedFigure(replayed.length_ns, *ends)


def known_devices() -> dict[str, Peaks]:
    """Return the GPUs that can be predicted, by a name that `device_of` knows."""
    names = [pattern.strip("*").replace("*", " ").lower() for pattern, _ in DEVICES]
    return {name: peaks for name, (_, peaks) in zip(names, DEVICES, strict=True)}


def _compiled(
    run: CallSequence,
    pairs: Sequence[Pair],
    table: CostTable,
    factor: float,
    figures: tuple[PredictedFigure, PredictedFigure],
) -> CompiledRun | None:
    """Return the run after compilation. figures: GPU time and time of the run as it is."""
    whole = [(run.start_ns, run.end_ns)]
    forward = [(item.start_ns, item.end_ns) for item in run.phases if item.name in FORWARD] if run.phases else whole
    fused = compiled(pairs, table, forward)
    if fused is None:
        return None
    work, length = figures
    stay, join = (sum(one.gpu_ns for _, one in side) for side in (fused.kept, fused.fused))
    low = stay * work.low / work.value + join / FUSED_ERROR
    high = stay * work.high / work.value + join * FUSED_ERROR
    work_pairs = [*fused.kept, *fused.fused]
    gpu = PredictedFigure(stay + join, low, high)
    work_pairs.sort(key=lambda pair: pair[0].start_ns)
    replayed = Replay(made_up(run, work_pairs, table, factor)).run([WhatIfChange(LAUNCHES, None)])
    return CompiledRun(fused.kernels, gpu, _of_both(replayed, gpu, length), replayed)


def _shares(pairs: Sequence[tuple[OperatorCall, Estimate]]) -> tuple[Share, ...]:
    sums: dict[str, list[float]] = {}
    for call, one in pairs:
        sums.setdefault(call.operator, [0, 0, 0.0, one.evidence])
        for index, amount in enumerate((1, one.kernels, one.gpu_ns)):
            sums[call.operator][index] += amount
    rows = [Share(name, int(calls), int(count), time, int(seen)) for name, (calls, count, time, seen) in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_ns, row.operator)))


class _MatchedMoments:
    """Pairs of corresponding moments of the run and of its prediction.

    Operators that are no GPU work take as long as in the traces. So does what lies between operators in a forward of a
    run without a GPU, which frees memory there that a GPU's allocator keeps; elsewhere it is the run's, times a factor.
    """

    def __init__(self, run: CallSequence, table: CostTable, factor: float) -> None:
        quiet = run.quiet
        table_ns = [
            table.quiet.get(name, own_ns * factor) for name, own_ns in zip(quiet.names, quiet.own_ns, strict=True)
        ]
        self._starts, self._outermost = quiet.starts, run.outermost
        self._own, self._known = (np.concatenate([[0], np.cumsum(times)]) for times in (quiet.own_ns, table_ns))
        self._factor, self._gap_ns, self._stretch = factor, table.gap_ns, run.stretch
        forward = [item for item in run.phases if item.name in FORWARD]
        self._usual = Union([], [])  # where gaps are those of traces
        if not run.on_gpu:
            self._usual = union(forward) if run.phases else Union([run.start_ns], [run.end_ns])
        self._stretched = union(run.stretched)
        both = (self._usual, self._stretched)
        self._edges = np.concatenate([side for union in both for side in (union.starts_ns, union.ends_ns)])
        self._edges.sort()
        self.at, self.now = run.start_ns, 0.0
        self.known: list[tuple[int, float]] = [(run.start_ns, 0.0)]

    def until(self, moment: int) -> None:
        """Advance the host to a moment of the run."""
        first, last = np.searchsorted(self._edges, [self.at, moment], side="right")
        for edge in (*self._edges[first:last].tolist(), moment):
            if edge > self.at:
                self._go(edge)

    def _go(self, moment: int) -> None:
        first, last = np.searchsorted(self._starts, [self.at, moment])
        if self._usual.covered(self.at, moment):
            begun = np.searchsorted(self._outermost, [self.at, moment], side="right")
            python = (begun[1] - begun[0]) * self._gap_ns
        else:
            python = max(moment - self.at - (self._own[last] - self._own[first]), 0) * self._factor
        stretch = self._stretch if self._stretched.covered(self.at, moment) else 1.0
        self.now += stretch * float(self._known[last] - self._known[first] + python)
        self.at = moment
        self.known.append((self.at, self.now))

    def skip(self, moment: int, now: float) -> None:
        """Skip what the run did until a moment; it is over at another one."""
        self.at, self.now = max(moment, self.at), now
        self.known.append((self.at, self.now))

    def mapped(self, intervals: Sequence[ThreadInterval]) -> tuple[ThreadInterval, ...]:
        run, now = (np.array([pair[column] for pair in self.known]) for column in (0, 1))
        ends = [np.interp([item[column] for item in intervals], run, now) for column in (1, 2)]
        return tuple(
            ThreadInterval(_THREAD, round(start), round(end), item.name)
            for item, start, end in zip(intervals, *ends, strict=True)
        )


_THREAD = (0, 0)


def made_up(
    run: CallSequence, pairs: Sequence[tuple[OperatorCall, Estimate]], table: CostTable, factor: float
) -> RecordedTrace:
    """Return the run on the device, of one thread and one stream, as if it had been recorded there."""
    clock = _MatchedMoments(run, table, factor)
    calls: list[tuple[str, int, int, int, bool]] = []  # name, start, end, target, waited
    work: list[tuple[int, int, str, int]] = []  # start, end, class, call
    waits = iter([*run.waits, (run.end_ns + 1, run.end_ns + 1)])
    wait = next(waits)
    for call, one in pairs:
        while wait[0] < call.start_ns:
            clock.until(wait[0])
            _sync(clock, calls, work, wait[1])
            wait = next(waits)
        clock.until(call.start_ns)
        # Launches follow each other at the end of the operator's host time.
        pieces = max(one.kernels, 1)  # a copy is no kernel
        length = max(one.host_ns / pieces, _CALL_NS)
        for _ in range(pieces):
            end = clock.now + length
            launched = max(end - _CALL_NS, clock.now)
            free = work[-1][1] + table.pause_ns if work else 0
            start = max(launched + table.latency_ns, free)
            work.append((round(start), round(start + one.gpu_ns / pieces), one.kind, len(calls)))
            calls.append(("launch", round(launched), round(end), NONE, False))
            clock.now = float(round(end))
        if call.operator in SYNCS:
            _sync(clock, calls, work, call.end_ns)
        clock.skip(call.end_ns, clock.now)
    clock.until(run.end_ns)
    return _recorded(run, table, clock, calls, work)


def _sync(
    clock: _MatchedMoments,
    calls: list[tuple[str, int, int, int, bool]],
    work: list[tuple[int, int, str, int]],
    upto: int,
) -> None:
    """Wait for all work; in the run this ended at `upto`."""
    start = round(clock.now)
    ended = work[-1][1] if work else 0
    end = max(start, ended) + _RETURN_NS
    calls.append(("sync", start, end, len(work) - 1 if work else NONE, ended > start))
    clock.skip(upto, end)


def _recorded(
    run: CallSequence,
    table: CostTable,
    clock: _MatchedMoments,
    calls: list[tuple[str, int, int, int, bool]],
    work: list[tuple[int, int, str, int]],
) -> RecordedTrace:
    names, starts, ends, targets, waited = (list(column) for column in zip(*calls, strict=True))
    work_starts, work_ends, kinds, call_of = (list(column) for column in zip(*work, strict=True))
    is_sync = np.array([name == "sync" for name in names])
    phases = clock.mapped(run.phases)
    end = max(round(clock.now), ends[-1], work_ends[-1])
    return RecordedTrace(
        0,
        end,
        run.steps,
        {_THREAD: max(round(clock.now), ends[-1])},
        [_THREAD] * len(names),
        names,
        np.array(starts),
        np.array(ends),
        is_sync,
        np.arange(len(names)) - 1,
        np.array(targets),
        np.array(waited),
        np.cumsum(is_sync | np.concatenate([[False], is_sync[:-1]])),
        np.array(work_starts),
        np.array(work_ends),
        kinds,
        np.array(call_of),
        np.arange(len(kinds)) - 1,
        np.full(len(kinds), NONE),
        table.latency_ns,
        table.pause_ns,
        phases,
        clock.mapped(run.operators),
    )
