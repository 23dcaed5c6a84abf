"""The GPU is idle: what it waits for, how much of the time, and where the CPU is meanwhile."""

from __future__ import annotations

from molprof.analysis.figures.model import IDLE_CAUSES
from molprof.analysis.findings.known import HOST_CAUSES, Known
from molprof.analysis.findings.places import drained, first_place, idle_places, launch_places, layers_text, listed
from molprof.analysis.findings.rule import Found, rule
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import count_text, counted, number_text, time_text

_QUEUED = ("other_stream", "other", "not_recorded")
_GRAPHS = Query(
    "work_calls",
    """
INCLUDE PERFETTO MODULE molprof.launches;
SELECT
  (SELECT graph_launches FROM molprof_launch_count) AS graph_launches,
  (SELECT COUNT() FROM _molprof_work AS work JOIN _molprof_graph_call AS call ON call.id = work.call_id
   WHERE work.category = 'kernel') AS graph_kernels
""",
)
_LOADING = ("DataLoader", "dataloader", "data_loader")


@rule(
    id="launch_bound",
    title="The GPU waits for kernel launches",
    fix="Launch fewer kernels: graphs (mode='reduce-overhead', a static cache), fused kernels, larger batches.",
    explanation="The CPU takes longer to launch a small operator than the GPU takes to run it.",
    query="idle_causes",
    needs=("gpu", "launches"),
    rests_on=("gpu_idle", "links"),
    least_gain=0.05,
    of_steps=True,
    queries=(_GRAPHS,),
)
def launch_bound(known: Known) -> Found | None:
    """Gain: the idle time of gaps up to 1 ms in which nothing was queued, and until the launch took effect."""
    scope, counts = known.scope, known.report.counts
    parts = [part for part in known.idle if not part.is_long and part.cause in (*HOST_CAUSES, "launching")]
    time_ns = sum(part.time_ns for part in parts)
    number = max((part.count for part in parts), default=0)
    if not number:
        return None
    places = launch_places(known)
    graphs = known.row(_GRAPHS)
    plain = counts.kernels - graphs["graph_kernels"]
    fix, also = "", ""
    if graphs["graph_launches"]:
        also = (
            f"; {counted(graphs['graph_launches'], 'graph launch', 'es')} start {count_text(graphs['graph_kernels'])} "
            f"kernels, and {count_text(plain)} run outside graphs"
        )
        fix = (
            "Bring the rest into the graphs: find graph breaks (TORCH_LOGS=graph_breaks,cudagraphs), keep shapes "
            "fixed, remove host syncs."
        )
    elif engine := known.engine_of_steps:
        fix = f"Let the engine use graphs ({engine}), and compile the model."
    elif known.compiled:
        fix = "The model is compiled: let it use graphs (mode='reduce-overhead'), with a static cache and fixed shapes."
    return Found(
        f"{counted(number, 'gap')} of {time_text(time_ns / number)} on average, {time_text(time_ns)} of "
        f"{scope.recorded_text}{scope.caution}: the CPU needs that long to the next of "
        f"{counted(counts.launches, 'launch', 'es')}; a kernel runs for "
        f"{time_text(counts.kernel_time_ns / max(1, counts.kernels))}{also}{layers_text(known)}{listed(places)}",
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
        known.limits,
        first_place(places),
    )


@rule(
    id="host_work",
    title="The GPU waits while the CPU does other work",
    fix="Do that work before, in another thread or process, or on the GPU.",
    explanation="",
    query="idle_places",
    needs=("gpu",),
    rests_on=("gpu_idle", "host_time"),
    least_gain=0.02,
    of_steps=True,
)
def host_work(known: Known) -> Found | None:
    """Gain: idle time in gaps longer than 1 ms, and before the first and after the last work, with nothing queued."""
    scope = known.scope
    parts = [part for part in known.idle if part.is_long and part.cause in HOST_CAUSES]
    time_ns = sum(part.time_ns for part in parts)
    if not time_ns:
        return None
    by_cause = sorted(((part.time_ns, part.cause) for part in known.summed(parts)), reverse=True)
    places = idle_places(known)
    place = first_place(places)
    loads = any(word in (place or "") for word in _LOADING)
    ends = [f"{time_text(part_ns)} {where}" for where, part_ns in known.edges if part_ns >= 0.01 * scope.recorded_ns]
    return Found(
        f"{time_text(time_ns)} of {scope.recorded_text}{scope.caution}, in which nothing was queued, in gaps "
        f"longer than 1 ms{' and at the ends (' + ', '.join(ends) + ')' if ends else ''}"
        + f": {'; '.join(f'{IDLE_CAUSES[cause]} {time_text(part_ns)}' for part_ns, cause in by_cause)}{listed(places)}",
        {"idle_ns": time_ns, "recorded_ns": scope.recorded_ns, **{f"{cause}_ns": ns for ns, cause in by_cause}},
        known.gain(scope.idle_part(time_ns), "long gaps with nothing queued"),
        "Load and prepare data ahead: more workers, prefetching, pinned memory." if loads else "",
        known.limits,
        place,
    )


