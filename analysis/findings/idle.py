"""Findings on an idle GPU: what it waits for, how long, and the CPU's activity meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from molprof.analysis.facts import gaps
from molprof.analysis.facts.intervals import overlaps, shared
from molprof.analysis.figures.model import IDLE_CAUSES
from molprof.analysis.findings.around import of_calls, of_drained_gaps, of_gaps, of_idle_time
from molprof.analysis.findings.cold import SPECIALIZED_FIX, first_calls, specializations
from molprof.analysis.findings.device import copies_pinned, platform
from molprof.analysis.findings.known import HOST_CAUSES, TraceFacts
from molprof.analysis.findings.places import NOWHERE, layers_text, location, path_text, placed
from molprof.analysis.findings.rule import LEAST_GAIN, FindingEvidence, rule
from molprof.analysis.findings.run import recorded_compiling
from molprof.analysis.findings.waits import in_processors_ns, is_waiting, profiler_work, waiting_ns
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import count_text, counted, time_text

_GRAPHS = Query(
    "launches",
    """
INCLUDE PERFETTO MODULE molprof.host_totals;
SELECT
  (SELECT graph_launches FROM molprof_launch_count) AS graph_launches,
  (SELECT IFNULL(SUM(kernels), 0) FROM molprof_launch_summary WHERE kind = 'graph_launch') AS graph_kernels,
  (SELECT IFNULL(SUM(count), 0) FROM molprof_host_total
   WHERE category != 'cpu_op' AND name GLOB '*GraphInstantiate*') AS graphs,
  (SELECT IFNULL(SUM(count - starting), 0) FROM _molprof_fact_launch_total WHERE kind = 'launch') AS without_work
