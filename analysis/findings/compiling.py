"""torch.compile compiles in timed passes or recorded steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.findings.operators import read_operators
from molprof.analysis.findings.rule import Rule
from molprof.analysis.findings.scope import Scope
from molprof.common.values import count_text, time_text

# torch/_dynamo/utils.py, dynamo_timed: each part of compiling is recorded under such a name; this one is a whole frame.
_FRAME = "_compile.compile_inner*"
_PARTS = "*(dynamo_timed)"


def _find(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    """Fires where a timed pass compiled a frame, or where steps (in a foreign trace: any time) record compiling.

    Gain: median over the timed passes of compile time over wall time; without it, compiling over recorded time.
    """
    repeats = () if report.run is None else report.run.repeats
    compiles = [repeat.compiles for repeat in repeats if repeat.compiles is not None]
    recorded = read_operators(engine, _FRAME, _PARTS)
    frames = sum(1 for name in recorded.names.tolist() if name.startswith(_FRAME[:-1]))
    inside_ns = 0 if scope is None else scope.part_inside_ns(recorded.starts, recorded.ends)
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
        fix=(
            "Warm up until nothing compiles. Keep shapes fixed (one prompt width, a static cache) or mark them "
            "dynamic. TORCH_LOGS=recompiles names the reasons."
        ),
        explanation="A frame compiles again for every shape that its guards reject, which takes seconds.",
        query=(
            "SELECT name, COUNT() AS count, SUM(dur) AS time_ns FROM slice WHERE name GLOB '*(dynamo_timed)'"
            " OR name GLOB 'Torch-Compiled Region*' GROUP BY name ORDER BY time_ns DESC, name"
        ),
        figures={"compiles": sum(compiles), "recorded_frames": frames, "recorded_ns": inside_ns},
    )


RULE = Rule(("compiling",), _find)
