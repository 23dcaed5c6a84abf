"""What the logits processor writes, launches and waits for."""

from __future__ import annotations

from collections.abc import Callable

from molprof.analysis.figures.figure import Figure, of_run
from molprof.analysis.figures.run_model import PhaseFigures
from molprof.common.values import Unit, per

_GROUP = "Masking"


def _per_step(
    name: str, label: str, value: Callable[[PhaseFigures], float | None], unit: Unit = "number", once: bool = False
) -> Figure:
    """A figure of the processor phase per recorded step."""
    figure = of_run(lambda run: per(value(run.phases["processor"]), run.window.steps))
    return Figure(name, _GROUP, label, unit, figure, once=once)


MASKING = (
    Figure(
        "masked_logits_per_molecule",
        _GROUP,
        "masked logits per molecule",
        "number",
        of_run(lambda run: per(run.masked_logits, run.molecules)),
    ),
    _per_step("masking_launches", "processor launches per step", lambda phase: phase.launches),
    _per_step("masking_gpu_ns", "processor GPU time per step", lambda phase: phase.gpu_ns, "ns", once=True),
    _per_step("masking_operators", "processor leaf operators per step", lambda phase: phase.leaf_operators),
    _per_step("masking_syncs", "processor host syncs per step", lambda phase: phase.syncs),
)