""",
)
_NAMED = "SELECT slice.id, slice.name FROM json_each('{ids}') AS call CROSS JOIN slice WHERE slice.id = call.value"
# Shorter calls are what any launch takes.
_LONG_CALL_NS = 100_000
_HELD_UP = "None is the first of its kind: the CPU was held up in them, by other threads or in the driver."
_ALLOCATIONS = ("Malloc", "Free", "HostAlloc", "HostRegister")
# Of the time of a finding; less is told together.
_LEAST_NAMED = 0.02
# Of the recorded time; where less idle time is does not matter.
_LEAST_IDLE = 0.05
# Of the launches; fewer may be captured while other work runs.
_LEAST_CAPTURED = 0.3


@rule(
    id="launch_bound",
    title="The GPU waits for kernel launches",
    fix="Launch fewer kernels: graphs (mode='reduce-overhead'), fused kernels, larger batches.",
    explanation="The CPU takes longer to launch a small operator than the GPU takes to run it.",
    query="idle_causes",
    needs=("gpu", "launches"),
    rests_on=("gpu_idle", "links"),
    least_gain=0.05,
    of_steps=True,
)
def launch_bound(known: TraceFacts) -> FindingEvidence | None:
    """Fire where the GPU waits for launches 5 % of the time, in gaps of up to 1 ms in which nothing is queued.

    Gain: the idle time of gaps up to 1 ms in which nothing was queued, and until the launch took effect.
    """
    scope, counts = known.scope, known.report.counts
    parts = [part for part in known.idle if not part.is_long and part.cause in (*HOST_CAUSES, "launching")]
    time_ns = sum(part.time_ns for part in parts)
    number = max((part.count for part in parts), default=0)
    if not number:
        return None
    facts, compiled = known.facts, known.facts.compiled
    causes = [gaps.CAUSES.index(cause) for cause in (*HOST_CAUSES, "launching")]
    is_mine = ~facts.idle.is_long[facts.parts.idle] & np.isin(facts.parts.cause, causes)
    where = location(known, of_gaps(known, is_mine))
    after_sync = is_mine & np.isin(facts.parts.idle, of_drained_gaps(known).idle)
    graphs = known.row(_GRAPHS)
    plain = counts.kernels - graphs["graph_kernels"]
    fix, also = "", ""
    if graphs["graph_launches"]:
        also = (
            f"; {counted(graphs['graph_launches'], 'graph launch', 'es')} start {count_text(graphs['graph_kernels'])} "
            f"kernels, and {count_text(plain)} run outside graphs"
        )
    calls = long_calls_in(known, gaps.BETWEEN, is_long=False) if scope.run is None else []
    if calls and 2 * calls[0]["time_ns"] > time_ns:
        name = calls[0]["name"]
        also += f"; {time_text(calls[0]['time_ns'])} of it in {name} ({counted(calls[0]['count'], 'call')})"
        fix = _fix_of_calls(known, name, any(word in name for word in _ALLOCATIONS)) or long_calls.fix
    elif 2 * int(known.part_times[after_sync].sum()) > time_ns:
        fix = (
            "Most of these gaps begin in a host sync: read results later or less often, and prepare what is launched "
            "next before that."
        )
    elif graphs["graph_launches"]:
        fix = (
            "Bring the rest into the graphs: find graph breaks (TORCH_LOGS=graph_breaks,cudagraphs), keep shapes "
            "fixed, remove host syncs."
        )
    elif engine := known.engine_of_steps:
        fix = f"Let the engine use graphs ({engine}), and compile the model."
    elif where is not None and where.ratio >= 0.5 and "Optimizer.step#" in (where.name or ""):
        fix = "The optimizer runs operators for one parameter after the other: foreach=True, or fused=True."
    elif compiled.only_traced:
        fix = "torch.compile traces the model and fuses nothing: use its backend inductor, or larger batches."
    elif platform(known) == "XPU":
        fix = f"Launch fewer kernels: {'' if compiled.by_inductor else 'torch.compile, '}fused kernels, larger batches."
    elif compiled.by_inductor:
        fix = "The model is compiled: let it use graphs (mode='reduce-overhead'), with a static cache and fixed shapes."
    in_processors = min(time_ns, in_processors_ns(known)[0])
    if in_processors >= _LEAST_NAMED * time_ns:
        also = f"; {time_text(in_processors)} of it while logits processors run{also}"
    evidence = FindingEvidence(
        f"{counted(number, 'gap')} of {time_text(time_ns / number)} on average, {time_text(time_ns)} in all: the CPU "
        f"needs that long to the next of {counted(counts.launches, 'launch', 'es')}; a kernel runs for "
        f"{time_text(counts.kernel_time_ns / max(1, counts.kernels))}{also}{layers_text(known)}",
        {
            "gap_count": number,
            "gap_ns": time_ns,
            "recorded_ns": scope.recorded_ns,
            "launches": counts.launches,
            "graph_launches": graphs["graph_launches"],
            "kernels_by_graph": graphs["graph_kernels"],
        },
        known.gain(scope.idle_part(time_ns), "gaps that end with a launch"),
        fix,
    )
    return placed(evidence, where)


@rule(
    id="graph_capture",
    title="The recording contains graph captures",
    fix="Record the steps that replay them. With --graph-capture this recording names their kernels.",
    explanation="Work that is launched during a capture runs only later, and a capture happens once.",
    query="idle_locations",
    needs=("gpu", "launches"),
    rests_on=("gpu_idle", "links"),
)
def graph_capture(known: TraceFacts) -> FindingEvidence | None:
    """Fire where a graph is instantiated, and 30 % of the launches start no work: they are captured.

    Gain: all time between GPU work in which nothing was queued.
    """
    graphs, launches = known.row(_GRAPHS), known.report.counts.launches
    if not graphs["graphs"] or graphs["without_work"] < _LEAST_CAPTURED * launches:
        return None
    time_ns = sum(part.time_ns for part in known.idle if part.cause in HOST_CAUSES)
    meanwhile = f"; between GPU work nothing was queued for {time_text(time_ns)}" if time_ns else ""
    return FindingEvidence(
        f"{counted(graphs['graphs'], 'graph')} instantiated; {count_text(graphs['without_work'])} of "
        f"{counted(launches, 'launch', 'es')} started no work{meanwhile}",
        {**graphs, "launches": launches, "idle_ns": time_ns},
        # Mostly there is next to no GPU work between the launches.
        known.gain(part, "time with nothing queued")
        if (part := known.scope.idle_part(time_ns)) >= LEAST_GAIN
        else None,
    )


def _long_calls(known: TraceFacts) -> list[dict[str, Any]]:
    """Return long calls of the CPU in long gaps, by name, the longest time first.

    Long calls take 0.1 ms or more, and are no host syncs.

    In long gaps: with nothing queued, or in the launch. None of a captured run, which is warmed up, and of which the
    recorded steps alone count.
    """
    calls = known.once("long calls", None, lambda: long_calls_in(known, gaps.BETWEEN))
    return calls if known.scope.run is None else []


def long_calls_in(known: TraceFacts, *positions: str, is_long: bool = True) -> list[dict[str, Any]]:
    """Return long calls in long gaps, or before the first or after the last work, by name.

    Long calls take 0.1 ms or more, and are no host syncs.

    is_long: False for shorter gaps.
    """
    facts = known.facts
    idle, calls = facts.idle, facts.calls
    is_sync = np.zeros(len(calls.id), dtype=bool)
    is_sync[facts.syncs] = True
    long = np.flatnonzero((calls.ts_end - calls.ts >= _LONG_CALL_NS) & ~is_sync)
    chosen = np.isin(idle.position, [gaps.POSITIONS.index(position) for position in positions])
    windows = np.flatnonzero(chosen & (idle.queue > gaps.QUEUED) & (idle.is_long == is_long) & (idle.call != gaps.NONE))
    until = np.where(idle.queue == gaps.NOTHING, idle.ts_end, idle.host_end)
    mine = calls.own_track[idle.call[windows]], idle.ts[windows], until[windows]
    window, call = overlaps(mine, (calls.track[long], calls.ts[long], calls.ts_end[long]))
    gap, call = windows[window], long[call]
    start, end = np.maximum(idle.ts[gap], calls.ts[call]), np.minimum(until[gap], calls.ts_end[call])
    time_ns, host_ns = end - start, np.minimum(end, idle.host_end[gap]) - np.minimum(start, idle.host_end[gap])
    ids = calls.id[np.unique(call)].tolist()
    query = Query("python_functions", _NAMED.format(ids=ids))
    named = {row["id"]: row["name"] for row in known.rows(query)} if ids else {}
    rows: dict[str, dict[str, Any]] = {}
    for number, *times in zip(call.tolist(), time_ns.tolist(), host_ns.tolist(), strict=True):
        name, length_ns = named[int(calls.id[number])], int(calls.ts_end[number] - calls.ts[number])
        row = rows.setdefault(
            name, {"name": name, "count": 0, "time_ns": 0, "host_ns": 0, "longest_ns": 0, "calls": Counter()}
        )
        row["count"] += 1
        row["calls"][number] += times[0]
        row["time_ns"] += times[0]
        row["host_ns"] += times[1]
        row["longest_ns"] = max(row["longest_ns"], length_ns)
    return sorted(rows.values(), key=lambda row: (-row["time_ns"], row["name"]))


def _is_first(known: TraceFacts, name: str) -> bool:
    """Return True if a long call of the name is a first one, or there is no other."""
    return any(call.name == name for call in first_calls(known, _LONG_CALL_NS))


def _fix_of_calls(known: TraceFacts, name: str, allocates: bool) -> str:
    """Return the advice on long calls of a name; the rule's own one for first calls."""
    if allocates:
        segments = ", expandable segments" if platform(known) == "CUDA" else ""
        return f"Keep memory instead of asking for it again: no empty_cache{segments}; warm up first."
    return "" if _is_first(known, name) else "Look for what else runs on these cores: other threads, ranks or jobs."


