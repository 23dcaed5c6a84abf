"""Graph launches of which only some work is recorded.

Three things show it: a replay of one graph id that has less work than the largest; a replay whose work is a part of
that of another graph, which stands before and after it; long gaps between work that elsewhere does not follow so.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import numpy as np

from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.graphs import UNKNOWN, GraphWork, Replays
from molprof.analysis.facts.intervals import key_sums

if TYPE_CHECKING:
    from molprof.analysis.facts.facts import Facts

# A gap is long from here on, and if it is several times as long as the median.
_LONG_NS = 1_000
_LONG_RATIO = 3
_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


# Launches, devices, absent work (NONE: not known) and its time, ns.
Found = tuple[Array, Array, Array, Array]


def incomplete_graphs(facts: Facts) -> list[tuple[str | None, int, int | None, int]]:
    """Return the graph launches with a part of their work by device, in order of device.

    Rows of: device, launches, absent work as the largest replay has it (None where gaps alone tell it), and the time
    that it takes there, or gaps in which it stands, ns.
    """
    if not len(facts.graph_launches) or not len((work := facts.graph_work).launch):
        return []
    replays, nodes = facts.graphs
    parts = [_less_than_largest(work), _with_holes(work, nodes.gap_ns), _parts_of_others(facts, work, replays)]
    launch, device, absent, time_ns = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    pairs, which = np.unique(np.stack((device, launch)), axis=1, return_inverse=True)
    which = which.reshape(-1)
    most = np.full((2, pairs.shape[1]), NONE)
    np.maximum.at(most[0], which, absent)
    np.maximum.at(most[1], which, time_ns)
    rows: list[tuple[str | None, int, int | None, int]] = []
    for number in np.unique(pairs[0]).tolist():
        absent, time_ns = most[:, pairs[0] == number]
        rows.append(
            (
                facts.devices[number],
                len(absent),
                None if (absent == NONE).any() else int(absent.sum()),
                int(time_ns.sum()),
            )
        )
    return rows


def _less_than_largest(work: GraphWork) -> Found:
    """Return the launches with less work than another replay of their graph id."""
    launch, device, graph_id = _launched(work)
    _, of = np.unique(work.launch, return_inverse=True)
    count, time_ns = np.bincount(of, minlength=len(launch)), key_sums(of, work.ts_end - work.ts, len(launch))
    _, which = np.unique(np.stack((device, graph_id)), axis=1, return_inverse=True)
    which = which.reshape(-1)
    most, longest = (np.zeros(len(launch), dtype=np.int64) for _ in range(2))
    np.maximum.at(most, which, count)
    np.maximum.at(longest, which, time_ns)
    absent = most[which] - count
    some = (graph_id != UNKNOWN) & (absent > 0)
    return launch[some], device[some], absent[some], np.maximum(longest[which] - time_ns, 0)[some]


def _launched(work: GraphWork) -> tuple[Array, Array, Array]:
    """Return the launches with work, in order, and the first device and the lowest graph id of each."""
    launch, of = np.unique(work.launch, return_inverse=True)
    device, graph_id = (np.full(len(launch), np.iinfo(np.int64).max) for _ in range(2))
    np.minimum.at(device, of, work.device)
    np.minimum.at(graph_id, of, np.where(work.graph_id == UNKNOWN, np.iinfo(np.int64).max, work.graph_id))
    return launch, device, np.where(graph_id == np.iinfo(np.int64).max, UNKNOWN, graph_id)


def _with_holes(work: GraphWork, gaps_ns: Array) -> Found:
    """Return the launches with long gaps in which work may be missing, and the sum of these by device.

    The two neighbours of such a gap follow each other nowhere without one, and both have other neighbours elsewhere. A
    gap that most replays have belongs to the graph, so it does not count. Where nodes are numbered, a number that is
    left out shows it instead: replays of one graph id are compared with each other anyway.
    """
    follows = np.flatnonzero(gaps_ns != NONE)
    if not len(follows):
        return follows, follows, follows, follows
    before, gap_ns = follows - 1, gaps_ns[follows]
    nodes, nodes_before = work.node_id[follows], work.node_id[before]
    is_numbered = (nodes != UNKNOWN) & (nodes_before != UNKNOWN)
    size = int(work.text.max()) + 1
    pairs, which = np.unique(work.text[before] * size + work.text[follows], return_inverse=True)
    first, last = np.divmod(pairs, size)
    count = np.bincount(which, minlength=len(pairs))
    least_ns = np.full(len(pairs), np.iinfo(np.int64).max)
    np.minimum.at(least_ns, which, gap_ns)
    names_after, names_before = np.bincount(first, minlength=size), np.bincount(last, minlength=size)
    count_first = key_sums(first, count, size)
    with_pair, with_name = _distinct(which, work.launch[follows]), _distinct(work.text, work.launch)
    is_rare = np.where(with_name[first] > 1, 2 * with_pair < with_name[first], 4 * count <= count_first[first])
    long_ns = max(_LONG_NS, _LONG_RATIO * int(np.sort(gap_ns)[len(gap_ns) // 2]))
    is_hole = (least_ns >= long_ns) & (names_after[first] > 1) & (names_before[last] > 1) & is_rare
    graphs, graph = np.unique(work.graph_id, return_inverse=True)
    is_alone = (_distinct(graph, work.launch) == 1) | (graphs == UNKNOWN)
    left_out = is_numbered & (nodes - nodes_before > 1) & (gap_ns >= long_ns) & is_alone[graph][follows]
    rows = np.flatnonzero((~is_numbered & is_hole[which]) | left_out)
    holes = follows[rows]
    launched, of = np.unique(np.stack((work.launch[holes], work.device[holes])), axis=1, return_inverse=True)
    launch, device = launched
    return launch, device, np.full(len(launch), NONE), key_sums(of.reshape(-1), gap_ns[rows], len(launch))


def _distinct(keys: Array, values: Array) -> Array:
    """Return the number of distinct values of each key; keys are integers from 0, all of which occur."""
    return np.bincount(np.unique(keys * (values.max() + 1) + values) // (values.max() + 1))


def _parts_of_others(facts: Facts, work: GraphWork, replays: Replays) -> Found:
    """Return the launches whose work is only a part of another graph's work.

    That is replayed before and after them in their step, among the next two, and at least four times as often.
    """
    launch, graph, graph_id, gpu_ns = replays.launch, replays.graph, replays.graph_id, replays.gpu_ns
    count = replays.kernels + replays.memory_operations
    step = facts.call_steps[launch]
    size = int(graph.max(initial=-1)) + 1
    replayed = np.bincount(graph, minlength=size)
    most_ns = np.zeros(size, dtype=np.int64)
    np.maximum.at(most_ns, graph, gpu_ns)
    work_of, example, is_numbered = (np.zeros(size, dtype=np.int64) for _ in range(3))
    work_of[graph], is_numbered[graph], example[graph] = count, graph_id != UNKNOWN, launch
    placed = np.flatnonzero(step != NONE)
    placed = placed[np.argsort(step[placed], kind="stable")]
    candidates: list[tuple[Array, Array]] = []
    for ahead in (1, 2):
        for behind in (1, 2):
            middle = np.arange(ahead, len(placed) - behind)
            last, this, following = placed[middle - ahead], placed[middle], placed[middle + behind]
            part, whole = graph[this], graph[last]
            some = (step[last] == step[this]) & (step[following] == step[this]) & (whole == graph[following])
            some &= (work_of[whole] > work_of[part]) & (replayed[whole] >= 4 * replayed[part])
            some &= (is_numbered[whole] == 0) & (is_numbered[part] == 0)
            candidates.append((this[some], whole[some]))
    replay, whole = (np.concatenate(columns) for columns in zip(*candidates, strict=True))
    names: dict[int, Counter[int]] = {}

    def names_of(number: int) -> Counter[int]:
        if number not in names:
            begin, end = (np.searchsorted(work.launch, example[number], side=side) for side in _SIDES)
            names[number] = Counter(work.text[begin:end].tolist())
        return names[number]

    pairs = list(zip(graph[replay].tolist(), whole.tolist(), strict=True))
    is_of = {(part, of): names_of(part) <= names_of(of) for part, of in set(pairs)}
    is_part = np.array([is_of[pair] for pair in pairs], dtype=bool)
    replay, whole = replay[is_part], whole[is_part]
    launched, device, _ = _launched(work)
    return (
        launch[replay],
        device[np.searchsorted(launched, launch[replay])],
        work_of[whole] - work_of[graph[replay]],
        np.maximum(most_ns[whole] - gpu_ns[replay], 0),
    )
