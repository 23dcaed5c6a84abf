"""Locations of a figure in the program: of the events that it counts, or whose time it sums."""

from __future__ import annotations

import numpy as np

from molprof.analysis.figures.figure import CountedEvents
from molprof.analysis.frame import Frame, read_frame
from molprof.analysis.origin.read import NO_CALL, CallLocation, frames_around, frames_by_id, summed_places
from molprof.analysis.trace_processor import TraceProcessor

_CLASSES = ("copy", "cat", "attention")
_BY_NAME = ("elementwise", "masking")
_NAMES = "INCLUDE PERFETTO MODULE molprof.kernel_kinds;\nSELECT name FROM molprof_kernel_kind WHERE kind = '{kind}'"
_WORK = "id dur name category class call_id frame_id phase step_id"
_CALLS = "id dur kind is_sync sync_ns gpu_ns frame_id phase step_id"
_NOUNS = {"graph_launches": "graph launches", "syncs": "host syncs", "leaf_operators": "leaf operators"}
_NOUNS |= {"work": "pieces of GPU work", "elementwise": "kernels named elementwise", "masking": "masking candidates"}


def places_of_counted(
    engine: TraceProcessor, counted: CountedEvents, *, by_time: bool, has_gpu: bool
) -> tuple[list[CallLocation], str]:
    """Return the locations of the events that a figure counts, most events or most time first, and the events' noun."""
    what = {"cpu_or_gpu": "work" if has_gpu else "operators"}.get(counted.what, counted.what)
    rows, time = _rows(engine, what)
    if counted.phase is not None:
        rows = rows.where(rows["phase"] == counted.phase)
    in_steps = rows.known("step_id")
    if counted.in_steps and in_steps.any():
        rows, in_steps = rows.where(in_steps), in_steps[in_steps]
    around = rows["frame_id" if "frame_id" in rows.names else "id"].tolist()
    if "call_id" in rows.names:
        called = rows.known("call_id").tolist()
        around = [frame if has_call else NO_CALL for frame, has_call in zip(around, called, strict=True)]
    locations = summed_places(frames_by_id(frames_around(engine)), around, rows[time], in_steps)
    locations.sort(key=lambda item: (item.time_ns, item.count) if by_time else (item.count, item.time_ns), reverse=True)
    return locations, _NOUNS.get(what, f"{what} kernels" if what in _CLASSES else what)


def _rows(engine: TraceProcessor, what: str) -> tuple[Frame, str]:
    """Return the events of a kind, and the column of their time."""
    if what in ("leaf_operators", "operators"):
        rows = read_frame(engine, "operators", "id own_ns phase step_id")
        return rows.where(np.isin(rows["id"], engine.facts.leaf_operators)) if what != "operators" else rows, "own_ns"
    if what in ("launches", "graph_launches"):
        rows = read_frame(engine, "calls", _CALLS)
        return rows.where(rows["kind"] == what.removesuffix("es")), "gpu_ns"
    if what == "syncs":
        rows = read_frame(engine, "calls", _CALLS)
        return rows.where(rows["is_sync"] == 1), "sync_ns"
    rows = read_frame(engine, "work", _WORK)
    if what == "kernels":
        rows = rows.where(rows["category"] == "kernel")
    elif what != "work":
        is_kernel = rows["category"] == "kernel"
        if what in _BY_NAME:
            of_kind = is_kernel & np.isin(rows["name"], engine.query(_NAMES.format(kind=what))["name"])
        else:
            of_kind = (rows["class"] == what) & (is_kernel == (what in _CLASSES))
        rows = rows.where(of_kind)
    return rows, "dur"
