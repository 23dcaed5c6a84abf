"""Copies: from the host in every step, of whole logits tensors (batch x vocabulary), and of the KV cache that grows by
concatenation."""

from __future__ import annotations

import numpy as np

from molprof.analysis.findings.operators import Operators, operators_named
from molprof.analysis.findings.rule import Found, Known, rule
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import bytes_text, count_text, number_text, short_name, time_text

LEAST_FROM_HOST_PER_STEP = 1
_FROM_HOST = Query(
    "step_placement",
    """
INCLUDE PERFETTO MODULE molprof.memory_copies;
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.launches;
INCLUDE PERFETTO MODULE molprof.steps;
SELECT COUNT() AS count, IFNULL(SUM(copy.dur), 0) AS gpu_ns, IFNULL(SUM(call.dur), 0) AS host_ns,
  IFNULL(SUM(copy.bytes), 0) AS bytes, (SELECT COUNT() FROM molprof_any_step) AS steps
FROM molprof_memory_copy AS copy
JOIN molprof_gpu_call AS call ON call.id = copy.call_id
JOIN molprof_call_step AS place ON place.id = call.id
WHERE copy.direction = 'HtoD'
""",
)

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
_CATS_AND_ATTENTION = operators_named(
    _CAT,
    "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_*attention*",
    "flash_attn*::_flash_attn*forward*",
    "aten::softmax",  # eager attention
)
# Before the cache, rotating queries and keys concatenates twice in each layer.
_CATS_OF_ROTATION = 2
_CATS_OF_CACHE = 2


@rule(
    id="host_copies",
    title="Every step copies data from the host to the GPU",
    fix="Create tensors on the device once, before the loop. Use pinned memory and non_blocking=True for the rest.",
    explanation="From pageable memory the call returns only when the copy is done, so the CPU cannot run ahead.",
    query="memory_copies",
    needs=("gpu",),
    rests_on=("gpu_work", "links", "steps"),
    queries=(_FROM_HOST,),
)
def host_copies(known: Known) -> Found | None:
    scope, copies = known.scope, known.row(_FROM_HOST)
    if not copies["steps"] or copies["count"] < LEAST_FROM_HOST_PER_STEP * copies["steps"]:
        return None
    return Found(
        f"{count_text(copies['count'])} copies, {number_text(copies['count'] / copies['steps'])} per step, "
        f"{bytes_text(copies['bytes'])} in all: {time_text(copies['gpu_ns'])} on the GPU, "
        f"{time_text(copies['host_ns'])} in their calls",
        copies,
        known.gain(
            scope.gpu_part(copies["gpu_ns"] / scope.devices) + scope.host_part(copies["host_ns"]),
            "the copies and their calls",
        ),
    )


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
def vocabulary_copies(known: Known) -> Found | None:
    """Sizes are not recorded, but nothing else in these phases takes as long as a copy of all logits in fast memory.

    Gain: the time of those copies on the GPU, and of copying operators on the host.
    """
    run, scope, on_gpu = known.run, known.scope, known.run.window.gpu_recorded
    steps = scope.steps or 0
    rows = min(run.setup.batch_size, run.molecules)
    moved_bytes = 2 * rows * run.setup.logits_width * _BYTES_PER_LOGIT
    operators = known.operators(_COPIES).within(_PHASES)
    if on_gpu:
        least_ns = max(_LEAST_GPU_NS, round(moved_bytes / _FASTEST_GPU_BYTES_PER_NS))
        kernels = known.rows(Query("kernel_classes", _KERNELS.format(least=least_ns)))
        count, time_ns = (sum(row[column] for row in kernels) for column in ("count", "time_ns"))
    else:
        least_ns = max(_LEAST_CPU_NS, round(moved_bytes / _FASTEST_CPU_BYTES_PER_NS))
        operators = operators.where(operators.ends - operators.starts >= least_ns)
        count, time_ns = len(operators), operators.host_ns()
    if not count or count < _LEAST_OF_LOGITS_PER_STEP * steps:
        return None
    name = short_name(kernels[0]["name"]) if on_gpu else _longest(operators)
    return Found(
        f"{count_text(count)} copies in processor and sampling, {number_text(count / steps)} per step, take "
        f"{time_text(least_ns)} or longer, enough for {rows} x {count_text(run.setup.logits_width)} logits: "
        f"{time_text(time_ns)} in all, most of it in {name}",
        {
            "copies_per_step": count / steps,
            "copy_ns": time_ns,
            "least_ns": least_ns,
            "rows": rows,
            "logits_width": run.setup.logits_width,
        },
        known.gain(
            scope.host_parts(operators.host_times(_PHASES)) + (scope.gpu_part(time_ns) if on_gpu else 0),
            "the copies on GPU and host",
        ),
    )


def _longest(operators: Operators) -> str:
    """The name that takes most of the time."""
    names, places = np.unique(operators.names.astype(str), return_inverse=True)
    return str(names[np.bincount(places, operators.ends - operators.starts).argmax()])


@rule(
    id="cache_concatenation",
    title="The KV cache is copied for every token",
    fix="Use a static cache, which writes new keys and values in place. Do not count its compile time.",
    explanation="In every layer and step, a dynamic cache copies all keys and values so far.",
    query="SELECT ts, dur, name FROM slice WHERE name = 'aten::cat' ORDER BY dur DESC, ts LIMIT 50",
    needs=("time",),
    rests_on=("gpu_time", "links", "host_time"),
    queries=(_CATS_AND_ATTENTION,),
)
def cache_concatenation(known: Known) -> Found | None:
    """Gain: the time of the two concatenations before each attention, on the GPU and on the host."""
    run, scope = known.report.run, known.scope
    # molprof's own loop writes into the cache in place, whatever its kind.
    if run is not None and (run.setup.cache != "dynamic" or run.setup.own_loop):
        return None
    needed = _CATS_OF_CACHE if run is not None else _CATS_OF_CACHE + _CATS_OF_ROTATION
    cats, layers = _before_attention(known.operators(_CATS_AND_ATTENTION), needed, run is not None)
    if not layers:
        return None
    count, gpu_ns = cats.launched(known.engine)
    host_ns = cats.host_ns()
    on_gpu = f", {count_text(count)} kernels, {time_text(gpu_ns)} in all" if scope.devices else ""
    return Found(
        f"{number_text(len(cats) / layers)} aten::cat before each of {count_text(layers)} attention calls: "
        f"{time_text(host_ns)} on the host{on_gpu}",
        {
            "concatenations": len(cats),
            "attention_calls": layers,
            "host_ns": host_ns,
            "gpu_ns": gpu_ns,
            "kernels": count,
        },
        known.gain(
            scope.host_part(host_ns, "forward") + scope.gpu_part(gpu_ns), "those concatenations on GPU and host"
        ),
    )


def _before_attention(operators: Operators, needed: int, in_forward: bool) -> tuple[Operators, int]:
    """The last two concatenations before each attention that at least `needed` come before, and how many such."""
    if in_forward:
        operators = operators.within(("forward",))
    chosen: list[int] = []
    layers = 0
    for place in dict.fromkeys(operators.places.tolist()):
        waiting: list[int] = []
        for index in np.flatnonzero(operators.places == place).tolist():
            if operators.names[index] == _CAT:
                waiting.append(index)
                continue
            if len(waiting) >= needed:
                chosen.extend(waiting[-_CATS_OF_CACHE:])
                layers += 1
            waiting = []
    return operators.where(np.array(sorted(chosen), dtype=np.int64)), layers
