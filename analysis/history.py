"""Histories of results: figures over time, and the changes in them that Apache Otava finds.

Otava is a program of its own, in an environment of its own: it and molprof need different versions of numpy.
"""

from __future__ import annotations

import csv
import datetime
import json
import math
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct

from molprof.analysis.compare.thresholds import Judgement, Threshold, breaks
from molprof.analysis.figures.catalog import FIGURES, METRICS
from molprof.analysis.figures.figure import Figure
from molprof.common.errors import EngineError, UsageError
from molprof.common.process import output_of
from molprof.common.values import Unit, Value, by_unit, per

KIND, SCHEMA = "molprof history", 1
OTAVA_VARIABLE = "MOLPROF_OTAVA"
_FIGURES = tuple(figure for figure in METRICS.values() if figure.role == "measure")
_SETTINGS = tuple(figure for figure in FIGURES if figure.role != "measure")
_LIMIT_S = 600
_COMMIT_LETTERS = 12
# Otava prints means with six digits after the point: small values are multiplied so that so many are significant.
_DIGITS = 7
# It would take the variable for the name of a branch.
_NOT_FOR_OTAVA = ("BRANCH", "OTAVA_CONFIG")
_TEST, _FILE, _COLUMN, _TIME = "figure{}", "{}.csv", "value", "time"
# Index, means before and after, p-value.
_Point = tuple[int, float, float, float]


class HistoryEntry(Struct, frozen=True):
    """One result of a history."""

    kind: str
    schema: int
    name: str  # results of one name are one history
    time: str  # ISO, UTC; the order of results
    commit: str | None
    environment: dict[str, str]
    file: str
    digest: str
    version: str  # of molprof
    figures: dict[str, Value] = {}
    groups: dict[str, str] = {}  # the certificate's verdict on each group of figures
    finding: str | None = None  # id of the first
    finding_title: str | None = None

    def value(self, figure: Figure) -> float | None:
        """Return a figure; None where it is not recorded, not finite, or not to be had by the certificate.

        None where it is not recorded, or the certificate says that it is not known.
        """
        value = self.figures.get(figure.id)
        doubted = any(self.groups.get(group) == "not_to_be_had" for group in figure.rests_on)
        is_known = isinstance(value, (int, float)) and math.isfinite(value) and not doubted
        return float(value) if is_known else None  # type: ignore[arg-type]


class Change(Struct, frozen=True):
    """A figure that changed between two results, both of which have it."""

    figure: str  # its id
    last: int  # number of the last result before, and of the first after the change
    first: int
    before: float  # means of the results between this change and its neighbours
    after: float
    p_value: float

    @property
    def ratio(self) -> float | None:
        """The change as a ratio of the value before; None where that was 0."""
        return per(self.after - self.before, abs(self.before))

    @property
    def unit(self) -> Unit:
        """The unit of a mean."""
        unit = METRICS[self.figure].unit
        return "number" if unit == "count" else unit


class History(Struct, frozen=True):
    """The results of one name in the order of their times, and the changes in that order."""

    name: str
    entries: tuple[HistoryEntry, ...]
    changes: tuple[Change, ...]

    def values(self, figure: Figure) -> list[tuple[int, float]]:
        """Return the figure by number of result, where it is known."""
        all_values = ((number, entry.value(figure)) for number, entry in enumerate(self.entries))
        return [(number, value) for number, value in all_values if value is not None]

    @property
    def figures(self) -> list[Figure]:
        """Figures that any result has."""
        return [figure for figure in _FIGURES if self.values(figure)]


def histories(entries: Iterable[HistoryEntry]) -> list[History]:
    """Return the entries by name, with the changes of each figure. Raises UsageError, EngineError."""
    by_name: dict[str, list[HistoryEntry]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.time, entry.digest)):
        by_name.setdefault(entry.name, []).append(entry)
    result = [History(name, tuple(items), ()) for name, items in sorted(by_name.items())]
    series = [(history, figure, history.values(figure)) for history in result for figure in history.figures]
    points = _change_points([[value for _, value in values] for _, _, values in series])
    changes: dict[str, list[Change]] = {history.name: [] for history in result}
    for (history, figure, values), items in zip(series, points, strict=True):
        for index, *rest in items:
            changes[history.name].append(Change(figure.id, values[index - 1][0], values[index][0], *rest))
    return [
        msgspec.structs.replace(history, changes=tuple(sorted(changes[history.name], key=lambda item: item.first)))
        for history in result
    ]


def differing(before: HistoryEntry, after: HistoryEntry) -> dict[str, tuple[str, str]]:
    """Return commit, environment and settings that differ, by name."""
    names = dict.fromkeys((*before.environment, *after.environment))
    pairs = {
        "commit": (before.commit, after.commit),
        "molprof that read it": (before.version, after.version),
        **{name: (before.environment.get(name), after.environment.get(name)) for name in names},
        **{
            figure.label: tuple(by_unit(figure.unit, entry.figures.get(figure.id)) for entry in (before, after))
            for figure in _SETTINGS
        },
    }
    return {name: tuple(map(_text, pair)) for name, pair in pairs.items() if pair[0] != pair[1]}  # type: ignore[misc]


