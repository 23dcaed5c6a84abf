"""Check: memory events are there if they were asked for."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row
from molprof.analysis.figures.certificate.model import Check, Doubt, Facts
from molprof.analysis.reader import TraceInfo

_EVENTS = Query("certificate_memory", "SELECT events FROM molprof_memory_event_count")


def _find(engine: Engine, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    # torch writes 1; other writers true.
    if info.keys.get("profile_memory") in (1, True) and not query_row(engine, _EVENTS)["events"]:
        reason = "profile_memory was on, and no memory event is recorded"
        yield Doubt("allocations", "not_to_be_had", reason, (), {"events": 0})


CHECK = Check("memory", "memory events are there if asked for", (_EVENTS,), _find)
