"""The difference in wall time between two runs: parts that add up to it, and which of them are causes.

docs/comparing.md has the model. A time is a sum of terms, products of named factors. A factor's share of the change is
its exact Shapley value: its mean marginal effect over all orders in which the factors could have changed one after the
other (L. S. Shapley, "A value for n-person games", 1953; for such decompositions A. F. Shorrocks, J. Econ. Inequal. 11,
2013). So no order is preferred, the shares add up to the change, they change sign when first and other change places,
and a factor that stays has none. For a product of two it is the midpoint rule: d(x y) = dx (y0 + y1) / 2 + dy (x0 +
x1) / 2. The Shapley value of a sum of terms is the sum of theirs, so a part may stand in several terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import factorial, floor, lcm, prod
from typing import NamedTuple

from msgspec.structs import replace

from molprof.analysis.compare.model import Difference, TraceDifference
from molprof.analysis.compare.parts import BOUNDS, HOST, MACHINE, PHASE_PARTS, group_of, in_order
from molprof.analysis.compare.rows import ComparedRow, paired_rounds
from molprof.analysis.compare.same_work import same_work
from molprof.analysis.compare.statistics import LEVEL, Interval, mean_interval, significant
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run, Spread
from molprof.common.manifest import STEP_PHASES
from molprof.common.values import factor_text

# Parts of the counts of tokens, rows and steps, which do not vary: only their weight in time does.
_COUNTED = ("tokens", "steps")
# Name causes until they account for this share of all, at most this number.
_ENOUGH_RATIO = 0.8
_MOST_CAUSES = 3
_AGAINST_RATIO = 0.1
# From this change on a machine is not the same any more.
_LARGE_DRIFT = 0.1
# A part below this share of the first run's time is not worth a name, however sure it is.
_LEAST_RATIO = 0.001


class Factor(NamedTuple):
    """One factor of a term: the part that its change counts for, and its two values."""

    part: str
    first: Fraction
    other: Fraction


Term = tuple[Factor, ...]


class _StepCosts(NamedTuple):
    """Costs of one run's steps; 0 steps and batches in a run without rows."""

    steps: int
    batches: int
    cost_ns: dict[str, Fraction | None]  # mean unprofiled time of each phase per step that has it; None if no step has
    bound_ns: dict[str, dict[str, Fraction]] | None  # by what bounded it (`BOUNDS`); None: not recorded
    gpu_beyond_ns: int  # GPU time, extended to the whole run, that does not fit in unprofiled time


class _Split(NamedTuple):
    """One run's wall time minus another's, of two passes or of the medians, and its parts."""

    wall_ns: int
    parts: dict[str, int]


def difference(first: Run | None, other: Run | None, wall: ComparedRow, place: int) -> Difference | None:
    """`other`, at `place` of the row of wall times, minus `first`; None where either has no unprofiled time.

    Paired runs are compared round by round, and the difference is the mean of the rounds. Of other runs it is that of
    the medians, and the passes of one vary independently of the other's.
    """
    if first is None or other is None or first.wall_ns.median is None or other.wall_ns.median is None:
        return None
    costs = _step_costs(first), _step_costs(other)
    whole = _split(first, other)
    rounds = paired_rounds(first, other)
    pairs = zip(range(len(first.repeats)), range(len(other.repeats)), strict=False) if rounds is None else rounds
    each = [_split(_of_pass(first, one), _of_pass(other, two)) for one, two in pairs]
    each = [item for item in each if item.parts.keys() == whole.parts.keys()]  # a pass may lack its phases
    ratio = None
    if rounds is not None and each:
        whole, ratio = _mean(each), wall.ratios[place]
    factors, factor_values = _factors(first, other, ratio)
    residual_ns = whole.wall_ns - sum(whole.parts.values())
    equal = same_work(first, other)
    parts, each = _apart(whole.parts, equal), [item._replace(parts=_apart(item.parts, equal)) for item in each]
    drift = None if rounds is not None else _drift(first, parts, equal)
    intervals = _intervals(parts, [item.parts for item in each], first, other, abs(drift or 0.0))
    sure = [part for part in parts if _is_sure(part, parts[part], intervals)]
    worth = [part for part in sure if abs(parts[part]) >= _LEAST_RATIO * first.wall_ns.median]
    noise = [part for part in intervals if part not in sure and group_of(part) != MACHINE]
    bounded = costs[0].bound_ns is not None and costs[1].bound_ns is not None
    return Difference(
        wall_ns=whole.wall_ns,
        parts=parts,
        residual_ns=residual_ns,
        residual_ratio=residual_ns / abs(whole.wall_ns) if whole.wall_ns else None,
        basis={part: "window" if part.rpartition(".")[2] in BOUNDS else "measured" for part in parts},
        gpu_beyond_ns=(costs[0].gpu_beyond_ns, costs[1].gpu_beyond_ns) if bounded else None,
        factors=factors,
        factor_values=factor_values,
        paired=rounds is not None,
        rounds=len(each),
        significant=wall.significant[place],
        causes=named_parts({part: parts[part] for part in worth}),
        intervals=intervals,
        wall_interval=mean_interval([float(item.wall_ns) for item in each]),
        within_noise_ns=sum(parts[part] for part in noise),
        drift_ratio=drift,
        doubts=tuple(_doubts(first, other, drift)),
    )


