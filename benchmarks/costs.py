#!/usr/bin/env python3
"""What making each module's tables costs with a large trace: CPU time, and `molprof.queries.COSTS` beside it.

    python benchmarks/costs.py TRACE ...

COSTS decides which of two processes answers a query. It need not be exact: only what it puts on the wrong side is made
twice. Change it where a module is off by more than 2 on several traces.
"""

from __future__ import annotations

import time

from shared import parser, table

from molprof.analysis import findings
from molprof.analysis.figures import build
from molprof.analysis.reader.open import open_trace
from molprof.analysis.trace_processor import TraceProcessor
from molprof.queries import COSTS, PACKAGE, included

# Seconds per million slices that count as 1.
_UNIT_S = 0.05


def costs(engine: TraceProcessor, has_run: bool) -> dict[str, float]:
    """CPU seconds of each module that a report includes, without those that it includes itself."""
    found: dict[str, float] = {}
    queries = (*build.queries(has_run), *findings.queries(has_run))
    # Fewest includes first: a module comes behind those that it includes, and its time is its own.
    for name in sorted({name for query in queries for name in included(query.text)}, key=_position):
        begin = time.process_time()
        engine.query(f"INCLUDE PERFETTO MODULE {PACKAGE}.{name};")
        found[name] = time.process_time() - begin
    return found


def _position(module: str) -> tuple[int, str]:
    return len(included(f"INCLUDE PERFETTO MODULE {PACKAGE}.{module};")), module


def main() -> None:
    options = parser(__doc__)
    options.add_argument("traces", nargs="+", metavar="TRACE")
    measured: list[tuple[dict[str, float], float]] = []
    for path in options.parse_args().traces:
        with open_trace(path, stacks=False, all_args=False) as (engine, info):
            slices = float(engine.query("SELECT COUNT() AS slices FROM slice")["slices"][0])
            measured.append((costs(engine, info.manifest is not None), slices / 1e6))
    names = sorted(measured[0][0], key=lambda name: -max(times.get(name, 0) / size for times, size in measured))
    rows = []
    for name in names:
        units = [f"{times.get(name, 0) / size / _UNIT_S:.1f}" for times, size in measured]
        rows.append([name, str(COSTS.get(name, 0)), *units])
    print(table(["module", "COSTS", *(f"trace {number}" for number in range(1, len(measured) + 1))], rows))


if __name__ == "__main__":
    main()
