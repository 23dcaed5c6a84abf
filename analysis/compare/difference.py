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
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from molprof.analysis.compare.parts import BOUNDS, HOST, MACHINE, PHASE_PARTS, group_of, in_order
from molprof.analysis.compare.rows import ComparedRow
from molprof.analysis.compare.statistics import LEVEL, ConfidenceInterval, mean_interval, significant
from molprof.analysis.figures.run_model import PassTimes, Run
from molprof.common.manifest import BETWEEN, PHASES, STEP_PHASES
from molprof.common.settings import recorded
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
# Of `Setup`, what decides the work of a forward of given rows: settings, and what only running tells.
_FORWARD = (*recorded("forward"), "parameters", "logits_width", "gpu", "torch", "transformers")
_TOKENS = recorded("tokens")
# Drafting may bring its own threads (numba's, for vLLM's n-grams).
_OF_DRAFTS = ("assistant", "speculative", "free_drafts", "threads")
# Kernels of a forward may differ by so much with the length of what it reads.
_TOLERANCE = Fraction(1, 100)


# A part is of unprofiled times and counts, or of unprofiled time divided as in the recorded steps.
Basis = Literal["measured", "window"]


class Difference(Struct, frozen=True):
    """Unprofiled wall time of a run minus the first run's, as parts that add up to it (docs/comparing.md).

    `gpu_beyond_ns` is recorded GPU time of the first and the run for which unprofiled steps have no room: above 0 where
    the recorded steps are not like the run, None if no part is divided as in them. The product of `factors`, the run's
    over the first's, is the ratio of the wall times; empty where a run has no tokens, steps or time.

    Times are those of the compared rows: of paired runs means of the rounds, else medians. `causes` are the parts that
    a verdict names: they differ from 0 beyond their interval, or are of counts, and are not of equal work. `intervals`
    are empty with too few passes.
    """

    wall_ns: int
    parts: dict[str, int]  # by id of `parts.py`, ns; with `residual_ns` they make `wall_ns`
    residual_ns: int  # unexplained time
    residual_ratio: float | None  # over |wall_ns|; None where that is 0
    basis: dict[str, Basis]
    gpu_beyond_ns: tuple[int, int] | None
    factors: dict[str, float]  # tokens, steps_per_token and time_per_step
    factor_values: dict[str, tuple[float, float]]  # of the first and of the run; time_per_step in ns
    paired: bool
    rounds: int  # that were compared, or pairs of passes of other runs
    significant: bool | None  # the wall times differ beyond noise, as their row says; None: unknown
    causes: tuple[str, ...]
    intervals: dict[str, ConfidenceInterval]  # by part, ns
    wall_interval: ConfidenceInterval | None  # ns
    within_noise_ns: int  # sum of the parts whose interval holds 0
    # how much longer or shorter equal work took in a separate capture: a ratio minus 1; None: paired, or none is equal
    drift_ratio: float | None
    doubts: tuple[str, ...]  # why the times are not reliable
    # where that is known: parts that such a change of speed of their phase explains, or that are not worth a word
    within_drift: tuple[str, ...] = ()


class Factor(NamedTuple):
    """One factor of a term: the part that its change is counted in, and its two values."""

    part: str
    first: Fraction
    other: Fraction


Term = tuple[Factor, ...]


