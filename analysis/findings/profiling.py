"""Recorded or timed passes do not represent the run: the profiler distorts them, or torch.compile compiles in them."""

from __future__ import annotations

import statistics

from molprof.analysis.figures.union import Union
from molprof.analysis.findings.operators import operators_named
from molprof.analysis.findings.rule import Found, Known, rule
from molprof.common.values import count_text, number_text, time_text

# From here, a third of all recorded time is the profiler's.
LEAST_PROFILED_RATIO = 1.5

# torch/_dynamo/utils.py, dynamo_timed: each part of compiling is recorded under such a name; this one is a whole frame.
_FRAME = "_compile.compile_inner*"
_COMPILING = operators_named(_FRAME, "*(dynamo_timed)")


@rule(
    id="compiling",
    title="Timed passes include compiling",
    fix="Warm up until nothing compiles. Keep shapes fixed. TORCH_LOGS=recompiles names the reasons.",
    explanation="A frame compiles again for every shape that its guards reject, which takes seconds.",
    query=(
        "SELECT name, COUNT() AS count, SUM(dur) AS time_ns FROM slice WHERE name GLOB '*(dynamo_timed)'"
        " OR name GLOB 'Torch-Compiled Region*' GROUP BY name ORDER BY time_ns DESC, name"
    ),
    needs=("report",),
    rests_on=("host_time",),
    least_gain=0,
    queries=(_COMPILING,),
)
def compiling(known: Known) -> Found | None:
    """Gain: median over the timed passes of compile time over wall time; without it, compiling over recorded time."""
    scope, repeats = known.any_scope, () if known.report.run is None else known.report.run.repeats
    compiles = [repeat.compiles for repeat in repeats if repeat.compiles is not None]
    recorded = known.operators(_COMPILING)
    frames = sum(name.startswith(_FRAME[:-1]) for name in recorded.names.tolist())
    inside_ns = 0 if scope is None else scope.stretches.common_ns(Union(recorded.starts, recorded.ends))
    if not sum(compiles) and not inside_ns:
        return None
    shares = [
        repeat.compile_ns / repeat.wall_ns for repeat in repeats if repeat.compile_ns is not None and repeat.wall_ns
    ]
    if shares and sum(compiles):
        gain = known.gain(statistics.median(shares), "compile time of timed passes")
    else:
        gain = known.gain(0.0 if scope is None else scope.host_part(inside_ns), "recorded compile time")
    parts = []
    if compiles:
        parts.append(f"frames compiled in each timed pass: {', '.join(map(count_text, compiles))}")
    if inside_ns:
        parts.append(f"{time_text(inside_ns)} of compiling recorded ({count_text(frames)} frames)")
    figures = {"compiles": sum(compiles), "recorded_frames": frames, "recorded_ns": inside_ns}
    return Found("; ".join(parts), figures, gain)


@rule(
    id="profiler_cost",
    title="The profiler distorts the recorded times",
    fix="Trust counts, GPU times and unprofiled times. Read host times as shares. Record on a quiet machine.",
    explanation="The profiler adds about the same time to each operator and call, so short ones seem too slow.",
    query="step_latency",
    needs=("run",),
    rests_on=("host_time",),
)
def profiler_cost(known: Known) -> Found | None:
    ratio = known.run.profiled_ratio
    if ratio is None or ratio < LEAST_PROFILED_RATIO:
        return None
    return Found(f"recorded steps take {number_text(ratio)} times their unprofiled time", {"profiled_ratio": ratio})
