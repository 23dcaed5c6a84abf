"""A comparison as a document: the verdict, figures side by side, the difference, predictions, how sure it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from molprof.analysis.compare import SCHEMA, Comparison, one_file, unlike_surroundings
from molprof.analysis.compare.difference import Difference, known_parts, named_parts
from molprof.analysis.compare.parts import MACHINE, PART_LABELS, RECORDED_LABELS, group_of
from molprof.analysis.compare.recorded import StepDifference, TraceDifference
from molprof.analysis.compare.rows import ComparedRow
from molprof.analysis.compare.statistics import LEVEL, Interval
from molprof.analysis.compare.thresholds import BUILT_IN, Prediction
from molprof.analysis.documents.difference import differences
from molprof.analysis.documents.differing import compare_command, first_screen
from molprof.analysis.documents.figures import (
    compared_certificates,
    compared_figures,
    reports_of,
    settings_section,
)
from molprof.analysis.documents.findings import findings_section
from molprof.analysis.documents.report import plots_section, report_sections, warnings
from molprof.analysis.documents.served import SEEN
from molprof.analysis.figures.model import Served
from molprof.analysis.figures.requests import window_text
from molprof.analysis.figures.run_model import Run
from molprof.common.document import Cell, Column, Document, Field, Section, Table, table_of
from molprof.common.values import (
    Unit,
    count_text,
    counted,
    factor_text,
    per,
    signed_percent_text,
    signed_time_text,
    time_text,
)

# Below this share of the difference the machine is not worth a word.
_LEAST_MACHINE_RATIO = 0.1
# Shares of the difference that are most of it; beyond, parts cancel each other.
_MOST = (0.5, 1.5)
_FEW_REPEATS = 3
_MOST_PHASES = 3
# Share of the difference from which exposed communication is named.
_MUCH_EXPOSED = 0.1
# A run whose share of valid molecules is smaller by this did not do the same work.
_VALID_RATIO = 0.25
# If less than this share is valid in both runs, neither did its work.
_LOW_VALID_RATIO = 0.5
# From this share of answers that the token limit ended, total times depend on the limit.
_CUT_RATIO = 0.1


def comparison_document(comparison: Comparison) -> Document:
    """The document; findings and the tables of each report are for pages alone."""
    first, *others = comparison.labels
    reports = reports_of(comparison)
    of_molecules = any(report.given.molecules or (report.run and report.run.of_molecules) for report in comparison.runs)
    return Document(
        f"molprof compare: {others[0] if len(others) == 1 else f'{len(others)} runs'} against {first}",
        (
            *compared_certificates(reports),
            plots_section(reports),
            replace(findings_section(reports), page_only=True),
            settings_section(reports),
            compared_figures(comparison),
            *differences(comparison),
            *_predictions(comparison, of_molecules),
            *_confidence(comparison),
            *(replace(section, page_only=True) for section in report_sections(reports)),
        ),
        comparison.to_json,
        lambda: _records(comparison),
        warnings(reports),
        comparison_verdict(comparison),
        (*first_screen(comparison, reports), *_predictions(comparison, built_in=False), _next(comparison)),
    )


def groups_document(groups: Sequence[tuple[str, Comparison]]) -> Document:
    """Several comparisons, each by what its runs share: one table of all, then each as a document has it."""
    documents = [(name, comparison_document(item)) for name, item in groups]
    rows: list[tuple[str | Cell, ...]] = [
        (name if place == 0 else "", label, *(cell for row in (item.wall, item.tokens) for cell in _cells(row, place)))
        for name, item in groups
        for place, label in enumerate(item.labels)
    ]
    titles = [Column("equal"), Column("run"), Column("total time", "number"), Column("ratio", "factor", joined=True)]
    titles += [Column("time per token", "number"), Column("ratio", "factor", joined=True)]
    table = Section("Groups", ("ratios are to the first run of each group",), Table(tuple(titles), rows, keys=2))
    return Document(
        f"molprof compare: {counted(len(groups), 'group')} of runs that differ in one option",
        (table, *(Section(name, item.summary, parts=item.sections) for name, item in documents)),
        lambda: {"schema": SCHEMA, "groups": [{"group": name, **item.to_json()} for name, item in groups]},
        lambda: _group_records(groups),
        tuple(dict.fromkeys(text for _, item in documents for text in item.warnings)),
        screen=(
            table,
            *(Section(name, item.summary) for name, item in documents),
            Section("Next", tuple(dict.fromkeys(_next(item).notes[0] for _, item in groups))),
        ),
    )


def _cells(row: ComparedRow, place: int) -> tuple[Cell, Cell]:
    """The value of a run, and its ratio to the first."""
    ratio = row.ratios[place] if place else None
    return Cell(row.values[place], row.figure.unit), Cell(ratio or "", "factor", noise=row.within_noise(place))


def _group_records(groups: Sequence[tuple[str, Comparison]]) -> Table:
    """A row for each figure of each run."""
    titles = tuple(map(Column, ("group", "run", "id", "unit", "value", "ratio")))
    return Table(titles, [
        (name, label, row.figure.id, row.figure.unit, row.values[place], row.ratios[place])
        for name, item in groups
        for place, label in enumerate(item.labels)
        for row in item.rows
    ])  # fmt: skip


def _next(comparison: Comparison) -> Section:
    runs = comparison.runs
    again = compare_command([report.trace.path for report in runs])
    by_kernel = len(runs) == 2 and len({report.counts.kernels > 0 for report in runs}) == 1
    return Section("Next", (f"{again} --all", *([f"{again} --by kernel"] if by_kernel else [])))


def _records(comparison: Comparison) -> Table:
    """One row per figure, one column per run, then each run's ratio to the first."""
    labels = comparison.labels
    titles = ("id", "unit", *labels, *(f"{label} ratio" for label in labels[1:]))
    rows = [(row.figure.id, row.figure.unit, *row.values, *row.ratios[1:]) for row in comparison.rows]
    return Table(tuple(map(Column, titles)), rows)


