"""Steps of a trace: which candidate slices are steps, their durations, and which are prefills."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.intervals import ends_before, on_one_line
from molprof.analysis.facts.source import Lanes

# A step that takes so many times as long as the next shorter one is of another kind: reading prompts, not generating.
LEAST_PREFILL_RATIO = 2.0


class StepMarks(Struct, frozen=True):
    """Slices that may be steps: arrays of int64."""

    id: Array  # slice
    rank: Array  # steps are those of the lowest number
    is_alone: Array  # bool: no such slice lies in another one of its thread
    thread: Array  # number from 0
    ts: Array
    ts_end: Array

    def some(self, chosen: Array) -> StepMarks:
        """Return the steps that indices or a mask select."""
        return StepMarks(*(getattr(self, name)[chosen] for name in self.__struct_fields__))


def steps_of(marks: StepMarks) -> StepMarks:
    """Return the steps in order of thread and start: on the lowest rank, those inside no other of their thread.

    So no step counts twice, whoever else marks steps too. Those that partly overlap another are steps of their own.
    """
    best = marks.some(marks.rank == marks.rank.min()) if len(marks.id) else marks
    best = best.some(np.lexsort((best.id, -best.ts_end, best.ts, best.thread)))
    around = ends_before(best.thread, best.ts, best.ts_end)
    return best.some((around == NONE) | (best.ts_end > best.ts_end[around]) | best.is_alone)


def whole_steps(steps: StepMarks, schedules: StepMarks, phases: StepMarks) -> tuple[Array, Array, Array]:
    """Return start and end of an engine's steps as a whole, and True for those that start at a schedule before them.

    Marks of engines hold the model's part alone: masks and sampling are outside. A step goes from the schedule of its
    thread just before it, or, where no scheduler is recorded, from its own mark, to the next of either. The last ends
    with its mark, or the last phase of its thread.
    """
    size = len(steps.id)
    thread, ts, ids = (
        np.concatenate([getattr(part, name) for part in (schedules, steps)]) for name in ("thread", "ts", "id")
    )
    is_step = np.append(np.zeros(len(schedules.id), dtype=bool), np.ones(size, dtype=bool))
    order = np.lexsort((ids, is_step, ts, thread))
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    mine = position[len(schedules.id) :]
    thread, ts, is_step = thread[order], ts[order], is_step[order]
    has_schedule = (mine > 0) & (thread[mine - 1] == thread[mine]) & ~is_step[mine - 1]
    starts = np.where(has_schedule, ts[mine - 1], ts[mine])
    after = np.minimum(mine + 1, len(order) - 1)
    is_last = (after == mine) | (thread[after] != thread[mine])
    ends = np.where(is_last, steps.ts_end, ts[after])
    last_of = dict(zip(steps.thread[is_last].tolist(), np.flatnonzero(is_last).tolist(), strict=True))
    last = np.array([last_of.get(number, NONE) for number in phases.thread.tolist()], dtype=np.int64)
    later = (last != NONE) & (phases.ts >= starts[last]) if size else np.zeros(len(last), dtype=bool)
    np.maximum.at(ends, last[later], phases.ts_end[later])
    return starts, ends, has_schedule


def up_to_next(lane: Array, ts: Array, ts_end: Array, ids: Array) -> Array:
    """Return the end of each interval, or the start of the next on its track where that comes first."""
    order = np.lexsort((ids, ts_end, ts, lane))
    ends: Array = ts_end.copy()
    before, after = order[:-1], order[1:]
    same = lane[before] == lane[after]
    ends[before[same]] = np.minimum(ts_end[before], ts[after])[same]
    return ends


def are_prefills(lengths: Array) -> Array | None:
    """Return True for steps that read prompts, by their lengths; None where the lengths do not show it.

    Steps that generate a token for each sequence are alike, and reading a prompt takes longer: where the sorted lengths
    have a gap of a factor of `LEAST_PREFILL_RATIO` or more, those above the widest are prefills.
    """
    recorded = np.sort(lengths[lengths > 0])
    if len(recorded) < 2:
        return None
    ratios = recorded[1:] / recorded[:-1]
    widest = int(ratios.argmax())
    if ratios[widest] < LEAST_PREFILL_RATIO:
        return None
    is_prefill: Array = lengths > recorded[widest]
    return is_prefill


class Steps(Struct, frozen=True):
    """Steps in order of their slices: arrays of int64."""

    id: Array
    ts: Array
    ts_end: Array
    is_whole: Array  # bool: start and end are recorded
    rank: int  # of their marks
    lanes: Lanes  # up to the end of each or the start of the next; the thread is None where those of all others count
    by_function: bool  # functions of an engine mark them, which do not name their kind


def busy_marks(processes: Array, marks: StepMarks, of: Array, moments: Array) -> Array:
    """Return the marks in which something of their process begins. of, moments: process and start of what counts."""
    begins, ends, at = on_one_line(
        [processes + 1, processes + 1, of + 1], [marks.ts, marks.ts_end, moments]
    )  # of no process: 0
    at = np.sort(at)
    is_busy: Array = np.searchsorted(at, ends) > np.searchsorted(at, begins)
    return is_busy


def lanes_of(ids: Array, ts: Array, ts_end: Array, threads: list[tuple[int | None, int | None]]) -> Lanes:
    """Return the time of each step, up to its end or the start of the next of its thread.

    threads: process and thread number of each. Where all steps of a process are on one thread, they are steps of all
    its threads, and the thread is None.
    """
    several: dict[int | None, set[int | None]] = {}
    for upid, tid in threads:
        several.setdefault(upid, set()).add(tid)
    lanes = [(upid, tid if len(several[upid]) > 1 else None) for upid, tid in threads]
    numbers = {lane: number for number, lane in enumerate(dict.fromkeys(lanes))}
    until = up_to_next(np.array([numbers[lane] for lane in lanes], dtype=np.int64), ts, ts_end, ids)
    columns = zip(ids.tolist(), ts.tolist(), until.tolist(), lanes, strict=True)
    return [(*times, *lane) for *times, lane in columns]
