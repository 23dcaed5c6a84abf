"""What a report says first of a program whose run molprof did not capture: steps, phases, logits processors.

And, where a trace has no GPU work and none of them, what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from molprof.analysis.figures import Report
from molprof.analysis.figures.model import STACK_CATEGORY
from molprof.common.values import counted, per, percent_text, time_text

# Below this share of the recorded span a phase is not worth a word.
_LEAST_RATIO = 0.01
# The phase that holds all others, and the end of names of phases of single requests, which are in others.
_WHOLE, _PART = "generate", "_per_request"


def program_lines(report: Report) -> Iterator[str]:
    """Steps, the longest phases, and logits processors, each as far as recorded."""
    steps = _steps(report)
    if steps and not report.trace.gpu_recorded:
        yield f"Steps: {steps} on the host (medians, with the profiler's cost)."
    found: Any = report.table("engine_phases").to_json()
    rows = [row for row in found if row["time_ns"] and row["phase"] != _WHOLE and not row["phase"].endswith(_PART)]
    rows = [row for row in rows if row["time_ratio"] >= _LEAST_RATIO]
    rows.sort(key=lambda row: (-row["time_ns"], row["phase"]))
    if rows:
        shares = ", ".join(f"{row['phase']} {percent_text(row['time_ratio'])}" for row in rows[:4])
        yield f"Phases of {rows[0]['program']} on the host, of the recorded span: {shares}."
        span_ns = per(rows[0]["time_ns"], rows[0]["time_ratio"])
        processors: Any = report.table("logits_processors").to_json()
        each = ", ".join(f"{item['source']} {percent_text(per(item['time_ns'], span_ns))}" for item in processors[:3])
        if each:
            yield f"Logits processors, of the same: {each}."
    yield from missing(report)


def _steps(report: Report) -> str:
    found: Any = report.table("step_latency").to_json()
    rows = [row for row in found if row["measure"] == "duration"]
    names = [f"{row['kind']} step" if row["kind"] else "step" for row in rows]
    return ", ".join(
        f"{counted(row['count'], name)} of {time_text(row['p50_ns'])}" for row, name in zip(rows, names, strict=True)
    )


def missing(report: Report) -> list[str]:
    """What a trace without GPU work and steps lacks, and how to record it."""
    if report.run is not None or report.trace.gpu_recorded or _steps(report) or not report.trace.events_by_category:
        return []
    if report.trace.events_by_category.get(STACK_CATEGORY):
        how = 'its Python stacks hold no known loop; mark steps with torch.profiler.record_function("step 0")'
    else:
        how = "operators do not show them; record Python stacks (with_stack=True), or run molprof capture"
    return [
        f"Steps, phases and logits processors are not recorded: {how}.",
        "Did the model run on a GPU? Then record activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
    ]