def _predictions(comparison: Comparison, built_in: bool) -> Iterator[Section]:
    """One section per pair of runs, and one for what has no pair; those of a file, and the built-in ones if asked."""
    own = {item.id for item in BUILT_IN} if not built_in else ()
    shown = [item for item in comparison.predictions if item.id not in own]
    for compared, items in groupby(shown, key=lambda item: tuple(item.figures)):
        found = list(items)
        if not compared:
            yield Section("Predictions without runs to compare", _reasons(found))
            continue
        table = table_of(
            found,
            ("expected of the first", "text", _expected), ("verdict", "text"), *map(_figure_of, compared),
            ("ratio", "factor"),
            missing="-",
        )  # fmt: skip
        yield Section(f"Predictions: {compared[0]} against {compared[-1]}", _reasons(found), table)


def _figure_of(label: str) -> Field:
    return label, "number", lambda item: Cell(item.figures[label], item.unit)


def _expected(item: Prediction) -> str:
    return item.text if item.bound == 1 else f"{item.text} ({item.direction} than {item.bound:g}x)"


def _reasons(items: Iterable[Prediction]) -> tuple[str, ...]:
    """Why there is no verdict, once for all predictions of one reason."""
    texts: dict[str, list[str]] = {}
    for item in items:
        if item.reason is not None:
            texts.setdefault(item.reason, []).append(item.text)
    return tuple(f"{', '.join(found)}: {reason}" for reason, found in texts.items())


def _confidence(comparison: Comparison) -> Iterator[Section]:
    """How far chance explains the times, and what else to keep in mind."""
    wall = comparison.wall
    known: list[tuple[str, Unit, Sequence[Interval | None]]] = [
        ("total time", "ns", wall.intervals), ("ratio", "factor", wall.ratio_intervals),
    ]  # fmt: skip
    rows = [
        (f"{what} of {label}", Cell((item.low, item.high), unit), item.level)
        for what, unit, intervals in known
        for label, item in zip(comparison.labels, intervals, strict=True)
        if item is not None
    ]
    note = (
        f"~: the confidence interval of the ratio, from all timed passes, contains 1 ({100 * LEVEL:.0f} % where "
        "there are enough passes). Counts are the same in every pass. GPU times are measured once, in the "
        "recorded steps."
    )
    notes = (*comparison.notes, *((note,) if rows else ()))
    columns = (Column("figure"), Column("interval", "number"), Column("confidence", "ratio"))
    if notes:
        yield Section("Confidence and notes", notes, Table(columns, rows))