def when_text(entry: HistoryEntry) -> str:
    """Return the time and the commit of a result."""
    commit = "" if entry.commit is None else f", {entry.commit[:_COMMIT_LETTERS]}"
    return f"{entry.time[:19]}{commit}"


def judge_changes(histories: Sequence[History], thresholds: Sequence[Threshold], recent: int | None) -> Judgement:
    """Return the verdict of thresholds on changes; with `recent`, on those in the last `recent` results of a name."""
    failed, undecided = [], []
    for threshold in thresholds:
        figure = threshold.figure
        if figure is None or not any(figure in history.figures for history in histories):
            undecided.append(f"{threshold.text}: not recorded")
        for history in histories:
            since = 0 if recent is None else len(history.entries) - recent
            for change in history.changes:
                is_judged = figure is not None and change.figure == figure.id and change.first >= since
                if is_judged and breaks(threshold, change.before, change.after):
                    before, after = (by_unit(change.unit, value) for value in (change.before, change.after))
                    where = when_text(history.entries[change.first])
                    failed.append(f"{threshold.text}: {history.name}: from {before} to {after} at {where}")
    return Judgement(tuple(failed), tuple(undecided), ())


def _text(value: str | None) -> str:
    return "not recorded" if value is None else value


def _change_points(series: Sequence[Sequence[float]]) -> list[list[_Point]]:
    """Return the change points of each series."""
    changes: list[list[_Point]] = [[] for _ in series]
    # What is always equal does not change.
    test_of = {_TEST.format(number): number for number, values in enumerate(series) if len(set(values)) > 1}
    if not test_of:
        return changes
    factors = {number: _factor(max(map(abs, series[number]))) for number in test_of.values()}
    with TemporaryDirectory(prefix="molprof-history-") as name:
        folder, tests = Path(name), {}
        for test, number in test_of.items():
            file = folder / _FILE.format(test)
            _write_csv(file, [value * factors[number] for value in series[number]])
            tests[test] = {
                "type": "csv", "file": str(file), "time_column": _TIME, "metrics": {_COLUMN: {"column": _COLUMN}},
            }  # fmt: skip
        config = folder / "otava.yaml"
        config.write_text(json.dumps({"tests": tests}), encoding="utf-8")  # JSON is YAML
        answers = _otava("analyze", "--config-file", str(config), "--output", "json", *test_of)
    for test, points in answers.items():
        number = test_of[test]
        for change in (change for point in points for change in point["changes"]):
            before, after = (float(change[name]) / factors[number] for name in ("mean_before", "mean_after"))
            changes[number].append((int(change["index"]), before, after, float(change["pvalue"])))
    return changes


def _factor(largest: float) -> float:
    """Return a power of ten, so that whole numbers stay whole."""
    return 10.0 ** max(0, _DIGITS - 1 - math.floor(math.log10(largest)))


def _write_csv(file: Path, values: Sequence[float]) -> None:
    """Write values one second apart, until now: Otava drops those of another year, or of the future."""
    ends = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow((_TIME, _COLUMN))
        for number, value in enumerate(values):
            writer.writerow(((ends - datetime.timedelta(seconds=len(values) - number)).isoformat(), repr(value)))


def _otava(*arguments: str) -> dict[str, Any]:
    """Return Otava's answers, by test."""
    command = os.environ.get(OTAVA_VARIABLE)
    line = shlex.split(command) if command else [shutil.which("otava") or ""]
    hint = f"pipx install apache-otava; or export {OTAVA_VARIABLE}='uvx --from apache-otava otava'"
    if not line[0]:
        raise UsageError("Apache Otava finds change points, and there is no program otava on the PATH", hint)
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_OTAVA}
    try:
        ended = output_of([*line, *arguments], _LIMIT_S, env=environment)
    except OSError as error:
        raise UsageError(f"cannot start Apache Otava ({shlex.join(line)}): {error.strerror}", hint) from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"Apache Otava ({shlex.join(line)}) did not end in {_LIMIT_S} s") from error
    said = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
    if ended.returncode:
        text = said[-1] if said else f"exit code {ended.returncode}"
        raise EngineError(
            f"Apache Otava ({shlex.join(line)}) failed: {text}", "molprof reads what apache-otava 0.8 says"
        )
    try:
        answers: dict[str, Any] = {}
        for text in ended.stdout.splitlines():
            answers |= msgspec.json.decode(text) if text.startswith("{") else {}
        missing = set(arguments[5:]) - answers.keys()
        if missing:
            raise ValueError(f"no answer about {len(missing)} series")
        return answers
    except (ValueError, TypeError) as error:
        text = f"what Apache Otava ({shlex.join(line)}) answered cannot be read: {error}"
        raise EngineError(text, "molprof reads what apache-otava 0.8 says") from error
