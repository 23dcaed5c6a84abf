"""The difference in wall time between two runs, as parts that add up to it (docs/comparing.md).

A time is a sum of terms, products of named factors. A factor's share of the change is its exact Shapley value: its mean
marginal effect over all orders in which the factors could have changed one after the other (L. S. Shapley, "A value
for n-person games", 1953; for such decompositions A. F. Shorrocks, J. Econ. Inequal. 11, 2013). So no order is
preferred, the shares add up to the change, they change sign when first and other change places, and a factor that
stays has none. For a product of two it is the midpoint rule: d(x y) = dx (y0 + y1) / 2 + dy (x0 + x1) / 2. The Shapley
value of a sum of terms is the sum of theirs, so a part may stand in several terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from math import factorial, floor, lcm, prod
from typing import NamedTuple

from molprof.analysis.compare.model import Difference, TraceDifference
from molprof.analysis.compare.parts import BOUNDS, HOST, in_order
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run
from molprof.common.phases import STEP_PHASES

# Phases that are one part each.
PHASE_PARTS = {
    "setup.template": "template",
    "setup.tokenize": "tokenize",
    "setup.generate": "setup",
    "prefill": "prefill",
    "text": "text",
}


class Factor(NamedTuple):
    """One factor of a term: the part that its change counts for, and its two values."""

    part: str
    first: Fraction
    other: Fraction


Term = tuple[Factor, ...]


class StepCosts(NamedTuple):
    """Costs of one run's steps; 0 steps and batches in a run without rows."""

    steps: int
    batches: int
    cost_ns: dict[str, Fraction | None]  # mean unprofiled time of each phase per step that has it; None if no step has
    bound_ns: dict[str, dict[str, Fraction]] | None  # by what bounded it (`BOUNDS`); None: not recorded
    gpu_beyond_ns: int  # GPU time, extended to the whole run, that does not fit in unprofiled time


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
        basis={part: "window" if part.rpartition(".")[2] in BOUNDS else "measured" for part in parts},
        gpu_beyond_ns=(costs[0].gpu_beyond_ns, costs[1].gpu_beyond_ns) if bounded else None,
        factors=factors,
        factor_values=factor_values,
    )


def _phase_terms(first: Run, other: Run) -> Iterator[Term]:
    for part, phase in PHASE_PARTS.items():
        # A phase that a run lacks (templates without a processor) took no time.
        yield (_factor(part, first.phases[phase].wall_ns or 0, other.phases[phase].wall_ns or 0),)


def _step_terms(first: Run, other: Run, a: StepCosts, b: StepCosts) -> Iterator[Term]:
    """Row-steps of each kind x steps per row-step x cost per step; the forward less often by one per batch."""
    runs, costs = (first, other), (a, b)
    # 1 where a step generates one token per row; less with forced runs.
    per_token = _factor(
        "steps.forced", *(_ratio(run.row_steps - run.idle_row_steps, run.generated_tokens) for run in runs)
    )
    useful = (run.generated_tokens - run.junk_tokens - run.filler_tokens for run in runs)
    rows = [
        (_factor("tokens.useful", *useful), per_token),
        (_factor("tokens.junk", first.junk_tokens, other.junk_tokens), per_token),
        (_factor("tokens.filler", first.filler_tokens, other.filler_tokens), per_token),
        (_factor("steps.idle", first.idle_row_steps, other.idle_row_steps),),
    ]
    steps = (_ratio(cost.steps, run.row_steps if cost.steps else 0) for run, cost in zip(runs, costs, strict=True))
    steps_per_row = _factor("steps.batching", *steps)
    batches = _factor("steps.batching", -a.batches, -b.batches)
    for phase in STEP_PHASES:
        for cost in _costs(phase, a, b):
            for row in rows:
                yield *row, steps_per_row, cost
            if phase == "forward":
                yield batches, cost


def _costs(phase: str, a: StepCosts, b: StepCosts) -> Iterator[Factor]:
    if a.bound_ns is None or b.bound_ns is None:
        yield _factor(f"{phase}.{HOST}", a.cost_ns[phase], b.cost_ns[phase])
        return
    for bound in BOUNDS:
        # Without a step that has the phase, its cost is unknown.
        one = None if a.cost_ns[phase] is None else a.bound_ns[phase][bound]
        other = None if b.cost_ns[phase] is None else b.bound_ns[phase][bound]
        yield _factor(f"{phase}.{bound}", one, other)


def _ratio(part: int, whole: int) -> Fraction | None:
    return Fraction(part, whole) if whole else None