@rule(
    id="host_syncs",
    title="Host syncs let the GPU run dry",
    fix="Keep the value on the device (no .item(), .tolist(), .cpu(), nonzero), or read it later or less often.",
    explanation="",
    query="host_syncs",
    needs=("gpu",),
    rests_on=("gpu_idle", "host_time"),
    least_gain=0.01,
    weight=0.8,
)
def host_syncs(known: Known) -> Found | None:
    """Gain: the gaps that began in a host sync. Without it the CPU could have queued the next work before."""
    scope, row = known.scope, drained(known)
    if not row:
        return None
    waited_ns = sum(part.time_ns for part in known.idle if part.cause == "cpu_waited")
    count, time_ns = sum(place.count for place in row), sum(place.time_ns for place in row)
    return Found(
        f"{counted(count, 'gap')}, {time_text(time_ns)} of {scope.recorded_text}, "
        f"{'begins' if count == 1 else 'begin'} while the CPU waits for the GPU, so that nothing is queued; the "
        f"syncs themselves take {time_text(waited_ns)} of the idle time{listed(row)}",
        {"gaps": count, "idle_ns": time_ns, "waited_ns": waited_ns},
        known.gain(scope.idle_part(time_ns), "gaps that begin in a host sync"),
        "",
        known.limits,
        first_place(row),
    )


@rule(
    id="device_waits",
    title="The GPU waits for something that is not the CPU",
    fix="Find what it waits for: an event of another stream, another rank, process or GPU. Record these too.",
    explanation="",
    query="idle_causes",
    needs=("gpu",),
    rests_on=("gpu_idle", "links"),
    least_gain=0.03,
    of_steps=True,
)
def device_waits(known: Known) -> Found | None:
    scope = known.scope
    parts = known.summed([part for part in known.idle if part.cause in _QUEUED])
    time_ns = sum(part.time_ns for part in parts)
    if not time_ns:
        return None
    longest_ns = max(part.longest_ns for part in parts)
    what = "; ".join(f"{IDLE_CAUSES[part.cause]} {time_text(part.time_ns)}" for part in parts)
    return Found(
        f"{time_text(time_ns)} of {scope.recorded_text}, the longest gap {time_text(longest_ns)}, in which work was "
        f"queued and did not start: {what}; what it waited for is not in this trace",
        {"idle_ns": time_ns, "longest_ns": longest_ns},
        known.gain(scope.idle_part(time_ns), "gaps with queued work"),
        "",
        known.limits,
    )


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
def pauses(known: Known) -> Found | None:
    scope = known.scope
    parts = [part for part in known.idle if part.cause == "short"]
    count, time_ns = sum(part.count for part in parts), sum(part.time_ns for part in parts)
    if not count:
        return None
    return Found(
        f"{counted(count, 'pause')} of {time_text(time_ns / count)} on average, {time_text(time_ns)} of "
        f"{scope.recorded_text}",
        {"pauses": count, "idle_ns": time_ns},
        known.gain(scope.idle_part(time_ns), "pauses below 5 µs"),
    )


@rule(
    id="limits",
    title="What sets the time",
    fix="Nothing: this is what every gain is measured against.",
    explanation="A faster part gains at most its own share.",
    query="idle_causes",
    needs=("gpu",),
    rests_on=("gpu_idle", "gpu_time"),
    note=True,
)
def limits(known: Known) -> Found | None:
    if not (scope := known.scope).busy_ns:  # how long the work took is not recorded
        return None
    steps = sum(int(row["steps"] or 0) for row in known.report.table("steps").to_json() if row["source"] != "(outside)")
    each = f", {number_text(steps)} steps of {time_text(scope.recorded_ns / steps)}" if steps > 1 else ""
    return Found(
        f"{known.limits} of {scope.recorded_text}{each}",
        {f"{name}_ns": value for name, value in known.split.items()},
    )
