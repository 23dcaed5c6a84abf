"""Loops around models in transformers: generate, continuous batching, and loops of users; their steps and phases.

Slices of functions mark them. In generate, a step goes from preparing its inputs, or fetching drafts, to the next. What
has no function of its own is a span between functions: setup from the start of generate to its first step, sampling
from the last logits processor to the end of the stopping criteria, bookkeeping from there to the next step.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.intervals import begins_inside, ends_before, last_begun

GENERATE, CONTINUOUS, MODEL = "generate", "continuous", "model"


class ThreadSlices(Struct, frozen=True):
    """Slices of threads: arrays of int64."""

    id: Array
    thread: Array  # number
    ts: Array
    ts_end: Array


class PhaseMarks(Struct, frozen=True):
    """Slices that mark phases, in order of thread and start, the longer first: arrays."""

    id: Array
    thread: Array  # number
    ts: Array
    ts_end: Array
    part: Array  # text: the part of the program
    phase: Array  # text; None for calls of single logits processors
    model: Array  # text: of a forward what marks it

    def some(self, chosen: Array) -> PhaseMarks:
        """Return the marks that an array of indices or booleans selects."""
        return PhaseMarks(*(getattr(self, name)[chosen] for name in self.__struct_fields__))

    def is_phase(self, *names: str) -> Array:
        """Return True for each mark of one of some phases."""
        return _is_one_of(self.phase, *names)


class GenerateCalls(Struct, frozen=True):
    """The call of generate and the step of each mark."""

    call: Array  # index of the mark of its call; NONE outside
    step: Array  # of the call, from 0; NONE outside steps
    counts: Array  # whether it is in a call, and no sampling of drafts
    begins: Array  # whether it begins its step


class LoopPhases(Struct, frozen=True):
    """Phases of loops in order of start: arrays of int64."""

    mark: Array  # index of the mark; of a span one at its end or inside
    ts: Array
    ts_end: Array
    call: Array  # of generate, from 0; NONE outside, and in a call without steps
    step: Array  # of the call, from 0; NONE outside steps


class LoopSteps(Struct, frozen=True):
    """Steps of loops in order of thread and start: arrays."""

    mark: Array  # index of the mark that begins it
    ts_end: Array  # start of the next step of its loop, or end of its last phase
    call: Array  # of generate, from 0; NONE outside generate
    step: Array  # of the call, from 0; NONE outside generate
    is_prefill: Array  # whether it is the first of a call whose start is recorded
    outputs: Array  # how often a request got a token, as functions of continuous batching tell


class Samplings(Struct, frozen=True):
    """Sampling of steps of generate in order of thread and start: arrays of int64."""

    thread: Array
    ts: Array
    ts_end: Array
    step_end: Array  # end of its step
    call: Array
    step: Array


class StepChoices(Struct, frozen=True):
    """The kind of choice of tokens in each sampling: arrays of int64."""

    call: Array
    step: Array
    operator: Array  # id of the first operator that chose
    criteria: Array  # stopping criteria that were evaluated, lists of them included


def outermost(marks: PhaseMarks) -> Array:
    """Return indices of the marks, in order, that do not begin inside another one of the same phase and thread.

    PhaseMarks without a phase are left out.
    """
    with_phase = np.flatnonzero([phase is not None for phase in marks.phase.tolist()])
    phases, phase = np.unique(marks.phase[with_phase].astype(str), return_inverse=True)
    key = marks.thread[with_phase] * len(phases) + phase.reshape(-1)
    order = np.argsort(key, kind="stable")
    ordered = with_phase[order]
    inside = begins_inside(key[order], marks.ts[ordered], marks.ts_end[ordered])
    return np.sort(ordered[~inside])


def loop_marks(marks: PhaseMarks) -> PhaseMarks:
    """Return those of the outermost marks that are of loops: none if there is one forward outside generate alone.

    What begins in a draft is left out (an assistant generates there), and what begins in a processor, but for masks
    (some processors run a model).
    """
    of_loop = _is_one_of(marks.part, GENERATE, CONTINUOUS)
    if not of_loop.any() and marks.is_phase("forward").sum() < 2:
        return marks.some(np.empty(0, dtype=np.int64))
    in_draft, in_processor = (
        begins_inside(marks.thread, marks.ts, marks.ts_end, marks.is_phase(phase)) for phase in ("draft", "processor")
    )
    is_mask = np.array([phase.startswith("mask_") for phase in marks.phase.tolist()], dtype=bool)
    return marks.some(~in_draft & (~in_processor | is_mask))


def find_calls(marks: PhaseMarks) -> GenerateCalls:
    """Return the call of generate, and its step, of each mark of a loop.

    A step begins where drafts are fetched or inputs are prepared: at first, after a processor, and after sampling, but
    for sampling that follows drafts. So inputs are prepared several times for a prompt in chunks, and after drafts.
    Older versions evaluate the stopping criteria of drafts: sampling right after drafts does not count.
    """
    last_call = _last_of(marks.is_phase("generate"), marks.thread)
    call = np.where((last_call != NONE) & (marks.ts < marks.ts_end[last_call]), last_call, NONE)
    counts, begins = call != NONE, np.zeros(len(call), dtype=bool)
    turn = np.flatnonzero(counts & marks.is_phase("draft", "prepare", "processor", "sampling"))
    phase = marks.phase[turn]
    last, before = (_shifted(phase, call[turn], by) for by in (1, 2))
    follows = _is_one_of(last, "", "processor") | (last == "sampling") & (before != "draft")
    begins[turn] = _is_one_of(phase, "draft", "prepare") & follows
    counts[turn[(phase == "sampling") & (last == "draft")]] = False
    begun = np.cumsum(begins)
    # Up to the call: its own mark begins no step.
    step = begun - begun[call] - 1
    return GenerateCalls(call, np.where(counts & (step >= 0), step, NONE), counts, begins)


def generate_steps(marks: PhaseMarks, calls: GenerateCalls) -> LoopSteps:
    """Return the steps of calls of generate."""
    first = np.flatnonzero(calls.begins)
    call = calls.call[first]
    has_setup = calls.call[calls.counts & marks.is_phase("setup") & (calls.step == NONE)]
    number, inside = np.cumsum(calls.begins) - 1, calls.step != NONE
    next_ts = _next_ts(marks.ts[first], call)
    last_end = _latest(marks.ts_end[inside], number[inside], len(first))
    return LoopSteps(
        first, np.where(next_ts == NONE, last_end, next_ts), _call_numbers(marks, calls)[call], calls.step[first],
        (calls.step[first] == 0) & np.isin(call, has_setup), np.zeros_like(first),
    )  # fmt: skip


def other_steps(marks: PhaseMarks) -> LoopSteps:
    """Return the steps of other loops: each begins with a batch, or with a forward of the only model.

    A model that is trained has no steps, and none has any where another loop is recorded. A batch without requests runs
    nothing, and is no step. A step of continuous batching ends with its last phase.
    """
    is_forward = marks.is_phase("forward")
    begins = (marks.part == CONTINUOUS) & marks.is_phase("prepare")
    is_model = not (_is_one_of(marks.part, GENERATE, CONTINUOUS) | marks.is_phase("backward")).any()
    if is_model and is_forward.sum() > 1 and len(set(marks.model[is_forward].tolist())) == 1:
        begins = (marks.part == MODEL) & is_forward
    of = _last_of(begins, marks.thread)
    inside = of != NONE
    first, number = np.flatnonzero(begins), (np.cumsum(begins) - 1)[inside]
    outputs, runs = np.zeros_like(first), np.zeros_like(first)
    np.add.at(outputs, number, marks.is_phase("output_per_request")[inside])
    np.add.at(runs, number, marks.is_phase("output", "bookkeeping", "forward")[inside])
    last_end = _latest(marks.ts_end[inside], number, len(first))
    next_ts = _next_ts(marks.ts[first], marks.thread[first])
    ts_end = np.where((marks.part[first] == MODEL) & (next_ts != NONE), next_ts, last_end)
    first, ts_end, outputs = (column[runs > 0] for column in (first, ts_end, outputs))
    none = np.full_like(first, NONE)
    return LoopSteps(first, ts_end, none, none, none > NONE, outputs)


def loop_phases(marks: PhaseMarks, calls: GenerateCalls) -> LoopPhases:
    """Return the phases of loops: slices of functions, and in generate the time between them.

    Setup goes from the start of the call to its first step; sampling from the end of the last processor or forward
    before, in its step, to the end of the stopping criteria; bookkeeping from the end of the last sampling to the next
    step (the end is checked before each step too: the first check after the criteria counts); a forward that no module
    marks from the end of preparing to what follows it.
    """
    is_slice = (marks.part != GENERATE) | marks.is_phase("generate", "draft", "prepare")
    mark = np.flatnonzero(calls.counts)
    call, step, ts, ts_end = calls.call[mark], calls.step[mark], marks.ts[mark], marks.ts_end[mark]
    of_step = np.cumsum(np.append(True, (call[1:] != call[:-1]) | (step[1:] != step[:-1]))[: len(mark)]) - 1
    is_forward, is_processor, is_sampling, is_prepare = (
        marks.is_phase(name)[mark] for name in ("forward", "processor", "sampling", "prepare")
    )

    def last(some: Array) -> Array:
        """Return the mark, of some, that ends last before each mark in its step."""
        return ends_before(of_step, ts, ts_end, some)

    chosen, sampled, prepared = last(is_processor | is_forward & is_slice[mark]), last(is_sampling), last(is_prepare)
    steps = np.flatnonzero(calls.begins)
    opening, next_ts = (np.full(len(marks.id) + 1, NONE) for _ in range(2))
    first = steps[calls.step[steps] == 0]
    opening[calls.call[first]] = marks.ts[first]
    next_ts[: len(steps)] = _next_ts(marks.ts[steps], calls.call[steps])
    next_ts = np.where(step == NONE, NONE, next_ts[(np.cumsum(calls.begins) - 1)[mark]])

    border = ~is_slice[mark]
    bookkeeping = np.flatnonzero(border & marks.is_phase("bookkeeping")[mark] & (sampled != NONE))
    bookkeeping = bookkeeping[np.unique(of_step[bookkeeping], return_index=True)[1]]
    setup = np.flatnonzero(border & marks.is_phase("setup")[mark] & (step == NONE) & (opening[call] != NONE))
    sampling = np.flatnonzero(border & is_sampling)
    forward = np.flatnonzero(border & is_forward & (last(is_forward) == NONE) & (chosen == NONE) & (prepared != NONE))
    slices = np.flatnonzero(is_slice)
    spans = (
        (slices, marks.ts[slices], marks.ts_end[slices]),
        (mark[setup], marks.ts[call[setup]], opening[call[setup]]),
        (mark[sampling], np.where(chosen == NONE, ts, ts_end[chosen])[sampling], ts_end[sampling]),
        (mark[bookkeeping], ts_end[sampled[bookkeeping]], np.where(next_ts == NONE, ts_end, next_ts)[bookkeeping]),
        (mark[forward], ts_end[prepared[forward]], ts[forward]),
    )
    index, begins, ends = map(np.concatenate, zip(*spans, strict=True))
    order = np.lexsort((marks.id[index], begins))
    index = index[order]
    number = np.where(opening[calls.call] == NONE, NONE, _call_numbers(marks, calls)[calls.call])
    return LoopPhases(index, begins[order], ends[order], number[index], calls.step[index])


def _call_numbers(marks: PhaseMarks, calls: GenerateCalls) -> Array:
    """Return the number, by start, of each mark that is a call of generate; NONE for other marks, and for NONE."""
    numbers = np.full(len(marks.id) + 1, NONE)
    mine = np.flatnonzero(calls.call == np.arange(len(marks.id)))
    numbers[mine[np.lexsort((marks.id[mine], marks.ts[mine]))]] = np.arange(len(mine))
    return numbers


def find_samplings(marks: PhaseMarks, phases: LoopPhases, steps: LoopSteps) -> Samplings:
    """Return the samplings of generate's steps, without calls that fetch drafts."""
    drafted = phases.call[marks.is_phase("draft")[phases.mark]]
    some = np.flatnonzero(marks.is_phase("sampling")[phases.mark] & (phases.step != NONE))
    some = some[~np.isin(phases.call[some], drafted)]
    thread = marks.thread[phases.mark[some]]
    some = some[np.lexsort((marks.id[phases.mark[some]], phases.ts[some], thread))]
    most = int(steps.step.max(initial=0)) + 1
    keys = steps.call * most + steps.step
    order = np.argsort(keys)
    step = order[np.searchsorted(keys[order], phases.call[some] * most + phases.step[some])]
    return Samplings(
        marks.thread[phases.mark[some]], phases.ts[some], phases.ts_end[some], steps.ts_end[step], phases.call[some],
        phases.step[some],
    )  # fmt: skip


