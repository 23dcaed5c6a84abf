"""Places of calls and of idle time: with the stacks beside the trace processor, and by SQL with the stacks in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from certificate_data import CORPUS, needs_traces

from molprof.analysis.findings import around
from molprof.analysis.findings.known import Known
from molprof.analysis.reader.open import open_trace
from molprof.analysis.reader.stacks import Stacks

_WORK = """
INCLUDE PERFETTO MODULE molprof.call_places;
SELECT launched.count, launched.time_ns, place.operator, place.source, place.module
FROM molprof_launched_work AS launched JOIN molprof_call_place AS place USING (place_id)
"""
_IDLE = """
INCLUDE PERFETTO MODULE molprof.idle_places;
SELECT idle.count, idle.time_ns, place.operator, place.source, place.module
FROM molprof_idle_time AS idle LEFT JOIN slice ON slice.id = idle.place_id
LEFT JOIN molprof_idle_place AS place USING (place_id)
WHERE (idle.place_id IS NULL OR place.place_id IS NOT NULL)
  AND (IFNULL(slice.category, '') NOT IN ('cuda_runtime', 'cuda_driver') OR slice.dur < 100000)
"""


def added(rows: list[Mapping[str, Any]]) -> tuple[Counter[Any], Counter[Any]]:
    counts: Counter[Any] = Counter()
    times: Counter[Any] = Counter()
    for row in rows:
        place = row["operator"], row["source"], row["module"]
        counts[place] += row["count"]
        times[place] += row["time_ns"]
    return counts, times


@needs_traces
@pytest.mark.parametrize(
    "name", ["traces/b200_vllm_eager", "graphs/mi300x_sglang_qwen3_8b_capture_bs32", "pairs/h100_vit_base"]
)
def test_places_are_those_of_sql(name: str) -> None:
    path = Path(CORPUS or "") / f"{name}.json.gz"
    stacks: list[Stacks] = []
    with open_trace(path, stacks=False, all_args=False, beside=stacks) as (engine, _):
        known = Known(engine, stacks=stacks[0])
        classes = {str(row["class"]) for row in known.rows(around.CLASSES)}
        work, idle = around.of_work(known, classes), around.of_idle_time(known)
    with open_trace(path, stacks=True, all_args=False) as (engine, _):
        for sql, found in ((_WORK, work), (_IDLE, idle)):
            columns = {name: column.tolist() for name, column in engine.query(sql).items()}
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            assert added(found) == added(rows)
            assert found
