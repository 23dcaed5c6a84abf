"""Expectations from a TOML file: one table `[[prediction]]` each."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NoReturn

from molprof.analysis.compare.predictions import BUILT_IN, Expectation
from molprof.analysis.compare.thresholds import near_metrics
from molprof.analysis.figures.catalog import METRICS
from molprof.common.errors import UsageError
from molprof.common.toml_file import TomlFile, read_toml

_KEYS = ("id", "text", "metric", "direction", "bound", "between")
_NEEDED = ("id", "text", "metric", "direction")
_EXAMPLE = """\
[[prediction]]
id = "fewer_launches"
text = "fewer launches per token"
metric = "launches_per_token"
direction = "lower"
bound = 0.8
between = ["llama*", "qwen*"]"""


def read_expectations(path: Path) -> tuple[Expectation, ...]:
    """The expectations of a file.

    Raises:
        UsageError: it cannot be read, is not TOML, or an entry is not one; names the line.
    """
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
    where: tuple[str, int] = ("prediction", number)
    entry = file.check_keys(found, where, _KEYS)

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
        refuse(f"no metric {entry['metric']!r}", "metric", near_metrics(entry["metric"]))
    bound = entry.get("bound", 1.0)
    if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not (math.isfinite(bound) and bound > 0):
        refuse(f"bound is {bound!r}, expected a ratio above 0, such as 0.8", "bound")
    between = entry.get("between")
    if between is not None and not (
        isinstance(between, list) and len(between) == 2 and all(isinstance(name, str) and name for name in between)
    ):
        refuse(f"between is {between!r}, expected the names of two runs", "between")
    return Expectation(
        id=entry["id"],
        text=entry["text"],
        metric=entry["metric"],
        direction=entry["direction"],
        bound=float(bound),
        between=None if between is None else (between[0], between[1]),
    )