def find_choices(samplings: Samplings, operators: ThreadSlices, is_topk: Array, criteria: ThreadSlices) -> StepChoices:
    """Return the kind of choice in each sampling, by the first operator that began in it.

    Beams choose by top-k: a sampling is left out if one begins from its start to the end of its step. What begins
    belongs to the last sampling of its thread.
    """
    of = last_begun(samplings.thread, samplings.ts, operators.thread, operators.ts)
    inside = np.flatnonzero((of != NONE) & (operators.ts < np.append(samplings.step_end, 0)[of]))
    beams = of[inside[is_topk[inside]]]
    single = inside[~is_topk[inside] & (operators.ts[inside] < np.append(samplings.ts_end, 0)[of[inside]])]
    single = single[np.lexsort((operators.id[single], operators.ts[single]))]
    chosen, first = np.unique(of[single], return_index=True)
    some = ~np.isin(chosen, beams)
    chosen, first = chosen[some], first[some]
    mine = last_begun(samplings.thread, samplings.ts, criteria.thread, criteria.ts)
    mine = mine[(mine != NONE) & (criteria.ts < np.append(samplings.ts_end, 0)[mine])]
    count = np.bincount(mine, minlength=len(samplings.ts))
    return StepChoices(samplings.call[chosen], samplings.step[chosen], operators.id[single[first]], count[chosen])


