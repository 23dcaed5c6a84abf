"""Findings on waits of the GPU other than for the CPU's work: a waiting thread, another GPU, the profiler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from molprof.analysis.facts import gaps
from molprof.analysis.facts.intervals import Coverage
from molprof.analysis.facts.slices import DATA_NAMES
from molprof.analysis.findings.around import of_idle_time
from molprof.analysis.findings.known import HOST_CAUSES, TraceFacts
from molprof.analysis.findings.places import location, placed
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.trace_processor.package import Query
from molprof.analysis.union import Union
from molprof.common.values import count_text, percent_text, time_text

# Functions in which a thread waits, as file(line): name; a folder may stand before it.
_WAITING = (
    "selectors.py(*): select", "threading.py(*): wait",
    "threading.py(*): acquire", "threading.py(*): join", "threading.py(*): _wait_for_tstate_lock",
    "queue.py(*): get", "multiprocessing/queues.py(*): get", "multiprocessing/connection.py(*): wait",
    "multiprocessing/connection.py(*): poll", "multiprocessing/connection.py(*): _poll",
    "multiprocessing/connection.py(*): _recv*", "multiprocessing/connection.py(*): recv*",
    "multiprocessing/popen_fork.py(*): poll", "socket.py(*): accept", "socket.py(*): readinto",
    "subprocess.py(*): *wait", "zmq/*(*): recv*", "zmq/*(*): poll",
)  # fmt: skip
# Functions that wait with all that they call, in a loop that asks again and again.
_WAITING_LOOPS = ("shm_broadcast.py(*): dequeue", "shm_broadcast.py(*): acquire_write")
_LEAST_WAITS, _LEAST_TURNS = 0.02, 0.1
# As many devices work at once at most, while any does, on average.
_MOST_AT_ONCE = 1.25
# What CUPTI does for itself in calls of the program.
_PROFILER = Query(
    "recorded",
    "SELECT ts, ts + dur AS ts_end FROM slice WHERE category = 'overhead'"
    " AND name IN ('Activity Buffer Request', 'Buffer Flush', 'Instrumentation') ORDER BY ts, id",
)
# Waits of a device in which another one may be what it waits for.
_FOR_OTHERS = ("cpu_waited", "other")


def is_waiting(row: Mapping[str, Any]) -> bool:
    """Return True if idle time of a row of `around` is that of a waiting thread, except for data of a loader."""
    inner = [text for text in (row["function"], row["library"]) if text]
    around = [level.name for level in row["levels"](("function",))]
    if not (_matches(inner, _WAITING) or _matches(around, _WAITING_LOOPS)):
        return False
    return not any(DATA_NAMES.match(level.name) for level in row["levels"](("cpu_op", "user_annotation", "function")))


def _matches(texts: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(text, kind) for text in texts for name in patterns for kind in (name, f"*/{name}"))


def waiting_rows(known: TraceFacts) -> list[dict[str, Any]]:
    """Return long gaps with nothing queued in which the thread that the GPU waits for waits too, by location.

    Time in data loaders is not in it: that is a cause of its own.
    """
    return known.once("waiting rows", None, lambda: _waiting_in(known, known.long_waits()))


def _waiting_in(known: TraceFacts, windows: gaps.Windows) -> list[dict[str, Any]]:
    return [row for row in of_idle_time(known, windows) if is_waiting(row)]


def in_processors_ns(known: TraceFacts) -> tuple[int, int]:
    """Return the time with nothing queued while a logits processor runs, ns: in gaps of up to 1 ms, and in longer.

    In a run without a processor that phase holds molprof's marks, which are nothing that a GPU waits for.
    """
    run, idle, times = known.report.run, known.facts.idle, known.facts.in_processors
    if run is not None and not run.has_processor:
        return 0, 0
    within = idle.position == 0
    return int(times[within & ~idle.is_long].sum()), int(times[within & idle.is_long].sum())


def waiting_ns(known: TraceFacts, idle: np.ndarray | None = None) -> int:
    """Return the time of `waiting_rows`, ns, at most that of long gaps. idle: indices of gaps that count; None: all."""
    rows = waiting_rows(known)
    if idle is not None and rows:
        waits = known.long_waits()
        mine = np.isin(waits.idle, idle)
        columns = (waits.idle[mine], waits.ts[mine], waits.ts_end[mine], waits.track[mine])
        rows = _waiting_in(known, gaps.Windows(*columns)) if mine.any() else []
    long_ns = sum(part.time_ns for part in known.idle if part.is_long and part.cause in HOST_CAUSES)
    return int(min(long_ns, sum(row["time_ns"] for row in rows)))


def profiler_work(known: TraceFacts) -> Union:
    """Return the intervals of the profiler's own work."""
    rows = known.frame(_PROFILER)
    return Union(rows["ts"].astype(np.int64), rows["ts_end"].astype(np.int64))