def _of_pass(run: Run, number: int) -> Run:
    """The run as if it had this timed pass alone."""
    wall_ns, phases_ns = run.repeats[number].wall_ns, run.repeats[number].phases_ns
    phases = {name: replace(figures, wall_ns=phases_ns.get(name)) for name, figures in run.phases.items()}
    return replace(run, wall_ns=Spread(wall_ns, wall_ns, wall_ns, 1), phases=phases)


def _split(first: Run, other: Run) -> _Split:
    shares = rounded(attribute([*_phase_terms(first, other), *_step_terms(first, other)]))
    return _Split(
        (other.wall_ns.median or 0) - (first.wall_ns.median or 0), {part: shares[part] for part in in_order(shares)}
    )


def _mean(each: Sequence[_Split]) -> _Split:
    parts = {part: Fraction(sum(item.parts[part] for item in each), len(each)) for part in each[0].parts}
    return _Split(round(Fraction(sum(item.wall_ns for item in each), len(each))), rounded(parts))


def _phase_terms(first: Run, other: Run) -> Iterator[Term]:
    for part, phase in PHASE_PARTS.items():
        # A phase that a run lacks (templates without a processor) took no time.
        yield (_factor(part, first.phases[phase].wall_ns or 0, other.phases[phase].wall_ns or 0),)


def _step_terms(first: Run, other: Run) -> Iterator[Term]:
    """Row-steps of each kind x steps per row-step x cost per step; the forward less often by one per batch."""
    runs = first, other
    a, b = costs = _step_costs(first), _step_costs(other)
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


def _costs(phase: str, a: _StepCosts, b: _StepCosts) -> Iterator[Factor]:
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


def _factors(first: Run, other: Run, ratio: float | None) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """time = tokens x steps per token x time per step: ratios other / first, and the values; none where one is 0.

    They multiply to the ratio of the medians, or to the given one.
    """
    runs = first, other
    walls = [run.wall_ns.median or 0 for run in runs]
    if not all((*walls, *(count for run in runs for count in (run.generated_tokens, run.steps)))):
        return {}, {}
    values = {
        "tokens": [float(run.generated_tokens) for run in runs],
        "steps_per_token": [run.steps / run.generated_tokens for run in runs],
        "time_per_step": [wall_ns / run.steps for wall_ns, run in zip(walls, runs, strict=True)],
    }
    factors = {name: there / here for name, (here, there) in values.items()}
    if ratio is not None:
        factors["time_per_step"] = ratio / (factors["tokens"] * factors["steps_per_token"])
        values["time_per_step"][1] = values["time_per_step"][0] * factors["time_per_step"]
    return factors, {name: (here, there) for name, (here, there) in values.items()}


def _phase(part: str) -> str | None:
    """The phase whose cost a part is; None for parts of counts."""
    return PHASE_PARTS.get(part) or (None if group_of(part) in _COUNTED else group_of(part))


