"""Expectations tested on the figures: four built-in ones about LLaMA and Qwen, and those of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from molprof.analysis.compare.model import Direction, Prediction, Verdict
from molprof.analysis.compare.statistics import LEAST_REPEATS, Interval, ratio_interval
from molprof.analysis.figures.catalog import METRICS
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report

LOWER = "llama"
HIGHER = "qwen"

Run = tuple[str, Report]


@dataclass(frozen=True)
class Expectation:
    """A figure of one run that is expected to be lower or higher than that of another.

    Attributes:
        metric: id of a compared figure.
        bound: of the ratio of the one figure to the other.
        between: labels of the runs, or patterns with `*` and `?`; None for the second run against the first.
    """

    id: str
    text: str
    metric: str
    direction: Direction
    bound: float = 1.0
    between: tuple[str, str] | None = None


# Expected of LLaMA's tokens against Qwen's before anything was measured.
BUILT_IN = (
    Expectation("fewer_tokens_per_molecule", "fewer tokens per molecule", "tokens_per_molecule", "lower"),
    Expectation("fewer_launches_per_molecule", "fewer launches per molecule", "launches_per_molecule", "lower"),
    Expectation(
        "fewer_elementwise_per_attention",
        "fewer elementwise kernels per attention kernel",
        "elementwise_to_attention",
        "lower",
    ),
    Expectation("faster", "less time end to end", "wall_ns", "lower"),
)


def predictions(
    labels: Sequence[str], reports: Sequence[Report], given: Sequence[Expectation] = ()
) -> tuple[Prediction, ...]:
    """The verdict on each expectation.

    Built-in ones take the first LLaMA and the first Qwen run, both with or both without processor; `given` ones the
    runs that they name.
    """
    runs = list(zip(labels, reports, strict=True))
    pair = _families(runs)
    missing = "requires a LLaMA and a Qwen run, both with a processor or both without"
    built_in = [_judge(item, pair, missing) for item in BUILT_IN]
    return (*built_in, *(_judge(item, *_named(item, runs)) for item in given))


def _families(runs: Sequence[Run]) -> tuple[Run, Run] | None:
    """A LLaMA and a Qwen run, both with a processor or else both without."""
    for constrained in (True, False):
        alike = [
            (label, report, report.run.setup.family)
            for label, report in runs
            if report.run is not None and (report.run.setup.processor is not None) is constrained
        ]
        lower = next(((label, report) for label, report, family in alike if family.startswith(LOWER)), None)
        higher = next(((label, report) for label, report, family in alike if family.startswith(HIGHER)), None)
        if lower and higher:
            return lower, higher
    return None


def _named(item: Expectation, runs: Sequence[Run]) -> tuple[tuple[Run, Run] | None, str]:
    """The runs that it names, or why there are none."""
    if item.between is None:
        return (runs[1], runs[0]), ""
    found = []
    for pattern in item.between:
        # A label first: labels may hold characters of patterns.
        matching = [run for run in runs if run[0] == pattern] or [run for run in runs if fnmatchcase(run[0], pattern)]
        if not matching:
            return None, f"no run is named {pattern!r}"
        # Two patterns that match the same runs mean two different ones of them.
        found.append(next((run for run in matching if run not in found), matching[0]))
    return (found[0], found[1]), ""


def _judge(item: Expectation, pair: tuple[Run, Run] | None, missing: str) -> Prediction:
    metric = METRICS[item.metric]
    figures: dict[str, float | None] = {}
    ratio, interval, verdict = None, None, None
    reason: str | None = missing
    if pair is not None:
        values = [metric.value(report) for _, report in pair]
        one, other = (None if isinstance(value, str) else value for value in values)
        figures = {pair[0][0]: one, pair[1][0]: other}
        reason = f"not recorded in {' and '.join(name for name, value in figures.items() if value is None)}"
        if one is not None and other is not None:
            ratio = one / other if other else None
            verdict, interval, reason = _verdict(item, metric, pair, one, other)
    return Prediction(
        id=item.id,
        text=item.text,
        verdict=verdict or "not recorded",
        unit=metric.unit,
        figures=figures,
        metric=item.metric,
        direction=item.direction,
        bound=item.bound,
        ratio=ratio,
        interval=interval,
        reason=reason,
    )


def _verdict(
    item: Expectation, metric: Figure, pair: tuple[Run, Run], one: float, other: float
) -> tuple[Verdict, Interval | None, str | None]:
    """From the interval of the ratio for times, from the figures themselves for all else."""
    lower = item.direction == "lower"
    if metric.noise != "repeats":
        holds = one < item.bound * other if lower else one > item.bound * other
        return ("confirmed" if holds else "refuted"), None, None
    interval = ratio_interval(metric.samples(pair[0][1]), metric.samples(pair[1][1]))
    if interval is None:
        return "not significant", None, f"one of the runs has fewer than {LEAST_REPEATS} timed passes"
    if interval.low <= item.bound <= interval.high:
        return "not significant", interval, f"the interval of the ratio contains {item.bound:g}"
    return ("confirmed" if (interval.high < item.bound) is lower else "refuted"), interval, None
