"""Findings on masks of constrained decoding that the GPU waits for: making, copying, applying."""

from __future__ import annotations

import numpy as np

from molprof.analysis.findings.device import copies_pinned
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.trace_processor.package import Query
from molprof.analysis.union import Union
from molprof.common.values import bytes_text, count_text, counted, number_text, time_text

# Phases between the logits and the token in which an engine may wait.
_OF_LOGITS = "(phase.phase GLOB 'mask_*' OR phase.phase = 'processors')"
# Copies of masks that return only when done, and the syncs of their phases.
_BLOCKING = """
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.host_syncs;
WITH
  blocking AS (
    SELECT copy.dur, copy.bytes, copy.phase_id, call.id, call.ts, call.dur AS call_ns
    FROM molprof_mask_copy AS copy
    JOIN molprof_gpu_call AS call ON call.id = copy.call_id
    WHERE copy.direction = 'HtoD' AND (IFNULL(copy.host_memory, '') = 'Pageable' OR NOT call.name GLOB '*Async*')
  ),
  called AS (
    SELECT id, ts, call_ns AS dur FROM blocking
    UNION
    SELECT wait.id, wait.ts, wait.dur
    FROM molprof_host_sync AS wait
    WHERE wait.phase_id IN (SELECT phase_id FROM blocking)
  )
"""
_COPIES = Query(
    "masks",
    f"""{_BLOCKING}
SELECT
  (SELECT COUNT() FROM blocking) AS count,
  (SELECT IFNULL(SUM(dur), 0) FROM blocking) AS gpu_ns,
  (SELECT IFNULL(SUM(bytes), 0) FROM blocking) AS bytes,
  (SELECT IFNULL(SUM(dur), 0) FROM called) AS host_ns,
  (SELECT COUNT() FROM molprof_mask_step WHERE mask_ns > 0) AS steps
""",
)
_CALLED = Query("masks", f"{_BLOCKING}SELECT ts, ts + dur AS ts_end FROM called")
_ANY_SYNCS = Query("sync_phases", f"SELECT COUNT() AS count FROM molprof_host_sync_phase AS phase WHERE {_OF_LOGITS}")
_SYNCS = Query(
    "masks",
    f"""
INCLUDE PERFETTO MODULE molprof.host_syncs;
SELECT phase.phase, COUNT() AS count, SUM(wait.dur) AS time_ns, (SELECT COUNT() FROM _molprof_numbered_step) AS steps
FROM molprof_host_sync AS wait
JOIN molprof_phase AS phase ON phase.id = wait.phase_id
WHERE
  phase.program != 'molprof'
  AND {_OF_LOGITS}
  AND phase.id NOT IN (SELECT phase_id FROM molprof_mask_copy WHERE direction = 'HtoD' AND host_memory = 'Pageable')
GROUP BY phase.phase
ORDER BY count DESC, phase.phase
""",
)
# Copies of logits to the host, where masks are applied; launches there.
_APPLYING = Query(
    "masks",
    """
INCLUDE PERFETTO MODULE molprof.phase_work;
SELECT
  COUNT() AS count,
  SUM(work.host_ns) AS host_ns,
  SUM(IFNULL(bound.sync_idle_ns + bound.launch_ns, 0)) AS exposed_ns,
  SUM(work.launches + work.graph_launches) AS launches,
  (SELECT COUNT() FROM molprof_mask_copy WHERE phase = 'mask_apply' AND direction = 'DtoH') AS copies,
  (SELECT IFNULL(SUM(bytes), 0) FROM molprof_mask_copy WHERE phase = 'mask_apply' AND direction = 'DtoH') AS bytes
FROM molprof_phase_work AS work
JOIN molprof_phase_bound AS bound USING (phase_id)
WHERE work.phase = 'mask_apply'
""",
)
# Every step copies, or every second step waits.
_LEAST_COPIES_PER_STEP, _LEAST_SYNCS_PER_STEP = 0.9, 0.5
# Logits of one row have more bytes; its token has 8.
_LEAST_LOGITS_BYTES = 4000


@rule(
    id="mask_idle",
    title="The GPU waits for masks",
    fix="Fill masks while the forward runs on the GPU, for all rows at once, into pinned memory.",
    explanation="A step's token is sampled when its mask is on the GPU, and the next step starts with that token.",
    query="idle_causes",
    needs=("gpu",),
    rests_on=("gpu_idle", "host_time"),
    weight=0.8,
)
def mask_idle(known: TraceFacts) -> FindingEvidence | None:
    """Fire where nothing is queued for the GPU because the thread that it waits for is in masks.

    Gain: that idle time.
    """
    parts = [part for part in known.idle if part.cause == "cpu_masks"]
    time_ns, count = sum(part.time_ns for part in parts), sum(part.count for part in parts)
    if not time_ns:
        return None
    longest_ns = max(part.longest_ns for part in parts)
    idle_ns = sum(part.time_ns for part in known.idle)
    return FindingEvidence(
        f"{time_text(time_ns)} in {counted(count, 'gap')}, the longest {time_text(longest_ns)}: nothing was queued "
        f"while the CPU filled, copied, applied or advanced masks; {time_text(idle_ns)} of idle time in all",
        {"idle_ns": time_ns, "gaps": count, "longest_ns": longest_ns},
        known.gain(known.scope.idle_part(time_ns), "idle time with the CPU in masks"),
        part_of=("constraint", "host_work", "launch_bound"),
    )


