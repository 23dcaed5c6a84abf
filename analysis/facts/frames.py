"""Frames: the slices that enclose operators, calls and memory events on their thread, on whatever sub-track.

A frame is a module, a range (record_function), a Python function or an operator. Python functions that take less than
a 100,000th of all recorded time are frames only where they are around something else.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from molprof.analysis.facts import GPU_CALLS
from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.intervals import on_one_line
from molprof.analysis.facts.marks import MarkFacts
from molprof.analysis.facts.modules import ModulePaths, module_paths
from molprof.analysis.facts.nesting import depths, nearest, nested_paths, with_ancestors
from molprof.analysis.facts.phases import Phases, innermost
from molprof.analysis.facts.slices import CATEGORIES, OPERATOR

_SHORT = 100_000
_RANGE = "user_annotation"
_ANNOTATION = CATEGORIES.index(_RANGE)
# Of these a slice on a sub-track belongs to its own thread.
_PLACED = ("python_function", _RANGE, "cpu_op", *GPU_CALLS)
_NESTED = f"SELECT IFNULL(parent_id, {NONE}) AS parent_id, stack_id FROM slice ORDER BY id"
_LABELS = """
SELECT slice.category,
  CASE slice.category
    WHEN 'cpu_op' THEN 'operator'
    WHEN 'user_annotation' THEN 'range'
    WHEN 'python_function' THEN _molprof_function_kind!(slice.name)
  END AS kind,
  slice.name,
  IIF(_molprof_is_module!(slice.name), _molprof_module_name!(slice.name), IFNULL(slice.name, '(no name)')) AS text,
  _molprof_module_class!(_molprof_module_name!(slice.name)) AS class,
  CAST(SUBSTR(slice.name, 13 + LENGTH(_molprof_module_class!(_molprof_module_name!(slice.name)))) AS INT) AS number
