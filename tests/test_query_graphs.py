"""Graphs by replay and position: the SQL module `graph_nodes`, and the tables of a report, with layers folded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sql_rows import events_loaded
from tiny_trace import slice_, work, write

from molprof import api


def replay(ts: float, correlation: int, names: str, slower: float = 0, **args: Any) -> list[dict[str, Any]]:
    """A launch, and one kernel of 2 µs for each letter, 1 µs apart."""
    launch = slice_("cuda_runtime", "cudaGraphLaunch", ts, 1, correlation=correlation)
    kernels = [
        work("kernel", name, ts + 5 + place * 3, 2 + slower, correlation, **args) for place, name in enumerate(names)
    ]
    return [launch, *kernels]


def test_replays_of_two_graphs(tmp_path: Path) -> None:
    events = [*replay(0, 1, "abab"), *replay(50, 2, "xa"), *replay(100, 3, "abab", slower=0.5), *replay(150, 4, "xa")]
    events += [slice_("cuda_runtime", "cudaGraphLaunch", 190, 1, correlation=9), work("kernel", "a", 195, 2, 10)]
    with events_loaded(tmp_path, events) as rows:
        assert rows("graph_nodes", "SELECT * FROM molprof_replayed_graph") == [
            (0, None, 2, 4, 0, 11_000, 11_000, 11_500, 9_000.0, 2_250.0),
            (1, None, 2, 2, 0, 5_000, 5_000, 5_000, 4_000.0, 1_000.0),
        ]
        replays = "SELECT launch_id, graph, replay, ts, kernels, gaps_ns FROM molprof_graph_replay ORDER BY ts"
        assert [row[1:] for row in rows("graph_nodes", replays)] == [
            (0, 0, 5_000, 4, 3_000), (1, 0, 55_000, 2, 1_000), (0, 1, 105_000, 4, 1_500), (1, 1, 155_000, 2, 1_000),
        ]  # fmt: skip
        assert rows("graph_nodes", "SELECT * FROM molprof_graph_position WHERE graph = 0 AND position < 2") == [
            (0, 0, "a", "kernel", 2, 2_000, 2_000, 2_500, 4_500, None, None),
            (0, 1, "b", "kernel", 2, 2_000, 2_000, 2_500, 4_500, 500, 1_500),
        ]


def test_graph_ids_tell_equal_graphs_apart_and_node_ids_their_positions(tmp_path: Path) -> None:
    numbers = {"graph id": 7}
    events = replay(0, 1, "aa", **numbers) + replay(50, 2, "aa", **{"graph id": 8}) + replay(100, 3, "aa", **numbers)
    for event, node in ((events[1], 1), (events[2], 2), (events[7], 2), (events[8], 1)):
        event["args"]["graph node id"] = node  # the third replay runs them in the other order
    events[1]["args"]["annotation"] = [{"name": "attention"}]
    sql = "SELECT graph, replay, position, node_id, annotation FROM molprof_graph_node ORDER BY ts"
    with events_loaded(tmp_path, events) as rows:
        found = rows("graph_nodes", sql)
    assert found[0] == (0, 0, 0, 1, "attention")
    assert [row[:4] for row in found[1:]] == [
        (0, 0, 1, 2), (1, 0, 0, None), (1, 0, 1, None), (0, 1, 1, 2), (0, 1, 0, 1),
    ]  # fmt: skip


def test_streams_that_overtake_each_other_are_one_graph(tmp_path: Path) -> None:
    events = replay(0, 1, "ab") + replay(50, 2, "ba")
    events[2]["args"]["graph id"] = "no number"
    with events_loaded(tmp_path, events) as rows:
        sql = "SELECT graph, replay, position, name FROM molprof_graph_node ORDER BY ts"
        assert rows("graph_nodes", sql) == [(0, 0, 0, "a"), (0, 0, 1, "b"), (0, 1, 1, "b"), (0, 1, 0, "a")]


def test_a_report_folds_layers(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "t.json", {"traceEvents": replay(0, 1, "eabcabcabch") + replay(100, 2, "eabcabcabch", 0.25)}
    )
    tables = api.report(trace).to_json()["tables"]
    assert [row["replays"] for row in tables["replayed_graphs"]] == [2]
    columns = ("position", "alike", "period", "name", "count", "p50_ns", "longest_ns", "p50_gap_ns")
    assert [tuple(row[name] for name in columns) for row in tables["graph_positions"]] == [
        (0, 1, 0, "e", 2, 2_000, 2_250, None),
        (1, 3, 3, "a", 6, 2_000, 2_250, 750),
        (2, 3, 3, "b", 6, 2_000, 2_250, 750),
        (3, 3, 3, "c", 6, 2_000, 2_250, 750),
        (10, 1, 0, "h", 2, 2_000, 2_250, 750),
    ]
    assert sum(row["time_ratio"] for row in tables["graph_positions"]) == 1


def test_a_replay_with_less_work_than_the_largest_of_its_graph(tmp_path: Path) -> None:
    ids: dict[str, Any] = {"graph id": 7}
    whole, part = replay(0, 1, "abcd", **ids), replay(1000, 2, "abcd", **ids)[:-1]
    absent_ns = int(1000 * whole[-1]["dur"])
    with events_loaded(tmp_path, [*whole, *part]) as rows:
        sql = "SELECT device, launches, absent, time_ns FROM molprof_graph_incomplete"
        assert rows("certificate_graphs", sql) == [("0", 1, 1, absent_ns)]
