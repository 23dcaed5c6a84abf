"""The SQL modules on public traces: figures counted in different ways agree, some of them with plain loops."""

from __future__ import annotations

import bisect
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from sql_rows import Rows, rows

from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import open_engine
from molprof.queries import PACKAGE, modules

CORPUS = os.environ.get("MOLPROF_CORPUS")
TRACES = sorted(Path(CORPUS, "traces").glob("*.json.gz")) if CORPUS else []
pytestmark = pytest.mark.skipif(not TRACES, reason="MOLPROF_CORPUS is not set: no real traces to read")


@pytest.fixture(scope="module", params=TRACES or [None], ids=lambda path: path.name if path else "none")
def query(request: pytest.FixtureRequest) -> Iterator[Rows]:
    with open_engine() as engine:
        load_trace(request.param, engine, stacks=False)
        engine.register_package(PACKAGE, modules())
        yield lambda module, sql: rows(engine, module, sql)


def test_gaps_and_concurrency_add_up(query: Rows) -> None:
    devices = query("devices", "SELECT device, span_ns, busy_ns, idle_ns FROM molprof_device")
    causes = dict(
        query(
            "idle_causes",
            "SELECT device, SUM(time_ns) FROM molprof_idle_cause WHERE position = 'between' GROUP BY device",
        )
    )
    running = "SELECT device, SUM(time_ns), SUM(time_ns * (running > 0)) FROM molprof_concurrency GROUP BY device"
    assert query("concurrency", running) == [(device, span, busy) for device, span, busy, _ in devices]
    assert {device: causes.get(device, 0) for device, *_ in devices} == {device: idle for device, _, _, idle in devices}


def test_work_is_counted_once_everywhere(query: Rows) -> None:
    ((count, time_ns, kernels),) = query(
        "gpu_work", "SELECT COUNT(), SUM(dur), SUM(category = 'kernel') FROM molprof_gpu_work"
    )
    assert query("streams", "SELECT SUM(count), SUM(time_ns), SUM(kernels) FROM molprof_stream") == [
        (count, time_ns, kernels)
    ]
    copies = query("memory_copies", "SELECT IFNULL(SUM(count), 0) FROM molprof_memory_direction")
    assert copies == [(count - kernels,)]
    if query("steps", "SELECT id FROM molprof_any_step"):
        steps = query("step_launches", "SELECT SUM(kernels), SUM(gpu_ns) FROM molprof_step_launch")
        assert steps == [(kernels, time_ns)]


def test_the_patterns_know_what_takes_the_time(query: Rows) -> None:
    sql = """
    SELECT SUM(work.dur), SUM(work.dur * (class.class != 'other')) FROM molprof_gpu_work AS work
    JOIN molprof_work_class AS class ON class.category = work.category AND class.name = work.name
    WHERE work.category = 'kernel'
    """
    ((all_ns, classified_ns),) = query("kernel_classes", f"INCLUDE PERFETTO MODULE molprof.gpu_work; {sql}")
    assert all_ns == query("launches", "SELECT kernel_time_ns FROM molprof_launch_count")[0][0] > 0
    assert classified_ns >= 0.95 * all_ns


def test_launches_agree_with_the_counts(query: Rows) -> None:
    sql = "SELECT SUM(kind = 'launch'), SUM(kind = 'graph_launch'), SUM(kernels) FROM molprof_launch"
    counts = "SELECT launches, graph_launches, kernels_with_call FROM molprof_launch_count"
    assert query("launch_queue", sql) == query("launches", counts)
    graphs = query("graphs", "SELECT COUNT(), IFNULL(SUM(kernels), 0) FROM molprof_graph_launch")
    own = "SELECT COUNT(), IFNULL(SUM(kernels), 0) FROM molprof_launch WHERE kind = 'graph_launch'"
    assert graphs == query("launch_queue", own)
    delays = "SELECT name, kind, count, mean_delay_ns FROM {} ORDER BY name, kind"
    by_call = query("launches", delays.format("molprof_launch_summary"))
    assert by_call == query("launch_queue", delays.format("molprof_launch_queue_summary"))
    sql = "SELECT name, 'graph_launch', graph_launches, mean_delay_ns FROM molprof_graph_summary ORDER BY name"
    assert query("graphs", sql) == [row for row in by_call if row[1] == "graph_launch"]


def test_queue_depth_against_a_plain_count(query: Rows) -> None:
    sql = """
    SELECT work.device, call.ts, work.ts + work.dur FROM molprof_gpu_work_call AS link
    JOIN molprof_gpu_work AS work ON work.id = link.work_id JOIN molprof_gpu_call AS call ON call.id = link.call_id
    """
    submitted: dict[str, list[int]] = defaultdict(list)
    ended: dict[str, list[int]] = defaultdict(list)
    for device, start, end in query("work_calls", sql):
        if end > start:
            submitted[device].append(start)
            ended[device].append(end)
    for times in (*submitted.values(), *ended.values()):
        times.sort()
    for device, ts, depth in query("launch_queue", "SELECT device, ts, queue_depth FROM molprof_launch"):
        if device is None:
            assert depth is None
        else:
            waiting = bisect.bisect_left(submitted[device], ts) - bisect.bisect_right(ended[device], ts)
            assert depth == waiting


def test_step_of_a_call_against_a_plain_search(query: Rows) -> None:
    steps = query("steps", "SELECT id, ts, ts + dur, tid FROM molprof_any_step")
    if len({tid for *_, tid in steps}) > 1:
        pytest.skip("steps on several threads")
    calls = query("gpu_calls", "SELECT id, ts FROM molprof_gpu_call ORDER BY id")
    expected = [
        (call, max((start, step) for step, start, end, _ in steps if start <= ts < end)[1])
        for call, ts in calls
        if any(start <= ts < end for _, start, end, _ in steps)
    ]
    assert query("step_placement", "SELECT id, step_id FROM molprof_call_step") == expected