def profiler_ns(known: TraceFacts) -> int:
    """Return the profiler's time in long gaps with nothing queued, without host syncs, ns."""
    waits = known.long_waits()
    long_ns = sum(part.time_ns for part in known.idle if part.is_long and part.cause in HOST_CAUSES)
    return min(long_ns, int(profiler_work(known).covered(waits.ts, waits.ts_end).sum()))


def other_device_ns(known: TraceFacts) -> dict[str, int]:
    """Return the time of waits (host syncs, queued work) in which another device works, by cause, ns."""
    facts = known.facts
    idle, parts, work = facts.idle, facts.parts, facts.work
    by_cause = dict.fromkeys(_FOR_OTHERS, 0)
    if known.scope.devices < 2:
        return by_cause
    # In a gap of a device all work is that of others.
    busy_ns = Union(work.ts, work.ts_end).covered(idle.ts, idle.ts_end)
    times = np.minimum(known.part_times, busy_ns[parts.idle])
    for cause in _FOR_OTHERS:
        by_cause[cause] = int(times[parts.cause == gaps.CAUSES.index(cause)].sum())
    return by_cause


@rule(
    id="devices_in_turn",
    title="The GPUs work one after the other",
    fix="Split batches into micro-batches, so that all stages work at once (a pipeline schedule as 1F1B); or let each "
    "GPU work on all layers (data or tensor parallelism).",
    explanation="A GPU that waits for another one's output is idle, and the other one is idle afterwards.",
    query="idle_causes",
    needs=("gpu",),
    rests_on=("gpu_idle",),
    least_gain=_LEAST_TURNS,
    weight=0.8,
)
def devices_in_turn(known: TraceFacts) -> FindingEvidence | None:
    """Fire where several devices work in a trace, but hardly ever two at once.

    At most 1.25 on average while any works.

    Gain: the time in which any works, less their work divided evenly.
    """
    work, scope = known.facts.work, known.scope
    if scope.devices < 2 or scope.run is not None:
        return None
    busy = Coverage(work.device, work.ts, work.ts_end)
    each = np.bincount(busy.keys, busy.ends - busy.starts).astype(np.int64).tolist()
    any_ns = Union(work.ts, work.ts_end).length_ns
    if min(each) * len(each) < _LEAST_TURNS * sum(each) or sum(each) > _MOST_AT_ONCE * any_ns:
        return None
    gain_ns = any_ns - sum(each) // len(each)
    return FindingEvidence(
        f"{count_text(len(each))} GPUs work for {', '.join(map(time_text, each))}, any of them for "
        f"{time_text(any_ns)}: {percent_text((sum(each) - any_ns) / any_ns)} of it at once",
        {"devices": len(each), "any_ns": any_ns, "work_ns": sum(each)},
        known.gain(scope.host_part(gain_ns), "work of GPUs in turn, divided evenly"),
    )