def comparison_verdict(comparison: Comparison) -> tuple[str, ...]:
    """One statement for each run after the first."""
    return tuple(_statement(comparison, place) for place in range(1, len(comparison.labels)))


def _statement(comparison: Comparison, place: int) -> str:
    label, first_label = comparison.labels[place], comparison.labels[0]
    report, first = comparison.runs[place], comparison.runs[0]
    difference = comparison.differences[place - 1]
    if one_file(first, report):
        return f"{label} and {first_label} are one file, or copies of one: {report.trace.path}."
    if difference is None or report.run is None or first.run is None:
        steps = _steps(comparison, place)
        said = " ".join(filter(None, (steps, _span(comparison, place, bool(steps)), _phases(comparison, place))))
        if isinstance(report.served, Served) and isinstance(first.served, Served):
            text = f"{_served(comparison, place)}{f' {said}' if said else ''}"
            return text + unlike_surroundings(comparison.surroundings[0], comparison.surroundings[place])
        text = f"{said} Which is faster without the profiler is not recorded."
        if not said:
            both = "neither steps of one kind nor GPU work is recorded in both"
            text = f"{label} against {first_label}: {both}, so which is faster is not known."
    else:
        text = _against(comparison, place, difference)
        if difference.doubts and not difference.paired:  # rounds of paired runs meet the same machine
            text += f" Not reliable: {'; '.join(difference.doubts)}."
        text += _validity(label, report.run, first_label, first.run)
        if not _leads_with_tokens(comparison, place):
            text += _at_limit(comparison, place, "times are not of whole answers.")
    return text + unlike_surroundings(comparison.surroundings[0], comparison.surroundings[place])


def _served(comparison: Comparison, place: int) -> str:
    """What clients saw of two runs of requests to a server."""
    label, first_label, rows = comparison.labels[place], comparison.labels[0], {}
    for row in comparison.rows:
        here, there = row.numbers(place)
        if row.figure.id in SEEN and here is not None and there is not None:
            factor = "not beyond noise" if row.within_noise(place) else factor_text(row.factor(place))
            times = f"{time_text(here)} against {time_text(there)}{_between(row, place)}"
            rows[row.figure.id] = f"{SEEN[row.figure.id]} {factor} ({times})"
    each = "; ".join(rows[name] for name in SEEN if name in rows)
    windows = ((comparison.labels[one], window_text(comparison.timed[one])) for one in (0, place))
    said = "".join(f" {name}: {text}." for name, text in windows if text)
    return f"At the client, without the profiler, {label} against {first_label}: {each}.{said}"


def _against(comparison: Comparison, place: int, difference: Difference) -> str:
    label, first_label, wall = comparison.labels[place], comparison.labels[0], comparison.wall
    ratio, (here_ns, there_ns) = wall.ratios[place], wall.numbers(place)
    between = _between(wall, place)
    measured = _measured(comparison.timed[place].run, comparison.timed[0].run, difference)
    change = f"{signed_time_text(difference.wall_ns)}{between} ({measured})"
    times = f"{time_text(here_ns)} against {time_text(there_ns)}, {change}."
    if _leads_with_tokens(comparison, place):
        return f"{_per_token(comparison, place)} In all {times}{_parts(difference)}"
    if wall.within_noise(place):
        named = ", ".join(_named(difference, difference.causes))
        parts = f" Of its parts these do: {named}." if named else ""
        return f"The total times of {label} and {first_label} do not differ beyond noise: {times}{parts}"
    if ratio is None:
        return f"{label} against {first_label}: {times}"
    return f"{label} takes {factor_text(ratio)} the time of {first_label}: {times}{_parts(difference)}"


def _between(row: ComparedRow, place: int) -> str:
    interval = row.ratio_intervals[place]
    return "" if interval is None else f", {signed_percent_text((interval.low - 1, interval.high - 1))}"


