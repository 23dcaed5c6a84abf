"""The answer of a comparison in sentences: how much longer each run takes than the first, and why."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence

from msgspec import UNSET

from molprof.analysis.compare import Comparison, one_file, unlike_surroundings
from molprof.analysis.compare.difference import Difference, known_parts, named_parts, only_drafts_differ
from molprof.analysis.compare.parts import MACHINE, PART_LABELS, RECORDED_LABELS, group_of
from molprof.analysis.compare.recorded import StepDifference, TraceDifference
from molprof.analysis.compare.rows import ComparedRow
from molprof.analysis.documents.runs import by_token, listed
from molprof.analysis.documents.served import SEEN
from molprof.analysis.figures.model import ServedTimes
from molprof.analysis.figures.requests import window_text
from molprof.analysis.figures.run_model import Run
from molprof.common.manifest import STEP_PHASES
from molprof.common.values import (
    count_text,
    counted,
    factor_text,
    number_text,
    per,
    signed_percent_text,
    signed_time_text,
    time_text,
)

# Between two sentences.
_SENTENCE = re.compile(r"(?<=\.) (?=[A-Z])")
# Below this share of the difference the machine is not worth a word.
_LEAST_MACHINE_RATIO = 0.1
# More of the difference than this is most of it; with more than all, parts cancel each other.
_MOST = 0.5
_FEW_REPEATS = 3
_MOST_PHASES = 3
# Of more other runs, the slowest and the fastest are named.
_MOST_NAMED = 3
# Share of the difference from which exposed communication is named.
_MUCH_EXPOSED = 0.1
# A run whose share of valid molecules is smaller by this did not do the same work.
_VALID_RATIO = 0.25
# If less than this share is valid in both runs, neither did its work.
_LOW_VALID_RATIO = 0.5


def comparison_verdict(comparison: Comparison) -> tuple[str, ...]:
    """Return one paragraph: of two runs on the second, of several on each and then on all of them."""
    others = range(1, len(comparison.labels))
    if len(others) == 1:
        return (_statement(comparison, 1),)
    same = [one_file(comparison.runs[0], comparison.runs[index]) for index in others]
    if None not in comparison.differences and not any(same):
        return (_of_several(comparison),)
    # A sentence that holds for several stands once.
    sentences = dict.fromkeys(
        sentence for index in others for sentence in _SENTENCE.split(_statement(comparison, index))
    )
    return (" ".join(sentences),)


def _of_several(comparison: Comparison) -> str:
    """Return the sentences on each run against the first, then on limits of their times and answers."""
    labels, row = comparison.labels, comparison.tokens if by_token(comparison) else comparison.wall
    differences = [(at, item) for at, item in enumerate(comparison.differences, 1) if item is not None]
    first, per_what = time_text(row.numbers(0)[0]), " per token" if by_token(comparison) else ""
    said = [f"{labels[0]} takes {first}{per_what}."]
    ordered = sorted(differences, key=lambda pair: row.factor(pair[0]))
    named = differences if len(differences) <= _MOST_NAMED else [ordered[-1], ordered[0]]
    said += [] if named is differences else [f"Of the {len(differences)} others, the slowest and the fastest:"]
    for at, item in named:
        between, label = _between(row, at), labels[at]
        if row.within_noise(at):
            said.append(f"{label} does not differ from it beyond noise{between}.")
        else:
            change = signed_time_text(item.wall_ns)
            said.append(f"{label} takes {factor_text(row.factor(at))} of it{between} (in all {change}).{_causes(item)}")
    machine = [f"{signed_time_text(ns)} of {labels[at]}" for at, item in named if (ns := _machine_ns(item))]
    said += [f"The same work at another speed, so the machine: {listed(machine)}."] if machine else []
    runs = [report.run for report in comparison.timed]
    measured = dict.fromkeys(_how_measured(runs[at], runs[0], item) for at, item in differences)
    text = "; ".join(measured)
    said.append(f"Times: {text}.")
    doubts = [
        doubt.replace("the other run", labels[at])
        for at, item in differences
        if not item.paired
        for doubt in _doubts(item)
    ]
    said += [f"Not reliable: {'; '.join(dict.fromkeys(doubts))}."] if doubts else []
    so = "totals depend on the limit." if by_token(comparison) else "times are not of whole answers."
    every = range(len(runs))
    said += [_validity(comparison, every), _at_limit(comparison, every, so)]
    unlike = [unlike_surroundings(comparison.surroundings[0], comparison.surroundings[at]) for at, _ in differences]
    return " ".join(text.strip() for text in dict.fromkeys((*said, *unlike)) if text.strip())


def _statement(comparison: Comparison, index: int) -> str:
    label, first_label = comparison.labels[index], comparison.labels[0]
    report, first = comparison.runs[index], comparison.runs[0]
    difference = comparison.differences[index - 1]
    if one_file(first, report):
        return f"{label} and {first_label} are one file, or copies of one: {report.trace.path}."
    if difference is None or report.run is None or first.run is None:
        steps = _steps(comparison, index)
        said = " ".join(filter(None, (steps, _span(comparison, index, bool(steps)), _phases(comparison, index))))
        if isinstance(report.served, ServedTimes) and isinstance(first.served, ServedTimes):
            text = f"{_served(comparison, index)}{f' {said}' if said else ''}"
            return text + unlike_surroundings(comparison.surroundings[0], comparison.surroundings[index])
        text = f"{said} Which is faster without the profiler is not recorded."
        if not said:
            both = "neither steps of one kind nor GPU work is recorded in both"
            text = f"{label} against {first_label}: {both}, so which is faster is not known."
    else:
        text = _against(comparison, index, difference)
        if (doubts := _doubts(difference)) and not difference.paired:  # rounds of paired runs meet the same machine
            text += f" Not reliable: {'; '.join(doubts)}."
        if only_drafts_differ(first.run, report.run):
            text += _drafts(first.run, report.run, difference)
        text += _validity(comparison, (index, 0))
        if not by_token(comparison):
            text += _at_limit(comparison, (index, 0), "times are not of whole answers.")
    return text + unlike_surroundings(comparison.surroundings[0], comparison.surroundings[index])


def _served(comparison: Comparison, index: int) -> str:
    """Return the sentence on what clients measured in two runs of requests to a server."""
    label, first_label, rows = comparison.labels[index], comparison.labels[0], {}
    for row in comparison.rows:
        here, there = row.numbers(index)
        if row.figure.id in SEEN and here is not None and there is not None:
            factor = "not beyond noise" if row.within_noise(index) else factor_text(row.factor(index))
            times = f"{time_text(here)} against {time_text(there)}{_between(row, index)}"
            rows[row.figure.id] = f"{SEEN[row.figure.id]} {factor} ({times})"
    each = "; ".join(rows[name] for name in SEEN if name in rows)
    windows = ((comparison.labels[one], window_text(comparison.timed[one])) for one in (0, index))
    said = "".join(f" {name}: {text}." for name, text in windows if text)
    return f"At the client, without the profiler, {label} against {first_label}: {each}.{said}"


def _against(comparison: Comparison, index: int, difference: Difference) -> str:
    label, first_label, wall = comparison.labels[index], comparison.labels[0], comparison.wall
    ratio, (here_ns, there_ns) = wall.ratios[index], wall.numbers(index)
    between = _between(wall, index)
    measured = _how_measured(comparison.timed[index].run, comparison.timed[0].run, difference)
    change = f"{signed_time_text(difference.wall_ns)}{between} ({measured})"
    times = f"{time_text(here_ns)} against {time_text(there_ns)}, {change}."
    if by_token(comparison):
        return f"{_per_token(comparison, index)} In all {times}{_parts(difference)}"
    if wall.within_noise(index):
        named = ", ".join(_named(difference, difference.causes))
        parts = f" Of its parts these do: {named}." if named else ""
        return f"The total times of {label} and {first_label} do not differ beyond noise: {times}{parts}"
    if ratio is None:
        return f"{label} against {first_label}: {times}"
    return f"{label} takes {factor_text(ratio)} the time of {first_label}: {times}{_parts(difference)}"


def _between(row: ComparedRow, index: int) -> str:
    interval = row.ratio_intervals[index]
    return "" if interval is None else f", {signed_percent_text((interval.low - 1, interval.high - 1))}"


def _per_token(comparison: Comparison, index: int) -> str:
    row, label, first_label = comparison.tokens, comparison.labels[index], comparison.labels[0]
    here_ns, there_ns = row.numbers(index)
    times = f"{time_text(here_ns)} against {time_text(there_ns)}{_between(row, index)}."
    if row.within_noise(index):
        return f"The times per token of {label} and {first_label} do not differ beyond noise: {times}" + _at_limit(
            comparison, (index, 0), "totals depend on the limit."
        )
    lead = f"{label} takes {factor_text(row.factor(index))} the time of {first_label} per token: {times}"
    return lead + _at_limit(comparison, (index, 0), "totals depend on the limit.")


def _at_limit(comparison: Comparison, indices: Sequence[int], so: str) -> str:
    """Return a sentence on answers that the token limit ended; empty without them."""
    named = [(comparison.labels[at], run) for at in indices if (run := comparison.runs[at].run) is not None]
    cut = [(label, run) for label, run in named if run.cut_answers]
    if not cut:
        return ""
    answers = [f"{count_text(run.cut_answers)} of {counted(run.molecules, 'answer')} of {label}" for label, run in cut]
    limits = dict.fromkeys(count_text(run.setup.max_new_tokens) for _, run in cut)
    tokens = " against ".join(count_text(run.generated_tokens) for _, run in named)
    stopped = f"{listed(_per_run(answers, cut, len(named)))} stopped at the token limit of {listed([*limits])}"
    return f" {stopped}: {so}" if len(named) > 2 else f" {stopped} ({tokens} tokens): {so}"


def _per_run(texts: Sequence[str], runs: Sequence[tuple[str, Run]], count: int) -> Sequence[str]:
    """Return the texts, which end with labels of runs; a single one where more than two runs all have the same."""
    alike = {text.removesuffix(label) for text, (label, _) in zip(texts, runs, strict=True)}
    return [f"{alike.pop()}each run"] if len(texts) == count > 2 and len(alike) == 1 else texts


def _steps(comparison: Comparison, index: int) -> str:
    """Return the recorded steps of median time with their GPU work, where both traces mark steps of one kind."""
    here, there = comparison.runs[index].typical_step, comparison.runs[0].typical_step
    if here is None or there is None or (here.source, here.kind) != (there.source, there.kind):
        return ""
    if here.time_ns is None or not there.time_ns:
        return ""
    what = " ".join(filter(None, (here.kind, "step")))
    counts = " and ".join(dict.fromkeys((count_text(here.steps), count_text(there.steps))))
    measured = "one recorded each" if counts == "1" else f"medians of {counts} recorded"
    with_work = " with its GPU work" * bool(comparison.runs[index].devices and comparison.runs[0].devices)
    return (
        f"{comparison.labels[index]} takes {factor_text(here.time_ns / there.time_ns)} the time of "
        f"{comparison.labels[0]} for a {what}{with_work}: {time_text(here.time_ns)} against "
        f"{time_text(there.time_ns)}, {signed_time_text(here.time_ns - there.time_ns)} ({measured}, the profiler's "
        "cost included)."
    )


def _span(comparison: Comparison, index: int, follows: bool) -> str:
    """Return the difference of recorded spans as a sentence. follows: it stands after one that names both runs."""
    item = comparison.trace_differences[index - 1]
    if item is None:
        return ""
    several = max(item.devices) > 1
    start = "Its" if follows else f"{comparison.labels[index]}: the"
    of, per = (item, "") if item.per_step is None else (item.per_step, " per step")
    span = f"GPU spans{per}, first work to last, are together" if several else f"GPU span{per}, first work to last, is"
    than = "" if follows else f" than {'those' if several else 'that'} of {comparison.labels[0]}"
    idle_ns = sum(ns for name, ns in of.parts.items() if name.startswith("idle."))
    return (
        f"{start} recorded {span} {time_text(abs(of.span_ns))} {'longer' if of.span_ns >= 0 else 'shorter'}{than} "
        f"(busy {signed_time_text(of.parts.get('busy', 0))}{_exposed(comparison, index, of)}, "
        f"idle {signed_time_text(idle_ns)})."
    )


def _exposed(comparison: Comparison, index: int, of: TraceDifference | StepDifference) -> str:
    """Return the sentence on exposed communication, where it is much of the difference of the busy time; else empty."""
    steps = of.steps if isinstance(of, StepDifference) else (1, 1)
    before, after = (
        (0 if (verdict := comparison.runs[number].bottleneck) is None else verdict.parts.get("communication", 0))
        / count
        for number, count in zip((0, index), steps, strict=True)
    )
    if abs(after - before) <= _MUCH_EXPOSED * abs(of.span_ns):
        return ""
    return f", of it exposed communication {signed_time_text(round(after - before))}"


def _phases(comparison: Comparison, index: int) -> str:
    """Return the phases of engines that differ most, per step."""
    item = comparison.phase_differences[index - 1]
    if item is None:
        return ""
    largest = sorted(item.parts.items(), key=lambda part: -abs(part[1]))[:_MOST_PHASES]
    named = ", ".join(f"{RECORDED_LABELS.get(name, name)} {signed_time_text(round(ns))}" for name, ns in largest)
    each = f" ({signed_time_text(round(item.per_token.span_ns))} per generated token)" if item.per_token else ""
    return f"Of the recorded span per step, {signed_time_text(round(item.span_ns))}{each}: {named}."


def _validity(comparison: Comparison, indices: Sequence[int]) -> str:
    """Return the sentence on valid molecules, where a run has few or far fewer; empty elsewhere."""
    runs = [(comparison.labels[at], run) for at in indices if (run := comparison.runs[at].run) is not None]
    shares = [per(run.valid_molecules, run.molecules) for _, run in runs]
    ratios = [ratio for ratio in shares if ratio is not None]
    if len(ratios) < len(shares) or (max(ratios) - min(ratios) < _VALID_RATIO and max(ratios) >= _LOW_VALID_RATIO):
        return ""
    few = [
        pair
        for pair, ratio in zip(runs, ratios, strict=True)
        if len(runs) == 2 or ratio < max(_LOW_VALID_RATIO, max(ratios) - _VALID_RATIO)
    ]
    texts = [
        f"{count_text(run.valid_molecules)} of {counted(run.molecules, 'molecule' if run.of_molecules else 'answer')}"
        f" of {label}"
        for label, run in few
    ]
    return f" Valid: {', '.join(_per_run(texts, few, len(runs)))}."


def _parts(difference: Difference) -> str:
    """Return the causes, in both directions, and how much is the machine's."""
    text, machine_ns = _causes(difference), _machine_ns(difference)
    if not machine_ns:
        return text
    return f"{text} The same work at another speed, so the machine: {signed_time_text(machine_ns)}."


