"""`--fail-if`: bounds on compared figures, such as `launches_per_token>+5%`, `wall_ns>2s` or `junk_tokens>0`."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct

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
_OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
# `--fail-if uncertain`: it breaks where a check of the certificate doubts a group of figures; `uncertain>5%`: where
# these may be off by more than that.
_UNCERTAIN = Figure(
    "uncertain",
    "Certificate",
    "groups of figures that are not exact",
    "count",
    lambda report: None if report.certificate is None else len(report.certificate.uncertain),
)
_ANY_DOUBT = -1.0
_FORMS = (
    "FIGURE, then > >= < or <=, then a change (+5%, -5%) or a value: launches_per_token>+5%  wall_ns>2s  junk_tokens>0;"
    " or uncertain, or uncertain>5%"
)


class Threshold(Struct, frozen=True):
    """A bound that fails the command where `operator` holds."""

    text: str
    metric: Figure
    operator: str
    # A factor on the first run's figure where `relative`, else a value in the metric's unit; of `uncertain` a ratio.
    bound: float
    relative: bool


class Outcome(NamedTuple):
    """A line for each threshold that is broken, that cannot be told, and that is broken but within noise."""

    broken: tuple[str, ...]
    untold: tuple[str, ...]
    notes: tuple[str, ...]


def parse_threshold(text: str, relative: bool = True) -> Threshold:
    """A threshold as the command line gives it; a change only where `relative`. Raises UsageError if it is none."""
    if text.strip() == _UNCERTAIN.id:
        return Threshold(text.strip(), _UNCERTAIN, ">", _ANY_DOUBT, False)
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a threshold", hint=_FORMS)
    if match["metric"] == _UNCERTAIN.id:
        if match["operator"] != ">" or match["sign"] or match["unit"] != "%":
            raise UsageError(f"{text!r} is not a threshold", hint="uncertain, or uncertain>5%")
        return Threshold(text.strip(), _UNCERTAIN, ">", float(match["number"]) / 100, False)
    metric = METRICS.get(match["metric"])
    if metric is None:
        raise UsageError(f"{text!r}: no figure {match['metric']!r}", hint=near_metrics(match["metric"]))
    unit, sign, number = match["unit"], match["sign"], float(match["number"])
    if sign:
        if unit != "%":
            raise UsageError(f"{text!r}: a change must be in percent", hint=_FORMS)
        if not relative:
            raise UsageError(f"{text!r} is a change, and there is no other run", hint="molprof compare BEFORE AFTER")
        return Threshold(text, metric, match["operator"], 1 + float(f"{sign}{number}") / 100, True)
    return Threshold(text, metric, match["operator"], _value(text, metric, unit, number), False)


def _value(text: str, metric: Figure, unit: str | None, number: float) -> float:
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
    """A hint that names figures like `name`, or all of them."""
    near = difflib.get_close_matches(name, METRICS, n=4, cutoff=0.5)
    near += [item for item in METRICS if name.lower() in item and item not in near]
    return f"did you mean {', '.join(near[:5])}?" if near else f"figures: {', '.join(METRICS)}"


def judge_report(report: Report, thresholds: Sequence[Threshold]) -> Outcome:
    """Values of one report against absolute thresholds."""
    return _outcome([_judge(threshold, report) for threshold in thresholds])


def judge_comparison(labels: Sequence[str], reports: Sequence[Report], thresholds: Sequence[Threshold]) -> Outcome:
    """All reports but the first: their values, and their changes against the first; the certificates of all."""
    runs, first = list(zip(labels, reports, strict=True)), (labels[0], reports[0])
    return _outcome(
        [
            _judge(threshold, report, label, first)
            for threshold in thresholds
            for label, report in (runs if threshold.metric is _UNCERTAIN else runs[1:])
        ]
    )


# Field of Outcome, or nothing, and the line.
_Verdict = tuple[str, str]


def _outcome(verdicts: Sequence[_Verdict]) -> Outcome:
    return Outcome(*(tuple(line for kind, line in verdicts if kind == wanted) for wanted in Outcome._fields))


def _judge(
    threshold: Threshold, report: Report, label: str | None = None, first: tuple[str, Report] | None = None
) -> _Verdict:
    metric = threshold.metric
    head = f"{threshold.text}: {'' if label is None else f'{label}: '}{metric.id}"
    if metric is _UNCERTAIN:
        return _judge_certificate(threshold, head, report)
    first = first if threshold.relative else None
    values: list[float] = []
    for name, source in ((label, report), *(() if first is None else (first,))):
        value = metric.value(source)
        if value is None or isinstance(value, str):
            where = "" if first is None else f" in {name}"
            why = " (not captured by molprof)" if source.run is None else ""
            return "untold", f"{head} is not recorded{where}{why}"
        values.append(value)
    line = f"{head} is {by_unit(metric.unit, values[0])}"
    samples = metric.samples(report)
    if first is None:
        return _verdict(threshold, line, values[0], median_interval(samples), partial(by_unit, metric.unit))
    value, base = values
    ratio = value / base if base else (1.0 if value == base else math.copysign(math.inf, value))
    line += f", {by_unit(metric.unit, base)} in {first[0]}" + (f": {_change(ratio)}" if math.isfinite(ratio) else "")
    return _verdict(threshold, line, ratio, ratio_interval(samples, metric.samples(first[1])), _change)


def _judge_certificate(threshold: Threshold, head: str, report: Report) -> _Verdict:
    """Broken by each group of figures that may be off by more than the threshold's ratio."""
    if report.certificate is None:
        return "untold", f"{head} is not recorded"
    found = [item for item in report.certificate.uncertain if item.off_ratio > threshold.bound]
    names = []
    for item in found:
        by = f" by {100 * item.off_ratio:.3g} %" if math.isfinite(item.off_ratio) and threshold.bound >= 0 else ""
        names.append(f"{item.title} ({item.verdict.replace('_', ' ')}{by})")
    line = f"{head.removesuffix(f': {_UNCERTAIN.id}')}: {', '.join(names) or 'nothing'}"
    return "broken" if found else "", line


def _verdict(
    threshold: Threshold, line: str, value: float, interval: Interval | None, show: Callable[[float], str]
) -> _Verdict:
    """A time breaks a bound if its whole interval is beyond it, any other figure if its value is."""
    beyond = _OPERATORS[threshold.operator]
    exceeded = beyond(value, threshold.bound)
    if threshold.metric.noise != "repeats":
        return ("broken" if exceeded else ""), line
    if interval is None:
        return "untold", f"{line}; noise is unknown with fewer than {LEAST_REPEATS} timed passes (capture --repeats)"
    line += f" (between {show(interval.low)} and {show(interval.high)} at {100 * interval.level:.0f} %)"
    if beyond(interval.low if threshold.operator.startswith(">") else interval.high, threshold.bound):
        return "broken", line
    return ("notes", f"{line}: within noise") if exceeded else ("", line)


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
