"""Building templates delays every batch."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.findings.rule import Rule
from molprof.analysis.findings.scope import Scope
from molprof.common.values import percent_text, time_text

# Share of unprofiled wall time.
LEAST_SHARE = 0.02


def _find(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    """Fires where templates take LEAST_SHARE of unprofiled wall time. Gain: that share."""
    run = report.run
    if run is None or not run.wall_ns.median or not run.molecules:
        return
    template_ns, wall_ns = run.phases["template"].wall_ns, run.wall_ns.median
    if template_ns is None or template_ns < LEAST_SHARE * wall_ns:
        return
    yield Finding(
        id="templates",
        title="Building templates delays every batch",
        evidence=(
            f"{time_text(template_ns)} of {time_text(wall_ns)} unprofiled time "
            f"({percent_text(template_ns / wall_ns)}), {time_text(template_ns / run.molecules)} per molecule"
        ),
        gain_ratio=template_ns / wall_ns,
        fix=(
            "Build templates in threads while the previous batch runs (--template-threads). Keep those of repeated "
            "molecules (--template-cache)."
        ),
        explanation="The model waits while the CPU builds templates and tokenizes them.",
        query="SELECT batch, phase, dur FROM molprof_phase WHERE phase IN ('template', 'tokenize') ORDER BY ts",
        figures={"template_ns": template_ns, "wall_ns": wall_ns, "molecules": run.molecules},
    )


RULE = Rule(("templates",), _find)
