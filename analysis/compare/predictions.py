"""Expectations tested on the figures: four built-in ones about LLaMA and Qwen, and those of a TOML file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from molprof.analysis.compare.model import Direction, Prediction, Verdict
from molprof.analysis.compare.rounds import interval_of_ratio
from molprof.analysis.compare.statistics import LEAST_REPEATS, Interval
from molprof.analysis.compare.thresholds import near_metrics
from molprof.analysis.figures.catalog import METRICS
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import filled
from molprof.common.errors import UsageError
from molprof.common.toml_file import TomlFile, read_toml
from molprof.common.values import per

_NEEDED = ("id", "text", "metric", "direction")
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

Run = tuple[str, Report]


class Expectation(Struct, frozen=True):
    """A figure of one run that is expected to be lower or higher than that of another."""

    id: str
    text: str
    metric: str  # id of a compared figure
    direction: Direction
    bound: float = 1.0  # of the ratio of the one figure to the other
    between: tuple[str, str] | None = None  # labels or patterns of the runs; None: the second and the first


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


def read_expectations(path: Path) -> tuple[Expectation, ...]:
    """The expectations of a file. Raises UsageError with the line of what is wrong."""
    file = read_toml(path, _EXAMPLE)
    entries = file.check_keys(file.content, [], ("prediction",)).get("prediction")
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path} has no [[prediction]]", hint=_EXAMPLE)
    found: list[Expectation] = []
    taken = {item.id for item in BUILT_IN}
    for number, entry in enumerate(entries):
        item = _expectation(file, entry, number)
        if item.id in taken:
            file.refuse(f"the id {item.id!r} is taken", ["prediction", number, "id"])
        taken.add(item.id)
        found.append(item)
    return tuple(found)


def _expectation(file: TomlFile, found: object, number: int) -> Expectation:
    where = ("prediction", number)
    entry = file.check_keys(found, where, (*_NEEDED, "bound", "between"))

    def refuse(problem: str, key: str, hint: str | None = None) -> NoReturn:
        file.refuse(problem, [*where, key], hint)

    if missing := [key for key in _NEEDED if key not in entry]:
        file.refuse(f"the prediction lacks {', '.join(missing)}", where)
    for key in _NEEDED:
        if not isinstance(entry[key], str) or not entry[key]:
            refuse(f"{key} is {entry[key]!r}, expected text", key)
    if entry["direction"] not in ("lower", "higher"):
        refuse(f"direction is {entry['direction']!r}, expected 'lower' or 'higher'", "direction")
    if entry["metric"] not in METRICS:
        refuse(f"no figure {entry['metric']!r}", "metric", near_metrics(entry["metric"]))
    bound = entry.get("bound", 1.0)
    if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not (math.isfinite(bound) and bound > 0):
        refuse(f"bound is {bound!r}, expected a ratio above 0, such as 0.8", "bound")
    between = entry.get("between")
    if between is not None and not (
        isinstance(between, list) and len(between) == 2 and all(isinstance(name, str) and name for name in between)
    ):
        refuse(f"between is {between!r}, expected the names of two runs", "between")
    return Expectation(**{**entry, "bound": float(bound), "between": between and (between[0], between[1])})


def predictions(
    labels: Sequence[str], reports: Sequence[Report], given: Sequence[Expectation] = ()
) -> tuple[Prediction, ...]:
    """The verdict on each expectation; built-in ones first, unless the runs generated no molecules."""
    runs = list(zip(labels, reports, strict=True))
    known = [report.run for report in reports if report.run is not None]
    built_in = BUILT_IN if not known or any(run.of_molecules for run in known) else ()
    pair = _families(runs)
    missing = "requires a LLaMA and a Qwen run, both with a processor or both without, or two foreign traces"
    return (*(_judge(item, pair, missing) for item in built_in), *(_judge(item, *_named(item, runs)) for item in given))


def _families(runs: Sequence[Run]) -> tuple[Run, Run] | None:
    """A LLaMA and a Qwen run, both with a processor, both without or both foreign; else the first two of foreign ones.

    The name of a foreign trace's file tells its family.
    """
    for constrained in (True, False, None):
        alike = [
            (label, report, label if report.run is None else report.run.setup.family)
            for label, report in runs
            if _constrained(report) is constrained
        ]
        lower = next(((label, report) for label, report, family in alike if "llama" in family.lower()), None)
        higher = next(((label, report) for label, report, family in alike if "qwen" in family.lower()), None)
        if lower and higher and lower != higher:
            return lower, higher
    return (runs[0], runs[1]) if all(report.run is None for _, report in runs) else None


def _constrained(report: Report) -> bool | None:
    """A logits processor ran; None: a foreign trace does not tell."""
    return None if report.run is None else report.run.setup.processor is not None


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
    ratio, interval, reason = None, None, missing
    verdict: Verdict = "not recorded"
    if pair is not None:
        values = [metric.value(report) for _, report in pair]
        one, other = (None if isinstance(value, str) else value for value in values)
        figures = {pair[0][0]: one, pair[1][0]: other}
        reason = _unrecorded(metric, pair, (one, other))
        if one is not None and other is not None:
            ratio = per(one, other)
            verdict, interval, reason = _verdict(item, metric, pair, one, other)
    return filled(
        Prediction,
        item,
        verdict=verdict,
        unit=metric.unit,
        figures=figures,
        ratio=ratio,
        interval=interval,
        reason=reason or None,
    )


def _unrecorded(metric: Figure, pair: tuple[Run, Run], values: tuple[float | None, float | None]) -> str:
    """Where a figure is not recorded, and what would tell it."""
    lacking = [run for run, value in zip(pair, values, strict=True) if value is None]
    text = f"not recorded in {' and '.join(label for label, _ in lacking)}"
    divided = metric.id.endswith(("_per_token", "_per_molecule"))
    foreign = any(report.run is None for _, report in lacking)
    return f"{text}; --tokens and --molecules say how many it generated" if divided and foreign else text


def _verdict(
    item: Expectation, metric: Figure, pair: tuple[Run, Run], one: float, other: float
) -> tuple[Verdict, Interval | None, str]:
    """Beyond noise and relevance only: from the interval of the ratio for times, from the figures for counts."""
    if metric.noise == "once":
        return "not significant", None, "measured once, so its noise is not known"
    interval = None
    ends = (one / other, one / other) if other else (math.inf if one else 1.0,) * 2
    if metric.noise == "repeats":
        interval = interval_of_ratio(metric, pair[1][1], pair[0][1])
        if interval is None:
            return "not significant", None, f"one of the runs has fewer than {LEAST_REPEATS} timed passes"
        ends = interval.low, interval.high
    if all(abs(end / item.bound - 1) <= RELEVANT for end in ends):
        return "equal", interval, ""
    if ends[0] <= item.bound <= ends[1]:
        return "not significant", interval, f"the interval of the ratio contains {item.bound:g}"
    return ("confirmed" if (ends[1] < item.bound) is (item.direction == "lower") else "refuted"), interval, ""
