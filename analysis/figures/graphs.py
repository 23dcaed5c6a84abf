"""Tables of CUDA and HIP graphs: what each holds, how its replays differ, its layers folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from molprof.analysis.figures.model import Table
from molprof.analysis.figures.tables import TableQuery
from molprof.common.values import Value


class Position(NamedTuple):
    """A position of a graph over its replays; of a block that repeats, all its stretches together."""

    graph: int
    position: int  # of the first stretch
    alike: int  # stretches
    period: int  # positions from one stretch to the next; 0 where none repeats
    name: str
    class_: str
    works: int  # over all replays
    p50_ns: int
    shortest_ns: int
    longest_ns: int
    p50_gap_ns: int | None
    time_ratio: float | None  # None where the graph took no time


def folded(table: Table) -> Table:
    """The positions of each graph with blocks that repeat as one, such as the layers of a model."""
    positions = [Position(*row) for row in table.rows]  # type: ignore[arg-type]
    rows = [row for _, group in groupby(positions, attrgetter("graph")) for row in _of_graph(list(group))]
    return replace(table, rows=tuple(rows))


def _of_graph(positions: Sequence[Position]) -> Iterator[tuple[Value, ...]]:
    from molprof.analysis.figures.sequence.repeats import blocks  # heavy

    for block in blocks([item.name for item in positions]):
        for place in range(block.start, block.start + block.length):
            alike = positions[place : block.stop : block.length]
            gaps = [item.p50_gap_ns for item in alike if item.p50_gap_ns is not None]
            ratios = [item.time_ratio for item in alike if item.time_ratio is not None]
            yield Position(
                graph=alike[0].graph,
                position=alike[0].position,
                alike=len(alike),
                period=block.length if block.times > 1 else 0,
                name=alike[0].name,
                class_=alike[0].class_,
                works=sum(item.works for item in alike),
                p50_ns=_median([item.p50_ns for item in alike]),
                shortest_ns=min(item.shortest_ns for item in alike),
                longest_ns=max(item.longest_ns for item in alike),
                p50_gap_ns=_median(gaps) if gaps else None,
                time_ratio=sum(ratios) if ratios else None,
            )


def _median(values: Sequence[int]) -> int:
    """The lower of the middle two, as in SQL."""
    return sorted(values)[(len(values) - 1) // 2]


GRAPHS = (
    TableQuery(
        "replayed_graphs",
        "Graphs and their replays (p50, shortest and longest: from the first work of a replay to the end of its last)",
        "SELECT graph, graph_id, replays, kernels, memory_operations, p50_ns, shortest_ns, longest_ns, mean_gpu_ns,"
        " mean_gaps_ns FROM molprof_replayed_graph ORDER BY graph",
        "graph_nodes",
    ),
    TableQuery(
        "graph_positions",
        "Work of graphs by position, repeats folded (molprof queries graph_nodes has each position)",
        "INCLUDE PERFETTO MODULE molprof.kernel_classes;\n"
        "SELECT position.graph, position.position, 1 AS alike, 0 AS period, position.name, class.class, position.count,"
        " position.p50_ns, position.shortest_ns, position.longest_ns, position.p50_gap_ns,"
        " CAST(position.time_ns AS DOUBLE) / NULLIF(SUM(position.time_ns) OVER of_graph, 0) AS time_ratio"
        " FROM molprof_graph_position AS position"
        " LEFT JOIN molprof_work_class AS class ON class.category = position.category AND class.name = position.name"
        " WINDOW of_graph AS (PARTITION BY position.graph)"
        " ORDER BY position.graph, position.position",
        "graph_nodes",
        made=folded,
    ),
)
