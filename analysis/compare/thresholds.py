"""`--fail-if`: bounds on compared figures, such as `launches_per_token>+5%`, `wall_ns>2s` or `junk_tokens>0`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from molprof.analysis.compare.model import Comparison
from molprof.analysis.compare.rows import ComparedRow, compared_row, paired_rounds
from molprof.analysis.compare.statistics import LEAST_REPEATS
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
# It fails if a check of the certificate doubts a group of figures; `uncertain>5%`: if these may be off by more.
_UNCERTAIN = "uncertain"
_ANY_DOUBT = -1.0
_FORMS = (
    "FIGURE, then > >= < or <=, then a change (+5%, -5%) or a value: launches_per_token>+5%  wall_ns>2s  junk_tokens>0;"
    " or uncertain, or uncertain>5%"
)


class Threshold(Struct, frozen=True):
    """A bound that fails the command where `operator` holds."""

    text: str
    figure: Figure | None  # None: how far any figure may be off, by the certificate
    operator: str
    bound: float  # a factor on the first run's figure where `relative`, else a value in the figure's unit
    relative: bool


class Judgement(NamedTuple):
    """A line for each threshold that failed, that is undecided, and that is exceeded within noise."""

    failed: tuple[str, ...]
    undecided: tuple[str, ...]
    within_noise: tuple[str, ...]


# Field of Judgement, or nothing, and the line.
_Verdict = tuple[str, str]


def parse_threshold(text: str, relative: bool = True) -> Threshold:
    """A threshold as the command line gives it; a change only where `relative`. Raises UsageError if it is none."""
    if text.strip() == _UNCERTAIN:
        return Threshold(_UNCERTAIN, None, ">", _ANY_DOUBT, False)
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a threshold", hint=_FORMS)
    unit, sign, number = match["unit"], match["sign"], float(match["number"])
    if match["metric"] == _UNCERTAIN:
        if match["operator"] != ">" or sign or unit != "%":
            raise UsageError(f"{text!r} is not a threshold", hint="uncertain, or uncertain>5%")
        return Threshold(text.strip(), None, ">", number / 100, False)
    figure = METRICS.get(match["metric"])
    if figure is None:
        raise UsageError(f"{text!r}: no figure {match['metric']!r}", hint=near_metrics(match["metric"]))
    if sign and unit != "%":
        raise UsageError(f"{text!r}: a change must be in percent", hint=_FORMS)
    if sign and not relative:
        raise UsageError(f"{text!r} is a change, and there is no other run", hint="molprof compare BEFORE AFTER")
    bound = 1 + float(f"{sign}{number}") / 100 if sign else _value(text, figure, unit, number)
    return Threshold(text, figure, match["operator"], bound, bool(sign))


def _value(text: str, figure: Figure, unit: str | None, number: float) -> float:
    if figure.unit == "ns":
        if unit in _NS:
            return number * _NS[unit]
        if unit is None and number == 0:
            return 0.0
        hint = "give it a unit (ns us ms s), or a change such as +5%"
        raise UsageError(f"{text!r}: {figure.id} is a time", hint=hint)
    if figure.unit == "ratio" and unit == "%":
        return number / 100
    if unit is not None:
        hint = f"a change has a sign: +{number:g}%" if unit == "%" else "give a number without unit"
        raise UsageError(f"{text!r}: {figure.id} has no unit {unit}", hint=hint)
    return number


def near_metrics(name: str) -> str:
    """A hint that names figures like `name`, or all of them."""
    import difflib  # on a mistake alone

    near = difflib.get_close_matches(name, METRICS, n=4, cutoff=0.5)
    near += [item for item in METRICS if name.lower() in item and item not in near]
    return f"did you mean {', '.join(near[:5])}?" if near else f"figures: {', '.join(METRICS)}"


def judge_report(report: Report, thresholds: Sequence[Threshold]) -> Judgement:
    """Values of one report against thresholds, none of them a change."""
    rows = {item.figure.id: compared_row(item.figure, [report]) for item in thresholds if item.figure is not None}
    return _judgement(("",), [report], rows, thresholds)


def judge_comparison(comparison: Comparison, thresholds: Sequence[Threshold]) -> Judgement:
    """The rows of all runs but the first: values, and changes against the first; the certificates of all."""
    rows = {row.figure.id: row for row in comparison.rows}
    return _judgement(comparison.labels, comparison.runs, rows, thresholds)


def _judgement(
    labels: Sequence[str], reports: Sequence[Report], rows: Mapping[str, ComparedRow], thresholds: Sequence[Threshold]
) -> Judgement:
    alone = len(labels) == 1
    found: list[_Verdict] = []
    for threshold in thresholds:
        for place, (label, report) in enumerate(zip(labels, reports, strict=True)):
            head = f"{threshold.text}: " if alone else f"{threshold.text}: {label}: "
            if threshold.figure is None:
                found.append(_certified(threshold, head, report))
            elif place or alone:
                found.append(_judged(threshold, head, rows[threshold.figure.id], place, labels, reports))
    return Judgement(*(tuple(line for kind, line in found if kind == wanted) for wanted in Judgement._fields))


def _certified(threshold: Threshold, head: str, report: Report) -> _Verdict:
    """Failed by each group of figures that may be off by more than the threshold's ratio."""
    if report.certificate is None:
        return "undecided", f"{head}{_UNCERTAIN} is not recorded"
    names = []
    for item in report.certificate.uncertain:
        if item.off_ratio > threshold.bound:
            by = f" by {100 * item.off_ratio:.3g} %" if math.isfinite(item.off_ratio) and threshold.bound >= 0 else ""
            names.append(f"{item.title} ({item.verdict.replace('_', ' ')}{by})")
    return "failed" if names else "", head + (", ".join(names) or "nothing")


def _judged(
    threshold: Threshold, head: str, row: ComparedRow, place: int, labels: Sequence[str], reports: Sequence[Report]
) -> _Verdict:
    """A time fails if its whole interval is beyond the bound, any other figure if its value is."""
    figure, relative, beyond = row.figure, threshold.relative, _OPERATORS[threshold.operator]
    value, before = row.numbers(place)
    if value is None or (relative and before is None):
        side = place if value is None else 0
        why = " (not captured by molprof)" if reports[side].run is None else ""
        return "undecided", f"{head}{figure.id} is not recorded{f' in {labels[side]}' if relative else ''}{why}"
    show: Callable[[float], str] = partial(by_unit, figure.unit)
    line = f"{head}{figure.id} is {show(value)}"
    tested, interval, paired = value, row.intervals[place], ""
    if relative:
        line += f", {by_unit(figure.unit, before)} in {labels[0]}"
        show, tested, interval = _change, row.factor(place), row.ratio_intervals[place]
        paired = "" if paired_rounds(reports[0].run, reports[place].run) is None else "paired, "
        line += f": {show(tested)}" if math.isfinite(tested) else ""
    exceeded = beyond(tested, threshold.bound)
    if figure.noise != "repeats":
        return "failed" if exceeded else "", line
    if interval is None:
        return "undecided", f"{line}; noise is unknown with fewer than {LEAST_REPEATS} timed passes (capture --repeats)"
    line += f" ({paired}between {show(interval.low)} and {show(interval.high)} at {100 * interval.level:.0f} %)"
    if beyond(interval.low if threshold.operator.startswith(">") else interval.high, threshold.bound):
        return "failed", line
    return ("within_noise", f"{line}: within noise") if exceeded else ("", line)


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