def _leads_with_tokens(comparison: Comparison, place: int) -> bool:
    """Whether the time per token says more than the total: the token limit decided how much one of the runs wrote."""
    here, there = comparison.runs[place].run, comparison.runs[0].run
    if here is None or there is None or comparison.tokens.ratios[place] is None:
        return False
    # Tokens of two tokenizers are not of equal length.
    alike = here.setup.tokenizer == there.setup.tokenizer and here.generated_tokens != there.generated_tokens
    return alike and any(run.cut_answers >= _CUT_RATIO * run.molecules for run in (here, there))


def _per_token(comparison: Comparison, place: int) -> str:
    row, label, first_label = comparison.tokens, comparison.labels[place], comparison.labels[0]
    here_ns, there_ns = row.numbers(place)
    times = f"{time_text(here_ns)} against {time_text(there_ns)}{_between(row, place)}."
    if row.within_noise(place):
        return f"The times per token of {label} and {first_label} do not differ beyond noise: {times}" + _at_limit(
            comparison, place, "totals depend on the limit."
        )
    lead = f"{label} takes {factor_text(row.factor(place))} the time of {first_label} per token: {times}"
    return lead + _at_limit(comparison, place, "totals depend on the limit.")


def _at_limit(comparison: Comparison, place: int, so: str) -> str:
    """A sentence on answers that the token limit ended; empty without them."""
    named = [(comparison.labels[at], run) for at in (place, 0) if (run := comparison.runs[at].run) is not None]
    cut = [(label, run) for label, run in named if run.cut_answers]
    if not cut:
        return ""
    answers = [f"{count_text(run.cut_answers)} of {counted(run.molecules, 'answer')} of {label}" for label, run in cut]
    limits = dict.fromkeys(count_text(run.setup.max_new_tokens) for _, run in cut)
    tokens = " against ".join(count_text(run.generated_tokens) for _, run in named)
    stopped = f"{' and '.join(answers)} stopped at the token limit of {' and '.join(limits)}"
    return f" {stopped} ({tokens} tokens): {so}"


def _steps(comparison: Comparison, place: int) -> str:
    """The recorded steps of median time with their GPU work, where both traces mark steps of one kind."""
    here, there = comparison.runs[place].typical_step, comparison.runs[0].typical_step
    if here is None or there is None or (here.source, here.kind) != (there.source, there.kind):
        return ""
    if here.time_ns is None or not there.time_ns:
        return ""
    what = " ".join(filter(None, (here.kind, "step")))
    counts = " and ".join(dict.fromkeys((count_text(here.steps), count_text(there.steps))))
    measured = "one recorded each" if counts == "1" else f"medians of {counts} recorded"
    with_work = " with its GPU work" * bool(comparison.runs[place].devices and comparison.runs[0].devices)
    return (
        f"{comparison.labels[place]} takes {factor_text(here.time_ns / there.time_ns)} the time of "
        f"{comparison.labels[0]} for a {what}{with_work}: {time_text(here.time_ns)} against "
        f"{time_text(there.time_ns)}, {signed_time_text(here.time_ns - there.time_ns)} ({measured}, the profiler's "
        "cost included)."
    )


def _span(comparison: Comparison, place: int, follows: bool) -> str:
    """Of traces without unprofiled times only what was recorded can be told. follows: on a sentence that names both."""
    item = comparison.trace_differences[place - 1]
    if item is None:
        return ""
    several = max(item.devices) > 1
    start = "Its" if follows else f"{comparison.labels[place]}: the"
    of, per = (item, "") if item.per_step is None else (item.per_step, " per step")
    span = f"GPU spans{per}, first work to last, are together" if several else f"GPU span{per}, first work to last, is"
    than = "" if follows else f" than {'those' if several else 'that'} of {comparison.labels[0]}"
    idle_ns = sum(ns for name, ns in of.parts.items() if name.startswith("idle."))
    return (
        f"{start} recorded {span} {time_text(abs(of.span_ns))} {'longer' if of.span_ns >= 0 else 'shorter'}{than} "
        f"(busy {signed_time_text(of.parts.get('busy', 0))}{_exposed(comparison, place, of)}, "
        f"idle {signed_time_text(idle_ns)})."
    )


