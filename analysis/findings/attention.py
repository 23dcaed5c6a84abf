"""Attention: too small a share for another kernel to matter, or prevented from using the flash kernel by a mask."""

from __future__ import annotations

from molprof.analysis.findings.operators import operators_named
from molprof.analysis.findings.rule import Found, Known, rule
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import count_text, counted, percent_text, time_text

# Below this share even attention that takes no time would gain little.
SMALL_SHARE = 0.1

_ANY = operators_named("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_*attention*")
_SLOW = operators_named("aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_attention_math")
_FAST = operators_named("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_cudnn_attention")
_PHASES = ("forward", "prefill")
_TOTAL = """
INCLUDE PERFETTO MODULE molprof.placement;
SELECT
  IFNULL(SUM(work.time_ns) FILTER (WHERE class.class = 'attention'), 0) AS attention_ns,
  IFNULL(SUM(work.count) FILTER (WHERE class.class = 'attention'), 0) AS count,
  IFNULL(SUM(work.time_ns), 0) AS all_ns,
  IFNULL(SUM(work.count) FILTER (
    WHERE class.class = 'attention' AND (LOWER(work.name) GLOB '*bf16*' OR LOWER(work.name) GLOB '*_f16*'
      OR LOWER(work.name) GLOB '*half*' OR LOWER(work.name) GLOB '*bfloat16*')
  ), 0) AS half
FROM ({work}) AS work
JOIN molprof_work_class AS class ON class.category = work.category AND class.name = work.name
"""
_ALL = Query("kernel_classes", _TOTAL.format(work="SELECT category, name, count, time_ns FROM molprof_work_total"))
_OF_STEPS = Query(
    "kernel_classes",
    _TOTAL.format(
        work="""
  SELECT work.category, work.name, COUNT() AS count, SUM(work.dur) AS time_ns
  FROM molprof_gpu_work AS work
  JOIN molprof_work_phase AS place ON place.id = work.id
  JOIN molprof_phase AS phase ON phase.id = place.phase_id AND phase.step IS NOT NULL
  GROUP BY work.category, work.name
"""
    ),
)


def attention_ratio(known: Known) -> float | None:
    """Amdahl's bound on the gain of another attention kernel; None without attention."""
    scope = known.scope
    if scope.devices:
        totals = _totals(known)
        return scope.gpu_part(totals["attention_ns"] / scope.devices) if totals["count"] else None
    return scope.host_parts(_host_times(known)) or None


def _totals(known: Known) -> dict[str, int]:
    return known.row(_ALL if known.report.run is None else _OF_STEPS)


def _host_times(known: Known) -> list[tuple[int, str]]:
    """Time in the operators by phase, ns; all of it as forward in a foreign trace, which has no phases."""
    operators = known.operators(_ANY)
    return operators.host_times(_PHASES) if known.report.run is not None else [(operators.host_ns(), "forward")]


@rule(
    id="attention_small",
    title="A faster attention kernel cannot gain much",
    fix="None needed. Look at the other findings before comparing attention kernels.",
    explanation="Amdahl's law: attention that takes no time would gain this share and no more.",
    query="attention",
    needs=("time",),
    rests_on=("gpu_work", "gpu_time"),
    least_gain=0,
    queries=(_ALL,),
    run_queries=(_OF_STEPS,),
)
def attention_small(known: Known) -> Found | None:
    scope = known.scope
    gain = attention_ratio(known)
    if not scope.devices:
        times = _host_times(known)
        if not gain or gain >= SMALL_SHARE:
            return None
        return Found(
            f"scaled_dot_product_attention takes {'; '.join(scope.host_text(*time) for time in times)}",
            {"attention_ns": sum(time_ns for time_ns, _ in times), "recorded_ns": scope.recorded_ns},
            known.gain(gain, "time in attention"),
        )
    totals = _totals(known)
    attention_ns, all_ns, count = totals["attention_ns"], totals["all_ns"], totals["count"]
    if gain is None or not all_ns or attention_ns >= SMALL_SHARE * all_ns:
        return None
    return Found(
        f"{counted(count, 'attention kernel')} take{'s' if count == 1 else ''} {time_text(attention_ns)}: "
        f"{percent_text(attention_ns / all_ns)} of the GPU's work, "
        f"{percent_text(gain / scope.wall_ratio)} of {scope.base_text}"
        + (f", on each of {scope.devices} devices" if scope.devices > 1 else ""),
        {"attention_ns": attention_ns, "gpu_ns": all_ns, "kernels": count},
        known.gain(gain, "time in attention"),
    )


@rule(
    id="mask_rules_out_flash",
    title="A mask prevents flash attention",
    fix="Batch by length and drop the mask (is_causal), or pack rows without padding (flash_attention_2).",
    explanation="The flash kernel of SDPA takes no mask but the causal one, and padding adds another.",
    query="attention",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    queries=(_ALL, _SLOW),
    run_queries=(_OF_STEPS,),
)
def mask_rules_out_flash(known: Known) -> Found | None:
    """With 16-bit numbers and heads up to 256, only a mask rules out flash and cuDNN where torch is free to choose.

    Gain: GPU time of the work launched inside the slow operators.
    """
    run = known.report.run
    if run is not None and (run.setup.attention != "sdpa" or run.setup.dtype not in ("float16", "bfloat16")):
        return None
    slow = known.operators(_SLOW)
    if not len(slow) or len(known.operators(_FAST)) or (run is None and not _totals(known)["half"]):
        return None
    count, gpu_ns = slow.launched(known.engine)
    names = sorted(set(slow.names.tolist()))
    return Found(
        f"{count_text(len(slow))} calls of {', '.join(names)} and none of flash attention, with 16-bit numbers and "
        f"torch free to choose: {time_text(gpu_ns)} in {counted(count, 'kernel')}",
        {"calls": len(slow), "kernels": count, "gpu_ns": gpu_ns},
        known.gain(known.scope.gpu_part(gpu_ns / known.scope.devices), "work of the slow operators"),
        "Pack rows without padding (flash_attention_2)." if run is not None and run.setup.sorted else "",
    )
