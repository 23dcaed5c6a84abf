"""Findings on the logits processor: its largest gain, its loop over rows, its host syncs.

Copies: from the host in every step, of whole logits tensors (batch x vocabulary), and of the KV cache that grows by
concatenation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from molprof.analysis.facts import gaps
from molprof.analysis.facts.intervals import Depth
from molprof.analysis.figures.run_model import PhaseFigures
from molprof.analysis.findings.around import of_calls
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.places import location, placed
from molprof.analysis.findings.rule import (
    ATTENTION,
    FindingEvidence,
    host_ns,
    host_times,
    launched,
    operators_named,
    rule,
    within,
)
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import (
    bytes_text,
    count_text,
    number_text,
    numbered,
    percent_text,
    short_name,
    time_text,
)

PROCESSOR = "processor"
# With fewer rows, as many calls of one operator per step are no proof of a loop.
LEAST_ROWS = 8
LEAST_SYNCS_PER_STEP = 0.5

# Operators that take one row of a tensor. Of each, calls per row in the step with the fewest; the largest of these.
_LOOP = Query(
    "call_phases",
    """
INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.tokens;
WITH
  call AS (
    SELECT phase.batch, phase.step, slice.name, COUNT() AS calls
    FROM molprof_call_phase AS place
    JOIN molprof_phase AS phase ON phase.id = place.phase_id
    JOIN slice ON slice.id = place.id
    WHERE phase.phase = 'processor' AND slice.name IN ('aten::select', 'aten::slice', 'aten::index_put_')
    GROUP BY phase.batch, phase.step, slice.name
  ),
  size AS (
    SELECT batch, COUNT() AS rows FROM molprof_sequence GROUP BY batch
  ),
  steps AS (
    SELECT COUNT() AS steps FROM molprof_phase WHERE phase = 'processor'
  )
SELECT call.name, MIN(size.rows) AS rows, SUM(call.calls) AS calls, MIN(1.0 * call.calls / size.rows) AS calls_per_row
FROM call JOIN size USING (batch)
GROUP BY call.name
HAVING COUNT() = (SELECT steps FROM steps)
ORDER BY calls_per_row DESC, call.name
LIMIT 1
""",
)
# A GPU that is idle for a larger share of the steps has no work left when the host comes to wait for it.
_KEEPS_UP = 0.5
LEAST_FROM_HOST_PER_STEP = 1
# Copies from the host in steps that block: of pinned memory only those that do not return before they are done.
_FROM_HOST = Query(
    "step_placement",
    """
INCLUDE PERFETTO MODULE molprof.memory_copies;
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.steps;
SELECT copy.dur, IFNULL(copy.bytes, 0) AS bytes, call.id, call.ts, call.dur AS call_ns
FROM molprof_memory_copy AS copy
JOIN molprof_gpu_call AS call ON call.id = copy.call_id
JOIN molprof_call_step AS place ON place.id = call.id
JOIN slice ON slice.id = copy.id
WHERE
  copy.direction = 'HtoD'
  AND (slice.name GLOB '*Pageable*' OR NOT slice.name GLOB '*Pinned*' AND NOT call.name GLOB '*Async*')
