"""What masks of constrained decoding cost in an engine, from its phases."""

from __future__ import annotations

from molprof.analysis.findings.known import Known
from molprof.analysis.findings.rule import Found, rule
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import counted, percent_text, time_text

_MASKS = ("mask_fill", "mask_fill_per_request", "mask_accept_per_request", "mask_apply")
# Own time of each phase; of a GPU's trace the part in which no device worked.
_TIMES = Query(
    "phase_bound",
    """
SELECT total.phase, total.count, total.time_ns, total.own_ns,
  IFNULL(bound.sync_idle_ns + bound.launch_ns, total.own_ns) AS exposed_ns
FROM molprof_phase_total AS total
LEFT JOIN molprof_phase_bound_summary AS bound ON bound.phase = total.phase
WHERE total.program != 'molprof'
ORDER BY total.phase
""",
)


def _phases(known: Known) -> dict[str, dict[str, int | None]]:
    return {row.pop("phase"): row for row in map(dict, known.rows(_TIMES))}


def _sum(phases: dict[str, dict[str, int | None]], column: str, *names: str) -> int:
    return sum(phases.get(name, {}).get(column) or 0 for name in names)


@rule(
    id="mask_cost",
    title="Masks take a large part of the time",
    fix="Fill masks while the forward runs, for all rows at once; apply them on the device with one kernel.",
    explanation="Before a row's token is sampled, its mask must be filled, and then applied to all its logits.",
    query="phase_times",
    needs=("time",),
    rests_on=("host_time",),
    weight=0.8,
    queries=(_TIMES,),
)
def mask_cost(known: Known) -> Found | None:
    """Fires where an engine fills, accepts or applies masks.

    Gain: the time of filling, accepting and applying; with a GPU, that in which no device worked.
    """
    phases = _phases(known)
    if not (mask_ns := _sum(phases, "own_ns", *_MASKS)):
        return None
    fill_ns = _sum(phases, "time_ns", "mask_fill") or _sum(phases, "time_ns", "mask_fill_per_request")
    apply_ns, forward_ns = _sum(phases, "time_ns", "mask_apply"), _sum(phases, "time_ns", "forward")
    accept_ns = _sum(phases, "time_ns", "mask_accept_per_request")
    return Found(
        f"{time_text(fill_ns)} to fill masks, {time_text(apply_ns)} to apply them, {time_text(accept_ns)} to accept "
        f"tokens, beside {time_text(forward_ns)} of forwards; {percent_text(known.scope.host_part(mask_ns))} of "
        f"{known.scope.recorded_text}",
        {"fill_ns": fill_ns, "apply_ns": apply_ns, "accept_ns": accept_ns, "forward_ns": forward_ns},
        known.gain(known.scope.host_part(_sum(phases, "exposed_ns", *_MASKS)), "time of masks outside GPU work"),
    )


@rule(
    id="mask_fill_serial",
    title="Masks are filled one row after the other",
    fix="Fill the masks of all rows at once or in several threads, as XGrammar's BatchGrammarMatcher does.",
    explanation="The rows of a batch wait for each other's masks, though none depends on another.",
    query="phase_times",
    needs=("time",),
    rests_on=("host_time",),
    weight=0.5,
    queries=(_TIMES,),
)
def mask_fill_serial(known: Known) -> Found | None:
    """Fires where the masks of two rows per step or more are filled one by one.

    Rows that other threads fill do not count. Gain: all filling except that of one average row per step.
    """
    phases = _phases(known)
    steps, rows = _sum(phases, "count", "mask_fill"), _sum(phases, "count", "mask_fill_per_request")
    fill_ns = _sum(phases, "time_ns", "mask_fill")
    rows_ns = fill_ns - _sum(phases, "own_ns", "mask_fill")
    if not rows_ns or rows < 2 * steps:
        return None
    return Found(
        f"{counted(rows, 'row')} in {counted(steps, 'step')}, {time_text(rows_ns / rows)} each, one by one: "
        f"{time_text(rows_ns)} of {time_text(fill_ns)} of filling",
        {"rows_per_step": rows / steps, "row_ns": rows_ns / rows, "fill_ns": fill_ns},
        known.gain(known.scope.host_part(rows_ns * (1 - steps / rows)), "filling of all rows of a step but one"),
        part_of=("mask_cost",),
    )


@rule(
    id="mask_fill_waits",
    title="Masks are not filled while the forward runs",
    fix="Start the forward, then fill the masks on the host, and wait for both before sampling.",
    explanation="The mask of a step depends on the tokens before it, as the forward does, and not on its logits.",
    query="phase_times",
    needs=("time",),
    rests_on=("host_time",),
    weight=0.5,
    queries=(_TIMES,),
)
def mask_fill_waits(known: Known) -> Found | None:
    """Fires where masks are filled while no device works, and there is work that could hide it.

    Gain: the filling, at most the time of that work: of one GPU, else of the forwards, if other cores fill meanwhile.
    """
    phases = _phases(known)
    fill_ns, devices = _sum(phases, "exposed_ns", "mask_fill", "mask_fill_per_request"), known.scope.devices
    forward_ns = known.scope.busy_ns // devices if devices else _sum(phases, "time_ns", "forward")
    if not fill_ns or not forward_ns:
        return None
    beside, behind = ("while no GPU works", "GPU work") if devices else ("in all", "the forwards")
    longer = "longer than" if fill_ns > forward_ns else "no longer than"
    return Found(
        f"filling takes {time_text(fill_ns)} {beside}, {longer} {behind}, {time_text(forward_ns)}",
        {"fill_ns": fill_ns, "forward_ns": forward_ns},
        known.gain(known.scope.host_part(min(fill_ns, forward_ns)), f"the shorter of filling and {behind}"),
        part_of=("mask_cost",),
    )


@rule(
    id="masks_not_recorded",
    title="Whether masks cost time is not recorded",
    fix=(
        "Record Python stacks (vLLM: torch_profiler_with_stack, SGLang: with_stack), also of the scheduler's process"
        " (vLLM: VLLM_ENABLE_V1_MULTIPROCESSING=0)."
    ),
    explanation="The engine marks the filling of masks by no scope: only its Python functions show it.",
    query="phase_times",
    note=True,
    queries=(_TIMES,),
)
def masks_not_recorded(known: Known) -> Found | None:
    """Fires where nothing that marks the filling of masks can be in an engine's trace.

    Without gain: the trace may be of requests without constraints.
    """
    phases = _phases(known)
    if "mask_fill" not in phases or phases["mask_fill"]["count"] is not None:
        return None
    missing = [name for name, row in phases.items() if row["count"] is None]
    return Found(f"nothing marks these phases in the trace: {', '.join(missing)}", {"phases": len(missing)})
