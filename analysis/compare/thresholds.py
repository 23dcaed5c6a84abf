"""Bounds on compared figures, judged on the rows of a comparison: thresholds of `--fail-if`, and predictions.

A threshold is such as `launches_per_token>+5%`, `wall_ns>2s` or `junk_tokens>0`. Predictions are four built-in
expectations about LLaMA and Qwen, and those of a TOML file.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

from molprof.analysis.compare.rows import ComparedRow, compared_row
from molprof.analysis.compare.statistics import LEAST_REPEATS, ConfidenceInterval
from molprof.analysis.figures.catalog import METRICS
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report
from molprof.common.errors import UsageError
from molprof.common.values import Unit, by_unit

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
_EXAMPLE = """\
[[prediction]]
id = "fewer_launches"
text = "fewer launches per token"
metric = "launches_per_token"
direction = "lower"
bound = 0.8
between = ["llama*", "qwen*"]"""
# A ratio this near its bound is equal to it: a difference that decides nothing.
RELEVANT = 0.01


class Threshold(Struct, frozen=True):
    """A bound that fails the command where `operator` holds."""

    text: str
    figure: Figure | None  # None: how far any figure may be off, by the certificate
    operator: str
    bound: float  # a factor on the first run's figure where `relative`, else a value in the figure's unit
    relative: bool


class Judgement(NamedTuple):
    """Lines on thresholds: those that failed, those that are undecided, and those exceeded within noise."""

    failed: tuple[str, ...]
    undecided: tuple[str, ...]
    within_noise: tuple[str, ...]


Verdict = Literal["confirmed", "refuted", "equal", "not significant", "not recorded"]
Direction = Literal["lower", "higher"]
_Text = Annotated[str, Meta(min_length=1, description="text")]
_Bound = Annotated[float, Meta(gt=0, le=sys.float_info.max, description="a ratio above 0, such as 0.8")]


class Expectation(Struct, frozen=True):
    """A figure of one run that is expected to be lower or higher than that of another."""

    id: _Text
    text: _Text
    metric: _Text  # id of a compared figure
    direction: Annotated[Direction, Meta(description="'lower' or 'higher'")]
    bound: _Bound = 1.0  # of the ratio of the one figure to the other
    # labels or patterns of the runs; None: the second and the first
    between: Annotated[tuple[_Text, _Text] | None, Meta(description="the names of two runs")] = None


class ExpectationVerdict(Struct, frozen=True):
    """An expectation, and the verdict on the ratio of its metric."""

    id: str
    text: str
    verdict: Verdict
    unit: Unit
    figures: dict[str, float | None]  # by label of run; empty without two runs to compare
    metric: str
    direction: Direction
    bound: float
    ratio: float | None
    interval: ConfidenceInterval | None
    reason: str | None  # why there is no verdict


# Expected of LLaMA's tokens against Qwen's before anything was measured.
BUILT_IN = (
    Expectation("fewer_tokens_per_molecule", "fewer tokens per molecule", "tokens_per_molecule", "lower"),
    Expectation("fewer_launches_per_molecule", "fewer launches per molecule", "launches_per_molecule", "lower"),
    Expectation(
        "fewer_elementwise_per_attention",
        "fewer kernels named elementwise per attention kernel",
        "elementwise_to_attention",
        "lower",
    ),
    Expectation("faster", "less time end to end", "wall_ns", "lower"),
)


def parse_threshold(text: str, relative: bool = True) -> Threshold:
    """Return the threshold that a text of the command line means; of a change only where `relative`.

    Raises UsageError if it is none.
    """
    if text.strip() == _UNCERTAIN:
        return Threshold(_UNCERTAIN, None, ">", _ANY_DOUBT, False)
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a threshold", hint=_FORMS)
    metric, comparison, sign, digits, unit = match.groups()
    number = float(digits)
    if metric == _UNCERTAIN:
        if comparison != ">" or sign or unit != "%":
            raise UsageError(f"{text!r} is not a threshold", hint="uncertain, or uncertain>5%")
        return Threshold(text.strip(), None, ">", number / 100, False)
    figure = METRICS.get(metric)
    if figure is None:
        raise UsageError(f"{text!r}: no figure {metric!r}", hint=near_metrics(metric))
    if sign and unit != "%":
        raise UsageError(f"{text!r}: a change must be in percent", hint=_FORMS)
    if sign and not relative:
        raise UsageError(f"{text!r} is a change, and there is no other run", hint="molprof compare BEFORE AFTER")
    if sign:
        number = 1 + float(f"{sign}{digits}") / 100
    elif figure.unit == "ns":
        if unit not in _NS and (unit is not None or number):
            hint = "give it a unit (ns us ms s), or a change such as +5%"
            raise UsageError(f"{text!r}: {figure.id} is a time", hint=hint)
        number *= _NS.get(unit or "ns", 1)
    elif figure.unit == "ratio" and unit == "%":
        number /= 100
    elif unit is not None:
        hint = f"a change has a sign: +{number:g}%" if unit == "%" else "give a number without unit"
        raise UsageError(f"{text!r}: {figure.id} has no unit {unit}", hint=hint)
    return Threshold(text, figure, comparison, number, bool(sign))


def breaks(threshold: Threshold, before: float, after: float) -> bool:
    """Return True if a figure that went from `before` to `after` breaks the bound. A change from 0 has no limit."""
    value = after
    if threshold.relative:
        value = after / before if before else math.copysign(math.inf, after) if after else 1.0
    return bool(_OPERATORS[threshold.operator](value, threshold.bound))


def near_metrics(name: str) -> str:
    """Return a hint that names figures like `name`, or all of them."""
    import difflib  # on a mistake alone

    near = difflib.get_close_matches(name, METRICS, n=4, cutoff=0.5)
    near += [item for item in METRICS if name.lower() in item and item not in near]
    return f"did you mean {', '.join(near[:5])}?" if near else f"figures: {', '.join(METRICS)}"


def judge_report(report: Report, thresholds: Sequence[Threshold]) -> Judgement:
    """Judge the figures of one report by thresholds, none of them on a change."""
    rows = [compared_row(item.figure, [report]) for item in thresholds if item.figure is not None]
    return judge_rows(("",), [report], rows, thresholds)


def judge_rows(
    labels: Sequence[str], reports: Sequence[Report], rows: Sequence[ComparedRow], thresholds: Sequence[Threshold]
) -> Judgement:
    """Judge all runs but the first: figures, changes against the first, and the certificates of all."""
    by_id = {row.figure.id: row for row in rows}
    alone = len(labels) == 1
    lines: list[tuple[str, str]] = []  # field of Judgement, or nothing, and the line
    for threshold in thresholds:
        for index, (label, report) in enumerate(zip(labels, reports, strict=True)):
            head = f"{threshold.text}: " if alone else f"{threshold.text}: {label}: "
            if threshold.figure is None:
                kind, line = _certified(threshold, report)
            elif index or alone:
                kind, line = _judged(threshold, by_id[threshold.figure.id], index, labels, reports)
            else:
                continue
            lines.append((kind, head + line))
    return Judgement(*(tuple(line for kind, line in lines if kind == wanted) for wanted in Judgement._fields))


def _certified(threshold: Threshold, report: Report) -> tuple[str, str]:
    """Return the thresholds that fail, since their figures may be off by more than the threshold's ratio."""
    if report.certificate is None:
        return "undecided", f"{_UNCERTAIN} is not recorded"
    names = []
    for item in report.certificate.uncertain:
        if item.off_ratio > threshold.bound:
            by = f" by {100 * item.off_ratio:.3g} %" if math.isfinite(item.off_ratio) and threshold.bound >= 0 else ""
            names.append(f"{item.title} ({item.verdict.replace('_', ' ')}{by})")
    return "failed" if names else "", ", ".join(names)


