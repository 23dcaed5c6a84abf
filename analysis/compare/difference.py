"""Where the difference in wall time between two runs lies: named parts that add up to it (docs/comparing.md)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from molprof.analysis.compare.attribution import Factor, attribute, rounded
from molprof.analysis.compare.model import Basis, Difference
from molprof.analysis.compare.parts import BOUNDS, HOST, in_order
from molprof.analysis.compare.step_costs import StepCosts, step_costs
from molprof.analysis.figures.run_model import STEP_PHASES, Run

# Phases that are a part each: how much time they took is all that is known of them.
_PHASE_PARTS = {
    "setup.template": "template",
    "setup.tokenize": "tokenize",
    "setup.generate": "setup",
    "prefill": "prefill",
    "text": "text",
}
_BATCHING = "steps.batching"
_FORCED = "steps.forced"

Term = tuple[Factor, ...]


def difference(first: Run | None, other: Run | None) -> Difference | None:
    """`other` minus `first`, unprofiled; None where either has no unprofiled time."""
    if first is None or other is None or first.wall_ns.median is None or other.wall_ns.median is None:
        return None
    costs = step_costs(first), step_costs(other)
    bounded = costs[0].bound_ns is not None and costs[1].bound_ns is not None
    shares = rounded(attribute([*_phase_terms(first, other), *_step_terms(first, other, *costs)]))
    wall_ns = other.wall_ns.median - first.wall_ns.median
    parts = {part: shares[part] for part in in_order(shares)}
    residual_ns = wall_ns - sum(parts.values())
    factors, factor_values = _factors(first, other, first.wall_ns.median, other.wall_ns.median)
    return Difference(
        wall_ns=wall_ns,
        parts=parts,
        residual_ns=residual_ns,
        residual_ratio=residual_ns / abs(wall_ns) if wall_ns else None,
        basis={part: _basis(part) for part in parts},
        gpu_beyond_ns=(costs[0].gpu_beyond_ns, costs[1].gpu_beyond_ns) if bounded else None,
        factors=factors,
        factor_values=factor_values,
    )


def _basis(part: str) -> Basis:
    return "window" if part.rpartition(".")[2] in BOUNDS else "measured"


def _phase_terms(first: Run, other: Run) -> Iterator[Term]:
    for part, phase in _PHASE_PARTS.items():
        # A phase that a run does not have (no templates without a processor) took no time.
        yield (_factor(part, first.phases[phase].wall_ns or 0, other.phases[phase].wall_ns or 0),)


def _step_terms(first: Run, other: Run, a: StepCosts, b: StepCosts) -> Iterator[Term]:
    """Row-steps of each kind x steps per row-step x cost per step; the forward less often by one per batch."""
    per_token = _known_factor(_FORCED, _row_steps_per_token(first), _row_steps_per_token(other))
    rows = [
        (_factor("tokens.useful", _useful(first), _useful(other)), per_token),
        (_factor("tokens.junk", first.junk_tokens, other.junk_tokens), per_token),
        (_factor("tokens.filler", first.filler_tokens, other.filler_tokens), per_token),
        (_factor("steps.idle", first.idle_row_steps, other.idle_row_steps),),
    ]
    steps_per_row = _known_factor(_BATCHING, _steps_per_row(first, a), _steps_per_row(other, b))
    batches = _factor(_BATCHING, -a.batches, -b.batches)
    for phase in STEP_PHASES:
        for cost in _costs(phase, a, b):
            for row in rows:
                yield *row, steps_per_row, cost
            if phase == "forward":
                yield batches, cost


def _costs(phase: str, a: StepCosts, b: StepCosts) -> Iterator[Factor]:
    if a.bound_ns is None or b.bound_ns is None:
        yield _known_factor(f"{phase}.{HOST}", a.cost_ns[phase], b.cost_ns[phase])
        return
    # A run none of whose steps has the phase says nothing of its cost.
    known = [item.bound_ns if item.cost_ns[phase] is not None else None for item in (a, b)]
    for bound in BOUNDS:
        values = [None if item is None else item[phase][bound] for item in known]
        yield _known_factor(f"{phase}.{bound}", values[0], values[1])


def _useful(run: Run) -> int:
    return run.generated_tokens - run.junk_tokens - run.filler_tokens


def _row_steps_per_token(run: Run) -> Fraction | None:
    """1 where a step makes one token per row; less where forced runs are appended at once."""
    busy = run.row_steps - run.idle_row_steps
    return Fraction(busy, run.generated_tokens) if run.generated_tokens else None


def _steps_per_row(run: Run, costs: StepCosts) -> Fraction | None:
    return Fraction(costs.steps, run.row_steps) if costs.steps else None


def _factor(part: str, first: int, other: int) -> Factor:
    return Factor(part, Fraction(first), Fraction(other))


def _known_factor(part: str, first: Fraction | None, other: Fraction | None) -> Factor:
    """A factor that one run may not have: then it did not change, and the run's number of steps, 0, says it all."""
    known = [value for value in (first, other) if value is not None] or [Fraction(0)]
    return Factor(part, known[0] if first is None else first, known[0] if other is None else other)


def _factors(
    first: Run, other: Run, first_ns: int, other_ns: int
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """time = tokens x steps per token x time per step: ratios other / first, and the values; none where one is 0."""
    if not all((first.generated_tokens, other.generated_tokens, first.steps, other.steps, first_ns, other_ns)):
        return {}, {}
    values = {
        "tokens": (float(first.generated_tokens), float(other.generated_tokens)),
        "steps_per_token": (first.steps / first.generated_tokens, other.steps / other.generated_tokens),
        "time_per_step": (first_ns / first.steps, other_ns / other.steps),
    }
    return {name: pair[1] / pair[0] for name, pair in values.items()}, values
