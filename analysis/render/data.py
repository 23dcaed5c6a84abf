"""Reports and comparisons as data: JSON, and CSV with the values as they are (ns, bytes, ratios).

Both may be printed on a terminal, so control, direction and other invisible characters of texts are escapes: JSON's
own, which change no value, and in CSV, which has none, those of the tables (`\\x1b`, `\\u202e`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from molprof.analysis.compare import Comparison
from molprof.analysis.figures import Report
from molprof.common.text import escaped, escaped_json


def to_json(subject: Report | Comparison) -> str:
    """The documented JSON, indented, ending with a newline."""
    return escaped_json(json.dumps(subject.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def report_to_csv(report: Report) -> str:
    """Two columns: the JSON path of each figure, joined by dots, and its value; empty where not recorded."""
    return _csv([("figure", "value"), *_leaves((), report.to_json())])


def comparison_to_csv(comparison: Comparison) -> str:
    """One line per compared figure, one column per run, then each run's ratio to the first."""
    header = ("id", "unit", *comparison.labels, *(f"{label} ratio" for label in comparison.labels[1:]))
    lines: list[tuple[Any, ...]] = [header]
    lines.extend((row.figure.id, row.figure.unit, *row.values, *row.ratios[1:]) for row in comparison.rows)
    return _csv(lines)


def _csv(lines: list[tuple[Any, ...]]) -> str:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([escaped(cell) if isinstance(cell, str) else cell for cell in line] for line in lines)
    return buffer.getvalue()


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves((*path, str(key)), item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves((*path, str(index)), item)
    else:
        yield ".".join(path), value