def _judged(
    threshold: Threshold, row: ComparedRow, index: int, labels: Sequence[str], reports: Sequence[Report]
) -> tuple[str, str]:
    """Judge a figure by a threshold: a time fails if its whole interval is beyond the bound, others by their value."""
    figure, relative, beyond = row.figure, threshold.relative, _OPERATORS[threshold.operator]
    value, before = row.numbers(index)
    if value is None or (relative and before is None):
        side = index if value is None else 0
        why = " (not captured by molprof)" if reports[side].run is None else ""
        return "undecided", f"{figure.id} is not recorded{f' in {labels[side]}' if relative else ''}{why}"
    show: Callable[[float], str] = partial(by_unit, figure.unit)
    line = f"{figure.id} is {show(value)}"
    tested, interval, paired = value, row.intervals[index], ""
    if relative:
        line += f", {by_unit(figure.unit, before)} in {labels[0]}"
        show, tested, interval = _change, row.factor(index), row.ratio_intervals[index]
        paired = "paired, " if row.paired else ""
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


def read_expectations(path: Path) -> tuple[Expectation, ...]:
    """Return the expectations of a file. Raises UsageError with the line of what is wrong."""
    from molprof.common.toml_file import read_toml  # heavy

    file = read_toml(path, _EXAMPLE)
    entries = file.check_keys(file.content, [], ("prediction",)).get("prediction")
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path} has no [[prediction]]", hint=_EXAMPLE)
    expectations: list[Expectation] = []
    for number, entry in enumerate(entries):
        where = ("prediction", number)
        item = file.typed(entry, where, Expectation)
        if item.metric not in METRICS:
            file.refuse(f"no figure {item.metric!r}", [*where, "metric"], near_metrics(item.metric))
        if any(item.id == other.id for other in (*BUILT_IN, *expectations)):
            file.refuse(f"the id {item.id!r} is taken", [*where, "id"])
        expectations.append(item)
    return tuple(expectations)


