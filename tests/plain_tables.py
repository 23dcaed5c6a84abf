"""A plain reference for the SQL tables of facts, from the slices that SQL shows (`plain_facts.py`)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import plain_ends
import plain_facts as plain
from plain_facts import Call, Lane, Piece

from molprof.analysis.facts.gaps import until_own
from molprof.analysis.facts.recording import is_own_mark
from molprof.analysis.facts.slices import CATEGORIES, Slices
from molprof.analysis.trace_processor import TraceProcessor

OPERATOR, GPU_CALLS = "cpu_op", ("cuda_runtime", "cuda_driver")
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
RECORDED = (OPERATOR, *GPU_CALLS, *GPU_WORK, "user_annotation")
Rows = list[tuple[Any, ...]]
_COMPILED = re.compile("(autograd.*: )?(Torch-Compiled R|CompiledF|## Call Comp|TorchDynamo |Pregraph |AOTDispatcher )")
_THREADS = "SELECT thread_track.id, upid, tid FROM thread_track JOIN thread USING (utid) ORDER BY thread_track.id"


def ask(engine: TraceProcessor, sql: str, *modules: str) -> Rows:
    includes = "".join(f"INCLUDE PERFETTO MODULE molprof.{module};\n" for module in modules)
    return list(zip(*(column.tolist() for column in engine.query(includes + sql).values()), strict=True))


class Slice(NamedTuple):
    ts: int
    end: int
    track: int
    category: str | None
    name: str | None
    parent: int | None


class PlainTrace:
    """What SQL shows of a trace, as plain rows."""

    def __init__(self, engine: TraceProcessor) -> None:
        self.engine = engine
        sql = "SELECT id, ts, ts + dur, track_id, category, name, parent_id FROM slice ORDER BY id"
        self.slices = {number: Slice(*row) for number, *row in ask(engine, sql)}
        rows = ask(engine, "SELECT id, upid, tid FROM _molprof_thread_track", "annotations")
        self.thread_of = {track: tuple(thread) for track, *thread in rows}
        own: dict[tuple[int, int], int] = {}
        for track, *thread in ask(engine, _THREADS):
            own.setdefault((thread[0], thread[1]), track)
        self.own_track = own
        self.ranks = dict(ask(engine, "SELECT track_id, rank FROM molprof_track_rank", "process_ranks"))
        for number, end in plain_ends.overruns(self).items():
            self.slices[number] = self.slices[number]._replace(end=end)

    @cached_property
    def calls(self) -> dict[int, Call]:
        ids = [row[0] for row in ask(self.engine, "SELECT id FROM molprof_gpu_call", "gpu_calls")]
        threads = {track: self.own_track[thread] for track, thread in self.thread_of.items()}
        return {one: Call(one, *self.slices[one][:2], threads[self.slices[one].track]) for one in ids}

    @cached_property
    def syncs(self) -> list[int]:
        return [row[0] for row in ask(self.engine, "SELECT id FROM molprof_host_sync", "host_syncs")]

    @cached_property
    def waiting(self) -> set[int]:
        """Host syncs, and the calls that only go on with the one before: the next one after a copy that waits."""
        copies = {
            piece.call.id for piece in self.work if piece.call and re.match("Memcpy DtoH.*Pageable", piece.name[1])
        }
        found, last = set(self.syncs), {}
        for call in sorted(self.calls.values(), key=lambda call: (call.ts, call.id)):
            if last.get(call.thread) in copies and "StreamSynchronize" in (self.slices[call.id].name or ""):
                found.add(call.id)
            last[call.thread] = call.id
        return found

    @cached_property
    def work(self) -> list[Piece]:
        sql = "SELECT id, device, stream, call_id, category, name, rank FROM molprof_gpu_work ORDER BY id"
        return [
            Piece(number, device, stream, *self.slices[number][:2], self.calls.get(call), (category, name), rank)
            for number, device, stream, call, category, name, rank in ask(self.engine, sql, "gpu_work")
        ]

    @cached_property
    def phases(self) -> Rows:
        return ask(self.engine, "SELECT id, phase, ts, ts + dur, upid, tid FROM molprof_phase", "phases")

    @cached_property
    def phase_lanes(self) -> list[Lane]:
        return plain.innermost(Lane(row[0], row[4], row[5], row[2], row[3]) for row in self.phases)

    @cached_property
    def step_lanes(self) -> list[Lane]:
        rows = ask(self.engine, "SELECT id, upid, tid, ts, ts_end FROM molprof_open_step", "open_steps")
        return [Lane(*row) for row in rows]

    @cached_property
    def host(self) -> plain.Host:
        """By track: a slice on a sub-track is not on that of its thread."""
        found: dict[int, tuple[list[plain.Interval], ...]] = defaultdict(lambda: ([], [], [], [], [], []))
        for lane in self.phase_lanes:
            if self.phase_names[lane.id].startswith(("mask_", "grammar_")):
                found[self.own_track[lane.upid, lane.tid or 0]][0].append((lane.ts, lane.end))
        syncs = self.waiting
        lanes, compiled = [], set()
        for number, one in self.slices.items():
            is_region = one.category in (OPERATOR, "user_annotation")
            if is_region and re.search("(?i)data.?load", one.name or ""):
                found[one.track][1].append((one.ts, one.end))
            if is_region and _COMPILED.match(one.name or ""):
                compiled.add(number)
            if one.category in (OPERATOR, *GPU_CALLS):
                kind = 2 if number in syncs else 3 if number in self.calls else 5
                found[one.track][kind].append((one.ts, one.end))
            if one.category in (OPERATOR, *GPU_CALLS) or number in compiled:
                lanes.append(Lane(number, 0, one.track, one.ts, one.end))
        for lane in plain.innermost(lanes) if compiled else ():
            if lane.id in compiled:
                found[lane.tid or 0][4].append((lane.ts, lane.end))
        return {track: tuple(map(plain.union, kinds)) for track, kinds in found.items()}

    @cached_property
    def recorded(self) -> dict[int | None, plain.Interval]:
        spans: dict[int | None, list[plain.Interval]] = defaultdict(list)
        for one in self.slices.values():
            if one.category in RECORDED and (not self.ranks or one.track in self.ranks):
                spans[self.ranks.get(one.track)].append((one.ts, one.end))
        if spans and not self.ranks:
            spans[None] += [row[2:4] for row in self.phases if row[1] != "scheduler_wait"]
        found = {rank: (min(span)[0], max(end for _, end in span)) for rank, span in spans.items()}
        return plain_ends.within_profiler(self, found)

    @cached_property
    def classes(self) -> dict[tuple[str, str], str]:
        rows = ask(self.engine, "SELECT category, name, class FROM molprof_work_class", "kernel_classes")
        return {row[:2]: row[2] for row in rows}

    @cached_property
    def idle(self) -> list[plain.Idle]:
        return plain.idle_time(self.work, self.recorded)

    @cached_property
    def parts(self) -> list[dict[str, int]]:
        return plain_ends.with_unknown(self, plain.idle_parts(self.idle, self.work, self.host))

    def placed(self, ids: Iterable[int], lanes: list[Lane]) -> dict[int, int]:
        """Of slices that began in a lane, its id."""
        by_thread = plain.by_lane(lanes)
        found = {}
        for number in ids:
            one = self.slices[number]
            lane = plain.placed((*self.thread_of.get(one.track, (-1, -1)), one.ts), by_thread)
            if lane is not None:
                found[number] = lane
        return found

    @cached_property
    def call_steps(self) -> dict[int, int]:
        """Of calls; of operators that hold no others where no calls are recorded."""
        return self.placed(self.calls or self.leaf_operators(), self.step_lanes)

    def leaf_operators(self) -> list[int]:
        operators = [number for number, one in self.slices.items() if one.category == OPERATOR]
        holders = set()
        for number in operators:
            around = self.slices[number].parent
            while around is not None and around not in holders:
                holders.add(around)
                around = self.slices[around].parent
        return [number for number in operators if number not in holders]

    @cached_property
    def call_phases(self) -> dict[int, int]:
        """Of calls, operators and instants."""
        wanted = (OPERATOR, *GPU_CALLS, "cpu_instant_event")
        return self.placed((number for number, one in self.slices.items() if one.category in wanted), self.phase_lanes)

    @cached_property
    def phase_names(self) -> dict[int, str]:
        return {row[0]: row[1] for row in self.phases}

    def phase_of(self, piece: Piece) -> str | None:
        return self.phase_names.get(self.call_phases.get(piece.call.id, -1)) if piece.call else None

    def sums(self, group_of: dict[int, int], groups: list[int]) -> Rows:
        """Of calls by group, those of none last: launches, graph launches, kernels, GPU time, syncs and their time."""
        sums: dict[int | None, list[int]] = {group: [0] * 6 for group in [*groups, None]}
        for number, kind in ask(self.engine, "SELECT id, kind FROM molprof_gpu_call", "gpu_calls"):
            if kind is not None:
                sums[group_of.get(number)][("launch", "graph_launch").index(kind)] += 1
        for piece in self.work:
            group = sums[group_of.get(piece.call.id) if piece.call else None]
            group[2] += piece.name[0] == "kernel"
            group[3] += piece.end - piece.ts
        for number in self.waiting:
            sums[group_of.get(number)][4] += number in self.syncs
            sums[group_of.get(number)][5] += self.calls[number].end - self.calls[number].ts
        return [(group, *row) for group, row in sums.items()]


def time_of(pieces: Iterable[Piece]) -> int:
    return sum(piece.end - piece.ts for piece in pieces)


def busy(pieces: Iterable[Piece]) -> int:
    return plain.length(plain.union((piece.ts, piece.end) for piece in pieces))


def devices(trace: PlainTrace) -> Rows:
    found = []
    for device, mine in plain.by_device(trace.work).items():
        span = max(piece.end for piece in mine) - mine[0].ts
        found.append((device, span, busy(mine), span - busy(mine), len(mine)))
    return found


def device_work(trace: PlainTrace) -> Rows:
    found = []
    for mine in plain.by_device(trace.work).values():
        until = None
        for piece in mine:
            found.append((piece.id, until))
            until = max(piece.end, until or piece.end)
    return found


def idle_sums(trace: PlainTrace) -> Rows:
    sums = defaultdict(list)
    for idle, parts in zip(trace.idle, trace.parts, strict=True):
        for cause, time_ns in parts.items():
            is_long = idle.position != "between" or idle.end - idle.ts > 1_000_000
            sums[idle.device, idle.position, int(is_long), cause].append(time_ns)
    return [(*key, len(times), sum(times), max(times)) for key, times in sums.items()]


def idle_gaps(trace: PlainTrace) -> Rows:
    return [
        (idle.device, idle.position, idle.ts, idle.end, idle.next.id if idle.next else None, plain.largest_part(parts))
        for idle, parts in zip(trace.idle, trace.parts, strict=True)
    ]


def exposed(trace: PlainTrace, key_of: Callable[[Piece], Any]) -> Rows:
    groups = defaultdict(list)
    for piece in trace.work:
        groups[key_of(piece)].append(piece)
    times = plain.exposure(trace.work, key_of)
    return [(key, len(mine), time_of(mine), *times[key]) for key, mine in groups.items()]


_CHAIN_NAMES = """
SELECT part.chain, part.form, part.position, work.category, work.name
FROM molprof_chain_kernel AS part
LEFT JOIN molprof_work_total AS work ON LOWER(work.name) GLOB part.pattern AND NOT LOWER(work.name) GLOB part.unless
"""


def found_chains(trace: PlainTrace) -> Rows:
    forms: dict[tuple[str, int], dict[int, set[tuple[str, str]]]] = defaultdict(lambda: defaultdict(set))
    for chain, form, place, *name in ask(trace.engine, _CHAIN_NAMES, "chain_names", "work_totals"):
        forms[chain, form][place].add((name[0], name[1]))
    written = [(chain, [places[place] for place in sorted(places)]) for (chain, _), places in forms.items()]
    return [
        (chain, one[0].id, one[0].ts, len(one), time_of(one), time_of(one) - max(piece.end - piece.ts for piece in one))
        for chain, one in plain.find_chains(trace.work, written)
    ]


def streams(trace: PlainTrace) -> Rows:
    return [
        (
            *key, len(mine), sum(piece.name[0] == "kernel" for piece in mine), time_of(mine),
            max(piece.end for piece in mine) - mine[0].ts, busy(mine),
        )
        for key, mine in plain.by_stream(trace.work).items()
    ]  # fmt: skip


def rank_devices(trace: PlainTrace) -> Rows:
    ids = {row[0] for row in ask(trace.engine, "SELECT id FROM molprof_collective", "collectives")}
    found = []
    for device, mine in plain.by_device(trace.work).items():
        collectives = [piece for piece in mine if piece.id in ids]
        kernels = [piece for piece in mine if piece.name[0] == "kernel"]
        span = max(piece.end for piece in mine) - mine[0].ts
        computed = busy(piece for piece in mine if piece.id not in ids)
        found.append((
            mine[0].rank, device, span, busy(mine), computed, busy(collectives), len(kernels), time_of(kernels),
            sum(piece.call is None for piece in kernels), len(collectives),
        ))  # fmt: skip
    return found


def work_totals(trace: PlainTrace, some: Callable[[Piece], bool]) -> Rows:
    names = defaultdict(list)
    for piece in trace.work:
        if some(piece):
            names[piece.name].append(piece)
    return [(*name, len(mine), time_of(mine)) for name, mine in names.items()]


def steps(trace: PlainTrace) -> list[int]:
    return [row[0] for row in ask(trace.engine, "SELECT id FROM molprof_any_step", "steps")]


def phase_bounds(trace: PlainTrace) -> Rows:
    at_work = plain.union((piece.ts, piece.end) for piece in trace.work)
    waiting = defaultdict(list)
    for number in trace.waiting & trace.call_phases.keys():
        call = trace.calls[number]
        waiting[call.thread].append((call.ts, call.end))
    found: dict[int, list[int]] = {}
    merged = {thread: plain.union(intervals) for thread, intervals in waiting.items()}
    marks = defaultdict(list)
    for one in trace.slices.values():
        if one.category == "python_function" and is_own_mark(one.name or ""):
            marks[trace.thread_of[one.track]].append((one.ts, one.end))
    for lane in trace.phase_lanes:
        sums = found.setdefault(lane.id, [0, 0])
        waited = plain.common(merged.get(trace.own_track[lane.upid, lane.tid or 0], []), lane.ts, lane.end)
        for place, parts in enumerate(([(lane.ts, lane.end)], waited)):
            for start, end in parts:
                sums[place] += end - start - plain.length(plain.common(at_work, start, end))
        for start, end in plain.common(plain.union(marks[lane.upid, lane.tid]), lane.ts, lane.end):
            sums[0] -= end - start - plain.length(plain.common(at_work, start, end))
    return [(phase, *sums) for phase, sums in found.items()]


_CALL_SUMS = "launches, graph_launches, kernels, gpu_ns, syncs, sync_ns"
# By fact table: the columns that are compared, and what they hold.
EXPECTED: dict[str, tuple[str, Callable[[PlainTrace], Rows]]] = {
    "device": ("*", devices),
    "device_work": ("*", device_work),
    "device_gap": (
        "*", lambda trace: [(gap.next.device, gap.last.end, gap.next.ts) for gap in plain.device_gaps(trace.work)],
    ),
    "recorded": ("*", lambda trace: [(rank, *span) for rank, span in trace.recorded.items()]),
    "work_total": ("category, name, count, time_ns", lambda trace: work_totals(trace, lambda piece: True)),
    "idle_sum": ("*", idle_sums),
    "idle_gap": ("device, position, ts, ts_end, next_id, cause", idle_gaps),
    "exposed_name": (
        "class, count, time_ns, busy_ns, exposed_ns",
        lambda trace: [(trace.classes[row[0]], *row[1:]) for row in exposed(trace, lambda piece: piece.name)],
    ),
    "exposed_class": ("*", lambda trace: exposed(trace, lambda piece: trace.classes[piece.name])),
    "exposed_phase": ("*", lambda trace: exposed(trace, trace.phase_of)),
    "class_overlap": (
        "*",
        lambda trace: [
            (*pair, time_ns)
            for pair, time_ns in plain.shared_time(trace.work, lambda piece: trace.classes[piece.name]).items()
        ],
    ),
    "chain": ("*", found_chains),
    "stream": ("device, stream, count, kernels, time_ns, span_ns, time_ns - overlap_ns", streams),
    "rank_device": ("*", rank_devices),
    "step_sum": (
        f"step_id, {_CALL_SUMS}",
        lambda trace: trace.sums(trace.call_steps, steps(trace)) if steps(trace) else [],
    ),
    "phase_sum": (f"phase_id, {_CALL_SUMS}", lambda trace: trace.sums(trace.call_phases, list(trace.phase_names))),
    "work_outside_steps": (
        "count, time_ns",
        lambda trace: [
            row[2:] for row in work_totals(trace, lambda piece: not (piece.call and piece.call.id in trace.call_steps))
        ],
    ),
    "phase_bound": ("*", phase_bounds),
    "launch_phase": (
        "*",
        lambda trace: [
            (call, trace.call_phases[call])
            for call in {piece.call.id for piece in trace.work if piece.call}
            if call in trace.call_phases
        ],
    ),
    "host_sync": ("*", lambda trace: [(number, trace.call_phases.get(number)) for number in trace.waiting]),
}  # fmt: skip


def check(engine: TraceProcessor) -> None:
    """The facts of the trace are those that plain loops find, and their sums hold."""
    trace = PlainTrace(engine)
    for name, (wanted, expected) in EXPECTED.items():
        shown = ask(engine, f"SELECT {wanted} FROM _molprof_fact_{name}")
        assert sorted(shown, key=repr) == sorted(expected(trace), key=repr), name
    for module, table, placed in (
        ("step_placement", "step", trace.call_steps),
        ("call_phases", "phase", trace.call_phases),
    ):
        assert ask(engine, f"SELECT id, {table}_id FROM molprof_call_{table} ORDER BY id", module) == [*placed.items()]
    check_slices(engine.facts.slices, trace)
    windows = until_own(engine.facts.windows, engine.facts.waited)
    found = zip(*(getattr(windows, name).tolist() for name in ("idle", "track", "ts", "ts_end")), strict=True)
    assert sorted(found) == sorted(
        (number, *wait) for number, idle in enumerate(trace.idle) for wait in plain.waits(idle, trace.host)
    )
    assert idle_sums_hold(engine)


def check_slices(known: Slices, trace: PlainTrace) -> None:
    columns = (known.ts, known.ts_end, known.track, known.category, known.name)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for (ts, end, track, category, name), one in zip(rows, trace.slices.values(), strict=True):
        assert (ts, end) == (one.ts, one.end)
        assert track == one.track or one.track not in trace.thread_of
        assert CATEGORIES[category] == (one.category if one.category in CATEGORIES else "")
        label = (one.category, one.name or "(no name)") if one.category in GPU_WORK else None
        assert (known.names[name] if name >= 0 else None) == label


SUMS = """
SELECT device.idle_ns = IFNULL(SUM(part.time_ns), 0) AND device.span_ns = device.busy_ns + device.idle_ns AS holds
FROM molprof_device AS device
LEFT JOIN molprof_idle_cause AS part ON part.device IS device.device AND part.position = 'between'
GROUP BY device.device
UNION ALL
SELECT SUM(exposed_ns) + SUM(hidden_ns) = SUM(busy_ns) FROM molprof_exposed_class HAVING COUNT() > 0
UNION ALL
SELECT SUM(time_ns) = (SELECT SUM(dur) FROM molprof_idle_gap) FROM molprof_idle_cause HAVING COUNT() > 0
"""


def idle_sums_hold(engine: TraceProcessor) -> bool:
    """Idle parts add up to idle time, busy and idle time to the span, exposed and hidden time to busy time."""
    return all(row[0] for row in ask(engine, SUMS, "devices", "idle_causes", "idle_gaps", "exposed"))
