"""The GPU is idle, or waits for kernel launches, where graphs are unused or broken; attention is small or slow."""

from __future__ import annotations

from typing import Any

from molprof.analysis.figures.model import IDLE_CAUSES, Gain
from molprof.analysis.findings.rule import ATTENTION, Found, Known, host_ns, host_times, launched, operators_named, rule
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import count_text, counted, number_text, per, percent_text, time_text

# Share of unprofiled time in which devices are idle.
LEAST_IDLE_RATIO = 0.5
# Share of the time that waits for launches take in a launch-bound run.
LEAST_LAUNCH_RATIO = 0.2
# Python and torch take 5 to 200 us per operator under the profiler. In a longer gap the CPU does something else.
LONGEST_GAP_NS = 1_000_000
# Fewer launches per step besides graphs are normal: inputs, sampling.
LEAST_LAUNCHES_PER_STEP = 20
# Share of kernels outside graphs, from which graphs count as broken.
LEAST_KERNEL_RATIO = 0.2

_GAP = """
FROM (SELECT * FROM molprof_idle_gap) AS gap
JOIN molprof_gpu_work_call AS link ON link.work_id = gap.next_id
JOIN molprof_gpu_call AS call ON call.id = link.call_id AND call.kind = 'launch'
"""
_CHOSEN = f"WHERE gap.dur <= {LONGEST_GAP_NS}"
# In a foreign trace all gaps lie in the recorded time.
_SUMS = Query(
    "idle_causes",
    "INCLUDE PERFETTO MODULE molprof.work_calls;\n"
    f"SELECT COUNT() AS count, IFNULL(SUM(gap.dur), 0) AS time_ns {_GAP} {_CHOSEN}",
)
_GAPS = Query(
    "idle_causes",
    f"""
INCLUDE PERFETTO MODULE molprof.placement;
INCLUDE PERFETTO MODULE molprof.work_calls;
SELECT gap.ts, gap.ts + gap.dur AS ts_end, phase.phase
{_GAP}
LEFT JOIN molprof_work_phase AS place ON place.id = gap.next_id
LEFT JOIN molprof_phase AS phase ON phase.id = place.phase_id
{_CHOSEN}
ORDER BY gap.ts
""",
)
# Of decode steps. In a captured run only of the forward phase, because a graph holds nothing else.
_GRAPHS_OF_RUN = Query(
    "phase_work",
    """
INCLUDE PERFETTO MODULE molprof.placement;
SELECT COUNT() AS steps, SUM(launches) AS launches, SUM(graph_launches) AS graph_launches,
  (SELECT COUNT() FROM molprof_work_phase AS place
   JOIN molprof_gpu_work AS work ON work.id = place.id
   JOIN molprof_gpu_call AS call ON call.id = work.call_id
   JOIN molprof_phase AS phase ON phase.id = place.phase_id
   WHERE call.kind = 'graph_launch' AND work.category = 'kernel' AND phase.phase = 'forward') AS graph_kernels,
  SUM(kernels) AS kernels
FROM molprof_phase_work
WHERE phase = 'forward'
""",
)
_GRAPHS_OF_STEPS = Query(
    "step_launches",
    """
INCLUDE PERFETTO MODULE molprof.work_calls;
SELECT SUM(steps) AS steps, SUM(launches) AS launches, SUM(graph_launches) AS graph_launches,
  (SELECT IFNULL(SUM(started.kernels), 0) FROM _molprof_graph_call AS call
   CROSS JOIN molprof_call_work AS started ON started.call_id = call.id
   CROSS JOIN molprof_call_step AS place ON place.id = call.id
   CROSS JOIN molprof_any_step AS step ON step.id = place.step_id
   WHERE step.kind IN ('decode', 'mixed')) AS graph_kernels,
  SUM(kernels) AS kernels
FROM molprof_step_launch_summary
WHERE kind IN ('decode', 'mixed')
""",
)
# Below this share even attention that takes no time would gain little.
SMALL_SHARE = 0.1

_ANY = operators_named(*ATTENTION)
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


def _gaps(known: Known, phase: str | None = None) -> tuple[int, int, Gain]:
    """Gaps of the recorded time that a launch of `phase` ended, or of any: no host sync, and no graph.

    Their number, their time, and the gain: unprofiled idle time, 1 - busy / base, times their share of recorded idle
    time.
    """
    scope = known.scope
    if scope.run is None:
        number, time_ns = known.row(_SUMS).values()
    else:
        columns = known.frame(_GAPS)
        inside = scope.stretches.covered(columns["ts"], columns["ts_end"])
        if phase is not None:
            inside = inside[columns["phase"] == phase]
        number, time_ns = int((inside > 0).sum()), int(inside.sum())
    return number, time_ns, known.gain(scope.idle_part(time_ns), "gaps that end with a launch")