def predictions(
    labels: Sequence[str], reports: Sequence[Report], rows: Sequence[ComparedRow], expectations: Sequence[Expectation]
) -> tuple[ExpectationVerdict, ...]:
    """Return the verdict on each expectation; built-in ones first, unless the runs generated no molecules."""
    runs = [report.run for report in reports if report.run is not None]
    families = _families(labels, reports)
    missing = "requires a LLaMA and a Qwen run, both with a processor or both without, or two foreign traces"
    built_in = BUILT_IN if not runs or any(run.of_molecules for run in runs) else ()
    expected = [
        *((item, families, missing) for item in built_in),
        *((item, *_named(item, labels)) for item in expectations),
    ]
    by_id = {row.figure.id: row for row in rows}
    verdicts = []
    for item, pair, reason in expected:
        row = by_id[item.metric]
        verdict: Verdict = "not recorded"
        figures: dict[str, float | None] = {}
        ratio = interval = None
        if pair is not None:
            index = pair[0]
            if pair[1] or not pair[0]:  # the rows are against the first run
                row, index = compared_row(row.figure, [reports[pair[1]], reports[pair[0]]], row.paired), 1
            verdict, reason = _verdict(item, row, index, [(labels[run], reports[run]) for run in pair])
            figures = {labels[run]: value for run, value in zip(pair, row.numbers(index), strict=True)}
            ratio, interval = row.ratios[index], row.ratio_intervals[index]
        about = (item.metric, item.direction, item.bound, ratio, interval, reason or None)
        verdicts.append(ExpectationVerdict(item.id, item.text, verdict, row.figure.unit, figures, *about))
    return tuple(verdicts)


def _families(labels: Sequence[str], reports: Sequence[Report]) -> tuple[int, int] | None:
    """Return a LLaMA and a Qwen run, both with a processor, both without or both foreign.

    Else the first two of foreign ones.

    The name of a foreign trace's file tells its family.
    """
    setups = [None if report.run is None else report.run.setup for report in reports]
    names = [label if setup is None else setup.family or "" for label, setup in zip(labels, setups, strict=True)]
    constrained = [None if setup is None else setup.processor is not None for setup in setups]
    for kind in (True, False, None):
        alike = [(index, name.lower()) for index, name in enumerate(names) if constrained[index] is kind]
        lower = next((index for index, name in alike if "llama" in name), None)
        higher = next((index for index, name in alike if "qwen" in name), None)
        if lower is not None and higher is not None and lower != higher:
            return lower, higher
    return (0, 1) if all(setup is None for setup in setups) else None


def _named(item: Expectation, labels: Sequence[str]) -> tuple[tuple[int, int] | None, str]:
    """Return the runs that the expectation names, or why there are none."""
    if item.between is None:
        return (1, 0), ""
    indices: list[int] = []
    for pattern in item.between:
        # A label first: labels may hold characters of patterns.
        matching = [index for index, label in enumerate(labels) if label == pattern] or [
            index for index, label in enumerate(labels) if fnmatchcase(label, pattern)
        ]
        if not matching:
            return None, f"no run is named {pattern!r}"
        # Two patterns that match the same runs mean two different ones of them.
        indices.append(next((index for index in matching if index not in indices), matching[0]))
    return (indices[0], indices[1]), ""


def _verdict(
    item: Expectation, row: ComparedRow, index: int, runs: Sequence[tuple[str, Report]]
) -> tuple[Verdict, str]:
    """Return the verdict: of times by the interval of their ratio, of counts by the ratio; noise decides nothing."""
    if lacking := [run for run, value in zip(runs, row.numbers(index), strict=True) if value is None]:
        reason = f"not recorded in {' and '.join(label for label, _ in lacking)}"
        divided = item.metric.endswith(("_per_token", "_per_molecule"))
        if divided and any(report.run is None for _, report in lacking):
            reason += "; --tokens and --molecules say how many it generated"
        return "not recorded", reason
    if row.figure.noise == "once":
        return "not significant", "measured once, so its noise is not known"
    low = high = row.factor(index)
    if row.figure.noise == "repeats":
        interval = row.ratio_intervals[index]
        if interval is None:
            return "not significant", f"one of the runs has fewer than {LEAST_REPEATS} timed passes"
        low, high = interval.low, interval.high
    if all(abs(end / item.bound - 1) <= RELEVANT for end in (low, high)):
        return "equal", ""
    if low <= item.bound <= high:
        return "not significant", f"the interval of the ratio contains {item.bound:g}"
    return "confirmed" if (high < item.bound) is (item.direction == "lower") else "refuted", ""