FROM json_each('{ids}') AS one
CROSS JOIN slice
WHERE slice.id = one.value
ORDER BY one.key
"""
_PARENTS = f"SELECT IFNULL(parent_id, {NONE}) AS parent_id FROM slice ORDER BY id"
_MODULES = "SELECT id FROM slice WHERE category = 'python_function' AND _molprof_is_module!(name) ORDER BY id"
# Copies and sets that are captured into a graph start no work.
_CALLS = """
SELECT call_id AS id FROM molprof_call_fact
UNION
SELECT id FROM molprof_gpu_call WHERE name GLOB '*Memcpy*' OR name GLOB '*Memset*'
ORDER BY 1
"""
_MEMORY = "SELECT id FROM slice WHERE category = 'cpu_instant_event' AND name = '[memory]' ORDER BY id"
_FUNCTION_SPAN = "SELECT MIN(ts) AS ts, MAX(ts + dur) AS ts_end FROM slice WHERE category = 'python_function'"
# Annotations that mark steps, and those of molprof, are no ranges.
_MARKS = """
INCLUDE PERFETTO MODULE molprof.steps;
SELECT id FROM molprof_annotation WHERE source = 'molprof' OR source != 'program' AND role = 'step'
UNION
SELECT id FROM molprof_any_step
"""


class FrameLabel(NamedTuple):
    """Kind and name of a frame."""

    kind: str  # module, range, function, library, molprof (its marks, which no path holds) or operator
    name: str | None  # as recorded
    text: str  # in paths of modules: without `nn.Module: `
    module_class: str | None  # of a module: Linear of Linear_3
    number: int  # of a module: 3


class Frames(Struct, frozen=True):
    """Slices that are frames, or have enclosing frames: arrays of int64 by index, in order of slice."""

    id: Array
    label: Array  # index into `labels`; NONE for no frame
    around: Array  # index of the innermost frame around it; NONE
    operator: Array  # index of the innermost operator around it; NONE
    path: Array  # index of the path of frames around it, with the frame that it is; NONE for no frames
    outer: Array  # of each path the one around it, which stands before it; NONE
    name: Array  # of each path the label of the innermost frame
    labels: list[FrameLabel]  # distinct ones

    def index(self, ids: Array) -> Array:
        """Return the index of each slice, which must be among the frames."""
        index: Array = np.searchsorted(self.id, ids)
        return index


def lane_parents(
    threads: Array, starts: Array, ends: Array, parent: Array, is_home: Array, moved: Array, is_whole: Array
) -> tuple[Array, Array]:
    """Return the innermost slice of their own thread that encloses the start of slices on sub-tracks; and if one may.

    That is of the last slice at home that starts no later, and of all around it, the innermost one that ends later.
    -1: none. There may be none where nothing starts no later.
    threads: of each slice. parent: the slice around each. is_home: on the track of its thread. moved: those on lanes.
    is_whole: of each of these, whether it must lie around all of it, not only its start.
    """
    home = np.flatnonzero(is_home & np.isin(threads, np.unique(threads[moved])))
    lines = on_one_line([threads[home], threads[moved]], [starts[home], starts[moved]])
    order = np.argsort(lines[0], kind="stable")  # of one moment by slice
    position = np.searchsorted(lines[0][order], lines[1], side="right") - 1
    around = np.append(home[order], NONE)[position]
    around[threads[around] != threads[moved]] = NONE
    is_known = around != NONE
    until = np.where(is_whole, ends[moved] - 1, starts[moved])
    while len(wrong := np.flatnonzero((around != NONE) & (ends[around] <= until))):
        around[wrong] = parent[around[wrong]]
    return around, is_known


def in_ranges(parent: Array, items: Array, ranges: Array, range_ends: Array) -> Array:
    """Return the range on a sub-track in which each item began, of several the last that began; -1 for none.

    A range holds what is in the same slice as itself, has a higher number than it, and a lower one than its end.
    parent: the slice around each slice. items, ranges: slices. range_ends: the first slice that starts after each.
    """
    some = parent[ranges] != NONE
    ranges, range_ends = ranges[some], range_ends[some]
    spans = innermost(Phases(ranges, parent[ranges], ranges + 1, range_ends))
    range_of = np.full(len(items), NONE)
    if not len(spans.id):
        return range_of
    starts, moments = on_one_line([spans.thread, parent[items]], [spans.ts, items])
    last = np.searchsorted(starts, moments, side="right") - 1
    inside = (last >= 0) & (spans.thread[last] == parent[items]) & (items < spans.ts_end[last])
    range_of[inside] = spans.id[last[inside]]
    return range_of


class FrameFacts(MarkFacts):
    """Frames of a trace."""

    @cached_property
    def called(self) -> Array:
        """Calls that launch, wait, copy or set, or start GPU work, in order of slice."""
        return self.numbers(_CALLS, "call_facts")[0]

    @cached_property
    def memory_events(self) -> Array:
        """Slices of allocations and frees, in order."""
        return self.numbers(_MEMORY, None)[0]

    @cached_property
    def frames(self) -> Frames:
        """All frames, and those that enclose operators, calls and memory events."""
        slices = self.slices
        parent, stack = self.numbers(_NESTED, None)
        parent, lane = self._on_own_thread(parent, stack)
        chosen = np.isin(slices.category, (OPERATOR, _ANNOTATION))
        for ids in (self.called, self.memory_events, self._long_functions(stack)):
            chosen[ids] = True
        items = np.flatnonzero(with_ancestors(parent, chosen))
        ranges = lane[slices.category[lane] == _ANNOTATION]
        range_ends = np.searchsorted(slices.ts, slices.ts_end[ranges], side="left")
        in_range = in_ranges(parent, items, ranges, range_ends)
        around = np.where(in_range == NONE, parent[items], in_range)
        index = np.full(len(parent) + 1, NONE)
        index[items] = np.arange(len(items))
        around = index[around]

        label, labels = self._labels(items, stack)
        is_frame, is_operator = label != NONE, slices.category[items] == OPERATOR
        outer = nearest(around, is_frame)
        frame = np.append(np.where(is_frame, np.arange(len(items)), outer), NONE)
        around, outer = np.append(around, NONE), np.append(outer, NONE)
        rows = np.flatnonzero(is_frame)
        row_of = np.full(len(items) + 1, NONE)
        row_of[rows] = np.arange(len(rows))
        frame_around = frame[around[:-1]]
        paths = nested_paths(row_of[frame_around[rows]], label[rows])
        operator = np.append(nearest(around[:-1], is_operator), NONE)[around[:-1]]
        path = np.append(paths.path, NONE)[row_of[frame[:-1]]]
        return Frames(items, label, frame_around, operator, path, paths.outer, paths.name, labels)

    @cached_property
    def modules(self) -> ModulePaths:
        """Modules and ranges of each path of frames."""
        frames = self.frames
        labels = [frames.labels[number] for number in frames.name.tolist()]
        pieces = [
            (label.text, label.module_class, label.number) if label.kind in ("module", "range") else None
            for label in labels
        ]
        return module_paths(frames.outer.tolist(), pieces)

    @cached_property
    def module_calls(self) -> tuple[Array, Array]:
        """Calls of modules, in order of slice, and the number of modules that enclose each."""
        (parent,) = self.numbers(_PARENTS, None)
        (ids,) = self.numbers(_MODULES, "python_functions")
        is_module = np.zeros(len(parent), dtype=bool)
        is_module[ids] = True
        index = np.full(len(parent) + 1, NONE)
        index[ids] = np.arange(len(ids))
        around = np.append(nearest(parent, is_module), NONE)[parent[ids]]
        return ids, depths(index[around])

    @cached_property
    def own_times(self) -> Array:
        """The time of each operator of `frames` without that of the operators it calls, ns; 0 for others.

        One on a sub-track may outlast the operator in which it began: it counts for itself alone.
        """
        frames, slices = self.frames, self.slices
        is_operator = slices.category[frames.id] == OPERATOR
        own_ns = np.where(is_operator, (slices.ts_end - slices.ts)[frames.id], 0)
        called = np.flatnonzero(is_operator & (frames.operator != NONE))
        caller = frames.operator[called]
        ends = slices.ts_end[frames.id]
        inside = ends[called] <= ends[caller]
        np.subtract.at(own_ns, caller[inside], (slices.ts_end - slices.ts)[frames.id[called[inside]]])
        return own_ns

    def _on_own_thread(self, parent: Array, stack: Array) -> tuple[Array, Array]:
        """Return the enclosing slice of each slice, on its own thread for those on sub-tracks; and the latter.

        On a sub-track all ranges, and the outermost of the others, also of those in ranges, lie in their own thread.
        """
        slices = self.slices
        own_track = self.own_tracks(slices.track)
        moved = np.flatnonzero((own_track != slices.track) & (own_track != NONE))
        if not len(moved):
            return parent, moved
        categories, which = self._categories(np.append(moved, parent[moved]), stack)
        category, outer = which.reshape(2, -1)
        is_range = np.array([name == _RANGE for name in categories], dtype=bool)[category]
        is_placed = np.array([name in _PLACED for name in categories], dtype=bool)[category]
        is_outer = np.array([name in (None, _RANGE) for name in categories], dtype=bool)[outer]
        chosen = is_placed & (is_range | is_outer)
        moved, is_range = moved[chosen], is_range[chosen]
        is_home = (own_track == slices.track) & (own_track != NONE)
        around, is_known = lane_parents(own_track, slices.ts, slices.ts_end, parent, is_home, moved, is_range)
        moved = moved[is_known]
        parent = parent.copy()
        parent[moved] = around[is_known]
        return parent, moved

    def _categories(self, ids: Array, stack: Array) -> tuple[list[str | None], Array]:
        """Categories, and the index of that of each slice; None too for no slice, -1."""
        is_slice = ids != NONE
        _, first, of = np.unique(stack[ids[is_slice]], return_index=True, return_inverse=True)
        categories = [*(row[0] for row in self._rows_of(ids[is_slice][first])), None]
        which = np.full(len(ids), len(categories) - 1)
        which[is_slice] = of.reshape(-1)
        return categories, which

    def _rows_of(self, ids: Array) -> list[tuple[Any, ...]]:
        """Return the row of each slice."""
        return self.rows(_LABELS.format(ids=ids.tolist()), "python_functions")

    def _long_functions(self, stack: Array) -> Array:
        """Python functions that take more than a 100,000th of the time from the first to the last of all."""
        ((first, last),) = self.rows(_FUNCTION_SPAN, None)
        if first is None:
            return np.empty(0, dtype=np.int64)
        slices = self.slices
        long = np.flatnonzero((slices.category == 0) & (slices.ts_end - slices.ts > (last - first) // _SHORT))
        categories, which = self._categories(long, stack)
        chosen: Array = long[np.array([name == "python_function" for name in categories], dtype=bool)[which]]
        return chosen

    def _labels(self, items: Array, stack: Array) -> tuple[Array, list[FrameLabel]]:
        """Return the label of each slice; NONE for those that are no frames, as annotations that mark steps."""
        _, first, which = np.unique(stack[items], return_index=True, return_inverse=True)
        numbers: dict[FrameLabel, int] = {}
        of_stack = [
            NONE
            if kind is None
            else numbers.setdefault(
                FrameLabel(kind, name, text, *((of_class, number) if kind == "module" else (None, 0))), len(numbers)
            )
            for _, kind, name, text, of_class, number in self._rows_of(items[first])
        ]
        label = np.array(of_stack, dtype=np.int64)[which.reshape(-1)]
        is_mark = np.isin(items, self.numbers(_MARKS, "annotations")[0])
        label[is_mark & (self.slices.category[items] == _ANNOTATION)] = NONE
        return label, list(numbers)