def _exposed(comparison: Comparison, place: int, of: TraceDifference | StepDifference) -> str:
    """What of the busy time's difference is exposed communication, if that is much of the span's."""
    steps = of.steps if isinstance(of, StepDifference) else (1, 1)
    before, after = (
        (0 if (found := comparison.runs[number].bottleneck) is None else found.parts.get("communication", 0)) / count
        for number, count in zip((0, place), steps, strict=True)
    )
    if abs(after - before) <= _MUCH_EXPOSED * abs(of.span_ns):
        return ""
    return f", of it exposed communication {signed_time_text(round(after - before))}"


def _phases(comparison: Comparison, place: int) -> str:
    """The phases of engines that differ most, per step."""
    item = comparison.phase_differences[place - 1]
    if item is None:
        return ""
    largest = sorted(item.parts.items(), key=lambda part: -abs(part[1]))[:_MOST_PHASES]
    named = ", ".join(f"{RECORDED_LABELS.get(name, name)} {signed_time_text(round(ns))}" for name, ns in largest)
    each = f" ({signed_time_text(round(item.per_token.span_ns))} per generated token)" if item.per_token else ""
    return f"Of the recorded span per step, {signed_time_text(round(item.span_ns))}{each}: {named}."


def _validity(label: str, run: Run, first_label: str, first: Run) -> str:
    """Valid molecules where a run has few, or far fewer: a time says little about unusable answers."""
    ratios = [per(item.valid_molecules, item.molecules) for item in (run, first)]
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(ratios) or (max(known) - min(known) < _VALID_RATIO and max(known) >= _LOW_VALID_RATIO):
        return ""
    noun = "molecule" if run.of_molecules else "answer"
    here, there = (f"{count_text(item.valid_molecules)} of {counted(item.molecules, noun)}" for item in (run, first))
    return f" Valid: {here} of {label}, {there} of {first_label}."


def _parts(difference: Difference) -> str:
    """The causes, in both directions, and how much is the machine's."""
    if not difference.wall_ns:
        return ""
    parts = difference.parts
    along = [part for part in difference.causes if parts[part] * difference.wall_ns > 0]
    against = [part for part in difference.causes if parts[part] * difference.wall_ns < 0]
    text = ""
    if along:
        most = _MOST[0] < sum(parts[part] for part in along) / difference.wall_ns < _MOST[1]
        text = f" {'Most of it is' if most else 'Largest:'} {', '.join(_named(difference, along))}."
    if against:
        text += f" In the other direction: {', '.join(_named(difference, against))}."
    if not difference.causes and difference.intervals:
        text = " No part of unequal work differs beyond noise."
    elif not difference.causes:  # too few passes to tell parts from noise
        largest = named_parts({part: ns for part, ns in parts.items() if ns and group_of(part) != MACHINE})
        text = f" Largest parts, of unknown noise: {', '.join(_named(difference, largest))}." if largest else ""
    machine_ns = sum(ns for part, ns in known_parts(difference).items() if group_of(part) == MACHINE)
    if abs(machine_ns) < _LEAST_MACHINE_RATIO * abs(difference.wall_ns):
        return text
    return f"{text} The same work at another speed, so the machine: {signed_time_text(machine_ns)}."


def _named(difference: Difference, parts: Iterable[str]) -> Iterator[str]:
    return (f"{PART_LABELS.get(part, part)} ({signed_time_text(difference.parts[part])})" for part in parts)


def _measured(here: Run | None, there: Run | None, difference: Difference) -> str:
    """How the times were measured."""
    if difference.paired:
        few = ", too few to know the noise" if difference.wall_interval is None else ""
        return f"means of {counted(difference.rounds, 'paired round')}{few}"
    repeats = [run.wall_ns.repeats for run in (here, there) if run is not None]
    count, least = " and ".join(dict.fromkeys(map(str, repeats))), min(repeats)
    if least == 1:
        return f"{count} timed pass{'es' if count != '1' else ''}, too few to know the noise, unpaired"
    return f"medians of {count} timed passes{', which is few' if least < _FEW_REPEATS else ''}, unpaired"
