"""Expectations from a TOML file: one table `[[prediction]]` each."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

from molprof.analysis.compare.predictions import BUILT_IN, Expectation
from molprof.analysis.compare.rows import ROW_OF
from molprof.analysis.compare.thresholds import near_metrics
from molprof.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*prediction[ \t]*\]\]", re.MULTILINE)
_KEYS = ("id", "text", "metric", "direction", "bound", "between")
_NEEDED = ("id", "text", "metric", "direction")
_WANTED = "predictions are a TOML file with a table [[prediction]] for each"
_EXAMPLE = """\
[[prediction]]
id = "fewer_launches"
text = "fewer launches per token"
metric = "launches_per_token"
direction = "lower"
bound = 0.8
between = ["llama*", "qwen*"]"""


class _Place:
    """The n-th table of a file, for messages."""

    def __init__(self, path: Path, text: str, number: int) -> None:
        self._path, self._text = path, text
        headers = [match.start() for match in _HEADER.finditer(text)]
        self._start = headers[number] if number < len(headers) else 0
        self._end = headers[number + 1] if number + 1 < len(headers) else len(text)

    def refuse(self, problem: str, key: str | None = None, hint: str | None = None) -> NoReturn:
        """Raises UsageError that names the file and the line of `key`, or of the table."""
        at = self._start
        if key is not None and (
            match := re.search(rf"^[ \t]*{re.escape(key)}[ \t]*=", self._text[at : self._end], re.M)
        ):
            at += match.start()
        line = self._text.count("\n", 0, at) + 1
        raise UsageError(f"{self._path}, line {line}: {problem}", hint=hint or _EXAMPLE)


def read_expectations(path: Path) -> tuple[Expectation, ...]:
    """The expectations of a file.

    Raises:
        UsageError: it cannot be read, is not TOML, or an entry is not one; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: byte {error.start}", hint=_WANTED) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=_WANTED) from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}", hint=_EXAMPLE) from error
    entries = content.pop("prediction", None)
    if content:
        raise UsageError(f"{path}: unknown key {next(iter(content))!r}; only [[prediction]] is read", hint=_EXAMPLE)
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path} has no [[prediction]]", hint=_EXAMPLE)
    found: list[Expectation] = []
    taken = {item.id for item in BUILT_IN}
    for number, entry in enumerate(entries):
        place = _Place(path, text, number)
        item = _expectation(entry, place)
        if item.id in taken:
            place.refuse(f"the id {item.id!r} is taken", "id")
        taken.add(item.id)
        found.append(item)
    return tuple(found)


def _expectation(entry: Any, place: _Place) -> Expectation:
    if not isinstance(entry, dict):
        place.refuse("a prediction is a table")
    if missing := [key for key in _NEEDED if key not in entry]:
        place.refuse(f"the prediction lacks {', '.join(missing)}")
    if unknown := [key for key in entry if key not in _KEYS]:
        place.refuse(f"unknown key {unknown[0]!r}; known: {', '.join(_KEYS)}", unknown[0])
    for key in _NEEDED:
        if not isinstance(entry[key], str) or not entry[key]:
            place.refuse(f"{key} is {entry[key]!r}, expected text", key)
    if entry["direction"] not in ("lower", "higher"):
        place.refuse(f"direction is {entry['direction']!r}, expected 'lower' or 'higher'", "direction")
    row = ROW_OF.get(entry["metric"])
    if row is None or row.unit == "text":
        place.refuse(f"no metric {entry['metric']!r}", "metric", near_metrics(entry["metric"]))
    bound = entry.get("bound", 1.0)
    if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not (math.isfinite(bound) and bound > 0):
        place.refuse(f"bound is {bound!r}, expected a ratio above 0, such as 0.8", "bound")
    between = entry.get("between")
    if between is not None and not (
        isinstance(between, list) and len(between) == 2 and all(isinstance(name, str) and name for name in between)
    ):
        place.refuse(f"between is {between!r}, expected the names of two runs", "between")
    return Expectation(
        id=entry["id"],
        text=entry["text"],
        metric=entry["metric"],
        direction=entry["direction"],
        bound=float(bound),
        between=None if between is None else (between[0], between[1]),
    )
