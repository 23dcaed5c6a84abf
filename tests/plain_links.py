"""A plain reference for links of calls and GPU work: loops over the slices that SQL shows, and their args."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from plain_tables import GPU_CALLS, GPU_WORK, OPERATOR, Rows, ask

from molprof.analysis.trace_processor import TraceProcessor

_SLICES = """
SELECT slice.id, slice.ts, slice.ts + slice.dur, slice.category, slice.name, thread.upid, process.name AS process,
  parent.category AS around, EXTRACT_ARG(slice.arg_set_id, 'args.correlation') AS number
FROM slice
LEFT JOIN thread_track ON thread_track.id = slice.track_id
LEFT JOIN thread USING (utid)
LEFT JOIN process USING (upid)
LEFT JOIN slice AS parent ON parent.id = slice.parent_id
ORDER BY slice.id
"""
_STEPS = "SELECT id, ts, ts + dur, upid, tid FROM molprof_any_step"


class Call(NamedTuple):
    """A call of the runtime or driver."""

    rank: int | None
    number: int | None
    is_launch: bool
    process: int | None
    ts: int
    end: int


Key = tuple[int | None, int]  # rank and number


class Shared(NamedTuple):
    """A number of several calls."""

    calls: int
    follow: bool
    is_ambiguous: bool


def links(calls: Sequence[Call], work: Sequence[tuple[int | None, int | None]]) -> tuple[list[int | None], list[bool]]:
    """Of each piece of work (rank, number) the index of its call; and of each call whether work has its number."""
    by_key: dict[Key, list[int]] = defaultdict(list)
    for index, call in enumerate(calls):
        if call.number is not None:
            by_key[call.rank, call.number].append(index)
    ambiguous = {key for key, one in shared(calls).items() if one.is_ambiguous}
    found: list[int | None] = []
    for rank, number in work:
        mine = [] if number is None or (rank, number) in ambiguous else by_key.get((rank, number), [])
        found.append(min(mine, key=lambda index: (not calls[index].is_launch, index), default=None))
    asked = {key for key in work if key[1] is not None}
    return found, [(call.rank, call.number) in asked for call in calls]


def shared(calls: Sequence[Call]) -> dict[Key, Shared]:
    """The numbers of several calls."""
    by_key: dict[Key, list[Call]] = defaultdict(list)
    for call in calls:
        if call.number is not None:
            by_key[call.rank, call.number].append(call)
    found = {}
    for key, mine in by_key.items():
        if len(mine) > 1:
            launches = [call for call in mine if call.is_launch]
            is_ambiguous = len({call.process for call in mine} - {None}) > 1 or follow(launches)
            found[key] = Shared(len(mine), follow(mine), is_ambiguous)
    return found


def follow(calls: Sequence[Call]) -> bool:
    """Whether one began after another had ended."""
    return any(one.ts > other.end for one in calls for other in calls)


def kind_of(name: str) -> str | None:
    if any(fnmatch.fnmatchcase(name, glob) for glob in ("*Launch*Kernel*", "*KernelLaunch*", "*InvokeKernel*")):
        return "launch"
    if name == "runFunction - job_prep_and_submit_for_execution":
        return "launch"
    return "graph_launch" if "GraphLaunch" in name else None


def waits(name: str) -> bool:
    if "ynchronize" in name and re.search("[Ss]ynchronize", name):
        return True
    return "Memcpy" in name and not any(word in name for word in ("Async", "DtoD", "Enqueue"))


def lanes(steps: Rows) -> Rows:
    """Steps (id, ts, end, process, thread), each up to the next of its process, or of its thread if there are more."""
    found = []
    for number, ts, end, process, thread in steps:
        if process is None:
            continue
        mine = [step for step in steps if step[3] == process]
        is_of_thread = len({step[4] for step in mine} - {None}) > 1
        after = [
            step[1] for step in mine
            if (not is_of_thread or step[4] == thread) and (step[1], step[2], step[0]) > (ts, end, number)
        ]  # fmt: skip
        found.append((number, ts, min([end, *after]), process, thread if is_of_thread else None))
    return found


class PlainLinks:
    """Calls and work of a trace as SQL shows its slices, and what follows from their numbers."""

    def __init__(self, engine: TraceProcessor) -> None:
        self.engine = engine
        rows = ask(engine, _SLICES)
        # Work that cannot have lasted so long has a twin of its own (plain_ends.py).
        cut = dict(ask(engine, "SELECT id, ts + dur FROM molprof_gpu_work", "gpu_work"))
        self.totals: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        self.call_ids, self.work_ids = [], []
        self.calls: list[Call] = []
        self.call_names: list[str] = []
        work, self.spans = [], {}
        self.work_names: list[tuple[str, str]] = []
        for number, ts, end, category, name, upid, process, around, correlation in rows:
            name = "(no name)" if name is None else name
            self.spans[number] = ts, cut.get(number, end)
            if category in (OPERATOR, *GPU_CALLS):
                total = self.totals[category, name]
                total[0] += 1
                total[1] += end - ts
            rank = re.match(r"rank (\d+): ", process or "")
            place = int(rank[1]) if rank else None, int(correlation) if correlation else None
            if category in GPU_CALLS and not (
                category == "cuda_driver" and name.startswith("ze") and around == "cuda_runtime"
            ):
                self.call_ids.append(number)
                self.call_names.append(name)
                self.calls.append(Call(*place, kind_of(name) is not None, upid, ts, end))
            if category in GPU_WORK:
                self.work_ids.append(number)
                self.work_names.append((category, name))
                work.append(place)
        self.work_keys = work
        self.call_of, self.has_work = links(self.calls, work)
        self.started: dict[int, list[int]] = defaultdict(list)  # by call: pieces of work
        for piece, call in enumerate(self.call_of):
            if call is not None:
                self.started[call].append(piece)

    def time_of(self, number: int) -> int:
        ts, end = self.spans[number]
        return end - ts

    def is_kernel(self, piece: int) -> bool:
        return self.work_names[piece][0] == "kernel"


def links_of_trace(trace: PlainLinks) -> Rows:
    return [
        (number, None if call is None else trace.call_ids[call])
        for number, call in zip(trace.work_ids, trace.call_of, strict=True)
    ]


def launch_totals(trace: PlainLinks) -> Rows:
    names: dict[str, list[int]] = defaultdict(list)
    for call, name in enumerate(trace.call_names):
        if kind_of(name):
            names[name].append(call)
    found = []
    for name, calls in names.items():
        delays = [
            min(trace.spans[trace.work_ids[piece]][0] for piece in pieces) - trace.calls[call].ts
            for call in calls
            if (pieces := trace.started.get(call))
        ]
        kernels = sum(trace.is_kernel(piece) for call in calls for piece in trace.started.get(call, []))
        found.append((
            name, kind_of(name), len(calls), sum(trace.time_of(trace.call_ids[call]) for call in calls), len(delays),
            kernels, sum(delays) / len(delays) if delays else None,
        ))  # fmt: skip
    return found


def launch_count(trace: PlainLinks) -> Rows:
    kinds = list(map(kind_of, trace.call_names))
    kernels = [piece for piece in range(len(trace.work_ids)) if trace.is_kernel(piece)]
    numbers = {key if key[1] is not None else None for key in trace.work_keys}
    without = 0
    for call, kind in zip(trace.calls, kinds, strict=True):
        own = None if call.number is None else (call.rank, call.number)
        without += kind == "launch" and own not in numbers
    is_any_unnumbered = any(call.number is None for call in trace.calls)
    with_call = sum(
        trace.call_of[piece] is not None or (is_any_unnumbered and trace.work_keys[piece][1] is None)
        for piece in kernels
    )
    return [(
        kinds.count("launch"), kinds.count("graph_launch"), len(kernels),
        sum(trace.time_of(trace.work_ids[piece]) for piece in kernels),
        len({trace.work_names[piece] for piece in kernels}), without, with_call, len(kernels) - with_call,
    )]  # fmt: skip


def launches_of_several(trace: PlainLinks) -> Rows:
    more: dict[str, list[int]] = defaultdict(list)
    for call, pieces in trace.started.items():
        if len(pieces) > 1 and kind_of(trace.call_names[call]) == "launch":
            more[trace.call_names[call]].append(len(pieces) - 1)
    return [(name, len(counts), sum(counts)) for name, counts in more.items()]


def call_work(trace: PlainLinks) -> Rows:
    found = []
    for call, pieces in trace.started.items():
        spans = [trace.spans[trace.work_ids[piece]] for piece in pieces]
        kernels = sum(map(trace.is_kernel, pieces))
        first = min(ts for ts, _ in spans)
        found.append((
            trace.call_ids[call], kernels, len(pieces) - kernels, sum(end - ts for ts, end in spans),
            max(max(span) for span in spans) - first, first - trace.calls[call].ts,
        ))  # fmt: skip
    return found


def host_syncs(trace: PlainLinks) -> Rows:
    found = {number for number, name in zip(trace.call_ids, trace.call_names, strict=True) if waits(name)}
    for (_, name), call in zip(trace.work_names, trace.call_of, strict=True):
        if call is not None and fnmatch.fnmatchcase(name, "Memcpy DtoH*Pageable*"):
            found.add(trace.call_ids[call])
    return [(number,) for number in found]


# By table: the columns that are compared, the module that has it if it is no table of facts, and what they hold.
EXPECTED: dict[str, tuple[str, str | None, Callable[[PlainLinks], Rows]]] = {
    "_molprof_fact_work": ("id, call_id", None, links_of_trace),
    "molprof_gpu_work_call": (
        "work_id, call_id", "work_calls", lambda trace: [row for row in links_of_trace(trace) if row[1] is not None],
    ),
    "molprof_gpu_call": (
        "id, kind, rank, correlation", "gpu_calls",
        lambda trace: [
            (number, kind_of(name), call.rank, call.number)
            for number, name, call in zip(trace.call_ids, trace.call_names, trace.calls, strict=True)
        ],
    ),
    "_molprof_fact_launch_total": ("*", None, launch_totals),
    "_molprof_fact_unnumbered_launch": (
        "id", None,
        lambda trace: [
            (number,)
            for number, name, call in zip(trace.call_ids, trace.call_names, trace.calls, strict=True)
            if kind_of(name) and call.number is None
        ],
    ),
    "_molprof_fact_launch_count": ("*", None, launch_count),
    "_molprof_fact_launch_of_several": ("*", None, launches_of_several),
    "molprof_call_work": (
        "call_id, kernels, memory_operations, gpu_ns, span_ns, delay", "launches", call_work,
    ),
    "_molprof_fact_shared_number": (
        "*", None, lambda trace: [(*key, *map(int, one)) for key, one in shared(trace.calls).items()],
    ),
    "_molprof_fact_host_sync": ("id", None, host_syncs),
    "_molprof_fact_host_total": ("*", None, lambda trace: [(*key, *total) for key, total in trace.totals.items()]),
    "_molprof_fact_open_step": ("*", None, lambda trace: lanes(ask(trace.engine, _STEPS, "steps"))),
}  # fmt: skip


def check(engine: TraceProcessor) -> None:
    """Compare what SQL shows with what plain loops find."""
    trace = PlainLinks(engine)
    for table, (columns, module, rows_of) in EXPECTED.items():
        found: list[tuple[Any, ...]] = ask(engine, f"SELECT {columns} FROM {table}", *([module] if module else []))
        assert sorted(found, key=repr) == sorted(rows_of(trace), key=repr), table
