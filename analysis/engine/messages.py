"""The trace processor's error about a query, with the query and the place in it."""

from __future__ import annotations

import re

from molprof.common.errors import QueryError

_PLACE = re.compile(r'^\s*(?:File "stdin"|Module include "(?P<module>[^"]*)") line (?P<line>\d+) col (?P<column>\d+)$')
# Lines shown before and after the one with the mistake.
_AROUND = 8


def query_error(sql: str, message: str) -> QueryError:
    """The error for `sql`: place and reason as its message, the numbered query as its hint."""
    places: list[re.Match[str]] = []
    reasons: list[str] = []
    quoted = 0
    for line in message.strip().splitlines():
        place = _PLACE.match(line)
        if place:
            places.append(place)
            quoted = 2  # the SQL and the mark under it follow
        elif quoted:
            quoted -= 1
        elif not line.startswith("Traceback"):
            reasons.append(line.strip())
    reason = " ".join(reasons) or "no reason given"
    if not places:
        return QueryError(f"the query failed: {reason}", hint=_numbered(sql, None))
    inner = places[-1]
    where = f"line {inner['line']} col {inner['column']}"
    if inner["module"]:
        where = f"module {inner['module']} {where}"
    own = next((place for place in places if not place["module"]), None)
    mark = (int(own["line"]), int(own["column"])) if own else None
    return QueryError(f"the query failed at {where}: {reason}", hint=_numbered(sql, mark))


def _numbered(sql: str, mark: tuple[int, int] | None) -> str:
    """The query's numbered lines, with a mark under (line, column), both counted from 1."""
    lines = sql.rstrip().splitlines()
    first, last = 1, len(lines)
    if mark and len(lines) > 2 * _AROUND + 1:
        first, last = max(1, mark[0] - _AROUND), min(len(lines), mark[0] + _AROUND)
    shown = []
    for number in range(first, last + 1):
        shown.append(f"{number:4d} | {lines[number - 1]}".replace("\t", " "))
        if mark and number == mark[0]:
            shown.append(f"     | {' ' * (mark[1] - 1)}^")
    return "\n".join(shown)
