"""Recorded or timed passes do not represent the run: the profiler distorts them, or torch.compile compiles in them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.figures.union import Union
from molprof.analysis.findings.operators import operators_named, read_operators
from molprof.analysis.findings.scope import Rule, Scope
from molprof.common.values import count_text, number_text, time_text

# From here, a third of all recorded time is the profiler's.
LEAST_PROFILED_RATIO = 1.5

# torch/_dynamo/utils.py, dynamo_timed: each part of compiling is recorded under such a name; this one is a whole frame.
_FRAME = "_compile.compile_inner*"
_COMPILING = operators_named(_FRAME, "*(dynamo_timed)")


def _compiling(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    """Gain: median over the timed passes of compile time over wall time; without it, compiling over recorded time."""
    repeats = () if report.run is None else report.run.repeats
    compiles = [repeat.compiles for repeat in repeats if repeat.compiles is not None]
    recorded = read_operators(engine, _COMPILING)
    frames = sum(name.startswith(_FRAME[:-1]) for name in recorded.names.tolist())
    inside_ns = 0 if scope is None else scope.stretches.common_ns(Union(recorded.starts, recorded.ends))
    if not sum(compiles) and not inside_ns:
        return
    shares = [
        repeat.compile_ns / repeat.wall_ns for repeat in repeats if repeat.compile_ns is not None and repeat.wall_ns
    ]
    if shares and sum(compiles):
        gain = min(1.0, statistics.median(shares))
    else:
        gain = scope.host_part(inside_ns) if scope is not None else 0.0
    parts = []
    if compiles:
        parts.append(f"frames compiled in each timed pass: {', '.join(map(count_text, compiles))}")
    if inside_ns:
        parts.append(f"{time_text(inside_ns)} of compiling recorded ({count_text(frames)} frames)")
    yield Finding(
        id="compiling",
        title="Timed passes include compiling",
        evidence="; ".join(parts),
        gain_ratio=gain,
        fix="Warm up until nothing compiles. Keep shapes fixed. TORCH_LOGS=recompiles names the reasons.",
        explanation="A frame compiles again for every shape that its guards reject, which takes seconds.",
        query=(
            "SELECT name, COUNT() AS count, SUM(dur) AS time_ns FROM slice WHERE name GLOB '*(dynamo_timed)'"
            " OR name GLOB 'Torch-Compiled Region*' GROUP BY name ORDER BY time_ns DESC, name"
        ),
        figures={"compiles": sum(compiles), "recorded_frames": frames, "recorded_ns": inside_ns},
    )


def _profiler_cost(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    run = report.run
    if run is None or run.profiled_ratio is None or run.profiled_ratio < LEAST_PROFILED_RATIO:
        return
    yield Finding(
        id="profiler_cost",
        title="The profiler distorts the recorded times",
        evidence=f"recorded steps take {number_text(run.profiled_ratio)} times their unprofiled time",
        gain_ratio=None,
        fix="Trust counts, GPU times and unprofiled times. Read host times as shares. Record on a quiet machine.",
        explanation="The profiler adds about the same time to each operator and call, so short ones seem too slow.",
        query="step_latency",
        figures={"profiled_ratio": run.profiled_ratio},
    )


COMPILING = Rule({"compiling": ("host_time",)}, _compiling, (_COMPILING,))
PROFILER_COST = Rule({"profiler_cost": ("host_time",)}, _profiler_cost)
