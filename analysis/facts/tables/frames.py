"""Tables about frames: what is around operators, calls and memory events."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.memory import lifetimes
from molprof.analysis.facts.slices import OPERATOR
from molprof.analysis.facts.tables.table import Column, FactTable, known


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


def _ids(facts: Facts, index: Array) -> list[int | None]:
    return known(np.append(facts.frames.id, NONE)[index], NONE)


def _origins(facts: Facts) -> Sequence[Column]:
    """Of operators and calls."""
    frames, slices = facts.frames, facts.slices
    ids = np.union1d(slices.of(OPERATOR), facts.called)
    return *_around(facts, ids), facts.own_times[frames.index(ids)]


def _around(facts: Facts, ids: Array) -> Sequence[Column]:
    """What is around slices."""
    frames = facts.frames
    index = frames.index(ids)
    return (
        ids,
        known(frames.path[index], NONE),
        _ids(facts, frames.around[index]),
        _ids(facts, frames.operator[index]),
        known(facts.placed(ids, facts.phase_lanes), NONE),
        known(facts.placed(ids, facts.step_lanes), NONE),
    )


def _memory(facts: Facts) -> Sequence[Column]:
    events, ends = facts.allocations, facts.layer_ends
    found = lifetimes(events)
    # The last of the next three ends of layers.
    ends_ts = np.full(len(events.id), NONE)
    if len(ends):
        last = ends[np.minimum(np.searchsorted(ends, events.ts, side="right") + 2, len(ends) - 1)]
        ends_ts = np.where(last > events.ts, last, NONE)
    next_ts = np.append(events.ts, NONE)[found.next]
    return (
        *_around(facts, events.id), events.upid, events.device, events.size, events.total, events.reserved,
        found.unexplained, known(np.append(events.id, NONE)[found.allocation], NONE),
        known(next_ts, NONE), known(np.where(found.is_freed, next_ts, NONE), NONE), known(ends_ts, NONE),
    )  # fmt: skip


_AROUND = (
    "id JOINID(slice.id)", "path_id LONG", "frame_id JOINID(slice.id)", "operator_id JOINID(slice.id)",
    "phase_id JOINID(slice.id)", "step_id JOINID(slice.id)",
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
    "origin": FactTable((*_AROUND, "own_ns DURATION"), _origins),
    "memory": FactTable(
        (
            *_AROUND, "upid JOINID(process.id)", "device STRING", "bytes LONG", "total_bytes LONG",
            "reserved_bytes LONG", "unexplained_bytes LONG", "allocation_id JOINID(slice.id)", "next_ts TIMESTAMP",
            "freed_ts TIMESTAMP", "layers_end_ts TIMESTAMP",
        ),
        _memory,
    ),
    "module": FactTable(("id JOINID(slice.id)", "depth LONG"), lambda facts: facts.module_calls),
}  # fmt: skip