""",
)
_STEPS = Query("steps", "SELECT COUNT() AS steps FROM molprof_any_step")

_PHASES = ("processor", "sampling")
# transformers hands processors and sampling a float32 copy of the last logits.
_BYTES_PER_LOGIT = 4
# No memory is faster, so a shorter call did not copy all logits. Even an empty call takes the least time.
_FASTEST_GPU_BYTES_PER_NS, _LEAST_GPU_NS = 8000, 3_000
_FASTEST_CPU_BYTES_PER_NS, _LEAST_CPU_NS = 500, 50_000
_LEAST_OF_LOGITS_PER_STEP = 0.5
_COPIES = operators_named(
    "aten::copy_", "aten::clone", "aten::masked_fill", "aten::where", "aten::index", "aten::index_put_"
)
_KERNELS = """
INCLUDE PERFETTO MODULE molprof.placement;
SELECT work.name, COUNT() AS count, SUM(work.dur) AS time_ns
FROM molprof_work_phase AS place
JOIN molprof_gpu_work AS work ON work.id = place.id
JOIN molprof_phase AS phase ON phase.id = place.phase_id
JOIN molprof_work_class AS class ON class.category = work.category AND class.name = work.name
WHERE phase.phase IN ('processor', 'sampling') AND class.class IN ('copy', 'memcpy DtoD') AND work.dur >= {least}
GROUP BY work.name
ORDER BY time_ns DESC, work.name
"""

_CAT = "aten::cat"
# `aten::softmax` stands for eager attention.
_CATS_AND_ATTENTION = operators_named(_CAT, *ATTENTION, "flash_attn*::_flash_attn*forward*", "aten::softmax")
# Before the cache, rotating queries and keys concatenates twice in each layer.
_CATS_OF_ROTATION = 2
_CATS_OF_CACHE = 2


def waiting_ns(phase: PhaseFigures) -> int:
    """Return time in host syncs while the GPU was busy: without the sync, a later phase waits for that work."""
    return 0 if phase.bound is None else max(0, (phase.sync_ns or 0) - phase.bound.sync_idle_ns)


def delaying_gpu_ns(known: TraceFacts) -> int:
    """Return GPU time of the processor that may delay the host after it.

    A GPU that is idle most of the time keeps up with the host, which then waits for it in host syncs alone.
    """
    run, scope = known.run, known.scope
    gpu_ns = run.phases[PROCESSOR].gpu_ns or 0
    if scope.idle_ratio < _KEEPS_UP * scope.wall_ratio:
        return gpu_ns
    return min(gpu_ns, sum(waiting_ns(phase) for name, phase in run.phases.items() if name != PROCESSOR))


def gain_of_processor(known: TraceFacts) -> float:
    """Return the gain of a processor without cost: its host time, and its GPU time that may delay the host after it.

    Waiting for a busy GPU counts up to the GPU's idle time: the GPU's work remains.
    """
    phase, scope = known.run.phases[PROCESSOR], known.scope
    for_gpu_ns = waiting_ns(phase)
    on_host = scope.host_part((phase.host_ns or 0) - for_gpu_ns, PROCESSOR)
    waiting = min(scope.host_part(for_gpu_ns, PROCESSOR), scope.idle_ratio)
    return min(1.0, on_host + waiting + scope.gpu_part(delaying_gpu_ns(known)))


def row_loop(known: TraceFacts) -> dict[str, Any] | None:
    """Return the operator that takes single rows, at least once per row in every step: name, rows, calls.

    None without one.
    """
    operator = next(iter(known.rows(_LOOP)), None)
    return None if operator is None or operator["rows"] < LEAST_ROWS or operator["calls_per_row"] < 1 else operator


@rule(
    id="row_masking",
    title="The logits processor masks row by row",
    fix="Use one tensor operation over the batch instead of a loop over its rows.",
    explanation="A loop repeats the same small operations for every row, so its cost grows with the batch.",
    query=(
        "SELECT phase.step, slice.name, COUNT() AS calls FROM molprof_call_phase AS place"
        " JOIN molprof_phase AS phase ON phase.id = place.phase_id JOIN slice ON slice.id = place.id"
        " WHERE phase.phase = 'processor' AND slice.category = 'cpu_op' GROUP BY phase.step, slice.name"
        " ORDER BY phase.step, calls DESC, slice.name"
    ),
    needs=("processor", "time"),
    rests_on=("host_time",),
)
def row_masking(known: TraceFacts) -> FindingEvidence | None:
    """Fire where every step takes single rows at least once per row, with 8 rows or more.

    Rows are taken by `aten::select`, `aten::slice` or `aten::index_put_`.

    Gain: all but one row's part, because masks of the whole batch cost at least as much as one row's.
    """
    if (operator := row_loop(known)) is None:
        return None
    rows, calls, calls_per_row = operator["rows"], operator["calls"], operator["calls_per_row"]
    phase, steps = known.run.phases[PROCESSOR], known.run.window.steps
    figures: dict[str, int | float] = {
        "rows": rows,
        "calls_per_step": calls / steps,
        "least_calls_per_row": calls_per_row,
        "leaf_operators_per_step": (phase.leaf_operators or 0) / steps,
    }
    work = f"{numbered(figures['leaf_operators_per_step'], 'leaf operator')} per step"
    if phase.launches is not None:
        figures["launches_per_step"] = phase.launches / steps
        work = f"{numbered(figures['launches_per_step'], 'launch', 'es')} per step"
    if after := known.scope.gpu_part(delaying_gpu_ns(known)):
        figures["delaying_gpu_ratio"] = after
        work += f"; its GPU work may delay later phases by up to {percent_text(after)} of the time"
    return FindingEvidence(
        f"{operator['name']} runs {number_text(calls / steps)} times per step in the processor, at least "
        f"{count_text(calls_per_row * rows)} times for {count_text(rows)} rows; {work}",
        figures,
        known.gain((1 - 1 / rows) * gain_of_processor(known), "the processor except for one row's part"),
        part_of=("constraint",),
    )


@rule(
    id="processor_syncs",
    title="The logits processor waits for the GPU",
    fix="Avoid .item(), .tolist(), .cpu(), nonzero and branches on tensors. Keep positions as Python ints.",
    explanation="A host sync drains the queue: the GPU has nothing to do until the CPU has launched again.",
    query="sync_phases",
    needs=("processor", "time"),
    rests_on=("host_time", "gpu_idle"),
)
def processor_syncs(known: TraceFacts) -> FindingEvidence | None:
    """Fire where the processor has a host sync in at least every second step.

    Gain: their time, at most the GPU's idle time: without them the CPU runs ahead, but the GPU's work remains.
    """
    phase, steps = known.run.phases[PROCESSOR], known.run.window.steps
    if not phase.syncs or not steps or phase.syncs < LEAST_SYNCS_PER_STEP * steps:
        return None
    sync_ns = phase.sync_ns or 0
    evidence = FindingEvidence(
        f"{numbered(phase.syncs / steps, 'host sync')} per step in the processor, "
        f"{time_text(sync_ns / steps)} per recorded step",
        {"syncs_per_step": phase.syncs / steps, "sync_ns": sync_ns, "steps": steps},
        known.gain(min(known.scope.host_part(sync_ns, PROCESSOR), known.scope.idle_ratio), "host syncs, and idle time"),
        part_of=("constraint",),
    )
    facts = known.facts
    is_there = [facts.phase_names.get(number) == PROCESSOR for number in facts.call_phases[facts.syncs].tolist()]
    syncs = facts.syncs[np.array(is_there, dtype=bool)]
    return placed(evidence, location(known, of_calls(known, syncs, (facts.calls.ts_end - facts.calls.ts)[syncs])))


def _copies_from_host(known: TraceFacts) -> dict[str, int | float]:
    """Return number and times of copies from the host in steps, and the idle time in their calls."""
    rows, idle = known.frame(_FROM_HOST), known.facts.idle
    dur, size, ts, call_ns = (rows[name].astype(np.int64) for name in ("dur", "bytes", "ts", "call_ns"))
    until = np.where(idle.queue == gaps.NOTHING, idle.ts_end, idle.host_end)
    windows = np.flatnonzero((idle.position == 0) & (idle.queue > gaps.QUEUED))
    depth = Depth(np.zeros_like(windows), idle.ts[windows], until[windows])
    return {
        "count": len(rows), "gpu_ns": int(dur.sum()), "host_ns": int(call_ns.sum()), "bytes": int(size.sum()),
        "steps": known.row(_STEPS)["steps"], "idle_ns": int(depth.time(0, ts, ts + call_ns).sum()),
    }  # fmt: skip


def copies_in_steps(known: TraceFacts) -> bool:
    """Return True if every step waits for copies from the host."""
    copies = _copies_from_host(known)
    return bool(copies["steps"]) and copies["count"] >= LEAST_FROM_HOST_PER_STEP * copies["steps"]


@rule(
    id="host_copies",
    title="Every step waits for copies from the host to the GPU",
    fix="Create tensors on the device once, before the loop. Use pinned memory and non_blocking=True for the rest.",
    explanation="From pageable memory the call returns only when the copy is done, so the CPU cannot run ahead.",
    query="memory_copies",
    needs=("gpu",),
    rests_on=("gpu_work", "links", "steps"),
)
def host_copies(known: TraceFacts) -> FindingEvidence | None:
    """Fire where every step copies from pageable memory to the device, or in calls that block.

    Gain: the copies, and the time in their calls with nothing queued.
    """
    scope, copies = known.scope, _copies_from_host(known)
    if not copies_in_steps(known):
        return None
    evidence = FindingEvidence(
        f"{count_text(copies['count'])} copies, {number_text(copies['count'] / copies['steps'])} per step, "
        f"{bytes_text(copies['bytes'])} in all: {time_text(copies['gpu_ns'])} on the GPU, "
        f"{time_text(copies['host_ns'])} in their calls, {time_text(copies['idle_ns'])} of it with nothing queued",
        copies,
        known.gain(
            scope.gpu_part(copies["gpu_ns"] / scope.devices) + scope.idle_part(copies["idle_ns"]),
            "the copies, and the idle time in their calls",
        ),
        # What the GPU copies meanwhile is no idle time.
        part_of=("host_syncs", "host_work", "launch_bound") if copies["idle_ns"] >= copies["gpu_ns"] else (),
    )
    rows = known.frame(_FROM_HOST)
    calls, call_ns = known.facts.calls.index(rows["id"].astype(np.int64)), rows["call_ns"].astype(np.int64)
    return placed(evidence, location(known, of_calls(known, calls, call_ns)))


@rule(
    id="vocabulary_copies",
    title="Whole logits tensors are copied",
    fix="Mask in place (masked_fill_, index_fill_) in one tensor, without a clone or a tensor of -inf per step.",
    explanation="A copy reads and writes one number per row and vocabulary entry, far more than a mask changes.",
    query=(
        "SELECT phase.phase, slice.name, COUNT() AS calls, SUM(slice.dur) AS time_ns, MAX(slice.dur) AS longest_ns"
        " FROM molprof_call_phase AS place JOIN molprof_phase AS phase ON phase.id = place.phase_id"
        " JOIN slice ON slice.id = place.id WHERE phase.phase IN ('processor', 'sampling')"
        " GROUP BY phase.phase, slice.name ORDER BY time_ns DESC, slice.name"
    ),
    needs=("steps",),
    rests_on=("gpu_time", "links", "steps"),
)
def vocabulary_copies(known: TraceFacts) -> FindingEvidence | None:
    """Fire where at least every second step copies logits in processor or sampling.

    A copy counts if it takes as long as the fastest memory needs for rows x logits width x 4 bytes (8 TB/s and 3 µs on
    a GPU, 0.5 TB/s and 50 µs on a CPU).

    Gain: the copies, on GPU and host.

    Sizes are not recorded, but nothing else in these phases takes as long as a copy of all logits in fast memory.
    """
    run, scope, on_gpu = known.run, known.scope, known.run.window.gpu_recorded
    steps = scope.steps or 0
    rows = min(run.setup.batch_size, run.molecules)
    if run.setup.logits_width is None:
        return None
    moved_bytes = 2 * rows * run.setup.logits_width * _BYTES_PER_LOGIT
    operators = within(known, known.frame(_COPIES), *_PHASES)
    if on_gpu:
        least_ns = max(_LEAST_GPU_NS, round(moved_bytes / _FASTEST_GPU_BYTES_PER_NS))
        kernels = known.rows(Query("kernel_classes", _KERNELS.format(least=least_ns)))
        count, time_ns = (sum(row[column] for row in kernels) for column in ("count", "time_ns"))
    else:
        least_ns = max(_LEAST_CPU_NS, round(moved_bytes / _FASTEST_CPU_BYTES_PER_NS))
        operators = operators.where(operators["ts_end"] - operators["ts"] >= least_ns)
        count, time_ns = len(operators), host_ns(operators)
    if not count or count < _LEAST_OF_LOGITS_PER_STEP * steps:
        return None
    if on_gpu:
        longest = short_name(kernels[0]["name"])
    else:
        names, name_of = np.unique(operators["name"].astype(str), return_inverse=True)
        longest = names[np.bincount(name_of, operators["ts_end"] - operators["ts"]).argmax()]
    return FindingEvidence(
        f"{count_text(count)} copies in processor and sampling, {number_text(count / steps)} per step, take "
        f"{time_text(least_ns)} or longer, enough for {rows} x {count_text(run.setup.logits_width)} logits: "
        f"{time_text(time_ns)} in all, most of it in {longest}",
        {
            "copies_per_step": count / steps,
            "copy_ns": time_ns,
            "least_ns": least_ns,
            "rows": rows,
            "logits_width": run.setup.logits_width,
        },
        known.gain(
            scope.host_parts(host_times(known, operators, _PHASES)) + (scope.gpu_part(time_ns) if on_gpu else 0),
            "the copies on GPU and host",
        ),
    )


@rule(
    id="cache_concatenation",
    title="The KV cache is copied for every token",
    fix="Use a static cache, which writes new keys and values in place. Do not count its compile time.",
    explanation="In every layer and step, a dynamic cache copies all keys and values so far.",
    query="SELECT ts, dur, name FROM slice WHERE name = 'aten::cat' ORDER BY dur DESC, ts LIMIT 50",
    needs=("time",),
    rests_on=("gpu_time", "links", "host_time"),
)
def cache_concatenation(known: TraceFacts) -> FindingEvidence | None:
    """Fire where the last two `aten::cat` before each attention belong to a dynamic cache.

    In a foreign trace, four or more precede it: rotating queries and keys takes two.

    Gain: the time of the two concatenations before each attention, on the GPU and on the host.
    """
    run, scope = known.report.run, known.scope
    # molprof's own loop writes into the cache in place, whatever its kind.
    if run is not None and (run.setup.cache != "dynamic" or run.setup.own_loop):
        return None
    operators, needed = known.frame(_CATS_AND_ATTENTION), _CATS_OF_CACHE + _CATS_OF_ROTATION
    if run is not None:
        operators, needed = within(known, operators, "forward"), _CATS_OF_CACHE
    # The last concatenations before each attention that enough of them come before.
    chosen: list[int] = []
    layers = 0
    for thread in dict.fromkeys(operators["thread"].tolist()):
        waiting: list[int] = []
        for index in np.flatnonzero(operators["thread"] == thread).tolist():
            if operators["name"][index] == _CAT:
                waiting.append(index)
                continue
            if len(waiting) >= needed:
                chosen.extend(waiting[-_CATS_OF_CACHE:])
                layers += 1
            waiting = []
    if not layers:
        return None
    cats = operators.where(np.array(sorted(chosen)))
    (count, gpu_ns), cats_ns = launched(known.engine, cats), host_ns(cats)
    on_gpu = f", {count_text(count)} kernels, {time_text(gpu_ns)} in all" if scope.devices else ""
    return FindingEvidence(
        f"{number_text(len(cats) / layers)} aten::cat before each of {count_text(layers)} attention calls: "
        f"{time_text(cats_ns)} on the host{on_gpu}",
        {
            "concatenations": len(cats),
            "attention_calls": layers,
            "host_ns": cats_ns,
            "gpu_ns": gpu_ns,
            "kernels": count,
        },
        known.gain(
            scope.host_part(cats_ns, "forward") + scope.gpu_part(gpu_ns), "those concatenations on GPU and host"
        ),
    )