def difference(first: Run | None, other: Run | None, wall: ComparedRow, index: int) -> Difference | None:
    """Return the difference of `other` minus `first` in wall time; None where either has no unprofiled time.

    Both have the times that the row has. Paired runs have their passes in the order of the rounds; otherwise the passes
    of one vary independently of the other's.
    """
    if first is None or other is None or first.wall_ns.median is None or other.wall_ns.median is None:
        return None
    wall_ns, split = _split(first, other)
    passes = range(min(len(first.repeats), len(other.repeats)))
    each = [_split(_of_pass(first, number), _of_pass(other, number)) for number in passes]
    each = [item for item in each if item[1].keys() == split.keys()]  # a pass may lack its phases
    factors, factor_values = _factors(first, other)
    residual_ns = wall_ns - sum(split.values())
    equal = same_work(first, other)
    parts = _merge_equal(split, equal)
    machine_ns = sum(ns for part, ns in parts.items() if group_of(part) == MACHINE)
    # How much the machine changed its speed between two captures, as far as equal work tells.
    equal_ns = sum(first.phases[phase].wall_ns or 0 for phase in equal)
    drift = machine_ns / equal_ns if not wall.paired and equal_ns else None
    intervals = _intervals(parts, [_merge_equal(item, equal) for _, item in each], first, other, abs(drift or 0.0))
    # What can only be a difference between the runs: counts do not vary, times have intervals.
    sure = [
        part
        for part, ns in parts.items()
        if ns
        and group_of(part) != MACHINE
        and (group_of(part) in _COUNTED or (part in intervals and significant(intervals[part], 0.0)))
    ]
    worth = {part: parts[part] for part in sure if abs(parts[part]) >= _LEAST_RATIO * first.wall_ns.median}
    divided = _is_divided(first) and _is_divided(other)
    within_drift = [
        part
        for part, ns in parts.items()
        if drift is not None
        and (phase := _phase(part)) is not None
        and abs(ns)
        <= max(_LEAST_RATIO * first.wall_ns.median, abs(drift) * max(_wall_ns(run, phase) for run in (first, other)))
    ]
    doubts = [
        f"in the {name} run {doubt}"
        for name, run in (("first", first), ("other", other))
        for doubt in (() if run.machine is None else run.machine.doubts())
    ]
    if drift is not None and abs(drift) >= _LARGE_DRIFT:
        doubts.append(f"equal work took {factor_text(1 + drift)} the time in the other run")
    return Difference(
        wall_ns=wall_ns,
        parts=parts,
        residual_ns=residual_ns,
        residual_ratio=residual_ns / abs(wall_ns) if wall_ns else None,
        basis={part: "window" if part.rpartition(".")[2] in BOUNDS else "measured" for part in parts},
        gpu_beyond_ns=(_step_costs(first, True)[1], _step_costs(other, True)[1]) if divided else None,
        factors=factors,
        factor_values=factor_values,
        paired=wall.paired,
        rounds=len(each),
        significant=wall.significant[index],
        causes=named_parts(worth),
        intervals=intervals,
        wall_interval=mean_interval([float(item) for item, _ in each]),
        within_noise_ns=sum(parts[part] for part in intervals if part not in sure and group_of(part) != MACHINE),
        drift_ratio=drift,
        doubts=tuple(doubts),
        within_drift=tuple(within_drift),
    )


def known_parts(difference: Difference) -> dict[str, int]:
    """Return the parts that are not 0 beyond noise; all that are not 0 where noise is unknown."""
    return {
        part: ns
        for part, ns in difference.parts.items()
        if ns
        and (group_of(part) in _COUNTED or not difference.intervals or significant(difference.intervals[part], 0.0))
    }


def _of_pass(run: Run, number: int) -> Run:
    """Return the run as if it had this timed pass alone."""
    wall_ns, phases_ns = run.repeats[number].wall_ns, run.repeats[number].phases_ns
    phases = {name: replace(figures, wall_ns=phases_ns.get(name)) for name, figures in run.phases.items()}
    return replace(run, wall_ns=PassTimes(wall_ns, wall_ns, wall_ns, 1), phases=phases)


def _split(first: Run, other: Run) -> tuple[int, dict[str, int]]:
    """Return the difference of two runs' wall times, of two passes or of the medians, and its parts."""
    shares = rounded(attribute(_terms(first, other)))
    return (other.wall_ns.median or 0) - (first.wall_ns.median or 0), {part: shares[part] for part in in_order(shares)}


def _terms(first: Run, other: Run) -> Iterator[Term]:
    """Return the terms of a run's time: phases outside the steps; and row-steps x steps per row-step x cost per step.

    The forward happens less often, by one per batch.
    """
    runs = first, other
    for part, phase in PHASE_PARTS.items():
        yield (_factor(part, *(_wall_ns(run, phase) for run in runs)),)
    divided = all(map(_is_divided, runs))
    a, b = (_step_costs(run, divided)[0] for run in runs)
    # 1 where a step generates one token per row; less with forced runs.
    per_token = _factor(
        "steps.forced", *(_ratio(run.row_steps - run.idle_row_steps, run.generated_tokens) for run in runs)
    )
    useful = (run.generated_tokens - run.junk_tokens - run.filler_tokens for run in runs)
    junk = "tokens.junk" if first.of_molecules else "tokens.runaway"
    rows = [
        (_factor("tokens.useful", *useful), per_token),
        (_factor(junk, first.junk_tokens, other.junk_tokens), per_token),
        (_factor("tokens.filler", first.filler_tokens, other.filler_tokens), per_token),
        (_factor("steps.idle", first.idle_row_steps, other.idle_row_steps),),
    ]
    counts = [_steps(run) for run in runs]
    steps = (_ratio(count, run.row_steps if count else 0) for run, (count, _) in zip(runs, counts, strict=True))
    steps_per_row = _factor("steps.batching", *steps)
    batches = _factor("steps.batching", *(-count for _, count in counts))
    for phase in STEP_PHASES:
        for bound in a[phase]:
            cost = _factor(f"{phase}.{bound}", a[phase][bound], b[phase][bound])
            for row in rows:
                yield *row, steps_per_row, cost
            if phase == "forward":
                yield batches, cost