def _is_one_of(texts: Array, *names: str) -> Array:
    """Return True for each text that is one of the names."""
    is_one: Array = np.logical_or.reduce([texts == name for name in names])
    return is_one


def _last_of(some: Array, thread: Array) -> Array:
    """Return the index of the last of some that is no later than each mark on its thread; NONE for none."""
    index = np.arange(len(thread))
    last = np.maximum.accumulate(np.where(some, index, NONE)) if len(index) else index
    return np.where((last != NONE) & (thread[last] == thread), last, NONE)


def _shifted(texts: Array, group: Array, by: int) -> Array:
    """Return the text `by` rows before each one in its group; "" for none."""
    shifted = np.full(len(texts), "", dtype=object)
    same = np.flatnonzero(group[by:] == group[:-by])
    shifted[same + by] = texts[same]
    return shifted


def _next_ts(ts: Array, group: Array) -> Array:
    """Return the next start in the group of each one; NONE for the last."""
    return np.where(np.append(group[1:] == group[:-1], False)[: len(ts)], np.append(ts[1:], NONE)[: len(ts)], NONE)


def _latest(ends: Array, group: Array, groups: int) -> Array:
    """Return the latest end of each group."""
    latest = np.zeros(groups, dtype=np.int64)
    np.maximum.at(latest, group, ends)
    return latest
