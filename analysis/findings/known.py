"""Facts of a trace for rules: figures, recorded time and its parts.

A captured run has recorded steps, profiled, and the wall time of timed passes, unprofiled. The profiler does not slow
the GPU, so GPU time is divided by the unprofiled time of the recorded steps. It slows the host, so the share of host
time in its recorded phase stands for the share of that phase's unprofiled time. Both assume that the recorded steps
represent all of their kind. A foreign trace has one clock: gains are ratios of its profiled span.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct

from molprof.analysis.facts import coverage, gaps
from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.gaps import CAUSES, POSITIONS
from molprof.analysis.facts.intervals import Coverage, shared
from molprof.analysis.facts.places import EnclosingIndex
from molprof.analysis.facts.stacks import Stacks
from molprof.analysis.facts.work import COMMUNICATION
from molprof.analysis.figures.model import RECORDED_SPAN, RUN_TIME, Gain, Group, Report
from molprof.analysis.figures.run_model import Run
from molprof.analysis.frame import Frame
from molprof.analysis.samples import Samples
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query
from molprof.analysis.union import Union
from molprof.common.manifest import STEP_PHASES
from molprof.common.values import percent_text, time_text

T = TypeVar("T")

_STEPS = Query("phases", "SELECT ts, ts + dur AS ts_end FROM molprof_step ORDER BY ts")
_STEP_NAMES = Query("steps", "SELECT DISTINCT slice.name FROM molprof_any_step JOIN slice USING (id)")
SPAN = Query(
    "recorded",
    "SELECT ts, ts_end FROM (SELECT MIN(ts) AS ts, MAX(ts_end) AS ts_end FROM molprof_recorded) WHERE ts IS NOT NULL",
)
_WORK = Query("gpu_work", "SELECT device, ts, ts + dur AS ts_end FROM molprof_gpu_work ORDER BY ts")
_WAITS = Query("gpu_calls", "SELECT COUNT() AS waits FROM molprof_gpu_call WHERE name GLOB '*StreamWaitEvent*'")
# Causes of idle time in which the CPU does something else than wait or launch.
OUTSIDE_CALLS = ("cpu_operators", "cpu_compiled", "cpu_outside", "cpu_data", "cpu_masks")
HOST_CAUSES = ("cpu_calls", *OUTSIDE_CALLS)
# GPU work by step of the call that starts it.
_GPU_OF_STEPS = Query(
    "step_launches",
    "SELECT step_id, 'gpu' AS cause, gpu_ns FROM molprof_step_launch WHERE step_id IS NOT NULL AND gpu_ns > 0",
)
# How each is told to use graphs.
_ENGINES = {"vllm": "vLLM: without enforce_eager", "sglang": "SGLang: without disable_cuda_graph"}
_LIMITS = {
    "gpu": "GPU work", "communication": "exposed communication", "cpu": "the CPU", "masks": "masks on the CPU",
    "data": "the data loader", "launching": "launches under way", "sync": "host syncs", "pauses": "pauses below 5 µs",
    "queue": "queued work that does not start",
    "unknown": "waiting for what is not recorded", "outside": "outside the first and last GPU work",
}  # fmt: skip


def limit_of(cause: str) -> str:
    """Return what limits the time of work, or causes idle time: a key of `_LIMITS`."""
    if cause in HOST_CAUSES:
        return {"cpu_masks": "masks", "cpu_data": "data"}.get(cause, "cpu")
    limits = {"launching": "launching", "cpu_waited": "sync", "short": "pauses", "not_recorded": "unknown"}
    return "gpu" if cause == "gpu" else limits.get(cause, "queue")


class IdlePart(Struct, frozen=True):
    """Idle time of one cause, between GPU work."""

    cause: str
    is_long: bool  # of gaps longer than 1 ms
    count: int  # gaps
    time_ns: int
    longest_ns: int  # in one gap


class Scope(Struct, frozen=True):
    """The recorded time that shares refer to, and the unprofiled time that it represents."""

    spans: Union  # the recorded steps, or the whole span of a foreign trace
    steps: int | None  # recorded steps; None for a foreign trace
    recorded_ns: int  # length of the spans, profiled
    base_ns: float  # the same unprofiled, where known
    wall_ratio: float  # share of the run's wall time that steps of the recorded kind take; 1 for a foreign trace
    devices: int  # devices with work
    busy_ns: int  # time of the spans in which each device worked, summed over devices
    run: Run | None  # the run's figures; None for a foreign trace

    @property
    def idle_ratio(self) -> float:
        """Share of unprofiled wall time in which a device is idle, mean over devices; 0 if no work was timed."""
        if not self.devices or not self.busy_ns:
            return 0.0
        return max(0.0, 1 - self.busy_ns / (self.base_ns * self.devices)) * self.wall_ratio

    @property
    def recorded_text(self) -> str:
        """The recorded time, which shares of time refer to, as text."""
        return f"{'the recorded span' if self.run is None else 'the recorded steps'}, {time_text(self.recorded_ns)}"

    @property
    def base_text(self) -> str:
        """The time that shares of GPU time refer to, as text."""
        if self.run is None:
            return self.recorded_text
        kind = f" (such steps take {percent_text(self.wall_ratio)} of the run)" if self.wall_ratio < 1 else ""
        return f"the recorded steps, {time_text(self.base_ns)} unprofiled{kind}"

    def _phase(self, name: str | None) -> tuple[int, int, int] | None:
        """Return the recorded host time of a phase, its unprofiled time, and that of the run."""
        if self.run is None or name is None:
            return None
        phase, wall_ns = self.run.phases[name], self.run.wall_ns.median
        if not phase.host_ns or phase.wall_ns is None or not wall_ns:
            return None
        return phase.host_ns, phase.wall_ns, wall_ns

    def host_text(self, host_ns: float, phase: str) -> str:
        """Return the input of `host_part` as text."""
        if (times := self._phase(phase)) is None:
            return f"{time_text(host_ns)} of {self.recorded_text}"
        recorded_ns, phase_ns, wall_ns = times
        return (
            f"{time_text(host_ns)} of {time_text(recorded_ns)} recorded in {phase} "
            f"({percent_text(min(1.0, host_ns / recorded_ns))}), a phase that takes "
            f"{percent_text(phase_ns / wall_ns)} of unprofiled time"
        )

    def idle_part(self, part_ns: float) -> float:
        """Return the share of wall time of some recorded idle time, scaled to unprofiled time."""
        idle_ns = self.recorded_ns * self.devices - self.busy_ns
        return self.idle_ratio * part_ns / idle_ns if idle_ns > 0 else 0.0

    def gpu_part(self, gpu_ns: float) -> float:
        """Return the share of wall time of work of the recorded steps on one device."""
        return min(1.0, gpu_ns / self.base_ns) * self.wall_ratio

    def host_part(self, host_ns: float, phase: str | None = None) -> float:
        """Return the share of wall time of host time in the recorded steps; of one phase, by its unprofiled time."""
        if (times := self._phase(phase)) is None:
            return min(1.0, host_ns / self.recorded_ns) * self.wall_ratio
        recorded_ns, phase_ns, wall_ns = times
        return min(1.0, host_ns / recorded_ns) * phase_ns / wall_ns

    def host_parts(self, times: Iterable[tuple[float, str]]) -> float:
        """Return the share of wall time of host times in several phases."""
        return sum(self.host_part(*time) for time in times)


class TraceFacts:
    """Everything known of a trace, each part read once, when a rule first needs it."""

    def __init__(
        self,
        engine: TraceProcessor,
        report: Report | None = None,
        stacks: Stacks | None = None,
        samples: Sequence[Samples] = (),
    ) -> None:
        """stacks: Python stacks that the engine does not have. samples: joined to the trace, on the engine's clock."""
        self.engine, self._report, self.stacks, self.samples = engine, report, stacks, samples
        self._kept: dict[tuple[str, Any], Any] = {}

    @property
    def facts(self) -> Facts:
        """Facts about intervals of the trace."""
        facts: Facts = self.engine.facts
        return facts

    @cached_property
    def places(self) -> EnclosingIndex:
        """Locations of the trace's slices in the program."""
        return EnclosingIndex(self.facts, self.stacks)

    def once(self, kind: str, key: Any, make: Callable[[], T]) -> T:
        """Return the result of `make`, called once for this kind and key."""
        # `functools.cache` would make a cycle with this object, which would stay until Python's collector runs.
        if (kind, key) not in self._kept:
            self._kept[kind, key] = make()
        value: T = self._kept[kind, key]
        return value

    def frame(self, query: Query) -> Frame:
        """Return the frame of a query, read once."""
        return self.once("frame", query, lambda: Frame(self.engine.query(query.text)))

    @property
    def report(self) -> Report:
        """The report of the trace."""
        assert self._report is not None
        return self._report

    @property
    def run(self) -> Run:
        """The run, for rules that need one."""
        assert self.report.run is not None
        return self.report.run

    @cached_property
    def any_scope(self) -> Scope | None:
        """The recorded time; None where no time is recorded."""
        run = self.report.run
        rows = self.frame(SPAN if run is None else _STEPS)
        starts, ends = rows["ts"], rows["ts_end"]
        if run is None:
            starts, ends = starts + self.unknown.get("before", 0), ends - self.unknown.get("after", 0)
        spans = Union(starts, ends)
        recorded_ns = spans.length_ns
        if recorded_ns <= 0:
            return None
        devices = self.report.devices
        busy_ns = sum(device.busy_ns for device in devices.values())
        base_ns: float = recorded_ns
        wall_ratio = 1.0
        if run is None:
            gpu = self.facts.work
            if int(gpu.ts.min(initial=starts[0])) < starts[0] or int(gpu.ts_end.max(initial=ends[0])) > ends[0]:
                keys = np.arange(len(devices))
                busy_ns = int(Coverage(gpu.device, gpu.ts, gpu.ts_end).covered(keys, starts[0], ends[0]).sum())
        else:
            work = self.frame(_WORK)
            masks = [work["device"] == device for device in set(work["device"].tolist())]
            busy_ns = sum(spans.common_ns(Union(work["ts"][mine], work["ts_end"][mine])) for mine in masks)
            if run.profiled_ratio and run.profiled_ratio > 0:
                base_ns = recorded_ns / run.profiled_ratio
            if run.wall_ns.median:
                # Of the phases that the recorded steps consist of.
                names = [name for name in (*STEP_PHASES, "prefill") if run.phases[name].host_ns is not None]
                wall_ratio = min(1.0, sum(run.phases[name].wall_ns or 0 for name in names) / run.wall_ns.median)
        steps = None if run is None else len(rows["ts"])
        return Scope(spans, steps, recorded_ns, base_ns, wall_ratio, len(devices), busy_ns, run)

    @property
    def scope(self) -> Scope:
        """The recorded time, for rules that need time, GPU work or steps."""
        assert self.any_scope is not None
        return self.any_scope

    @cached_property
    def idle(self) -> tuple[IdlePart, ...]:
        """All idle time between GPU work, of the recorded steps or of the recorded span of a foreign trace.

        Time before the first work and after the last is not in it: no change of the program gains that.
        """
        parts, times = self.facts.parts, self.part_times
        chosen = times > 0
        is_long = self.facts.idle.is_long[parts.idle][chosen].astype(np.int64)
        rows, counts, sums, longest = gaps.summed((is_long, parts.cause[chosen]), times[chosen])
        columns = zip(rows, counts.tolist(), sums.tolist(), longest.tolist(), strict=True)
        return tuple(IdlePart(CAUSES[cause], bool(long), *amounts) for (long, cause), *amounts in columns)

    @cached_property
    def part_times(self) -> np.ndarray:
        """The counted time of each part of idle time, ns: int64."""
        idle, parts = self.facts.idle, self.facts.parts
        # Of a gap that lies in the time in part, as large a part of each cause.
        inside, length = self.scope.spans.covered(idle.ts, idle.ts_end), idle.ts_end - idle.ts
        times = parts.time_ns * inside[parts.idle] // np.maximum(1, length)[parts.idle]
        return np.where(idle.position[parts.idle] == 0, times, 0)

    def long_waits(self, cause: str | None = None) -> gaps.Windows:
        """Return the counted part of long gaps in which nothing is queued.

        cause: of gaps that this one takes most of; None: of all.
        """
        idle, waits = self.facts.idle, self.facts.long_waits
        counts = np.zeros(len(idle.ts), dtype=bool)
        counts[self.facts.parts.idle[self.part_times > 0]] = True
        if cause is not None:
            counts &= gaps.largest_part(self.facts.parts, len(idle.ts)) == CAUSES.index(cause)
        some = np.flatnonzero(counts[waits.idle])
        ts, ts_end = waits.ts[some], waits.ts_end[some]
        if self.scope.run is not None:
            spans, none = self.scope.spans, np.zeros(len(some), dtype=np.int64)
            of_steps = np.zeros(len(spans.starts_ns), dtype=np.int64), spans.starts_ns, spans.ends_ns
            wait, _, ts, ts_end = shared((none, ts, ts_end), of_steps)
            some = some[wait]
        return gaps.Windows(waits.idle[some], ts, ts_end, waits.track[some])

    @cached_property
    def unknown(self) -> dict[str, int]:
        """Time `before` the first and `after` the last work of a device, ns, in which unrecorded work may have run.

        So it may where the first work of every device was queued and started late, and at both ends of a step that was
        cut out of a longer recording.
        """
        idle, cut_out = self.facts.idle, self.report.trace.cut_out
        times = {}
        for number, position in enumerate(POSITIONS[1:], 1):
            mine = idle.position == number
            length_ns = int((idle.ts_end - idle.ts)[mine].min()) if mine.any() else 0
            is_late = position == gaps.BEFORE and bool((idle.queue[mine] == gaps.LATE).all())
            if length_ns and (cut_out or is_late):
                times[position] = length_ns
        return times

    @staticmethod
    def summed(parts: Iterable[IdlePart]) -> list[IdlePart]:
        """Return the sum of idle time of each cause, the longest first."""
        by_cause: dict[str, list[IdlePart]] = {}
        for part in parts:
            by_cause.setdefault(part.cause, []).append(part)
        sums = [
            IdlePart(
                cause, False, sum(part.count for part in same), sum(part.time_ns for part in same),
                max(part.longest_ns for part in same),
            )
            for cause, same in by_cause.items()
        ]  # fmt: skip
        return sorted(sums, key=lambda part: (-part.time_ns, part.cause))

    @property
    def ends(self) -> tuple[int, int]:
        """Time of the recorded span before the first work of any device, and after the last, ns."""
        work, (start, end) = self.facts.work, self.facts.span
        return max(0, int(work.ts.min(initial=end)) - start), max(0, end - int(work.ts_end.max(initial=start)))

    @cached_property
    def outside(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Count and time of the work that a foreign trace has outside the recorded span, by category and name."""
        facts = self.facts
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        if self.scope.run is None:
            work = facts.work
            rows = np.flatnonzero(self.scope.spans.covered(work.ts, work.ts + 1) == 0)
            for number, time_ns in zip(
                facts.name_of[rows].tolist(), (work.ts_end - work.ts)[rows].tolist(), strict=True
            ):
                name = facts.names[number]
                count, sum_ns = sums.get((name.category, name.name), (0, 0))
                sums[name.category, name.name] = count + 1, sum_ns + time_ns
        return sums

    @property
    def lost(self) -> frozenset[Group]:
        """Groups whose figures a check rules out."""
        certificate = self.report.certificate
        uncertain = () if certificate is None else certificate.uncertain
        return frozenset(item.group for item in uncertain if item.verdict == "not_to_be_had")

    @cached_property
    def step_names(self) -> frozenset[str]:
        """Names of annotations of steps."""
        return frozenset(row["name"] for row in self.rows(_STEP_NAMES))

    @cached_property
    def exposed(self) -> dict[str, int]:
        """Exposed time of communication, and how much of it other work could hide; empty without any."""
        is_communication = np.array([name.work_class in COMMUNICATION for name in self.facts.names], dtype=bool)
        if not is_communication.any():
            return {}
        chosen = is_communication[self.facts.name_of]
        exposed_ns, other_ns = (
            coverage.alone_ns(self.facts.work, each, self.facts.overlaps) for each in (chosen, ~chosen)
        )
        return {"exposed_ns": exposed_ns, "hideable_ns": min(exposed_ns, other_ns)}

    @property
    def stream_waits(self) -> int:
        """Calls that make a stream wait for an event of another one."""
        return int(self.row(_WAITS)["waits"])

    @cached_property
    def split(self) -> dict[str, int]:
        """The parts of the recorded time of all devices, ns; they add up to it."""
        scope = self.scope
        communication_ns = min(self.exposed.get("exposed_ns", 0), scope.busy_ns)
        times = dict.fromkeys(_LIMITS, 0) | {"gpu": scope.busy_ns - communication_ns, "communication": communication_ns}
        for part in self.idle:
            times[limit_of(part.cause)] += part.time_ns
        times["outside"] = scope.recorded_ns * scope.devices - sum(times.values())
        return {name: time_ns for name, time_ns in times.items() if time_ns or name not in ("masks", "data", "unknown")}

    @property
    def limits_of_steps(self) -> dict[str, int]:
        """Number of steps by what limits most of their work and of the gaps before it, the most first."""
        steps: dict[int, Counter[str]] = {}
        for step, cause, time_ns in (*self._idle_of_steps(), *self.frame(_GPU_OF_STEPS).rows()):
            steps.setdefault(step, Counter())[limit_of(cause)] += time_ns
        most = Counter(times.most_common(1)[0][0] for times in steps.values())
        names = _LIMITS | {"gpu": "a busy GPU"}  # with collectives
        return {names[name]: count for name, count in most.most_common()}

    def _idle_of_steps(self) -> list[tuple[int, str, int]]:
        """Return idle time by step (of the call that ends a gap) and cause."""
        idle, parts = self.facts.idle, self.facts.parts
        step_of = np.append(self.facts.call_steps, gaps.NONE)[idle.call]  # the last is that of no call
        step = np.where(idle.position == 0, step_of, gaps.NONE)[parts.idle]
        some = step != gaps.NONE
        rows, _, sums, _ = gaps.summed((step[some], parts.cause[some]), parts.time_ns[some])
        return [(number, CAUSES[cause], time_ns) for (number, cause), time_ns in zip(rows, sums.tolist(), strict=True)]

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of the GPU's work."""
        return tuple(str(row["class"]) for row in self.report.table("kernel_classes").to_json())

    @property
    def engine_of_steps(self) -> str | None:
        """How the engine of the recorded steps is told to use graphs; None for others."""
        sources = {row["source"] for row in self.report.table("steps").to_json()}
        return next((text for name, text in _ENGINES.items() if name in sources), None)

    def doubts_on(self, groups: tuple[Group, ...]) -> str | None:
        """Return why figures of the groups are not exact; None where they are."""
        doubted = self.report.doubts_on(groups)
        return "; ".join(f"{item.title}: {item.reason}" for item in doubted) or None

    def rows(self, query: Query) -> list[dict[str, Any]]:
        """Return the rows of a query, by column name."""
        return self.frame(query).to_json()

    def row(self, query: Query) -> dict[str, Any]:
        """Return the only row."""
        (row,) = self.rows(query)
        return row

    def gain(self, high: float, bounded_by: str, low: float = 0.0) -> Gain:
        """Return a gain as a share of the run's time; of the recorded time where no unprofiled times are known."""
        run = self.report.run
        if run is not None and run.wall_ns.median:
            of, of_ns = RUN_TIME, run.wall_ns.median
        else:
            of, of_ns = RECORDED_SPAN, self.scope.recorded_ns
        return Gain(min(1.0, low), min(1.0, high), of, bounded_by, of_ns)