@rule(
    id="waiting_threads",
    title="The CPU waits in a queue, lock or socket",
    fix="Where it waits for requests, record under load. Where it waits for another thread or process, look at that.",
    explanation="The file does not show what it waits for, or if that can be faster.",
    query="idle_locations",
    needs=("gpu",),
    rests_on=("gpu_idle", "host_time"),
    note=True,
)
def waiting_threads(known: TraceFacts) -> FindingEvidence | None:
    """Fire where nothing is queued for 2 % of the time because the launching thread waits in a queue, lock or socket.

    Only long gaps count.
    """
    time_ns = waiting_ns(known)
    if not known.scope.devices or known.scope.idle_part(time_ns) < _LEAST_WAITS * known.scope.wall_ratio:
        return None
    evidence = FindingEvidence(
        f"{time_text(time_ns)} with nothing queued, in gaps longer than 1 ms, for requests, other threads or "
        "processes, which counts for no gain",
        {"idle_ns": time_ns},
    )
    return placed(evidence, location(known, waiting_rows(known)))


@rule(
    id="profiler_holds_up",
    title="The profiler holds up the CPU",
    fix="Give the profiler a warm-up step (torch.profiler.schedule), and record fewer events.",
    explanation="It asks for buffers, or empties them, in a call of the program, which does not do so without it.",
    query="idle_locations",
    needs=("gpu",),
    rests_on=("gpu_idle", "host_time"),
    note=True,
)
def profiler_holds_up(known: TraceFacts) -> FindingEvidence | None:
    """Fire where nothing is queued for 2 % of the time while the profiler asks for buffers or empties them.

    Only long gaps count.
    """
    time_ns = profiler_ns(known)
    if not known.scope.devices or known.scope.idle_part(time_ns) < _LEAST_WAITS * known.scope.wall_ratio:
        return None
    return FindingEvidence(
        f"{time_text(time_ns)} with nothing queued, in gaps longer than 1 ms, while it asks for buffers or empties "
        "them, which counts for no gain",
        {"idle_ns": time_ns},
    )


@rule(
    id="device_waits",
    title="The GPU waits for another stream",
    fix="Find the event that it waits for; finish the other stream earlier, or wait later.",
    explanation="Queued work starts when the work that it waits for is done; the CPU does not delay it.",
    query="idle_causes",
    needs=("gpu",),
    rests_on=("gpu_idle", "links"),
    least_gain=0.03,
    of_steps=True,
)
def device_waits(known: TraceFacts) -> FindingEvidence | None:
    """Fire where, for 3 % of the time, queued work does not start until work of another stream has ended.

    It does not fire where most of that is at the start of the recording: what the GPU did then is not recorded.

    Gain: those gaps.
    """
    if begins_waiting(known):
        return None
    parts = [part for part in known.idle if part.cause == "other_stream"]
    time_ns = sum(part.time_ns for part in parts)
    if not time_ns:
        return None
    longest_ns = max(part.longest_ns for part in parts)
    return FindingEvidence(
        f"{time_text(time_ns)}, the longest gap {time_text(longest_ns)}, in which work was queued and started only "
        "when another stream was done",
        {"idle_ns": time_ns, "longest_ns": longest_ns},
        known.gain(known.scope.idle_part(time_ns), "gaps with queued work"),
    )


def begins_waiting(known: TraceFacts) -> bool:
    """Return True if the longest wait with queued work starts with a foreign trace's recording and dominates.

    The GPU was busy with work from before, of which nothing is recorded.
    """
    waits = [part for part in known.idle if part.cause in ("other_stream", "other")]
    longest_ns = max((part.longest_ns for part in waits), default=0)
    if known.scope.run is not None or longest_ns <= 0.5 * sum(part.time_ns for part in waits):
        return False
    idle, parts = known.facts.idle, known.facts.parts
    rows = np.flatnonzero(
        np.isin(parts.cause, [gaps.CAUSES.index(part.cause) for part in waits]) & (idle.position[parts.idle] == 0)
    )
    start = int(idle.ts[parts.idle[rows[parts.time_ns[rows].argmax()]]])
    return start - known.facts.span[0] < 0.02 * known.scope.recorded_ns
