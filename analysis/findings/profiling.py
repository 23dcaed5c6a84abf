"""The profiler distorts the recorded times."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.findings.rule import Rule
from molprof.analysis.findings.scope import Scope
from molprof.common.values import number_text

# From here, a third of all recorded time is the profiler's.
LEAST_RATIO = 1.5


def _find(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    """Fires where the recorded steps took LEAST_RATIO of their unprofiled time. No gain: nothing gets faster."""
    run = report.run
    if run is None or run.profiled_ratio is None or run.profiled_ratio < LEAST_RATIO:
        return
    yield Finding(
        id="profiler_cost",
        title="The profiler distorts the recorded times",
        evidence=f"recorded steps take {number_text(run.profiled_ratio)} times their unprofiled time",
        gain_ratio=None,
        fix="Trust counts, GPU times and unprofiled times. Read host times as shares. Record on a quiet machine.",
        explanation=(
            "The profiler adds about the same time to each operator and call. Phases with many short ones seem slower "
            "than they are, and the GPU seems to wait more than it does."
        ),
        query="step_latency",
        figures={"profiled_ratio": run.profiled_ratio},
    )


RULE = Rule(("profiler_cost",), _find)
