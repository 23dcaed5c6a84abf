"""Frames equal the plain reference: parents, sub-tracks, ranges, layers, lifetimes of memory; very deep nesting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from test_nesting import INTERVALS, columns, few
from tiny_trace import write

from molprof import api
from molprof.analysis.facts.frames import in_ranges, lane_parents
from molprof.analysis.facts.memory import MemoryEvents, lifetimes
from molprof.analysis.facts.modules import MOST_DEPTH, module_paths
from molprof.analysis.facts.nesting import Nesting, depths, nearest, nested_paths, with_ancestors
from molprof.analysis.frame import read_frame
from molprof.analysis.origin.paths import FramePaths, StackFrame
from molprof.analysis.origin.read import origins_of
from molprof.analysis.origin.tree import BYS, build_tree

NONE = -1
# Of items in random order, the one around each: none, or another that is nearer to the root.
FORESTS = st.lists(st.integers(0, 40), max_size=40).flatmap(
    lambda picks: st.permutations(range(len(picks))).map(lambda order: forest(picks, order))
)


def forest(picks: list[int], order: list[int]) -> list[int]:
    parents = [NONE] * len(picks)
    for place, pick in enumerate(picks):
        parents[order[place]] = order[pick % place] if place and pick % 4 else NONE
    return parents


def up(parents: list[int], item: int) -> Iterator[int]:
    """An item and all around it."""
    while item != NONE:
        yield item
        item = parents[item]


def array(numbers: Any) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


@few
@hypothesis.given(FORESTS, st.integers(0, 2**40))
def test_what_is_around_items(parents: list[int], bits: int) -> None:
    parent, chosen = array(parents), array([bits >> place & 1 for place in range(len(parents))]).astype(bool)
    around = [list(up(parents, item)) for item in range(len(parents))]
    assert depths(parent).tolist() == [len(items) - 1 for items in around]
    assert nearest(parent, chosen).tolist() == [next((at for at in items if chosen[at]), NONE) for items in around]
    needed = {at for item, items in enumerate(around) if chosen[item] for at in items}
    assert np.flatnonzero(with_ancestors(parent, chosen)).tolist() == sorted(needed)
    names = array([place % 3 for place in range(len(parents))])
    path, outer, name = nested_paths(parent, names)
    assert all(before < place for place, before in enumerate(outer.tolist()))
    assert len({*zip(outer.tolist(), name.tolist(), strict=True)}) == len(name)
    for item, items in enumerate(around):
        assert [int(name[at]) for at in up(outer.tolist(), int(path[item]))] == [at % 3 for at in items]


def test_items_that_are_nested_very_deep() -> None:
    count = 160_000
    parent, names = np.arange(-1, count - 1), np.arange(count) % 7
    assert np.array_equal(depths(parent), np.arange(count))
    assert np.array_equal(nearest(parent, np.arange(count) == 5)[5:], np.full(count - 5, 5))
    path, outer, name = nested_paths(parent, names)
    assert np.array_equal(path, np.arange(count))
    assert np.array_equal(outer, parent)
    assert np.array_equal(name, names)
    starts = np.arange(count)
    nested = Nesting(np.zeros(count, dtype=np.int64), starts, 2 * count - starts, names).nested
    assert np.array_equal(nested.parent[:-1], parent)
    modules = module_paths(parent.tolist(), [(f"range {place}", None, 0) for place in range(count)])
    assert modules.text[-1].count("/") == MOST_DEPTH - 1


@few
@hypothesis.given(INTERVALS, INTERVALS, st.integers(0, 2**40))
def test_slices_on_lanes_lie_in_slices_of_their_own_thread(
    home: list[tuple[int, int, int]], moved: list[tuple[int, int, int]], whole: int
) -> None:
    nesting = Nesting(*columns(home), np.zeros(len(home), dtype=np.int64))
    parents = nesting.nested.parent[:-1].tolist()
    threads, starts, ends = (
        np.concatenate(pair)
        for pair in zip((nesting.threads, nesting.starts, nesting.ends), columns(moved), strict=True)
    )
    size = len(parents)
    is_whole = [bool(whole >> place & 1) for place in range(len(moved))]
    places = np.arange(size, len(threads))
    found, known = lane_parents(
        threads, starts, ends, array(parents + [NONE] * len(moved)), np.arange(len(threads)) < size, places,
        np.array(is_whole, dtype=bool),
    )  # fmt: skip
    for place, (thread, start, length) in enumerate(moved):
        begun = [row for row in range(size) if threads[row] == thread and starts[row] <= start]
        until = start + length - 1 if is_whole[place] else start
        # A slice stands behind those around it, and behind those that began before.
        around = [at for at in up(parents, max(begun, default=NONE)) if ends[at] > until]
        assert known[place] == bool(begun)
        assert found[place] == max(around, default=NONE)


@few
@hypothesis.given(
    st.lists(st.integers(-1, 3), max_size=30),
    st.dictionaries(st.integers(0, 29), st.integers(0, 12), max_size=12),
)
def test_items_lie_in_the_last_range_that_began_before_them(parents: list[int], lengths: dict[int, int]) -> None:
    ranges = sorted(place for place in lengths if place < len(parents))
    ends = {place: place + lengths[place] for place in ranges}
    found = in_ranges(array(parents), np.arange(len(parents)), array(ranges), array([ends[place] for place in ranges]))
    for item, parent in enumerate(parents):
        around = [place for place in ranges if parents[place] == parent != NONE and place < item < ends[place]]
        assert found[item] == max(around, default=NONE)


@few
@hypothesis.given(FORESTS, st.lists(st.sampled_from(["Layer_1", "Layer_10", "Layer_2", "Head_0", "range", ""])))
def test_layers_are_modules_of_one_class_beside_each_other(parents: list[int], names: list[str]) -> None:
    parent, number_of = array(parents), {name: place for place, name in enumerate(dict.fromkeys(names))}
    names = [names[place % len(names)] if names else "" for place in range(len(parents))]
    _, outer, name = nested_paths(parent, array([number_of.get(text, 0) for text in names]))
    texts = [*number_of] or [""]
    pieces = []
    for number in name.tolist():
        text, (kind, _, digits) = texts[number], texts[number].rpartition("_")
        pieces.append(None if not text else (text, kind or None, int(digits) if kind else 0))
    modules = module_paths(outer.tolist(), pieces)
    keys = []  # names of the modules around each path
    for path in range(len(pieces)):
        inside = [pieces[at] for at in up(outer.tolist(), path)]
        keys.append(tuple(piece for piece in reversed(inside) if piece))
    known = set(keys) | {key[:length] for key in keys for length in range(len(key))}

    def layer(key: Any) -> int | None:
        """Of the module itself."""
        *around, (_, kind, _) = key
        siblings = {other for other in known if len(other) == len(key) and [*other[:-1]] == around}
        siblings = {other for other in siblings if other[-1][1] == kind}
        inside = {other[:-1] for other in known if other and other[-1][1] is not None}
        if kind is None or len(siblings) < 2 or not inside & siblings:
            return None
        return sorted(siblings, key=lambda other: (other[-1][2], other[-1][0])).index(key)

    for path, key in enumerate(keys):
        number = modules.of_path[path]
        assert (number == NONE) == (not key)
        if key:
            assert modules.text[number] == "/".join(text for text, _, _ in key)
            assert modules.own_layer[number] == layer(key)
            layers = (layer(key[:length]) for length in range(1, len(key) + 1))
            assert modules.layer[number] == next((one for one in layers if one is not None), None)


@few
@hypothesis.given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1]), st.sampled_from([1, 2, None]), st.sampled_from([4, -4, 8, -8, 0, None]),
            st.sampled_from([0, 4, 8, None]),
        ),
        max_size=20,
    )
)  # fmt: skip
def test_lifetimes_of_allocations(rows: list[tuple[int, int | None, int | None, int | None]]) -> None:
    devices, addresses, sizes, totals = (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 4
    places = np.arange(len(rows))
    events = MemoryEvents(places, places, [1] * len(rows), list(map(str, devices)), addresses, sizes, totals, totals)
    found = lifetimes(events)
    for place, (device, address, size, total) in enumerate(rows):
        here = [at for at in range(len(rows)) if rows[at][:2] == (device, address)]
        before, after = [at for at in here if at < place], [at for at in here if at > place]
        pairs = before and size is not None and size < 0 and sizes[before[-1]] == -size
        assert found.allocation[place] == (before[-1] if pairs else NONE)
        assert found.next[place] == (after[0] if after else NONE)
        is_freed = after and size is not None and size > 0 and sizes[after[0]] == -size
        assert found.is_freed[place] == bool(is_freed)
        last = [totals[at] for at in range(place) if devices[at] == device][-1:]
        amounts = [total, size, *last]
        expected = total - size - last[0] if last and None not in amounts else None  # type: ignore[operator]
        assert found.unexplained[place] == expected


KINDS = ("module", "range", "function", "library", "operator")


@few
@hypothesis.given(FORESTS, st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(["a", "b"])), min_size=1))
def test_paths_of_frames(parents: list[int], labels: list[tuple[str, str]]) -> None:
    frames = {
        item: StackFrame(item, None if parent == NONE else parent, *labels[item % len(labels)], 0)
        for item, parent in enumerate(parents)
    }
    kinds = {"module": ("module", "range"), "source": ("function",), "operator": ("operator",)}
    for by, of in kinds.items():
        paths = FramePaths(by, frames)
        for item in frames:
            chain = [frames[at] for at in up(parents, item)][::-1]
            expected = [(frame.kind, frame.name) for frame in chain if frame.kind in of]
            if not expected and by == "source":
                expected = [(frame.kind, frame.name) for frame in chain if frame.kind == "library"]
            number = paths.of_frame(item)
            assert number == paths.of_chain(chain)
            nodes = paths.table.nodes(number)
            assert nodes == tuple(expected) or (not expected and nodes[0][0] == "none")


def x(category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


@pytest.mark.parametrize("category", ["user_annotation", "cpu_op"])
def test_a_trace_that_is_nested_very_deep(tmp_path: Path, category: str) -> None:
    count = 4_000
    events = [x(category, f"level {place}", place, 3 * count - 2 * place) for place in range(count)]
    events.append(x("cuda_runtime", "cudaLaunchKernel", count + 1, 1, correlation=1))
    with api.load(write(tmp_path / "a.json", {"traceEvents": events})) as trace:
        origins = trace.read(origins_of, stacks=True)
        for by in BYS:
            tree = build_tree(origins, by)
            assert tree.amount("launches") == 1
            if by == {"user_annotation": "module", "cpu_op": "operator"}[category]:
                assert max(depth for depth, _ in tree.walk()) == MOST_DEPTH
        (shown,) = trace.read(lambda engine, _: read_frame(engine, "calls"), stacks=True)["module"].tolist()
        assert (shown or "").count("/") == (MOST_DEPTH - 1 if category == "user_annotation" else 0)


def test_a_module_without_a_name(tmp_path: Path) -> None:
    events = [x("python_function", "nn.Module: ", 0, 9), x("python_function", "nn.Module: Linear_0", 1, 7)]
    events.append(x("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=1))
    with api.load(write(tmp_path / "a.json", {"traceEvents": events})) as trace:
        calls = trace.read(lambda engine, _: read_frame(engine, "calls"), stacks=True)
    assert calls.select("module", "layer").rows() == [("/Linear_0", None)]
