"""The GPU is idle most of the time, for any reason."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.findings.rule import Rule
from molprof.analysis.findings.scope import Scope
from molprof.common.values import percent_text, time_text

# Share of unprofiled time in which devices are idle.
LEAST_RATIO = 0.5


def _find(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    """Fires where devices are idle for LEAST_RATIO of the recorded steps, or of a foreign trace's span.

    Gain: 1 - busy / base, with the unprofiled time of these steps as base.
    """
    if scope is None or not scope.devices or scope.idle_ratio < LEAST_RATIO * scope.wall_ratio:
        return
    causes: dict[str, tuple[int, int]] = {}
    for _, cause, _, time_ns, _, longest_ns in report.table("idle_causes").rows:
        before_ns, before_longest_ns = causes.get(str(cause), (0, 0))
        causes[str(cause)] = (before_ns + int(time_ns or 0), max(before_longest_ns, int(longest_ns or 0)))
    ordered = sorted(causes.items(), key=lambda item: (-item[1][0], item[0]))[:2]
    devices = f"{scope.devices} devices, in all" if scope.devices > 1 else "GPU"
    unprofiled = " unprofiled" if scope.run is not None else ""
    yield Finding(
        id="gpu_idle",
        title="The GPU is idle most of the time",
        evidence=(
            f"{devices} busy for {time_text(scope.busy_ns)} of {scope.recorded_text}{scope.caution}"
            + f", idle {percent_text(scope.idle_ratio / scope.wall_ratio)} of the{unprofiled} time"
            + "".join(
                f"; {cause} {time_text(time_ns)}, longest gap {time_text(longest_ns)}"
                for cause, (time_ns, longest_ns) in ordered
            )
        ),
        gain_ratio=scope.idle_ratio,
        fix=(
            "By cause: cpu_busy: less Python and fewer launches. cpu_waited: fewer host syncs. Several processes or a "
            "larger batch fill the rest."
        ),
        explanation="The GPU does not set the time of a step. Faster kernels gain little.",
        query="idle_causes",
        figures={
            "busy_ns": scope.busy_ns,
            "recorded_ns": scope.recorded_ns,
            "devices": scope.devices,
            "idle_ratio": scope.idle_ratio / scope.wall_ratio,
            **{f"{cause}_ns": time_ns for cause, (time_ns, _) in ordered},
        },
    )


RULE = Rule(("gpu_idle",), _find)