@rule(
    id="long_calls",
    title="The GPU waits for single calls of its runtime",
    fix="First calls load driver, libraries and kernels: warm up before recording, and before serving.",
    explanation="Most calls take microseconds; those of a millisecond usually happen once.",
    query="idle_locations",
    needs=("gpu",),
    rests_on=("gpu_idle", "links"),
    least_gain=0.02,
    of_steps=True,
)
def long_calls(known: TraceFacts) -> FindingEvidence | None:
    """Fire where, in gaps longer than 1 ms, the CPU spends 2 % of the time in single calls of 0.1 ms or more.

    These are no host syncs, but first calls, which load driver and kernels, or allocations.

    Gain: the time of long gaps, with nothing queued or until the launch took effect, in calls of 0.1 ms or more.
    """
    if not (calls := _long_calls(known)):
        return None
    time_ns = sum(call["time_ns"] for call in calls)
    names = [
        f"{call['name']} {time_text(call['time_ns'])} ({counted(call['count'], 'call')}, the longest "
        f"{time_text(call['longest_ns'])})"
        for call in calls[:3]
    ]
    # A first call sets up the device, and takes longer than all others of its name together.
    many = calls[0]["longest_ns"] < 0.5 * calls[0]["time_ns"]
    allocates = many and any(word in calls[0]["name"] for word in _ALLOCATIONS)
    times = sum((call["calls"] for call in calls), Counter[int]())
    evidence = FindingEvidence(
        f"{time_text(time_ns)} in gaps longer than 1 ms: {'; '.join(names)}",
        {"idle_ns": time_ns, "calls": sum(call["count"] for call in calls)},
        known.gain(known.scope.idle_part(time_ns), "GPU calls in long gaps"),
        _fix_of_calls(known, calls[0]["name"], allocates),
        "" if allocates or _is_first(known, calls[0]["name"]) else _HELD_UP,
        part_of=("graph_capture",),
    )
    index, of_ns = (np.array([*some], dtype=np.int64) for some in (times, times.values()))
    return placed(evidence, location(known, of_calls(known, index, of_ns)))


