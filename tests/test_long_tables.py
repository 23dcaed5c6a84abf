"""Names with more text than the trace processor takes in one request."""

from __future__ import annotations

from pathlib import Path

import tiny_trace

from molprof import api
from molprof.analysis.facts import statements

KERNELS, CHARACTERS = 70, 1 << 20


def test_names_of_kernels_that_are_longer_than_a_request(tmp_path: Path) -> None:
    events = []
    for number in range(KERNELS):
        name = f"{number} {'x' * CHARACTERS}"
        events.append(tiny_trace.work("cuda_runtime", "cudaLaunchKernel", 100 * number, 5, number))
        events.append(tiny_trace.work("kernel", name, 100 * number + 20, 10, number))
    path = tiny_trace.write(tmp_path / "a.json", {"traceEvents": events})
    found = api.load(path, cached=False).sql("SELECT name FROM molprof_gpu_work")
    assert len({*found["name"]}) == KERNELS


def test_a_long_table_is_made_of_several() -> None:
    text = "x" * (9 << 20)
    made = statements.of_rows("long", ("number LONG", "name STRING"), [(1, text), (2, "'"), (3, text)])
    assert [len(sql) > len(text) for sql in made] == [True, True, False]
    assert made[-1].splitlines() == [
        "CREATE PERFETTO TABLE _molprof_fact_long(", "  number LONG,", "  name STRING", ") AS",
        "SELECT number, name FROM _molprof_fact_long_part_1", "UNION ALL",
        "SELECT number, name FROM _molprof_fact_long_part_2",
    ]  # fmt: skip