@rule(
    id="launch_bound",
    title="The GPU waits for kernel launches",
    fix="Launch fewer kernels: graphs (mode='reduce-overhead', a static cache), fused kernels, larger batches.",
    explanation="The CPU takes longer to launch a small operator than the GPU takes to run it.",
    query="idle_causes",
    needs=("gpu", "launches"),
    rests_on=("gpu_idle", "links"),
    least_gain=LEAST_LAUNCH_RATIO,
    of_steps=True,
    queries=(_SUMS,),
    run_queries=(_GAPS,),
)
def launch_bound(known: Known) -> Found:
    scope, (number, gap_ns, gain) = known.scope, _gaps(known)
    busy_ratio = scope.busy_ns / (scope.recorded_ns * scope.devices)
    return Found(
        f"{counted(number, 'gap')}, {time_text(gap_ns)} of {scope.recorded_text}, in which the queue was "
        f"empty and the CPU was preparing the next launch; the GPU was busy for "
        f"{percent_text(busy_ratio)} of that time{scope.caution}",
        {
            "gap_count": number,
            "gap_ns": gap_ns,
            "recorded_ns": scope.recorded_ns,
            "busy_ratio": busy_ratio,
            "launches": known.report.counts.launches,
        },
        gain,
    )


_GRAPH_RULE: dict[str, Any] = {
    "explanation": "A graph replays a whole step with one CPU call. Everything outside it is launched one by one.",
    "needs": ("gpu",),
    "rests_on": ("gpu_idle", "links", "steps", "graphs"),
    "queries": (_GRAPHS_OF_STEPS,),
    "run_queries": (_GRAPHS_OF_RUN,),
}


def _graphs(known: Known) -> tuple[dict[str, int | float], Gain] | None:
    """Figures of decode steps, and the gain of gaps that a launch of the forward phase ends (all, if foreign)."""
    is_run = known.report.run is not None
    counts = known.row(_GRAPHS_OF_RUN if is_run else _GRAPHS_OF_STEPS)
    if not counts["steps"] or counts["launches"] is None:
        return None
    _, gap_ns, gain = _gaps(known, "forward" if is_run else None)
    return {
        "decode_steps": counts["steps"],
        "launches_per_step": counts["launches"] / counts["steps"],
        "graph_launches_per_step": counts["graph_launches"] / counts["steps"],
        "kernels_by_launch": counts["kernels"] - counts["graph_kernels"],
        "kernels_by_graph": counts["graph_kernels"],
        "gap_ns": gap_ns,
    }, gain


@rule(
    id="graphs_unused",
    title="Decoding is launch-bound and uses no graphs",
    fix="Use a static cache and a forward compiled with mode='reduce-overhead'. Warm up before timing.",
    query="step_launches",
    least_gain=LEAST_LAUNCH_RATIO,
    of_steps=True,
    **_GRAPH_RULE,
)
def graphs_unused(known: Known) -> Found | None:
    if (found := _graphs(known)) is None or found[0]["graph_launches_per_step"]:
        return None
    figures, gain = found
    return Found(
        f"{number_text(figures['launches_per_step'])} launches per decode step, no graph launches; the GPU waited"
        f" {time_text(figures['gap_ns'])} for them",
        figures,
        gain,
    )


@rule(
    id="graphs_broken",
    title="Many kernels run outside graphs",
    fix="Find graph breaks (TORCH_LOGS=graph_breaks,cudagraphs), keep shapes fixed, and remove host syncs.",
    query="graphs",
    **_GRAPH_RULE,
)
def graphs_broken(known: Known) -> Found | None:
    if (found := _graphs(known)) is None or not found[0]["graph_launches_per_step"]:
        return None
    figures, gain = found
    plain, launches = figures["kernels_by_launch"], figures["launches_per_step"]
    kernels = plain + figures["kernels_by_graph"]
    ratio = plain / kernels if kernels else 0.0
    if launches < LEAST_LAUNCHES_PER_STEP or ratio < LEAST_KERNEL_RATIO:
        return None
    return Found(
        f"{number_text(launches)} launches per decode step besides {number_text(figures['graph_launches_per_step'])}"
        f" graph launches; they start {count_text(plain)} of {count_text(kernels)} kernels"
        f" ({percent_text(ratio)}); the GPU waited {time_text(figures['gap_ns'])} for them",
        figures,
        gain,
    )


