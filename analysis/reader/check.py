"""Whether the trace processor shows each slice of the file and no other, by category and by the sum of their times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from molprof.analysis.reader.info import TraceInfo, path_text
from molprof.analysis.reader.text import plain_text
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import EngineError

# Counted one by one; a trace has a dozen.
_COUNTED_CATEGORIES = 100


def checked(engine: TraceProcessor, info: TraceInfo) -> TraceInfo:
    """`info` with the count of slices that the engine lacks. Raises EngineError if it shows what the file has not."""
    expected = Counter(info.slices)
    shown, duration_ns = _shown(engine, info)
    file = path_text(info.path)
    if surplus := shown - expected:
        raise EngineError(f"{file}: the trace processor shows slices that the file does not have: {dict(surplus)}")
    lost = (expected - shown).total()
    if not lost and info.slices_ns is not None and duration_ns != info.slices_ns:
        raise EngineError(
            f"{file}: slices last {duration_ns} ns in the trace processor, {info.slices_ns} ns in the file"
        )
    return replace(info, lost_events=lost)


def check_query(info: TraceInfo) -> str:
    """What `checked` asks first: all slices, the sum of their times in ns, and the slices of each category."""
    # The engine counts the rows of one text without reading them.
    counts = [f"(SELECT COUNT() FROM slice WHERE category = {_quoted(name)})" for name in _counted(info)]
    return f"SELECT {', '.join(['COUNT()', 'IFNULL(SUM(dur), 0)', *counts])} FROM slice"


def shown_category(category: str | None) -> str:
    """The category as SQL shows it; the engine reads an empty one as NULL."""
    return plain_text(category) if category else "None"


def _shown(engine: TraceProcessor, info: TraceInfo) -> tuple[Counter[str], int]:
    """The engine's slices by category, and the sum of their durations in ns. Quick where they are as expected."""
    slices, duration_ns, *counts = (int(column[0]) for column in engine.query(check_query(info)).values())
    shown = Counter(dict(zip(_counted(info), counts, strict=True)))
    shown["None"] = slices - shown.total()
    if +shown != +Counter(info.slices):
        rows = engine.query("SELECT category, COUNT() AS slices FROM slice GROUP BY category ORDER BY category")
        shown = Counter()
        for category, count in zip(rows["category"].tolist(), rows["slices"].tolist(), strict=True):
            shown[shown_category(category)] += count
    return +shown, duration_ns


def _counted(info: TraceInfo) -> Iterable[str]:
    return [name for name in info.slices if name != "None"][:_COUNTED_CATEGORIES]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
