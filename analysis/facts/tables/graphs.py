"""Tables about graphs: replays, positions, nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from molprof.analysis.facts import graphs
from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.intervals import key_sums
from molprof.analysis.facts.tables.table import Column, FactTable, known


def _graph_replays(facts: Facts) -> Sequence[Column]:
    replays, _ = facts.graphs
    return (
        facts.calls.id[replays.launch], replays.graph, replays.number, known(replays.graph_id, graphs.UNKNOWN),
        replays.ts, replays.ts_end - replays.ts, replays.kernels, replays.memory_operations, replays.gpu_ns,
        replays.gaps_ns,
    )  # fmt: skip


def _replayed_graphs(facts: Facts) -> Sequence[Column]:
    replays, _ = facts.graphs
    size = int(replays.graph.max(initial=-1)) + 1
    first = np.flatnonzero(replays.number == 0)
    first = first[np.argsort(replays.graph[first])]
    took = graphs.spread(replays.graph, replays.ts_end - replays.ts, size)
    return (
        np.arange(size), known(replays.graph_id[first], graphs.UNKNOWN), took.count, replays.kernels[first],
        replays.memory_operations[first], took.middle, took.least, took.most,
        key_sums(replays.graph, replays.gpu_ns, size), key_sums(replays.graph, replays.gaps_ns, size),
    )  # fmt: skip


def _graph_positions(facts: Facts) -> Sequence[Column]:
    work, (_, nodes) = facts.graph_work, facts.graphs
    placed = np.flatnonzero(nodes.position != NONE)
    width = int(nodes.position.max(initial=0)) + 1
    keys, which = np.unique(nodes.graph[placed] * width + nodes.position[placed], return_inverse=True)
    took = graphs.spread(which, (work.ts_end - work.ts)[placed], len(keys))
    waits = nodes.gap_ns[placed] != NONE
    gap = graphs.spread(which[waits], nodes.gap_ns[placed][waits], len(keys))
    texts, categories = ([getattr(name, key) for name in facts.names] for key in ("name", "category"))
    return (
        keys // width, keys % width, _first_texts(texts, work.name[placed], which, len(keys)),
        _first_texts(categories, work.name[placed], which, len(keys)), took.count, took.middle, took.least, took.most,
        took.sum, known(gap.middle, NONE), known(np.where(gap.count > 0, gap.sum, NONE), NONE),
    )  # fmt: skip


def _first_texts(texts: list[str], of: Array, groups: Array, size: int) -> list[str]:
    """Return the first text in order of each group. of: the index of the text of each row."""
    order = sorted(set(texts))
    ranks = {text: rank for rank, text in enumerate(order)}
    least = np.full(size, len(order))
    np.minimum.at(least, groups, np.array([ranks[text] for text in texts], dtype=np.int64)[of])
    return [order[rank] for rank in least.tolist()]


def _graph_nodes(facts: Facts) -> Sequence[Column]:
    work, (_, nodes) = facts.graph_work, facts.graphs
    order = np.lexsort((work.id, work.ts))
    columns = (
        work.id, facts.calls.id[work.launch], nodes.graph, nodes.replay, known(nodes.position, NONE),
        known(nodes.gap_ns, NONE),
    )  # fmt: skip
    return [np.asarray(column)[order] for column in columns]


TABLES = {
    "graph_replay": FactTable(
        (
            "launch_id JOINID(slice.id)", "graph LONG", "replay LONG", "graph_id LONG", "ts TIMESTAMP", "dur DURATION",
            "kernels LONG", "memory_operations LONG", "gpu_ns DURATION", "gaps_ns DURATION",
        ),
        _graph_replays,
    ),
    "replayed_graph": FactTable(
        (
            "graph LONG", "graph_id LONG", "replays LONG", "kernels LONG", "memory_operations LONG", "p50_ns DURATION",
            "shortest_ns DURATION", "longest_ns DURATION", "gpu_ns DURATION", "gaps_ns DURATION",
        ),
        _replayed_graphs,
    ),
    "graph_position": FactTable(
        (
            "graph LONG", "position LONG", "name STRING", "category STRING", "count LONG", "p50_ns DURATION",
            "shortest_ns DURATION", "longest_ns DURATION", "time_ns DURATION", "p50_gap_ns DURATION",
            "gaps_ns DURATION",
        ),
        _graph_positions,
    ),
    "graph_node": FactTable(
        (
            "id JOINID(slice.id)", "launch_id JOINID(slice.id)", "graph LONG", "replay LONG", "position LONG",
            "gap_ns DURATION",
        ),
        _graph_nodes,
    ),
}  # fmt: skip
