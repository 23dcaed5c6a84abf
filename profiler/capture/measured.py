"""What the timed passes of a run measured of its constraint, and of its answers."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from molprof.common.manifest import KIND_LETTERS
from molprof.common.measured import MeasuredRun
from molprof.profiler.capture.account import sequence_runs
from molprof.profiler.capture.run import CapturedRun


def measured_run(run: CapturedRun, rounds: Sequence[int]) -> MeasuredRun:
    """What the timed passes measured, and the answers of the first; rounds: of each pass."""
    runner, repeats = run.passes.runner, run.repeats
    answers, _ = sequence_runs(runner, run.passes.plans, run.results[0])
    steps = sum(map(len, repeats[0].steps_ns))
    phases = [repeat.phases_ns.get("processor") for repeat in repeats]
    sums: Counter[str] = Counter()
    for repeat in repeats:
        sums.update(repeat.constraint_ns)
    return MeasuredRun(
        name=run.name,
        processor=getattr(runner.processor, "name", run.settings.processor),
        rounds=list(rounds),
        step_ns=[sum(map(sum, repeat.steps_ns)) / steps for repeat in repeats],
        phase_ns=None if None in phases else statistics.mean(filter(None, phases)) / steps,
        constraint_ns={name: ns / steps / len(repeats) for name, ns in sums.items()},
        once_ns=run.processor_once_ns,
        once_parts_ns=run.once_parts_ns,
        answers=len(answers),
        judged=sum(item.valid is not None for item in answers),
        valid=sum(item.valid is True for item in answers),
        wrong=sum(item.valid is False and item.kinds.endswith(KIND_LETTERS["eos"]) for item in answers),
        tokens=sum(len(item.token_ids) for item in answers),
        steps=steps,
    )