def _apart(parts: Mapping[str, int], equal: frozenset[str]) -> dict[str, int]:
    """The parts with those of equal work under the machine's name; of one phase they are one part."""
    found: dict[str, int] = {}
    for part, ns in parts.items():
        phase = _phase(part)
        name = f"{MACHINE}.{phase}" if phase in equal else part
        found[name] = found.get(name, 0) + ns
    return {part: found[part] for part in in_order(found)}


def _doubts(first: Run, other: Run, drift: float | None) -> Iterator[str]:
    for name, run in (("first", first), ("other", other)):
        for doubt in () if run.machine is None else run.machine.doubts():
            yield f"in the {name} run {doubt}"
    if drift is not None and abs(drift) >= _LARGE_DRIFT:
        yield f"equal work took {factor_text(1 + drift)} the time in the other run"


def _drift(first: Run, parts: Mapping[str, int], equal: frozenset[str]) -> float | None:
    """How much the machine changed its speed between two captures, as far as equal work tells: a ratio minus 1."""
    base = sum(first.phases[phase].wall_ns or 0 for phase in equal)
    change = sum(ns for part, ns in parts.items() if group_of(part) == MACHINE)
    return change / base if base else None


def _intervals(
    parts: Mapping[str, int], each: Sequence[Mapping[str, int]], first: Run, other: Run, drift: float
) -> dict[str, Interval]:
    """Of each part that is not 0, ns; that none of those of unequal work misses its value has the probability LEVEL."""
    longest_ns = {phase: max(run.phases[phase].wall_ns or 0 for run in (first, other)) for phase in first.phases}
    least_ns = _LEAST_RATIO * (first.wall_ns.median or 0)
    changed = {part: _phase(part) for part, ns in parts.items() if ns or any(item[part] for item in each)}
    # Times of unequal work, in phases that are long enough to be named.
    judged = {
        part
        for part, phase in changed.items()
        if phase is not None and group_of(part) != MACHINE and longest_ns[phase] >= least_ns
    }
    level = 1 - (1 - LEVEL) / max(1, len(judged))
    found = {}
    for part, phase in changed.items():
        interval = mean_interval([float(item[part]) for item in each], level if part in judged else LEVEL)
        if interval is None:
            return {}
        value, half = parts[part], (interval.high - interval.low) / 2
        if group_of(part) != MACHINE:
            half += drift * max(abs(value), 0 if phase is None else longest_ns[phase])
        found[part] = Interval(value - half, value + half, interval.level)
    return found


def _is_sure(part: str, ns: int, intervals: Mapping[str, Interval]) -> bool:
    """Whether a part can only be a difference between the runs: counts do not vary, times have intervals."""
    if group_of(part) == MACHINE or not ns:
        return False
    return group_of(part) in _COUNTED or bool(part in intervals and significant(intervals[part], 0.0))


def named_parts(sure: Mapping[str, int]) -> tuple[str, ...]:
    """The parts that make most of the sum of these, and the largest against it if it is large too."""
    ordered = sorted(sure, key=lambda part: -abs(sure[part]))
    net = sum(sure.values())
    sign = 1 if net >= 0 else -1
    along: list[str] = []
    for part in ordered:
        if len(along) < _MOST_CAUSES and sign * sum(sure[name] for name in along) < _ENOUGH_RATIO * abs(net):
            along += [part] if sign * sure[part] > 0 else []
    against = [part for part in ordered if sign * sure[part] < -_AGAINST_RATIO * abs(net)]
    return (*along, *against[:1])


def _step_costs(run: Run) -> _StepCosts:
    """The costs of `run`. Every step has each phase but `forward`, which step 0 of a batch does as `prefill`."""
    steps = run.steps if run.row_steps > 0 else 0
    batches = min(run.batches, steps)
    counts = {phase: steps - batches if phase == "forward" else steps for phase in STEP_PHASES}
    walls = {phase: (run.phases[phase].wall_ns or 0) if counts[phase] else 0 for phase in STEP_PHASES}
    cost_ns = {phase: _ratio(walls[phase], counts[phase]) for phase in STEP_PHASES}
    if any(walls[phase] and run.phases[phase].bound is None for phase in STEP_PHASES) or not any(walls.values()):
        return _StepCosts(steps, batches, cost_ns, None, 0)
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
    return _StepCosts(steps, batches, cost_ns, bounds, round(over))


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
