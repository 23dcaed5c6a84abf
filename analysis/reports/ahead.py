"""What a copy of this process is asked of a large trace, while this one makes the rest of its report."""

from __future__ import annotations

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import query_text
from molprof.analysis.figures.counts import DEVICES
from molprof.analysis.figures.tables import METRICS
from molprof.analysis.findings.launch_bound import GAPS, SUMS
from molprof.analysis.findings.scope import SPAN
from molprof.analysis.reader import TraceInfo
from molprof.analysis.reader.events import STACK_CATEGORY
from molprof.queries import PACKAGE, modules

# Events, Python stacks not counted, from which on a copy is worth its making, and up to which the memory that
# both write to, and so have twice, is small against what a machine has.
LEAST_EVENTS, MOST_EVENTS = 100_000, 5_000_000
# What both need is made before the copy is.
_BOTH = ("gpu_calls", "gpu_work", "work_calls", "host_syncs")


def ask_ahead(engine: Engine, info: TraceInfo) -> None:
    """Where the trace is large, a part of the report's queries that takes nearly half their time is asked by a copy:
    those of idle time, which need what no other does. Raises QueryError, EngineError.
    """
    events = sum(count for category, count in info.events_by_category.items() if category != STACK_CATEGORY)
    if not LEAST_EVENTS <= events <= MOST_EVENTS:
        return
    engine.register_package(PACKAGE, modules())
    engine.query("".join(f"INCLUDE PERFETTO MODULE {PACKAGE}.{module};\n" for module in _BOTH))
    idle = [(metric.module, metric.sql) for metric in METRICS if metric.module == "idle_causes"]
    rest = [SUMS, SPAN] if info.manifest is None else [GAPS]
    engine.ask_ahead([query_text(*query) for query in (DEVICES, *idle, *rest)])
