"""The manifest of a trace that keeps a part of the recorded steps."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from molprof.analysis.figures.recorded_steps import RecordedStep
from molprof.common.manifest import from_json


def trimmed_manifest(raw: dict[str, Any], kept: Sequence[RecordedStep]) -> dict[str, Any]:
    """The manifest with its window and the times of the recorded steps as they are for the steps `kept`.

    All else holds as it is: molecules, tokens and unprofiled passes are of the whole run, whatever was recorded.

    Raises:
        TraceError: it is no manifest.
    """
    manifest = from_json(raw)
    steps = [(step.batch, step.number) for step in kept if step.batch is not None]
    window = raw["window"]
    if len({batch for batch, _ in steps}) == 1:
        numbers = [number for _, number in steps]
        window = {"full": False, "batch": steps[0][0], "first_step": min(numbers), "last_step": max(numbers)}
    same = [
        sum(repeat.steps_ns[batch][step] for batch, step in steps)
        for repeat in manifest.timings.repeats
        if all(batch < len(repeat.steps_ns) and step < len(repeat.steps_ns[batch]) for batch, step in steps)
    ]
    timings = {
        **raw["timings"],
        "profiled_steps_ns": sum(step.dur_ns for step in kept),
        "unprofiled_steps_ns": round(median(same)) if same else 0,
        "profiled_wall_ns": None,
    }
    return {**raw, "window": window, "timings": timings}
