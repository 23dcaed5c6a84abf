"""What each phase of a step costs in unprofiled time, and how that divides into GPU, waiting and issuing."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from molprof.analysis.compare.parts import BOUNDS
from molprof.analysis.figures.run_model import STEP_PHASES, Run


@dataclass(frozen=True)
class StepCosts:
    """Costs of one run's steps.

    Attributes:
        steps, batches: as counted; 0 where the run has no rows to share them among.
        cost_ns: mean unprofiled time of each phase per step that has it; None where no step has.
        bound_ns: the same by what bounded it (keys `BOUNDS`); None where the window does not tell.
        gpu_beyond_ns: recorded GPU time, carried to the whole run, that its steps' unprofiled time has no room for.
    """

    steps: int
    batches: int
    cost_ns: dict[str, Fraction | None]
    bound_ns: dict[str, dict[str, Fraction]] | None
    gpu_beyond_ns: int


def step_costs(run: Run) -> StepCosts:
    """The costs of `run`. Every step has each phase but `forward`, which step 0 of a batch does as `prefill`."""
    steps = run.steps if run.row_steps > 0 else 0
    batches = min(run.batches, steps)
    counts = {phase: steps - batches if phase == "forward" else steps for phase in STEP_PHASES}
    walls = {phase: (run.phases[phase].wall_ns or 0) if counts[phase] else 0 for phase in STEP_PHASES}
    cost_ns = {phase: Fraction(walls[phase], counts[phase]) if counts[phase] else None for phase in STEP_PHASES}
    if any(walls[phase] and run.phases[phase].bound is None for phase in STEP_PHASES) or not any(walls.values()):
        return StepCosts(steps, batches, cost_ns, None, 0)
    bound_ns, over = _bounds(run, walls, counts)
    return StepCosts(steps, batches, cost_ns, bound_ns, round(over))


def _bounds(run: Run, walls: dict[str, int], counts: dict[str, int]) -> tuple[dict[str, dict[str, Fraction]], Fraction]:
    """Unprofiled time per step by phase and bound, and the GPU time that found no room, over the run.

    The profiler slows the CPU, not the kernels: so GPU time and waits stay as recorded per step, and issuing is the
    rest of the unprofiled time. A CPU that is not slowed runs ahead of the GPU: what the GPU does not get done within
    a phase, it does during the next ones.
    """
    bounds = {}
    over = Fraction(0)
    for phase in STEP_PHASES:
        recorded, count = run.phases[phase].bound, counts[phase]
        if recorded is None or not count:
            bounds[phase] = dict.fromkeys(BOUNDS, Fraction(0))
            continue
        room = Fraction(walls[phase])
        over += Fraction(recorded.gpu_busy_ns * count, recorded.count)
        gpu = min(over, room)
        over -= gpu
        sync = min(Fraction(recorded.sync_idle_ns * count, recorded.count), room - gpu)
        bounds[phase] = {"gpu": gpu / count, "launch": (room - gpu - sync) / count, "sync": sync / count}
    return bounds, over
