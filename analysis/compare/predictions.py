"""Expectations tested on a comparison's rows: four built-in ones about LLaMA and Qwen, and those of a TOML file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from molprof.analysis.compare.model import Direction, Prediction, Verdict
from molprof.analysis.compare.rows import ComparedRow, compared_row
from molprof.analysis.compare.statistics import LEAST_REPEATS
from molprof.analysis.compare.thresholds import near_metrics
from molprof.analysis.figures.catalog import METRICS
from molprof.analysis.figures.model import Report
from molprof.common.errors import UsageError

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
    from molprof.common.toml_file import read_toml  # heavy

    file = read_toml(path, _EXAMPLE)
    entries = file.check_keys(file.content, [], ("prediction",)).get("prediction")
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path} has no [[prediction]]", hint=_EXAMPLE)
    found: list[Expectation] = []
    for number, entry in enumerate(entries):
        where = ("prediction", number)
        item = file.typed(entry, where, Expectation)
        if item.metric not in METRICS:
            file.refuse(f"no figure {item.metric!r}", [*where, "metric"], near_metrics(item.metric))
        if any(item.id == other.id for other in (*BUILT_IN, *found)):
            file.refuse(f"the id {item.id!r} is taken", [*where, "id"])
        found.append(item)
    return tuple(found)


def predictions(
    labels: Sequence[str], reports: Sequence[Report], rows: Sequence[ComparedRow], given: Sequence[Expectation]
) -> tuple[Prediction, ...]:
    """The verdict on each expectation; built-in ones first, unless the runs generated no molecules."""
    known = [report.run for report in reports if report.run is not None]
    families = _families(labels, reports)
    missing = "requires a LLaMA and a Qwen run, both with a processor or both without, or two foreign traces"
    built_in = BUILT_IN if not known or any(run.of_molecules for run in known) else ()
    asked = [*((item, families, missing) for item in built_in), *((item, *_named(item, labels)) for item in given)]
    by_id = {row.figure.id: row for row in rows}
    found = []
    for item, pair, reason in asked:
        figure = METRICS[item.metric]
        figures: dict[str, float | None] = {}
        verdict: Verdict = "not recorded"
        ratio = interval = None
        if pair is not None:
            row, place = by_id[figure.id], pair[0]
            if pair[1] or not pair[0]:  # the rows are against the first run
                row, place = compared_row(figure, [reports[pair[1]], reports[pair[0]]]), 1
            figures = {labels[run]: value for run, value in zip(pair, row.numbers(place), strict=True)}
            verdict, reason = _verdict(item, row, place, [(labels[run], reports[run]) for run in pair])
            ratio, interval = row.ratios[place], row.ratio_intervals[place]
        about = (item.metric, item.direction, item.bound, ratio, interval, reason or None)
        found.append(Prediction(item.id, item.text, verdict, figure.unit, figures, *about))
    return tuple(found)


def _families(labels: Sequence[str], reports: Sequence[Report]) -> tuple[int, int] | None:
    """A LLaMA and a Qwen run, both with a processor, both without or both foreign; else the first two of foreign ones.

    The name of a foreign trace's file tells its family.
    """
    setups = [None if report.run is None else report.run.setup for report in reports]
    names = [label if setup is None else setup.family for label, setup in zip(labels, setups, strict=True)]
    constrained = [None if setup is None else setup.processor is not None for setup in setups]
    for kind in (True, False, None):
        alike = [(place, name.lower()) for place, name in enumerate(names) if constrained[place] is kind]
        lower = next((place for place, name in alike if "llama" in name), None)
        higher = next((place for place, name in alike if "qwen" in name), None)
        if lower is not None and higher is not None and lower != higher:
            return lower, higher
    return (0, 1) if all(setup is None for setup in setups) else None


def _named(item: Expectation, labels: Sequence[str]) -> tuple[tuple[int, int] | None, str]:
    """The runs that it names, or why there are none."""
    if item.between is None:
        return (1, 0), ""
    found: list[int] = []
    for pattern in item.between:
        # A label first: labels may hold characters of patterns.
        matching = [place for place, label in enumerate(labels) if label == pattern] or [
            place for place, label in enumerate(labels) if fnmatchcase(label, pattern)
        ]
        if not matching:
            return None, f"no run is named {pattern!r}"
        # Two patterns that match the same runs mean two different ones of them.
        found.append(next((place for place in matching if place not in found), matching[0]))
    return (found[0], found[1]), ""


def _verdict(
    item: Expectation, row: ComparedRow, place: int, runs: Sequence[tuple[str, Report]]
) -> tuple[Verdict, str]:
    """Beyond noise and relevance only: from the interval of the ratio for times, from the figures for counts."""
    if lacking := [run for run, value in zip(runs, row.numbers(place), strict=True) if value is None]:
        reason = f"not recorded in {' and '.join(label for label, _ in lacking)}"
        divided = item.metric.endswith(("_per_token", "_per_molecule"))
        if divided and any(report.run is None for _, report in lacking):
            reason += "; --tokens and --molecules say how many it generated"
        return "not recorded", reason
    if row.figure.noise == "once":
        return "not significant", "measured once, so its noise is not known"
    low = high = row.factor(place)
    if row.figure.noise == "repeats":
        interval = row.ratio_intervals[place]
        if interval is None:
            return "not significant", f"one of the runs has fewer than {LEAST_REPEATS} timed passes"
        low, high = interval.low, interval.high
    if all(abs(end / item.bound - 1) <= RELEVANT for end in (low, high)):
        return "equal", ""
    if low <= item.bound <= high:
        return "not significant", f"the interval of the ratio contains {item.bound:g}"
    return "confirmed" if (high < item.bound) is (item.direction == "lower") else "refuted", ""