def _factor(part: str, first: int | Fraction | None, other: int | Fraction | None) -> Factor:
    """A factor that a run of 0 steps may lack. Then it did not change."""
    known = [value for value in (first, other) if value is not None] or [0]
    return Factor(part, *(Fraction(known[0] if value is None else value) for value in (first, other)))


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


def step_costs(run: Run) -> StepCosts:
    """The costs of `run`. Every step has each phase but `forward`, which step 0 of a batch does as `prefill`."""
    steps = run.steps if run.row_steps > 0 else 0
    batches = min(run.batches, steps)
    counts = {phase: steps - batches if phase == "forward" else steps for phase in STEP_PHASES}
    walls = {phase: (run.phases[phase].wall_ns or 0) if counts[phase] else 0 for phase in STEP_PHASES}
    cost_ns = {phase: _ratio(walls[phase], counts[phase]) for phase in STEP_PHASES}
    if any(walls[phase] and run.phases[phase].bound is None for phase in STEP_PHASES) or not any(walls.values()):
        return StepCosts(steps, batches, cost_ns, None, 0)
    # The profiler slows the CPU, not the kernels. So GPU time and host syncs per step stay as recorded, and launching
    # is the rest of unprofiled time. Without the profiler the GPU finishes the work of a phase during the next ones.
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
    return StepCosts(steps, batches, cost_ns, bounds, round(over))


def trace_difference(first: Report, other: Report) -> TraceDifference | None:
    """`other` minus `first`, of the devices' recorded spans; None where either records no GPU work."""
    if not first.devices or not other.devices:
        return None
    before, after = _recorded_parts(first), _recorded_parts(other)
    span_ns = sum(device.span_ns for device in other.devices.values())
    span_ns -= sum(device.span_ns for device in first.devices.values())
    # Busy first, then the causes by name.
    parts = {part: after.get(part, 0) - before.get(part, 0) for part in sorted(before.keys() | after.keys())}
    return TraceDifference(
        span_ns=span_ns,
        parts=parts,
        residual_ns=span_ns - sum(parts.values()),
        devices=(len(first.devices), len(other.devices)),
    )


def _recorded_parts(report: Report) -> dict[str, int]:
    parts = {"busy": sum(device.busy_ns for device in report.devices.values())}
    for row in report.table("idle_causes").to_json():
        part, time_ns = f"idle.{row['cause']}", row["time_ns"]
        if isinstance(time_ns, int):
            parts[part] = parts.get(part, 0) + time_ns
    return parts


def attribute(terms: Iterable[Term]) -> dict[str, Fraction]:
    """The exact change of the sum of `terms` by part, in order of first appearance."""
    shares: dict[str, Fraction] = {}
    for term in terms:
        # Whole numbers over one denominator: fractions would be reduced after every product.
        scales = [lcm(factor.first.denominator, factor.other.denominator) for factor in term]
        pairs = [(int(item.first * scale), int(item.other * scale)) for item, scale in zip(term, scales, strict=True)]
        denominator = prod(scales) * factorial(len(term))
        for place, (factor, (first, other)) in enumerate(zip(term, pairs, strict=True)):
            change = (other - first) * _sum_of_products([*pairs[:place], *pairs[place + 1 :]])
            shares[factor.part] = shares.get(factor.part, Fraction(0)) + Fraction(change, denominator)
    return shares


def _sum_of_products(pairs: list[tuple[int, int]]) -> int:
    """Sum of the products of these factors (first, other) over all orders of them and one more: those before it have
    changed.
    """
    by_changed = [1]  # by how many factors have changed: the sum of all such products
    for first, other in pairs:
        unchanged = [first * value for value in by_changed]
        by_changed = [
            one + two for one, two in zip([*unchanged, 0], [0, *(other * value for value in by_changed)], strict=True)
        ]
    count = len(pairs)
    return sum(factorial(k) * factorial(count - k) * value for k, value in enumerate(by_changed))


def rounded(shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Whole numbers that add up to the rounded sum of the shares: largest remainder, from zero both ways."""
    whole = {part: floor(share) if share >= 0 else -floor(-share) for part, share in shares.items()}
    missing = round(sum(shares.values(), Fraction(0))) - sum(whole.values())
    sign = 1 if missing > 0 else -1
    # sorted() is stable, so equal remainders go by the order of the parts, whatever the sign.
    for part in sorted(shares, key=lambda part: sign * (whole[part] - shares[part]))[: abs(missing)]:
        whole[part] += sign
    return whole