def _wall_ns(run: Run, phase: str) -> int:
    """Return the unprofiled time of a phase; 0 for a phase that the run does not have, such as templates."""
    return run.phases[phase].wall_ns or 0 if phase in run.phases else 0


def _ratio(part: int | Fraction, whole: int) -> Fraction | None:
    return Fraction(part, whole) if whole else None


def _factor(part: str, first: int | Fraction | None, other: int | Fraction | None) -> Factor:
    """Return a factor; unchanged where one of the runs has 0 steps and so no value."""
    recorded = [value for value in (first, other) if value is not None] or [0]
    return Factor(part, *(Fraction(recorded[0] if value is None else value) for value in (first, other)))


def _steps(run: Run) -> tuple[int, int]:
    """Return steps and batches; 0 in a run without rows."""
    steps = run.steps if run.row_steps > 0 else 0
    return steps, min(run.batches, steps)


def _step_times(run: Run) -> dict[str, tuple[int, int]]:
    """Return the unprofiled time of each phase of steps, and the number of steps that have it.

    Every step has each phase but `forward`, which step 0 of a batch does as `prefill`.
    """
    steps, batches = _steps(run)
    counts = {phase: steps - batches if phase == "forward" else steps for phase in STEP_PHASES}
    return {phase: ((run.phases[phase].wall_ns or 0) if count else 0, count) for phase, count in counts.items()}


def _is_divided(run: Run) -> bool:
    """Return True if the recordings show what bounded each phase of the steps."""
    walls = {phase: wall_ns for phase, (wall_ns, _) in _step_times(run).items() if wall_ns}
    return bool(walls) and all(run.phases[phase].bound is not None for phase in walls)


def _step_costs(run: Run, divided: bool) -> tuple[dict[str, dict[str, Fraction | None]], int]:
    """Return the mean unprofiled time of each phase per step that has it; `divided`: by what bounded it (`BOUNDS`).

    None if no step has it. Second is GPU time, extended to the whole run, that does not fit in unprofiled time.
    """
    costs: dict[str, dict[str, Fraction | None]] = {}
    # The profiler slows the CPU, not the kernels. So GPU time and host syncs per step stay as recorded, and launching
    # is the rest of unprofiled time. Without the profiler the GPU finishes the work of a phase during the next ones.
    over = Fraction(0)
    for phase, (wall_ns, count) in _step_times(run).items():
        recorded = run.phases[phase].bound
        if not divided:
            costs[phase] = {HOST: _ratio(wall_ns, count)}
        elif recorded is None or not count:
            costs[phase] = dict.fromkeys(BOUNDS, Fraction(0) if count else None)
        else:
            over += Fraction(recorded.gpu_busy_ns * count, recorded.count)
            gpu = min(over, Fraction(wall_ns))
            over -= gpu
            sync = min(Fraction(recorded.sync_idle_ns * count, recorded.count), wall_ns - gpu)
            costs[phase] = {"gpu": gpu / count, "launch": (wall_ns - gpu - sync) / count, "sync": sync / count}
    return costs, round(over)


def _factors(first: Run, other: Run) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Return ratios, other / first, and values of tokens x steps per token x time per step; none where one is 0."""
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
    return factors, {name: (here, there) for name, (here, there) in values.items()}


def _phase(part: str) -> str | None:
    """Return the phase whose cost a part is; None for parts of counts."""
    return PHASE_PARTS.get(part) or (None if group_of(part) in _COUNTED else group_of(part))


def _merge_equal(parts: Mapping[str, int], equal: frozenset[str]) -> dict[str, int]:
    """Return the parts, with those of equal work merged into one part per phase under the machine's name."""
    merged: dict[str, int] = {}
    for part, ns in parts.items():
        phase = _phase(part)
        name = f"{MACHINE}.{phase}" if phase in equal else part
        merged[name] = merged.get(name, 0) + ns
    return {part: merged[part] for part in in_order(merged)}


def _intervals(
    parts: Mapping[str, int], each: Sequence[Mapping[str, int]], first: Run, other: Run, drift: float
) -> dict[str, ConfidenceInterval]:
    """Return the interval of each part that is not 0, ns; with probability LEVEL those of unequal work are right."""
    longest_ns = {phase: max(_wall_ns(run, phase) for run in (first, other)) for phase in (*PHASES, BETWEEN)}
    least_ns = _LEAST_RATIO * (first.wall_ns.median or 0)
    changed = {part: _phase(part) for part, ns in parts.items() if ns or any(item[part] for item in each)}
    # Times of unequal work, in phases that are long enough to be named.
    judged = {
        part
        for part, phase in changed.items()
        if phase is not None and group_of(part) != MACHINE and longest_ns[phase] >= least_ns
    }
    level = 1 - (1 - LEVEL) / max(1, len(judged))
    intervals = {}
    for part, phase in changed.items():
        interval = mean_interval([float(item[part]) for item in each], level if part in judged else LEVEL)
        if interval is None:
            return {}
        value, half = parts[part], (interval.high - interval.low) / 2
        if group_of(part) != MACHINE:
            half += drift * max(abs(value), 0 if phase is None else longest_ns[phase])
        intervals[part] = ConfidenceInterval(value - half, value + half, interval.level)
    return intervals


