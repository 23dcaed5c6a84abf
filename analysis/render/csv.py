r"""Documents as CSV: values as they are (ns, bytes, ratios), empty where not recorded.

CSV has no escapes of its own, so invisible characters of texts stand as in tables (`\x1b`, `\u202e`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

from molprof.common.document import Document
from molprof.common.text import escaped


def render(document: Document) -> str:
    """Return the document's records; without any, the JSON path of each figure, joined by dots, and its value."""
    lines: Iterable[Iterable[Any]]
    if document.records is None:
        lines = [("figure", "value"), *_leaves((), document.json())]
    else:
        table = document.records()
        lines = [[column.title for column in table.columns], *table.rows]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([escaped(cell) if isinstance(cell, str) else cell for cell in line] for line in lines)
    return buffer.getvalue()


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves((*path, str(key)), item)
    else:
        yield ".".join(path), value