@rule(
    id="gpu_idle",
    title="The GPU is idle most of the time",
    fix=(
        "Less Python, fewer launches, fewer syncs. "
        "The rest: larger batches."
    ),
    explanation="The GPU does not set the time of a step. Faster kernels gain little.",
    query="idle_causes",
    needs=("gpu",),
    rests_on=("gpu_idle",),
    least_gain=LEAST_IDLE_RATIO,
    of_steps=True,
)
def gpu_idle(known: Known) -> Found:
    """Gain: 1 - busy / base, with the unprofiled time of the recorded steps as base."""
    scope = known.scope
    causes: dict[str, tuple[int, int]] = {}
    for _, cause, _, time_ns, _, longest_ns in known.report.table("idle_causes").rows:
        before_ns, before_longest_ns = causes.get(str(cause), (0, 0))
        causes[str(cause)] = (before_ns + int(time_ns or 0), max(before_longest_ns, int(longest_ns or 0)))
    ordered = sorted(causes.items(), key=lambda item: (-item[1][0], item[0]))[:2]
    devices = f"{scope.devices} devices, in all" if scope.devices > 1 else "GPU"
    unprofiled = " unprofiled" if scope.run is not None else ""
    idle_ratio = scope.idle_ratio / scope.wall_ratio
    return Found(
        f"{devices} busy for {time_text(scope.busy_ns)} of {scope.recorded_text}{scope.caution}"
        f", idle {percent_text(idle_ratio)} of the{unprofiled} time"
        + "".join(
            f"; {IDLE_CAUSES.get(cause, cause)}: {time_text(time_ns)}, longest gap {time_text(longest_ns)}"
            for cause, (time_ns, longest_ns) in ordered
        ),
        {
            "busy_ns": scope.busy_ns,
            "recorded_ns": scope.recorded_ns,
            "devices": scope.devices,
            "idle_ratio": idle_ratio,
            **{f"{cause}_ns": time_ns for cause, (time_ns, _) in ordered},
        },
        known.gain(scope.idle_ratio, "idle time of the devices"),
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
    operators = known.frame(_ANY)
    return host_times(operators, _PHASES) if known.report.run is not None else [(host_ns(operators), "forward")]


@rule(
    id="attention_small",
    title="A faster attention kernel cannot gain much",
    fix="None needed. Look at the other findings before comparing attention kernels.",
    explanation="Amdahl's law: attention that takes no time would gain this share and no more.",
    query="attention",
    needs=("time",),
    rests_on=("gpu_work", "gpu_time"),
    least_gain=0,
    note=True,
    queries=(_ALL,),
    run_queries=(_OF_STEPS,),
)
def attention_small(known: Known) -> Found | None:
    scope = known.scope
    if (gain := attention_ratio(known)) is None:
        return None
    figures: dict[str, int | float]
    if scope.devices:
        totals = _totals(known)
        attention_ns, all_ns, count = totals["attention_ns"], totals["all_ns"], totals["count"]
        is_small = attention_ns < SMALL_SHARE * all_ns
        evidence = (
            f"{counted(count, 'attention kernel')} take{'s' if count == 1 else ''} {time_text(attention_ns)}: "
            f"{percent_text(per(attention_ns, all_ns))} of the GPU's work, "
            f"{percent_text(gain / scope.wall_ratio)} of {scope.base_text}"
            + (f", on each of {scope.devices} devices" if scope.devices > 1 else "")
        )
        figures = {"attention_ns": attention_ns, "gpu_ns": all_ns, "kernels": count}
    else:
        times, is_small = _host_times(known), gain < SMALL_SHARE
        evidence = f"scaled_dot_product_attention takes {'; '.join(scope.host_text(*time) for time in times)}"
        figures = {"attention_ns": sum(time_ns for time_ns, _ in times), "recorded_ns": scope.recorded_ns}
    return Found(evidence, figures, known.gain(gain, "time in attention")) if is_small else None


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
    slow = known.frame(_SLOW)
    if not len(slow) or len(known.frame(_FAST)) or (run is None and not _totals(known)["half"]):
        return None
    count, gpu_ns = launched(known.engine, slow)
    names = sorted(set(slow["name"].tolist()))
    return Found(
        f"{count_text(len(slow))} calls of {', '.join(names)} and none of flash attention, with 16-bit numbers and "
        f"torch free to choose: {time_text(gpu_ns)} in {counted(count, 'kernel')}",
        {"calls": len(slow), "kernels": count, "gpu_ns": gpu_ns},
        known.gain(known.scope.gpu_part(gpu_ns / known.scope.devices), "work of the slow operators"),
        "Pack rows without padding (flash_attention_2)." if run is not None and run.setup.sorted else "",
    )
