"""What the logits processor writes, launches and waits for."""

from __future__ import annotations

from molprof.analysis.figures.figure import Figure, of_run, per_molecule, per_recorded_step

_GROUP = "Masking"

MASKING = (
    Figure(
        "masked_logits",
        _GROUP,
        "masked logits",
        "count",
        of_run(lambda run: run.masked_logits),
        compared=False,
    ),
    Figure(
        "masked_logits_per_molecule",
        _GROUP,
        "masking writes per molecule",
        "number",
        per_molecule(lambda run: run.masked_logits),
    ),
    Figure(
        "masking_launches",
        _GROUP,
        "processor launches per step",
        "number",
        per_recorded_step("processor", lambda phase: phase.launches),
    ),
    Figure(
        "masking_gpu_ns",
        _GROUP,
        "processor GPU time per step",
        "ns",
        per_recorded_step("processor", lambda phase: phase.gpu_ns),
        once=True,
    ),
    Figure(
        "masking_operators",
        _GROUP,
        "processor leaf operators per step",
        "number",
        per_recorded_step("processor", lambda phase: phase.leaf_operators),
    ),
    Figure(
        "masking_syncs",
        _GROUP,
        "processor GPU waits per step",
        "number",
        per_recorded_step("processor", lambda phase: phase.syncs),
    ),
)