def named_parts(sure: Mapping[str, int]) -> tuple[str, ...]:
    """Return the parts that make up most of their sum, and the largest opposite part if it is large too."""
    ordered = sorted(sure, key=lambda part: -abs(sure[part]))
    net = sum(sure.values())
    sign = 1 if net >= 0 else -1
    along: list[str] = []
    for part in ordered:
        if len(along) < _MOST_CAUSES and sign * sum(sure[name] for name in along) < _ENOUGH_RATIO * abs(net):
            along += [part] if sign * sure[part] > 0 else []
    against = [part for part in ordered if sign * sure[part] < -_AGAINST_RATIO * abs(net)]
    return (*along, *against[:1])


def same_work(first: Run, other: Run) -> frozenset[str]:
    """Return the phases whose work is equal in both runs, per step for phases of steps.

    A logits processor changes no forward: the same model reads as many rows and tokens with the same kernels, whatever
    was masked before. Longer answers are more steps of the same work.
    """
    one, two = first.shapes, other.shapes
    if one is None or two is None or one.rows != two.rows or _differ(first, other, _FORWARD):
        return frozenset()
    # One configuration twice, which wrote the same. Only one capture tells that a processor was the same code.
    one_session = first.session is not None and other.session is not None and first.session.id == other.session.id
    wrote = [(run.shapes, run.generated_tokens, run.row_steps) for run in (first, other)]
    if (first.setup.processor is None or one_session) and wrote[0] == wrote[1] and not _differ(first, other, _TOKENS):
        return frozenset(PHASES)
    if first.setup.own_loop:  # the forwards feed what the processor forces, of rows that come and go
        return frozenset()
    # The recorded forwards have as many kernels, or leaf operators without a GPU, where both are known.
    here, there = _operations(first), _operations(other)
    agree = here is None or there is None or abs(here - there) <= _TOLERANCE * max(here, there)
    phases = {"forward"} if agree else set()
    if one.prompt_widths == two.prompt_widths:
        phases |= {"tokenize", "setup", "prefill"}
    return frozenset(phases)


def only_drafts_differ(first: Run, other: Run) -> bool:
    """Return True if one of two runs has drafts, and no other setting of their forwards and tokens differs."""
    names = tuple(name for name in (*_FORWARD, *_TOKENS) if name not in _OF_DRAFTS)
    return (first.drafts is None) != (other.drafts is None) and not _differ(first, other, names)


def _differ(first: Run, other: Run, names: tuple[str, ...]) -> bool:
    return any(getattr(first.setup, name) != getattr(other.setup, name) for name in names)


def _operations(run: Run) -> Fraction | None:
    window, forward = run.window, run.phases["forward"]
    count = forward.leaf_operators if forward.kernels is None else forward.kernels
    prefills = run.batches if window.full else int(window.first_step == 0)
    steps = window.steps - prefills
    return None if count is None or steps <= 0 else Fraction(count, steps)


def attribute(terms: Iterable[Term]) -> dict[str, Fraction]:
    """Return the exact change of the sum of `terms` by part, in order of first appearance."""
    shares: dict[str, Fraction] = {}
    for term in terms:
        # Whole numbers over one denominator: fractions would be reduced after every product.
        scales = [lcm(factor.first.denominator, factor.other.denominator) for factor in term]
        pairs = [(int(item.first * scale), int(item.other * scale)) for item, scale in zip(term, scales, strict=True)]
        denominator = prod(scales) * factorial(len(term))
        for index, (factor, (first, other)) in enumerate(zip(term, pairs, strict=True)):
            change = (other - first) * _sum_of_products([*pairs[:index], *pairs[index + 1 :]])
            shares[factor.part] = shares.get(factor.part, Fraction(0)) + Fraction(change, denominator)
    return shares


def _sum_of_products(pairs: list[tuple[int, int]]) -> int:
    """Return the sum of the products of these factors (first, other) over all orders of them and one more.

    Those before it in an order have changed.
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
    """Return whole numbers that add up to the rounded sum of the shares, by largest remainder."""
    whole = {part: floor(share) if share >= 0 else -floor(-share) for part, share in shares.items()}
    missing = round(sum(shares.values(), Fraction(0))) - sum(whole.values())
    sign = 1 if missing > 0 else -1
    # sorted() is stable, so equal remainders go by the order of the parts, whatever the sign.
    for part in sorted(shares, key=lambda part: sign * (whole[part] - shares[part]))[: abs(missing)]:
        whole[part] += sign
    return whole
