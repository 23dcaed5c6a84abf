"""Replays of CUDA and HIP graphs: the graph of each launch, and the position of each piece of work in it.

Launches replay one graph if their graph id, device, and names of work are the same. Positions are those of the first
replay in order of start; in another replay, work belongs to the position with the same node id, else of the same name,
and of several such to that with the same place among them.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.intervals import ends_before

# A graph or node whose number is not recorded.
UNKNOWN = -(2**62)


class GraphWork(Struct, frozen=True):
    """Work of graph launches in order of launch, start and slice: arrays of int64."""

    id: Array  # slice
    launch: Array  # index of the call
    ts: Array
    ts_end: Array
    device: Array  # index
    name: Array  # index of its category and name
    text: Array  # number of its name: in order of these
    is_kernel: Array  # bool
    graph_id: Array  # UNKNOWN where not recorded, as the next
    node_id: Array


class Replays(Struct, frozen=True):
    """Launches with work in order of their first start: arrays of int64."""

    launch: Array  # index of the call
    graph: Array  # number, in order of the first replay
    number: Array  # of the replay of this graph, from 0
    graph_id: Array  # UNKNOWN where not recorded
    ts: Array  # first start
    ts_end: Array  # last end
    kernels: Array
    memory_operations: Array
    gpu_ns: Array  # sum of the times of its work
    gaps_ns: Array  # time inside it in which none of its work runs


class Nodes(Struct, frozen=True):
    """Graph, position and other numbers of each piece of graph work: arrays of int64."""

    graph: Array
    replay: Array  # number
    position: Array  # NONE where the first replay has no such work
    gap_ns: Array  # from the end of all earlier work of its launch, 0 where they overlap; NONE for the first


class GroupValues(Struct, frozen=True):
    """Values by group: arrays of int64."""

    count: Array
    middle: Array  # the lower of the middle two
    least: Array
    most: Array
    sum: Array


def replays(work: GraphWork) -> tuple[Replays, Nodes]:
    """Return the launches with work, and the position of each piece of work in its graph."""
    first = _starts(work.launch)
    size = np.diff(np.append(first, len(work.launch)))
    of = np.repeat(np.arange(len(first)), size)
    last = ends_before(work.launch, work.ts, work.ts_end)
    gap_ns = np.where(last == NONE, NONE, np.maximum(work.ts - work.ts_end[last], 0))
    graph_id = np.full(len(first), np.iinfo(np.int64).max)
    has_id = work.graph_id != UNKNOWN
    np.minimum.at(graph_id, of[has_id], work.graph_id[has_id])
    graph_id[graph_id == np.iinfo(np.int64).max] = UNKNOWN
    if not len(first):
        return Replays(*[first] * 10), Nodes(*[first] * 4)
    launch, ts = work.launch[first], work.ts[first]
    device = np.minimum.reduceat(work.device, first)
    graph = _graphs(work, first, device, graph_id)
    in_order = np.lexsort((launch, ts))
    # Graphs are numbered in order of their first replay.
    _, first_replay = np.unique(graph[in_order], return_index=True)
    graph = np.argsort(np.argsort(first_replay))[graph]
    number = np.empty_like(graph)
    number[in_order] = _place_among(graph[in_order])
    kernels = np.add.reduceat(work.is_kernel.astype(np.int64), first)
    result = Replays(
        launch, graph, number, graph_id, ts, np.maximum.reduceat(work.ts_end, first), kernels, size - kernels,
        np.add.reduceat(work.ts_end - work.ts, first), np.add.reduceat(np.maximum(gap_ns, 0), first),
    )  # fmt: skip
    result = Replays(*(getattr(result, name)[in_order] for name in Replays.__struct_fields__))
    position = np.arange(len(of)) - first[of]
    return result, Nodes(graph[of], number[of], _positions(work, of, position, graph[of], number[of]), gap_ns)


def _starts(keys: Array) -> Array:
    """Return where each run of one key begins."""
    return np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])


def _place_among(keys: Array) -> Array:
    """Return the number of earlier rows with the same key, for each row."""
    order = np.argsort(keys, kind="stable")
    starts = _starts(keys[order])
    count_before = np.empty(len(keys), dtype=np.int64)
    count_before[order] = np.arange(len(keys)) - np.repeat(starts, np.diff(np.append(starts, len(keys))))
    return count_before


def _graphs(work: GraphWork, first: Array, device: Array, graph_id: Array) -> Array:
    """Return a number of the graph of each launch: streams of a graph may overtake each other, so names are sorted."""
    names = work.name[np.lexsort((work.name, work.launch))]
    numbers: dict[tuple[int, int, bytes], int] = {}
    bounds = zip(first.tolist(), [*first[1:].tolist(), len(names)], strict=True)
    keys = zip(device.tolist(), graph_id.tolist(), (names[begin:end].tobytes() for begin, end in bounds), strict=True)
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _positions(work: GraphWork, of: Array, position: Array, graph: Array, replay: Array) -> Array:
    """Return the position of each piece of work in the first replay of its graph."""
    is_numbered = work.node_id != UNKNOWN
    nodes, node = np.unique(work.node_id, return_inverse=True)
    # One key for each node id, and one for each name.
    key = np.where(is_numbered, node.reshape(-1), len(nodes) + work.text)
    width = int(key.max()) + 1
    among = _place_among(of * width + key)
    node_key = (graph * width + key) * (int(among.max()) + 1) + among
    in_first = np.flatnonzero(replay == 0)
    in_first = in_first[np.argsort(node_key[in_first], kind="stable")]
    index = np.minimum(np.searchsorted(node_key[in_first], node_key), len(in_first) - 1)
    same = in_first[index]
    return np.where(node_key[same] == node_key, position[same], NONE)


def spread(groups: Array, values: Array, size: int) -> GroupValues:
    """Return the number of values, their median, extremes and sum of each group below `size`; NONE without values."""
    order = np.lexsort((values, groups))
    count = np.bincount(groups, minlength=size)
    starts = np.cumsum(count) - count
    some = count > 0
    middle, least, most = (np.full(size, NONE) for _ in range(3))
    for column, index in ((middle, starts + (count - 1) // 2), (least, starts), (most, starts + count - 1)):
        column[some] = values[order][index[some]]
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, groups, values)
    return GroupValues(count, middle, least, most, sums)