@rule(
    id="host_work",
    title="The GPU waits while the CPU does other work",
    fix="Do that work earlier, in another thread or process, or on the GPU.",
    explanation="With nothing queued the GPU does nothing, however fast it is.",
    query="idle_locations",
    needs=("gpu",),
    rests_on=("gpu_idle", "host_time"),
    least_gain=0.02,
    of_steps=True,
)
def host_work(known: TraceFacts) -> FindingEvidence | None:
    """Fire where in gaps longer than 1 ms nothing is queued for 2 % of the time, since the CPU works.

    The CPU is in no host sync and no such long call, compiles nothing, is not held up by the profiler, and does not
    wait itself in a lock, a queue or a socket.

    Gain: idle time in gaps longer than 1 ms, but for long calls, compiling, the profiler, and waits of the CPU.
    """
    scope = known.scope
    times = {part.cause: part.time_ns for part in known.summed(part for part in known.idle if part.is_long)}
    times["cpu_calls"] = times.get("cpu_calls", 0) - sum(call["host_ns"] for call in _long_calls(known))
    # What is compiled, the profiler's work, and threads that wait themselves are findings and notes of their own.
    waits, other_ns = _of_program(known)
    for taken_ns in (other_ns, waiting_ns(known)):
        for cause in ("cpu_outside", "cpu_operators", "cpu_compiled"):
            part_ns = min(taken_ns, times.get(cause, 0))
            times[cause], taken_ns = times.get(cause, 0) - part_ns, taken_ns - part_ns
    by_cause = sorted(((times[cause], cause) for cause in HOST_CAUSES if times.get(cause, 0) > 0), reverse=True)
    time_ns = sum(part_ns for part_ns, _ in by_cause)
    if not time_ns:
        return None
    where = location(known, [row for row in of_idle_time(known, waits) if not is_waiting(row)])
    label = "" if where is None else where.name or ""
    fix = ""
    if times.get("cpu_data", 0) > 0.5 * time_ns:
        how = "in processes of their own (num_workers)" if "SingleProcess" in label else "ahead: more workers"
        fix = f"Load and prepare data {how}, prefetching{'' if copies_pinned(known) else ', pinned memory'}."
    elif 2 * sum(item.idle_ns for item in specializations(known)) > time_ns:
        fix = SPECIALIZED_FIX
    large = [(part_ns, cause) for part_ns, cause in by_cause if part_ns >= _LEAST_NAMED * time_ns]
    named = [f"{IDLE_CAUSES[cause]} {time_text(part_ns)}" for part_ns, cause in large]
    if len(large) < len(by_cause):
        named.append(f"all else {time_text(time_ns - sum(part_ns for part_ns, _ in large))}")
    evidence = FindingEvidence(
        f"{time_text(time_ns)} with nothing queued, in gaps longer than 1 ms: "
        f"{'; '.join(named)}" + ("" if label else _after_longest(known, waits)),
        {"idle_ns": time_ns, "recorded_ns": scope.recorded_ns, **{f"{cause}_ns": ns for ns, cause in by_cause}},
        known.gain(scope.idle_part(time_ns), "long gaps with nothing queued"),
        fix,
        part_of=("graph_capture",),
    )
    return placed(evidence, where)


