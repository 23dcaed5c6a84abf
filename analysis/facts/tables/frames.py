"""Tables about frames: the enclosing frames of operators, calls and memory events."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.memory import lifetimes
from molprof.analysis.facts.slices import OPERATOR
from molprof.analysis.facts.tables.table import Column, FactTable


def _paths(facts: Facts) -> Sequence[Column]:
    frames, modules = facts.frames, facts.modules
    labels = [frames.labels[number] for number in frames.name.tolist()]
    names = [label.text if label.name is None or label.kind == "module" else label.name for label in labels]
    operators: list[str | None] = []
    sources: list[tuple[bool, str | None]] = []  # whether it is a function of the program, and its name
    for label, around in zip(labels, frames.outer.tolist(), strict=True):
        operator, source = (None, (False, None)) if around == NONE else (operators[around], sources[around])
        operators.append(label.name if label.kind == "operator" else operator)
        if label.kind == "function" or (label.kind == "library" and not source[0]):
            source = label.kind == "function", label.name
        sources.append(source)
    return (
        np.arange(len(labels)),
        [label.kind for label in labels],
        names,
        [name if label.module_class is None else label.module_class for label, name in zip(labels, names, strict=True)],
        [None if number == NONE else modules.text[number] for number in modules.of_path],
        [None if number == NONE else modules.layer[number] for number in modules.of_path],
        operators,
        [name for _, name in sources],
    )


def _frames(facts: Facts) -> Sequence[Column]:
    frames = facts.frames
    some = np.flatnonzero(frames.label != NONE)
    return frames.id[some], frames.path[some], _ids(facts, frames.around[some])


def _call_frames(facts: Facts) -> Sequence[Column]:
    frames = facts.frames
    index = frames.index(facts.called)
    columns = frames.around[index], frames.operator[index]
    return facts.called, _known(frames.path[index]), *(_ids(facts, column) for column in columns)


def _operator_calls(facts: Facts) -> Sequence[Column]:
    """Return the columns of operators that others call, or that call others."""
    frames, slices = facts.frames, facts.slices
    is_operator = slices.category[frames.id] == OPERATOR
    time_ns = np.where(is_operator, (slices.ts_end - slices.ts)[frames.id], 0)
    caller = np.where(is_operator, frames.operator, NONE)
    called_ns = time_ns - facts.own_times
    some = np.flatnonzero((caller != NONE) | (called_ns > 0))
    return frames.id[some], _ids(facts, caller[some]), called_ns[some]


def _known(numbers: Array) -> Array:
    """Return the numbers, with nothing in place of NONE."""
    masked: Array = np.ma.masked_equal(numbers, NONE)  # type: ignore[no-untyped-call]
    return masked


def _ids(facts: Facts, index: Array) -> Array:
    return _known(np.append(facts.frames.id, NONE)[index])


def _memory(facts: Facts) -> Sequence[Column]:
    events, ends = facts.allocations, facts.layer_ends
    lives = lifetimes(events)
    # The last of the next three ends of layers.
    ends_ts = np.full(len(events.id), NONE)
    if len(ends):
        last = ends[np.minimum(np.searchsorted(ends, events.ts, side="right") + 2, len(ends) - 1)]
        ends_ts = np.where(last > events.ts, last, NONE)
    next_ts = np.append(events.ts, NONE)[lives.next]
    frames = facts.frames
    index = frames.index(events.id)
    phases, steps = (facts.placed(events.id, lanes) for lanes in (facts.phase_lanes, facts.step_lanes))
    return (
        events.id, _known(frames.path[index]), _ids(facts, frames.around[index]), _known(phases), _known(steps),
        events.upid, events.device, events.size, events.total, events.reserved, lives.unexplained,
        _known(np.append(events.id, NONE)[lives.allocation]), _known(next_ts),
        _known(np.where(lives.is_freed, next_ts, NONE)), _known(ends_ts),
    )  # fmt: skip


TABLES = {
    "frame_path": FactTable(
        (
            "path_id LONG", "kind STRING", "name STRING", "class STRING", "module STRING", "layer LONG",
            "operator STRING", "source STRING",
        ),
        _paths,
    ),
    "frame": FactTable(("id JOINID(slice.id)", "path_id LONG", "parent_id JOINID(slice.id)"), _frames),
    "call_frame": FactTable(
        (
            "id JOINID(slice.id)", "path_id LONG", "frame_id JOINID(slice.id)", "operator_id JOINID(slice.id)",
        ),
        _call_frames,
    ),
    "operator_call": FactTable(
        ("id JOINID(slice.id)", "caller_id JOINID(slice.id)", "called_ns DURATION"), _operator_calls
    ),
    "memory": FactTable(
        (
            "id JOINID(slice.id)", "path_id LONG", "frame_id JOINID(slice.id)", "phase_id JOINID(slice.id)",
            "step_id JOINID(slice.id)", "upid JOINID(process.id)", "device STRING", "bytes LONG", "total_bytes LONG",
            "reserved_bytes LONG", "unexplained_bytes LONG", "allocation_id JOINID(slice.id)", "next_ts TIMESTAMP",
            "freed_ts TIMESTAMP", "layers_end_ts TIMESTAMP",
        ),
        _memory,
    ),
    "module": FactTable(("id JOINID(slice.id)", "depth LONG"), lambda facts: facts.module_calls),
}  # fmt: skip
