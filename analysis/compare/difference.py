"""Where the difference in wall time between two runs lies, by phase."""

from __future__ import annotations

from molprof.analysis.compare.model import Difference
from molprof.analysis.metrics.run_model import Run
from molprof.profiler.manifest import PHASES

# What comes before the first step stands together; every other phase is a part of its own.
SETUP = "set-up"
SETUP_PHASES = ("template", "tokenize", "setup")
PARTS = {
    SETUP: SETUP_PHASES,
    **{phase: (phase,) for phase in PHASES if phase not in SETUP_PHASES},
}


def difference(first: Run | None, other: Run | None) -> Difference | None:
    """`other` minus `first`, unprofiled medians; None where either has none."""
    if first is None or other is None or first.wall_ns.median is None or other.wall_ns.median is None:
        return None
    wall_ns = other.wall_ns.median - first.wall_ns.median
    parts = {
        name: sum(_wall_ns(other, phase) - _wall_ns(first, phase) for phase in phases) for name, phases in PARTS.items()
    }
    residual_ns = wall_ns - sum(parts.values())
    return Difference(wall_ns, parts, residual_ns, residual_ns / abs(wall_ns) if wall_ns else None)


def _wall_ns(run: Run, phase: str) -> int:
    # A phase that a run does not have (no templates without a processor) took no time.
    return run.phases[phase].wall_ns or 0
