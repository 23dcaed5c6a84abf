"""Facts about phases, queues, concurrent work and graphs equal the plain reference on small random input."""

from __future__ import annotations

from collections import Counter

import hypothesis
import numpy as np
from hypothesis import strategies as st

from molprof.analysis.facts import coverage, gaps, graphs
from molprof.analysis.facts.phases import Phases, innermost

few = hypothesis.settings(max_examples=100, deadline=None)
MOMENTS = st.integers(0, 24)
# Key, start, length.
INTERVALS = st.lists(st.tuples(st.integers(0, 2), MOMENTS, st.integers(0, 8)), max_size=12)
# Device, start of the call (None: not recorded), start and length of the work.
PIECES = st.lists(st.tuples(st.integers(0, 1), st.none() | MOMENTS, MOMENTS, st.integers(0, 6)), max_size=12).map(
    lambda rows: sorted(rows, key=lambda row: (row[0], row[2]))
)
Piece = tuple[int, int | None, int, int]


def work_of(pieces: list[Piece]) -> gaps.GpuWork:
    device, ts, length = (np.array([row[column] for row in pieces], dtype=np.int64) for column in (0, 2, 3))
    index = np.arange(len(pieces))
    has_call = np.array([row[1] is not None for row in pieces], dtype=bool)
    call_ts = np.array([row[2] if row[1] is None else row[1] for row in pieces], dtype=np.int64)
    call = np.where(has_call, index, gaps.NONE)
    return gaps.GpuWork(index, device, np.zeros_like(ts), ts, ts + length, call, call_ts, call_ts)


@few
@hypothesis.given(INTERVALS)
def test_the_innermost_phase_is_the_last_that_began(rows: list[tuple[int, int, int]]) -> None:
    phases = [(on, start, start + length) for on, start, length in sorted(rows, key=lambda row: (row[1], -row[2]))]
    thread, ts, ts_end = np.array(phases, dtype=np.int64).reshape(-1, 3).T
    lanes = innermost(Phases(np.arange(len(phases)), thread, ts, ts_end))
    found = [
        (int(number), moment, int(phase))
        for phase, number, begin, end in zip(lanes.id, lanes.thread, lanes.ts, lanes.ts_end, strict=True)
        for moment in range(int(begin), int(end))
    ]
    expected = [
        (number, moment, max(around))
        for number in range(3)
        for moment in range(33)
        if (
            around := [place for place, (on, start, end) in enumerate(phases) if on == number and start <= moment < end]
        )
    ]
    assert found == expected


@few
@hypothesis.given(PIECES, st.lists(st.tuples(st.integers(0, 1), MOMENTS), max_size=5))
def test_queue_depth(pieces: list[Piece], asked: list[tuple[int, int]]) -> None:
    devices, moments = np.array(asked, dtype=np.int64).reshape(-1, 2).T
    assert gaps.queue_depth(work_of(pieces), devices, moments).tolist() == [
        sum(on == device and call is not None and call < moment < ts + length for on, call, ts, length in pieces)
        for device, moment in asked
    ]


@few
@hypothesis.given(PIECES)
def test_concurrency(pieces: list[Piece]) -> None:
    expected = Counter[tuple[int, int]]()
    for device in {piece[0] for piece in pieces}:
        mine = [(ts, ts + length) for on, _, ts, length in pieces if on == device]
        for moment in range(min(mine)[0], max(end for _, end in mine)):
            expected[device, sum(start <= moment < end for start, end in mine)] += 1
    columns = (column.tolist() for column in coverage.concurrency(work_of(pieces)))
    assert list(zip(*columns, strict=True)) == [(*key, expected[key]) for key in sorted(expected)]


# Launch, start and length, name, node id.
NODES = st.lists(
    st.tuples(st.integers(0, 3), MOMENTS, st.integers(0, 6), st.integers(0, 2), st.none() | st.integers(0, 2)),
    max_size=12,
)


@few
@hypothesis.given(NODES)
@hypothesis.example([(0, 1, 0, 1, None), (1, 0, 0, 0, None), (1, 0, 0, 0, None), (2, 0, 0, 1, None)])
def test_replays_of_graphs(rows: list[tuple[int, int, int, int, int | None]]) -> None:
    rows = sorted(rows, key=lambda row: row[:2])
    launch, ts, length, name = (np.array([row[column] for row in rows], dtype=np.int64) for column in range(4))
    node_id = np.array([graphs.UNKNOWN if row[4] is None else row[4] for row in rows], dtype=np.int64)
    zero, no_graph = np.zeros_like(launch), np.full_like(launch, graphs.UNKNOWN)
    work = graphs.GraphWork(
        np.arange(len(rows)), launch, ts, ts + length, zero, name, name, zero == 0, no_graph, node_id
    )
    replays, nodes = graphs.replays(work)
    launched = {number: [row for row in rows if row[0] == number] for number in sorted({row[0] for row in rows})}
    in_order = sorted(launched, key=lambda number: (launched[number][0][1], number))
    firsts: dict[tuple[int, ...], int] = {}  # by the names of a graph, its first launch
    expected, replayed = {}, Counter[int]()
    for number in in_order:
        first = firsts.setdefault(tuple(sorted(row[3] for row in launched[number])), number)
        expected[number] = list(firsts.values()).index(first), replayed[first], first
        replayed[first] += 1
    assert replays.launch.tolist() == in_order
    assert list(zip(replays.graph.tolist(), replays.number.tolist(), strict=True)) == [
        expected[number][:2] for number in in_order
    ]

    def keys(number: int) -> list[tuple[object, ...]]:
        seen = Counter[object]()
        found = []
        for *_, text, node in launched[number]:
            key = ("node", node) if node is not None else ("name", text)
            found.append((key, seen[key]))
            seen[key] += 1
        return found

    positions = []
    for number in launched:
        of_first = keys(expected[number][2])
        positions += [of_first.index(key) if key in of_first else gaps.NONE for key in keys(number)]
    assert nodes.position.tolist() == positions
