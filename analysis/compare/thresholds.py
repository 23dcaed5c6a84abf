"""`--fail-if`: bounds on compared figures, such as `launches_per_token>+5%`, `wall_ns>2s` or `junk_tokens>0`."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from molprof.analysis.compare.statistics import LEAST_REPEATS, Interval, median_interval, ratio_interval
from molprof.analysis.figures.catalog import METRICS
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report
from molprof.common.errors import UsageError
from molprof.common.values import by_unit

_FORM = re.compile(
    r"\s*(?P<metric>\w+)\s*(?P<operator>>=|<=|>|<)\s*"
    r"(?P<sign>[+-]?)(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*(?P<unit>%|ns|us|µs|ms|s)?\s*"
)
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_FORMS = (
    "METRIC, then > >= < or <=, then a change (+5%, -5%) or a value: launches_per_token>+5%  wall_ns>2s  junk_tokens>0"
)


@dataclass(frozen=True)
class Threshold:
    """A bound that fails the command if broken.

    Attributes:
        text: as given.
        operator: holds where the bound is broken.
        bound: a factor on the first run's figure where `relative`, else a value in the metric's unit.
    """

    text: str
    metric: Figure
    operator: str
    bound: float
    relative: bool

    def exceeded(self, value: float) -> bool:
        """Whether a value, or a ratio, is beyond the bound."""
        return _OPERATORS[self.operator](value, self.bound)

    def surely(self, interval: Interval) -> bool:
        """Whether all of an interval is beyond the bound."""
        return self.exceeded(interval.low if self.operator.startswith(">") else interval.high)


@dataclass(frozen=True)
class Outcome:
    """Results of all thresholds, one line each.

    Attributes:
        broken: beyond the bound.
        untold: not recorded, or too few timed passes.
        notes: beyond the bound, but within noise.
    """

    broken: tuple[str, ...]
    untold: tuple[str, ...]
    notes: tuple[str, ...]


def parse_threshold(text: str, relative: bool = True) -> Threshold:
    """A threshold as the command line gives it.

    Args:
        relative: changes against another run are allowed.

    Raises:
        UsageError: wrong form, unknown metric, or a unit that does not fit.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a threshold", hint=_FORMS)
    metric = METRICS.get(match["metric"])
    if metric is None:
        raise UsageError(f"{text!r}: no metric {match['metric']!r}", hint=near_metrics(match["metric"]))
    unit, sign, number = match["unit"], match["sign"], float(match["number"])
    if sign:
        if unit != "%":
            raise UsageError(f"{text!r}: a change must be in percent", hint=_FORMS)
        if not relative:
            raise UsageError(f"{text!r} is a change, and there is no other run", hint="molprof compare BEFORE AFTER")
        return Threshold(text, metric, match["operator"], 1 + float(f"{sign}{number}") / 100, True)
    return Threshold(text, metric, match["operator"], _value(text, metric, unit, number), False)


def _value(text: str, metric: Figure, unit: str | None, number: float) -> float:
    """A value in the metric's unit."""
    if metric.unit == "ns":
        if unit in _NS:
            return number * _NS[unit]
        if unit is None and number == 0:
            return 0.0
        raise UsageError(
            f"{text!r}: {metric.id} is a time", hint="give it a unit (ns us ms s), or a change such as +5%"
        )
    if metric.unit == "ratio" and unit == "%":
        return number / 100
    if unit is not None:
        hint = f"a change has a sign: +{number:g}%" if unit == "%" else "give a number without unit"
        raise UsageError(f"{text!r}: {metric.id} has no unit {unit}", hint=hint)
    return number


def near_metrics(name: str) -> str:
    """A hint that names metrics like `name`, or all of them."""
    near = difflib.get_close_matches(name, METRICS, n=4, cutoff=0.5)
    near += [item for item in METRICS if name.lower() in item and item not in near]
    return f"did you mean {', '.join(near[:5])}?" if near else f"metrics: {', '.join(METRICS)}"


def judge_report(report: Report, thresholds: Sequence[Threshold]) -> Outcome:
    """Values of one report against absolute thresholds."""
    return _outcome([_absolute(threshold, report, "") for threshold in thresholds])


def judge_comparison(labels: Sequence[str], reports: Sequence[Report], thresholds: Sequence[Threshold]) -> Outcome:
    """All reports but the first: their values, and their changes against the first."""
    verdicts = []
    for threshold in thresholds:
        for label, report in zip(labels[1:], reports[1:], strict=True):
            if threshold.relative:
                verdicts.append(_relative(threshold, report, label, reports[0], labels[0]))
            else:
                verdicts.append(_absolute(threshold, report, f"{label}: "))
    return _outcome(verdicts)


# Field of Outcome, or nothing, and the line.
_Verdict = tuple[str, str]


def _outcome(verdicts: Sequence[_Verdict]) -> Outcome:
    kinds = ("broken", "untold", "notes")
    return Outcome(*(tuple(line for kind, line in verdicts if kind == wanted) for wanted in kinds))


def _absolute(threshold: Threshold, report: Report, where: str) -> _Verdict:
    metric = threshold.metric
    value = metric.value(report)
    head = f"{threshold.text}: {where}{metric.id}"
    if value is None or isinstance(value, str):
        return "untold", f"{head} is not recorded{_why(report)}"
    line = f"{head} is {by_unit(metric.unit, value)}"
    interval = median_interval(metric.samples(report))
    return _verdict(threshold, line, value, interval, lambda bound: by_unit(metric.unit, bound))


def _relative(threshold: Threshold, report: Report, label: str, first: Report, first_label: str) -> _Verdict:
    metric = threshold.metric
    value, base = metric.value(report), metric.value(first)
    head = f"{threshold.text}: {label}: {metric.id}"
    for name, item, source in ((label, value, report), (first_label, base, first)):
        if item is None or isinstance(item, str):
            return "untold", f"{head} is not recorded in {name}{_why(source)}"
    assert isinstance(value, (int, float))
    assert isinstance(base, (int, float))
    ratio = value / base if base else (1.0 if value == base else math.copysign(math.inf, value))
    line = f"{head} is {by_unit(metric.unit, value)}, {by_unit(metric.unit, base)} in {first_label}"
    line += f": {_change(ratio)}" if math.isfinite(ratio) else ""
    return _verdict(threshold, line, ratio, ratio_interval(metric.samples(report), metric.samples(first)), _change)


def _verdict(
    threshold: Threshold, line: str, value: float, interval: Interval | None, show: Callable[[float], str]
) -> _Verdict:
    """A time breaks a bound if its whole interval is beyond it, any other figure if its value is."""
    exceeded = threshold.exceeded(value)
    if threshold.metric.noise != "repeats":
        return ("broken" if exceeded else ""), line
    if interval is None:
        return "untold", f"{line}; noise is unknown with fewer than {LEAST_REPEATS} timed passes (capture --repeats)"
    line += f" (between {show(interval.low)} and {show(interval.high)} at {100 * interval.level:.0f} %)"
    if threshold.surely(interval):
        return "broken", line
    return ("notes", f"{line}: within noise") if exceeded else ("", line)


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _why(report: Report) -> str:
    return " (not captured by molprof)" if report.run is None else ""
