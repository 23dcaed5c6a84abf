"""What of a difference is a cause: each part with its own interval, equal work apart, and the rest within noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from msgspec.structs import replace

from molprof.analysis.compare.difference import PHASE_PARTS, difference, rounded
from molprof.analysis.compare.model import Difference
from molprof.analysis.compare.parts import MACHINE, group_of, in_order
from molprof.analysis.compare.rounds import are_paired, passes, rounds
from molprof.analysis.compare.same_work import same_work
from molprof.analysis.compare.statistics import LEVEL, Interval, mean_interval, paired_ratio, significant
from molprof.analysis.figures.run_model import Run
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


def explained(first: Run | None, other: Run | None) -> Difference | None:
    """`other` minus `first` with intervals and causes; None where either has no unprofiled time.

    Paired runs are compared round by round, and the difference is the mean of the rounds. Of other runs it is that of
    the medians, and the passes of one vary independently of the other's.
    """
    whole = difference(first, other)
    if whole is None or first is None or other is None:
        return None
    paired = are_paired(first, other)
    count = min(len(first.repeats), len(other.repeats))
    pairs = rounds(first, other) if paired else tuple((place, place) for place in range(count))
    each = [item for one, two in passes(first, other, pairs) if (item := difference(one, two)) is not None]
    each = [item for item in each if item.parts.keys() == whole.parts.keys()]  # a pass may lack its phases
    if paired and each:
        whole = _mean(whole, each, first, other)
    equal = same_work(first, other)
    whole = _apart(whole, equal)
    each = [_apart(item, equal) for item in each]
    drift = None if paired else _drift(first, other, whole, equal)
    intervals = _intervals(whole, each, first, other, abs(drift or 0.0))
    total = mean_interval([float(item.wall_ns) for item in each])
    sure = [part for part in whole.parts if _is_sure(part, whole.parts[part], intervals)]
    worth = [part for part in sure if abs(whole.parts[part]) >= _LEAST_RATIO * (first.wall_ns.median or 0)]
    noise = [part for part in intervals if part not in sure and group_of(part) != MACHINE]
    return replace(
        whole,
        paired=paired,
        rounds=len(each),
        intervals=intervals,
        wall_interval=total,
        drift_ratio=drift,
        doubts=tuple(_doubts(first, other, drift)),
        causes=named_parts({part: whole.parts[part] for part in worth}),
        within_noise_ns=sum(whole.parts[part] for part in noise),
    )


def _mean(whole: Difference, each: Sequence[Difference], first: Run, other: Run) -> Difference:
    """The mean of the rounds; its factors multiply to the geometric mean of their ratios."""
    wall_ns = round(Fraction(sum(item.wall_ns for item in each), len(each)))
    parts = rounded({part: Fraction(sum(item.parts[part] for item in each), len(each)) for part in whole.parts})
    residual_ns = wall_ns - sum(parts.values())
    pairs = rounds(first, other)
    walls = [first.repeats[one].wall_ns for one, _ in pairs], [other.repeats[two].wall_ns for _, two in pairs]
    ratio, factors, values = paired_ratio(walls[1], walls[0]), dict(whole.factors), dict(whole.factor_values)
    if ratio is not None and factors:
        factors["time_per_step"] = ratio / (factors["tokens"] * factors["steps_per_token"])
        before = values["time_per_step"][0]
        values["time_per_step"] = before, before * factors["time_per_step"]
    return replace(
        whole,
        wall_ns=wall_ns,
        parts=parts,
        residual_ns=residual_ns,
        residual_ratio=residual_ns / abs(wall_ns) if wall_ns else None,
        factors=factors,
        factor_values=values,
    )


def _phase(part: str) -> str | None:
    """The phase whose cost a part is; None for parts of counts."""
    return PHASE_PARTS.get(part) or (None if group_of(part) in _COUNTED else group_of(part))


def _apart(item: Difference, equal: frozenset[str]) -> Difference:
    """The difference with the parts of equal work under the machine's name; of one phase they are one part."""
    parts: dict[str, int] = {}
    basis = {}
    for part, ns in item.parts.items():
        phase = _phase(part)
        name = f"{MACHINE}.{phase}" if phase in equal else part
        parts[name] = parts.get(name, 0) + ns
        basis[name] = "measured" if phase in equal else item.basis[part]
    order = in_order(parts)
    return replace(item, parts={part: parts[part] for part in order}, basis={part: basis[part] for part in order})


def _doubts(first: Run, other: Run, drift: float | None) -> Iterator[str]:
    for name, run in (("first", first), ("other", other)):
        for doubt in () if run.machine is None else run.machine.doubts():
            yield f"in the {name} run {doubt}"
    if drift is not None and abs(drift) >= _LARGE_DRIFT:
        yield f"equal work took {factor_text(1 + drift)} the time in the other run"


def _drift(first: Run, other: Run, whole: Difference, equal: frozenset[str]) -> float | None:
    """How much the machine changed its speed between two captures, as far as equal work tells: a ratio minus 1."""
    base = sum(first.phases[phase].wall_ns or 0 for phase in equal)
    change = sum(ns for part, ns in whole.parts.items() if group_of(part) == MACHINE)
    return change / base if base else None


def _intervals(
    whole: Difference, each: Sequence[Difference], first: Run, other: Run, drift: float
) -> dict[str, Interval]:
    """Of each part that is not 0, ns; that none of those of unequal work misses its value has the probability LEVEL."""
    changed = [part for part, ns in whole.parts.items() if ns or any(item.parts[part] for item in each)]
    judged = [part for part in changed if _may_be_a_cause(part, first, other)]
    level = 1 - (1 - LEVEL) / max(1, len(judged))
    found = {}
    for part in changed:
        interval = mean_interval([float(item.parts[part]) for item in each], level if part in judged else LEVEL)
        if interval is None:
            return {}
        value, half = whole.parts[part], (interval.high - interval.low) / 2
        if group_of(part) != MACHINE:
            phase = _phase(part)
            times = () if phase is None else (run.phases[phase].wall_ns or 0 for run in (first, other))
            half += drift * max([abs(value), *times])
        found[part] = Interval(value - half, value + half, interval.level)
    return found


def _may_be_a_cause(part: str, first: Run, other: Run) -> bool:
    """Whether a part of times is of unequal work, and of a phase that is long enough to be named."""
    phase = _phase(part)
    if phase is None or group_of(part) == MACHINE:
        return False
    return max(run.phases[phase].wall_ns or 0 for run in (first, other)) >= _LEAST_RATIO * (first.wall_ns.median or 0)


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