def _causes(difference: Difference) -> str:
    if not difference.wall_ns:
        return ""
    parts = difference.parts
    along = [part for part in difference.causes if parts[part] * difference.wall_ns > 0]
    against = [part for part in difference.causes if parts[part] * difference.wall_ns < 0]
    text = ""
    if along:
        share = sum(parts[part] for part in along) / difference.wall_ns
        text = f" {'Most of it is' if _MOST < share <= 1 else 'Largest:'} {', '.join(_named(difference, along))}."
    if against:
        text += f" In the other direction: {', '.join(_named(difference, against))}."
    if not difference.causes and difference.intervals:
        text = " No part of unequal work differs beyond noise."
    elif not difference.causes:  # too few passes to tell parts from noise
        unequal = {part: ns for part, ns in parts.items() if ns and group_of(part) != MACHINE}
        largest = named_parts({part: ns for part, ns in unequal.items() if part not in difference.within_drift})
        if largest:
            text = f" Largest parts, of unknown noise: {', '.join(_named(difference, largest))}."
        elif unequal:
            text = " No part of unequal work differs by more than the speed of equal work does."
    return text


def _drafts(first: Run, run: Run, difference: Difference) -> str:
    """Return the sentence on what drafts save, and what they cost in each phase of a step."""
    each = " against ".join(number_text(item.tokens_per_step) for item in (run, first))
    drafted = run if first.drafts is None else first
    times = [repeat.mask_fills.draft_ns for repeat in drafted.repeats if repeat.mask_fills is not UNSET]
    masks = f" (masks of draft positions take {time_text(statistics.median(times))})" if any(times) else ""
    costs = {phase: sum(difference.parts[part] for part in difference.parts if group_of(part) == phase)
             for phase in STEP_PHASES}  # fmt: skip
    parts = "; ".join(
        f"{phase} {signed_time_text(ns)}{masks if phase == 'processor' else ''}" for phase, ns in costs.items()
    )
    return (
        f" Drafts: {each} tokens per row and step, {signed_time_text(difference.parts.get('steps.forced', 0))} by fewer"
        f" steps; by the cost of a step: {parts}."
    )


