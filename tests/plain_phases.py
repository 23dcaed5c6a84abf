"""A plain reference for phases and steps of transformers' loops: one slice after the other, in lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

TURNS = ("draft", "prepare", "processor", "sampling")
Rows = list[tuple[object, ...]]


class Mark(NamedTuple):
    """A slice that marks a phase."""

    id: int
    thread: int
    ts: int
    end: int
    part: str
    phase: str | None
    model: str | None = None

    @property
    def is_slice(self) -> bool:
        """It is a phase itself, and no border of a span."""
        return self.part != "generate" or self.phase in ("generate", "draft", "prepare")


class Call(NamedTuple):
    """A call of generate."""

    mark: Mark
    inside: list[Mark]
    steps: list[list[Mark]]  # the marks of each, first of those before the first step


class Moment(NamedTuple):
    """The start of an operator or function."""

    id: int
    thread: int
    ts: int


def in_order(marks: Iterable[Mark]) -> list[Mark]:
    return sorted(marks, key=lambda mark: (mark.thread, mark.ts, -mark.end, mark.id))


def begins_inside(mark: Mark, earlier: Iterable[Mark]) -> bool:
    return any(one.thread == mark.thread and mark.ts < one.end for one in earlier)


def outermost(marks: Iterable[Mark]) -> list[Mark]:
    ordered = in_order(mark for mark in marks if mark.phase is not None)
    return [
        mark
        for place, mark in enumerate(ordered)
        if not begins_inside(mark, (one for one in ordered[:place] if one.phase == mark.phase))
    ]


def loop_marks(marks: Iterable[Mark]) -> list[Mark]:
    """Of the outermost marks those of loops."""
    ordered = in_order(marks)
    is_loop = any(mark.part in ("generate", "continuous") for mark in ordered)
    if not is_loop and sum(mark.phase == "forward" for mark in ordered) < 2:
        return []
    found = []
    for place, mark in enumerate(ordered):
        drafts, processors = ([one for one in ordered[:place] if one.phase == name] for name in ("draft", "processor"))
        in_processor = begins_inside(mark, processors) and not (mark.phase or "").startswith("mask_")
        if not in_processor and not begins_inside(mark, drafts):
            found.append(mark)
    return found


def calls(marks: Iterable[Mark]) -> list[Call]:
    ordered = in_order(marks)
    found = []
    for mark in sorted(ordered, key=lambda one: (one.ts, one.id)):
        if mark.phase != "generate" or mark.end <= mark.ts:
            continue
        following = [one for one in ordered[ordered.index(mark) :] if one.thread == mark.thread]
        inside = [one for one in following if one.ts < mark.end]
        steps: list[list[Mark]] = [[]]
        turns: list[str | None] = ["", ""]
        for one in inside:
            *_, before, last = turns
            if one.phase in TURNS:
                turns.append(one.phase)
            if one.phase in ("draft", "prepare") and (
                last in ("", "processor") or (last == "sampling" and before != "draft")
            ):
                steps.append([])
            if one.phase != "sampling" or last != "draft":
                steps[-1].append(one)
        found.append(Call(mark, inside, steps))
    return found


def phases(marks: Sequence[Mark]) -> Rows:
    """Slice, start, end, call and step of each phase."""
    found: dict[int, list[int | None]] = {one.id: [one.ts, one.end, None, None] for one in marks if one.is_slice}
    for number, (mark, inside, steps) in enumerate(calls(marks)):
        for place, group in enumerate(steps):
            for at, one in enumerate(group):
                if one.is_slice:
                    found[one.id][3] = place - 1 if place else None
                elif span := span_of(one, group[:at], mark, steps, place):
                    found[one.id] = [*span, None, place - 1 if place else None]
        for one in inside:
            if one.id in found and len(steps) > 1:
                found[one.id][2] = number
    return [(number, *row) for number, row in found.items()]


def span_of(one: Mark, before: list[Mark], call: Mark, steps: list[list[Mark]], place: int) -> tuple[int, int] | None:
    """The span that a mark ends or is in; None for none. before: those before it in its step."""

    def last_end(*names: str, only_slices: bool = False) -> int | None:
        ends = [other.end for other in before if other.phase in names and (other.is_slice or not only_slices)]
        return max(ends, default=None)

    chosen = [last_end("processor"), last_end("forward", only_slices=True)]
    chosen_from = max((end for end in chosen if end is not None), default=None)
    sampled, prepared = last_end("sampling"), last_end("prepare")
    if one.phase == "setup" and place == 0 and len(steps) > 1:
        return call.ts, steps[1][0].ts
    if one.phase == "sampling":
        return one.ts if chosen_from is None else chosen_from, one.end
    if one.phase == "bookkeeping" and sampled is not None:
        behind = before[next(at for at, other in enumerate(before) if other.phase == "sampling") :]
        if not any(other.phase == "bookkeeping" for other in behind):
            return sampled, steps[place + 1][0].ts if place and place + 1 < len(steps) else one.end
    if one.phase == "forward" and last_end("forward") is None and chosen_from is None and prepared is not None:
        return prepared, one.ts
    return None


def steps(marks: Sequence[Mark]) -> Rows:
    """Slice, end, call, step, whether it is a prefill, and outputs of each step."""
    found: Rows = []
    for number, call in enumerate(calls(marks)):
        has_setup = any(one.phase == "setup" for one in call.steps[0])
        for step, group in enumerate(call.steps[1:]):
            following = call.steps[step + 2 :]
            end = following[0][0].ts if following else max(one.end for one in group)
            found.append((group[0].id, end, number, step, step == 0 and has_setup, 0))
    return found + other_steps(marks)


def other_steps(marks: Sequence[Mark]) -> Rows:
    forwards = [one for one in marks if one.phase == "forward"]
    is_alone = not any(one.part in ("generate", "continuous") or one.phase == "backward" for one in marks)
    is_model = is_alone and len(forwards) > 1 and len({one.model for one in forwards}) == 1
    found: Rows = []
    for _, some in groupby(in_order(marks), lambda one: one.thread):
        groups: list[list[Mark]] = []
        for one in some:
            is_batch = one.part == "continuous" and one.phase == "prepare"
            if is_batch or (is_model and (one.part, one.phase) == ("model", "forward")):
                groups.append([])
            if groups:
                groups[-1].append(one)
        for group, following in zip(groups, [*groups[1:], None], strict=False):
            names = [one.phase for one in group]
            end = following[0].ts if is_model and following else max(one.end for one in group)
            if {"output", "bookkeeping", "forward"} & set(names):
                found.append((group[0].id, end, None, None, False, names.count("output_per_request")))
    return found


def choices(
    marks: Sequence[Mark], operators: Iterable[Moment], topk: Iterable[Moment], criteria: Iterable[Moment]
) -> Rows:
    """Call, step, operator and criteria of each sampling that chose."""
    by_id = {one.id: one for one in marks}
    end_of = {(row[2], row[3]): row[1] for row in steps(marks)}
    rows = phases(marks)
    drafted = {row[3] for row in rows if by_id[row[0]].phase == "draft"} - {None}
    samplings = [
        (by_id[row[0]].thread, row[1], row[0], row[2], row[3], row[4])
        for row in rows
        if by_id[row[0]].phase == "sampling" and row[4] is not None and row[3] not in drafted
    ]

    def mine(moments: Iterable[Moment], sampling: tuple[int, ...], until: int) -> list[Moment]:
        found = []
        for one in moments:
            begun = [other for other in samplings if other[0] == one.thread and other[1] <= one.ts]
            if begun and max(begun, key=lambda other: other[1:3]) == sampling and one.ts < until:
                found.append(one)
        return found

    found = []
    for sampling in samplings:
        *_, end, call, step = sampling
        chosen = mine(operators, sampling, end)
        if chosen and not mine(topk, sampling, end_of[call, step]):
            first = min(chosen, key=lambda one: (one.ts, one.id))
            found.append((call, step, first.id, len(mine(criteria, sampling, end))))
    return found


class Function(NamedTuple):
    """A call that may be of a logits processor."""

    id: int
    thread: int
    ts: int
    end: int
    in_list_file: bool
    is_wrapper: bool


def single_processors(
    processor_phases: Sequence[tuple[int, int, int, int, bool]], functions: Iterable[Function]
) -> list[int]:
    """Ids of the outermost calls of single processors. processor_phases: id, thread, start, end, is a list."""
    inside: dict[int, list[Function]] = {}
    for one in sorted(functions, key=lambda one: (one.thread, one.ts, -one.end, one.id)):
        before = [
            phase
            for phase in processor_phases
            if phase[1] == one.thread and (phase[2], -phase[3], 0) <= (one.ts, -one.end, 1)
        ]
        if before and one.end <= max(phase[3] for phase in before):
            inside.setdefault(max(before, key=lambda phase: (phase[2], -phase[3], phase[0]))[0], []).append(one)
    lists = {phase[0] for phase in processor_phases if phase[4]}
    single = []
    for some in inside.values():
        holds_next = len(some) > 1 and some[1].ts < some[0].end
        runs_all = some[0] if holds_next and some[0].in_list_file else None
        single += [one for one in some if one != runs_all and not one.is_wrapper and one.id not in lists]
    single.sort(key=lambda one: (one.thread, one.ts, -one.end, one.id))
    return [
        one.id
        for place, one in enumerate(single)
        if not any(other.thread == one.thread and one.ts < other.end for other in single[:place])
    ]