def _of_program(known: TraceFacts) -> tuple[gaps.Windows, int]:
    """Return the part of long gaps that the program causes, and the rest, ns.

    In that part nothing is queued, torch.compile compiles nothing and the profiler does nothing for itself.
    """
    waits, other = known.long_waits(), recorded_compiling(known) | profiler_work(known)
    if not (time_ns := int(other.covered(waits.ts, waits.ts_end).sum())):
        return waits, 0
    least, most = np.iinfo(np.int64).min // 2, np.iinfo(np.int64).max // 2
    zero, none = np.zeros(len(waits.ts), dtype=np.int64), np.zeros(len(other.starts_ns) + 1, dtype=np.int64)
    between = none, np.append(least, other.ends_ns), np.append(other.starts_ns, most)
    wait, _, ts, ts_end = shared((zero, waits.ts, waits.ts_end), between)
    return gaps.Windows(waits.idle[wait], ts, ts_end, waits.track[wait]), time_ns


def _after_longest(known: TraceFacts, waits: gaps.Windows) -> str:
    """Return the end of a sentence: the work that ends the longest wait between two pieces of work."""
    idle = known.facts.idle
    between = np.flatnonzero(idle.position[waits.idle] == 0)
    if not len(between):
        return ""
    longest = between[(waits.ts_end - waits.ts)[between].argmax()]
    time_ns, call = int(waits.ts_end[longest] - waits.ts[longest]), idle.call[waits.idle[longest]]
    (row,) = of_calls(known, np.array([call]), np.array([time_ns]))
    path = path_text(row)
    return "" if path == NOWHERE else f"; the longest, {time_text(time_ns)}, is before {path}"


@rule(
    id="host_syncs",
    title="Host syncs let the GPU run dry",
    fix="Keep the value on the device (no .item(), .tolist(), .cpu(), nonzero), or read it later or less often.",
    explanation="The CPU queues nothing while it waits, so that the GPU has nothing to do until the next launch.",
    query="host_syncs",
    needs=("gpu",),
    rests_on=("gpu_idle", "host_time"),
    least_gain=0.01,
    weight=0.8,
)
def host_syncs(known: TraceFacts) -> FindingEvidence | None:
    """Fire where gaps begin while the CPU is in a host sync.

    Gain: of each gap that began in a host sync no more than that sync takes, and of all no more than what is left of
    them without compiling and without waits of the CPU in a queue, a lock or a socket.

    Without a sync the CPU could have queued the next work earlier by its length.
    """
    scope, (rows, sync_ns, most_ns, index) = known.scope, of_drained_gaps(known)
    if not rows:
        return None
    other_ns = waiting_ns(known, index) + int(
        recorded_compiling(known).covered(known.facts.idle.ts[index], known.facts.idle.ts_end[index]).sum()
    )
    waited_ns = sum(part.time_ns for part in known.idle if part.cause == "cpu_waited")
    count, time_ns = (sum(row[name] for row in rows) for name in ("count", "time_ns"))
    evidence = FindingEvidence(
        f"{counted(count, 'gap')}, {time_text(time_ns)} in all, "
        f"{'begins' if count == 1 else 'begin'} while the CPU waits for the GPU, so that nothing is queued; these "
        f"syncs take {time_text(sync_ns)}; {time_text(waited_ns)} of the idle time is in syncs",
        {"gaps": count, "idle_ns": time_ns, "sync_ns": sync_ns, "waited_ns": waited_ns},
        known.gain(
            scope.idle_part(max(0, min(most_ns, time_ns - other_ns))), "gaps that begin in a host sync, and these syncs"
        ),
        part_of=("devices_in_turn", "host_work", "launch_bound"),
    )
    return placed(evidence, location(known, rows))


@rule(
    id="pauses",
    title="Pauses between kernels add up",
    fix="Fewer, larger kernels: fuse small ones.",
    explanation="Between two kernels that are queued the GPU pauses for a microsecond or two, however short they are.",
    query="idle_causes",
    needs=("gpu",),
    rests_on=("gpu_idle",),
    least_gain=0.03,
    of_steps=True,
    weight=0.6,
)
def pauses(known: TraceFacts) -> FindingEvidence | None:
    """Fire where pauses below 5 µs between queued work take 3 % of the time.

    Gain: those pauses.
    """
    scope = known.scope
    parts = [part for part in known.idle if part.cause == "short"]
    count, time_ns = sum(part.count for part in parts), sum(part.time_ns for part in parts)
    if not count:
        return None
    return FindingEvidence(
        f"{counted(count, 'pause')} of {time_text(time_ns / count)} on average, {time_text(time_ns)} in all",
        {"pauses": count, "idle_ns": time_ns},
        known.gain(scope.idle_part(time_ns), "pauses below 5 µs"),
    )