def _machine_ns(difference: Difference) -> int:
    """Return the part of the difference that is the machine's; 0 where that is too little to mention."""
    machine_ns = sum(ns for part, ns in known_parts(difference).items() if group_of(part) == MACHINE)
    return 0 if abs(machine_ns) < _LEAST_MACHINE_RATIO * abs(difference.wall_ns) else machine_ns


def _doubts(difference: Difference) -> list[str]:
    """Return the doubts on the pair of runs; the warnings have those of each run."""
    return [doubt for doubt in difference.doubts if not doubt.startswith("in the ")]


def _named(difference: Difference, parts: Iterable[str]) -> Iterator[str]:
    return (f"{PART_LABELS.get(part, part)} ({signed_time_text(difference.parts[part])})" for part in parts)


def _how_measured(here: Run | None, there: Run | None, difference: Difference) -> str:
    """Return how the times were measured."""
    if difference.paired:
        few = ", too few to know the noise" if difference.wall_interval is None else ""
        return f"means of {counted(difference.rounds, 'paired round')}{few}"
    repeats = [run.wall_ns.repeats for run in (here, there) if run is not None]
    count, least = " and ".join(dict.fromkeys(map(str, repeats))), min(repeats)
    if least == 1:
        return f"{count} timed pass{'es' if count != '1' else ''}, too few to know the noise, unpaired"
    return f"medians of {count} timed passes{', which is few' if least < _FEW_REPEATS else ''}, unpaired"