def _gaps_ns(known: TraceFacts) -> int:
    """Return the length of gaps that overlap blocking copies of masks, or the syncs after them, ns."""
    calls, idle = known.frame(_CALLED), known.facts.idle
    union = Union(calls["ts"].astype(np.int64), calls["ts_end"].astype(np.int64))
    touched = (idle.position == 0) & (union.covered(idle.ts, idle.ts_end) > 0)
    return int((idle.ts_end - idle.ts)[touched].sum())


@rule(
    id="mask_copy_blocks",
    title="Copies of masks to the GPU block the CPU",
    fix="Fill masks into pinned memory, and copy them with non_blocking=True, on a stream of their own.",
    explanation="The CPU waits until the work before the copy is done, and launches the sampling only then.",
    query="SELECT * FROM molprof_mask_copy",
    needs=("masks", "gpu"),
    rests_on=("gpu_work", "links", "gpu_idle"),
    weight=0.8,
)
def mask_copy_blocks(known: TraceFacts) -> FindingEvidence | None:
    """Fire where nine of ten steps with masks copy one from pageable memory to the GPU, or in a blocking call.

    Gain: the copies, and their calls and syncs as far as the GPU was idle in gaps around them.
    """
    scope, copies = known.scope, known.row(_COPIES)
    copies["gaps_ns"] = _gaps_ns(known)
    if not copies["count"] or copies["count"] < _LEAST_COPIES_PER_STEP * copies["steps"]:
        return None
    return FindingEvidence(
        f"copied {counted(copies['count'], 'time')} in {counted(copies['steps'], 'step')}, "
        f"{bytes_text(copies['bytes'])} in all: {time_text(copies['host_ns'])} in their calls and syncs, "
        f"{time_text(copies['gpu_ns'])} on the GPU; gaps around them take {time_text(copies['gaps_ns'])}",
        copies,
        known.gain(
            scope.gpu_part(copies["gpu_ns"] / scope.devices)
            + scope.idle_part(min(copies["gaps_ns"], copies["host_ns"])),
            "the copies, and gaps around their calls",
        ),
        "Copy masks with non_blocking=True, on a stream of their own." if copies_pinned(known) else "",
        part_of=("constraint", "mask_idle", "host_copies"),
    )


@rule(
    id="mask_syncs",
    title="The CPU waits for the GPU between logits and token",
    fix="Avoid .item(), .tolist(), .cpu() and nonzero in processors and masks. Keep what they need on the host.",
    explanation="A host sync drains the queue: the GPU has nothing to do until the CPU has launched again.",
    query="sync_phases",
    needs=("gpu",),
    rests_on=("gpu_idle", "host_time"),
)
def mask_syncs(known: TraceFacts) -> FindingEvidence | None:
    """Fire where masks or logits processors of an engine have a host sync in every second step.

    A sync that copies a mask does not count.

    Gain: their time, at most the idle time of the GPU.
    """
    # Without any, the tables of the other query need not be made.
    rows = known.rows(_SYNCS) if known.row(_ANY_SYNCS)["count"] else []
    count, time_ns = sum(row["count"] for row in rows), sum(row["time_ns"] for row in rows)
    steps = rows[0]["steps"] if rows else 0
    if not steps or count < _LEAST_SYNCS_PER_STEP * steps:
        return None
    where = ", ".join(f"{row['phase']} {count_text(row['count'])}" for row in rows)
    return FindingEvidence(
        f"{counted(count, 'host sync')} in {counted(steps, 'step')}, {number_text(count / steps)} per step, "
        f"{time_text(time_ns)} in all: {where}",
        {"syncs": count, "sync_ns": time_ns, "steps": steps},
        known.gain(min(known.scope.host_part(time_ns), known.scope.idle_ratio), "host syncs, and idle time"),
        part_of=("host_syncs",),
    )


@rule(
    id="mask_apply_on_host",
    title="Masks are applied on the CPU, though a GPU computes the logits",
    fix="Copy the bit masks to the GPU, and apply them there with one kernel.",
    explanation="Logits have a number for each vocabulary entry, masks a bit.",
    query="SELECT phase, host_ns, launches, kernels FROM molprof_phase_work WHERE phase = 'mask_apply'",
    needs=("masks", "gpu", "launches"),
    rests_on=("gpu_work", "links", "host_time"),
)
def mask_apply_on_host(known: TraceFacts) -> FindingEvidence | None:
    """Fire where applying masks copies logits to the host, 4 kB or more, or launches nothing on the GPU.

    Gain: the time of applying in which no device worked.
    """
    applying = known.row(_APPLYING)
    count, copies = applying["count"], applying["copies"]
    copied = 2 * copies >= count and applying["bytes"] >= _LEAST_LOGITS_BYTES * copies > 0
    if not count or (applying["launches"] and not copied):
        return None
    how = (
        f"{bytes_text(applying['bytes'])} of logits copied to the host in {count_text(copies)} copies"
        if copied
        else "no kernel launched"
    )
    return FindingEvidence(
        f"masks were applied {count_text(count)} times, in {time_text(applying['host_ns'])}: {how}",
        applying,
        known.gain(known.scope.host_part(applying["exposed_ns"]), "applying of masks while no device works"),
        part_of=("constraint",),
    )
