"""Settings of a trace's program, as far as recorded: ranks, devices, compilation, graphs, types of products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.number_types import number_type
from molprof.analysis.facts.slices import OPERATOR
from molprof.analysis.figures.model import Counts
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.values import count_text

_PRODUCTS = Query(
    "top_operations", "SELECT name, time_ns FROM molprof_top_gpu_operation WHERE class = 'matmul' ORDER BY name"
)
# A type of less of the products' time is not named.
_LEAST_TIME = 0.1


def read_program(engine: TraceProcessor, keys: Mapping[str, Any], counts: Counts, devices: int) -> dict[str, str]:
    """Return the settings by name; those that the file does not record are left out.

    keys: the top-level keys of the trace. devices: the number of those with GPU work.
    """
    job = keys.get("distributedInfo")
    world_size = job.get("world_size") if isinstance(job, dict) else None
    settings = {"world size": str(world_size)} if isinstance(world_size, int) else {}
    if devices:
        settings["devices with work"] = count_text(devices)
    facts: Facts = engine.facts
    if facts.compiled.is_used or len(facts.slices.of(OPERATOR)):
        settings["torch.compile"] = "yes" if facts.compiled.is_used else "no"
    if counts.launches or counts.graph_launches:
        settings["GPU graphs"] = "replayed" if counts.graph_launches else "none"
    if types := _product_types(engine):
        settings["matrix products"] = types
    return settings


def _product_types(engine: TraceProcessor) -> str:
    """Return the number types of matrix products, by time; empty where no name shows any."""
    times = Counter[str]()
    for name, time_ns in query_rows(engine, _PRODUCTS)[1]:
        if kind := number_type(name):
            times[kind] += time_ns
    return ", ".join(kind for kind, ns in times.most_common() if ns >= _LEAST_TIME * times.total())
