"""A comparison as a document: the verdict, figures side by side, the difference, predictions, how sure it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from math import prod
from typing import Any, NamedTuple

from msgspec.structs import replace

from molprof.analysis.compare import Comparison, one_file
from molprof.analysis.compare.difference import Difference, TraceDifference, named_parts
from molprof.analysis.compare.parts import GROUPS, MACHINE, PART_LABELS, RECORDED_LABELS, by_group, group_of
from molprof.analysis.compare.statistics import LEVEL, Interval
from molprof.analysis.compare.thresholds import Prediction
from molprof.analysis.documents.figures import compared_certificates, compared_figures, reports_of, settings_section
from molprof.analysis.documents.report import findings_section, plots_section, report_sections, warnings
from molprof.analysis.figures.run_model import Run, Spread
from molprof.common.document import Cell, Column, Document, Section, Table
from molprof.common.values import (
    NOT_RECORDED,
    Unit,
    count_text,
    counted,
    factor_text,
    per,
    percent_text,
    signed_percent_text,
    signed_time_text,
    time_text,
)

_LARGEST = 3
# A larger part of the difference that is unexplained is worth a note.
_RESIDUAL_RATIO = 0.01
# Below this share of the difference the machine is not worth a word.
_LEAST_MACHINE_RATIO = 0.1
# Parts that cancel each other are many times their sum: their shares of it say nothing.
_MOST_SHARE = 5
_FEW_REPEATS = 3
# A run whose share of valid molecules is smaller by this did not do the same work.
_VALID_RATIO = 0.25
# If less than this share is valid in both runs, neither did its work.
_LOW_VALID_RATIO = 0.5
_SHARES = "share: of the whole difference; a part below 0 % works against it"

_NOISE = (
    "±: half of a part's interval, from all timed passes; those of unequal work hold all together with "
    f"{100 * LEVEL:.0f} % confidence"
)


class _Part(NamedTuple):
    """A row of a difference."""

    label: str
    times_ns: Sequence[int | None]  # of every run
    intervals: Sequence[Interval | None] = ()  # of these; none are known


def comparison_document(comparison: Comparison) -> Document:
    """The document; findings and the tables of each report are for pages alone."""
    labels = comparison.labels
    reports = reports_of(comparison)
    return Document(
        f"molprof compare: {', '.join(labels[1:])} against {labels[0]}",
        (
            *compared_certificates(reports),
            plots_section(reports),
            replace(findings_section(reports), page_only=True),
            settings_section(reports),
            compared_figures(comparison),
            *_differences(comparison),
            *_predictions(comparison),
            *_confidence(comparison),
            *(replace(section, page_only=True) for section in report_sections(reports)),
        ),
        comparison.to_json,
        lambda: _records(comparison),
        warnings(reports),
        comparison_verdict(comparison),
    )


def _records(comparison: Comparison) -> Table:
    """One row per figure, one column per run, then each run's ratio to the first."""
    labels = comparison.labels
    titles = ("id", "unit", *labels, *(f"{label} ratio" for label in labels[1:]))
    rows = [(row.figure.id, row.figure.unit, *row.values, *row.ratios[1:]) for row in comparison.rows]
    return Table(tuple(map(Column, titles)), rows)


def _differences(comparison: Comparison) -> Iterator[Section]:
    """The unprofiled difference of every run that has one, then the recorded one of those that have only that."""
    first, others = comparison.labels[0], comparison.labels[1:]
    known = {label: item for label, item in zip(others, comparison.differences, strict=True) if item is not None}
    missing = [f"{label}: {NOT_RECORDED}" for label in others if label not in known]
    notes, table = (_notes(comparison, known), _part_rows(known)) if known else ((), None)
    yield Section(f"Difference in unprofiled time from {first}", (*missing, *notes), table)
    recorded = {label: item for label, item in zip(others, comparison.trace_differences, strict=True) if item}
    if recorded:
        yield _recorded_section(first, recorded)


def _part_rows(known: Mapping[str, Difference]) -> Table:
    """One row per group and per part of a group; what is 0 in every run is left out."""
    items = known.values()
    rows = []
    for group, parts in by_group(part for item in items for part in item.parts if item.parts[part]).items():
        grouped = len(parts) > 1 or group == MACHINE
        if grouped:
            rows.append(_Part(GROUPS[group], [sum(item.parts.get(part, 0) for part in parts) for item in items]))
        for part in parts:
            label = f"  {PART_LABELS[part].removeprefix(f'{group}: ')}" if grouped else PART_LABELS[part]
            # One run may have its phases divided by what bounded them and another not.
            times_ns = [item.parts.get(part) for item in items]
            rows.append(_Part(label, times_ns, [item.intervals.get(part) for item in items]))
    rows.append(_Part("unexplained", [item.residual_ns for item in items]))
    rows.append(_Part("total", [item.wall_ns for item in items], [item.wall_interval for item in items]))
    return _part_table(known, rows)


def _part_table(labels: Iterable[str], rows: Sequence[_Part]) -> Table:
    """The time of every part, its share of the last row, the total, and half of its interval, if any is known."""
    noisy = any(interval is not None for row in rows for interval in row.intervals)
    columns = [Column("part")]
    for label in labels:
        columns += [Column(label, "change_ns"), Column("share", "ratio", joined=True)]
        columns += [Column("±", "ns", joined=True)] if noisy else []
    cells = []
    for row in rows:
        shown: list[Any] = [row.label]
        for time_ns, total_ns, interval in zip_longest(row.times_ns, rows[-1].times_ns, row.intervals):
            shown += [time_ns, per(time_ns, total_ns)]
            shown += [interval and (interval.high - interval.low) / 2] if noisy else []
        cells.append(tuple(shown))
    return Table(tuple(columns), cells, missing="")


def _notes(comparison: Comparison, known: Mapping[str, Difference]) -> Iterator[str]:
    """The largest parts, the ratios, and what one must know to read the table."""
    for label, item in known.items():
        parts = sorted((part for part in item.parts if item.parts[part]), key=lambda part: -abs(item.parts[part]))
        if parts:
            text = ", ".join(f"{PART_LABELS[part]} {signed_time_text(item.parts[part])}" for part in parts[:_LARGEST])
            noise = f"; within noise, all together: {signed_time_text(item.within_noise_ns)}" if item.intervals else ""
            yield f"{label}: largest parts: {text}{noise}"
        if item.factors:
            product = " × ".join(
                f"{name.replace('_', ' ')} {factor_text(ratio)}" for name, ratio in item.factors.items()
            )
            yield f"{label}: time {factor_text(prod(item.factors.values()))} = {product}"
        if item.residual_ratio is not None and abs(item.residual_ratio) > _RESIDUAL_RATIO:
            yield f"{label}: more than 1 % of the difference is unexplained"
        if item.gpu_beyond_ns is not None and any(item.gpu_beyond_ns):
            first, this = map(time_text, item.gpu_beyond_ns)
            yield f"{label}: recorded GPU time beyond the unprofiled steps: {first} (first run), {this} (this run)"
    if any(basis == "window" for item in known.values() for basis in item.basis.values()):
        yield "GPU busy, launch-bound and host sync: unprofiled time of the phase, divided as in the recorded steps"
    if any(item.wall_ns for item in known.values()):
        yield _SHARES
    if any(item.intervals for item in known.values()):
        yield _NOISE
    runs = zip(comparison.labels, comparison.runs, strict=True)
    if extra := [f"{label} {text}" for label, report in runs if (text := _first_pass(report.run))]:
        noise = " (~: no slower than the slowest timed pass)" if any(text.endswith(" ~") for text in extra) else ""
        yield f"not in the table: first pass (compiling, first use) minus the median: {', '.join(extra)}{noise}"


def _first_pass(run: Run | None) -> str:
    if run is None or run.first_pass_extra_ns is None:
        return ""
    wall = run.wall_ns
    noise = wall.median is not None and wall.high is not None and wall.median + run.first_pass_extra_ns <= wall.high
    return "~" if noise else signed_time_text(run.first_pass_extra_ns)


def _recorded_section(first: str, known: Mapping[str, TraceDifference]) -> Section:
    """The difference of recorded spans: profiled, so never beside unprofiled times."""
    items = known.values()
    parts = dict.fromkeys(part for item in items for part in item.parts if item.parts[part])
    rows = [_Part(RECORDED_LABELS.get(part, part), [item.parts.get(part) for item in items]) for part in parts]
    if any(item.residual_ns for item in items):
        rows.append(_Part("unexplained", [item.residual_ns for item in items]))
    rows.append(_Part("total", [item.span_ns for item in items]))
    notes = ["recorded, so the profiler's cost is included; from each GPU's first work to the end of its last"]
    if any(max(item.devices) > 1 for item in items):
        counts = ((first, next(iter(items)).devices[0]), *((label, item.devices[1]) for label, item in known.items()))
        notes.append(f"summed over GPUs: {', '.join(f'{count} of {label}' for label, count in counts)}")
    notes += [_SHARES] if any(item.span_ns for item in items) else []
    return Section(f"Difference in recorded (profiled) span from {first}", tuple(notes), _part_table(known, rows))


def _predictions(comparison: Comparison) -> Iterator[Section]:
    """One section per pair of runs, and one for what has no pair."""
    for compared, items in groupby(comparison.predictions, key=lambda item: tuple(item.figures)):
        found = list(items)
        if not compared:
            yield Section("Predictions without runs to compare", _reasons(found))
            continue
        columns = (
            Column("expected of the first"), Column("verdict"), *(Column(label, "number") for label in compared),
            Column("ratio", "factor"),
        )  # fmt: skip
        rows = [
            (_expected(item), item.verdict, *(Cell(value, item.unit) for value in item.figures.values()), item.ratio)
            for item in found
        ]
        yield Section(
            f"Predictions: {compared[0]} against {compared[-1]}", _reasons(found), Table(columns, rows, missing="-")
        )


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
    wall = next(row for row in comparison.rows if row.figure.id == "wall_ns")
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
    recorded, difference = comparison.trace_differences[place - 1], comparison.differences[place - 1]
    if one_file(first, report):
        return f"{label} and {first_label} are one file, or copies of one: {report.trace.path}."
    if recorded is not None:
        return _recorded(label, recorded, first_label)
    if difference is None or report.run is None or first.run is None:
        return (
            f"{label} against {first_label}: which is faster is not recorded: that requires unprofiled "
            "times of both; the tables compare what the traces recorded."
        )
    text = _against(comparison, place, difference, report.run.wall_ns, first.run.wall_ns)
    if difference.doubts and not difference.paired:  # rounds of paired runs meet the same machine
        text += f" Not reliable: {'; '.join(difference.doubts)}."
    return text + _validity(label, report.run, first_label, first.run)


def _against(comparison: Comparison, place: int, difference: Difference, here: Spread, there: Spread) -> str:
    label, first_label = comparison.labels[place], comparison.labels[0]
    wall = next(row for row in comparison.rows if row.figure.id == "wall_ns")
    interval, ratio = wall.ratio_intervals[place], wall.ratios[place]
    times = f"{time_text(here.median)} against {time_text(there.median)}"
    measured = _measured(here, there, difference, interval)
    if wall.within_noise(place):
        said = f"timed passes range over {_range(here)} and {_range(there)}"
        if difference.paired and interval is not None:
            low, high = (signed_percent_text(end - 1) for end in (interval.low, interval.high))
            said = f"{measured}, by {low} to {high}"
        named = ", ".join(_named(difference, difference.causes, there.median))
        small = f"; but beyond noise, of the time of {first_label}: {named}" if named else ""
        return f"No difference beyond noise between {label} and {first_label}: {times}; {said}{small}."
    if ratio is None:
        return f"{label} against {first_label}: {times}."
    return f"{label} takes {factor_text(ratio)} the time of {first_label} ({times}, {measured}){_parts(difference)}."


def _recorded(label: str, difference: TraceDifference, first_label: str) -> str:
    """Of traces without unprofiled times only what was recorded can be told."""
    several = max(difference.devices) > 1
    span = "GPU spans, first work to last, are together" if several else "GPU span, first work to last, is"
    longer = f"{'longer' if difference.span_ns >= 0 else 'shorter'} than {'those' if several else 'that'}"
    busy_ns = difference.parts.get("busy", 0)
    idle_ns = sum(ns for name, ns in difference.parts.items() if name.startswith("idle."))
    return (
        f"{label}: the recorded {span} {time_text(abs(difference.span_ns))} {longer} of {first_label} (busy "
        f"{signed_time_text(busy_ns)}, idle {signed_time_text(idle_ns)}); which is faster is not recorded: that "
        "requires unprofiled times of both."
    )


def _validity(label: str, run: Run, first_label: str, first: Run) -> str:
    """Valid molecules where a run has few, or far fewer: a time says little about unusable answers."""
    ratios = [per(item.valid_molecules, item.molecules) for item in (run, first)]
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(ratios) or (max(known) - min(known) < _VALID_RATIO and max(known) >= _LOW_VALID_RATIO):
        return ""
    here, there = (
        f"{count_text(item.valid_molecules)} of {counted(item.molecules, 'molecule')}" for item in (run, first)
    )
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
        most = sum(parts[part] for part in along) / difference.wall_ns > 0.5
        text = f": {'most of it is' if most else 'the largest parts are'} {', '.join(_named(difference, along))}"
    if against:
        text += f"{'; ' if text else ': '}in the other direction: {', '.join(_named(difference, against))}"
    if not difference.causes and difference.intervals:
        text = ": no part of unequal work differs beyond noise"
    elif not difference.causes:  # too few passes to tell parts from noise
        largest = named_parts({part: ns for part, ns in parts.items() if ns and group_of(part) != MACHINE})
        text = f": largest parts, of unknown noise: {', '.join(_named(difference, largest))}" if largest else ""
    machine_ns = sum(ns for part, ns in parts.items() if group_of(part) == MACHINE)
    share = machine_ns / difference.wall_ns
    if abs(share) < _LEAST_MACHINE_RATIO:
        return text
    told = f" ({percent_text(share)})" if abs(share) <= _MOST_SHARE else ""
    return f"{text}; {signed_time_text(machine_ns)}{told} is the same work at another speed: the machine"


def _named(difference: Difference, parts: Iterable[str], base_ns: int | None = None) -> Iterator[str]:
    """Each part with its time and its share of `base_ns`, else of the difference."""
    for part in parts:
        ns, whole_ns = difference.parts[part], base_ns or difference.wall_ns
        share = f", {percent_text(ns / whole_ns)}" if whole_ns and abs(ns / whole_ns) <= _MOST_SHARE else ""
        yield f"{PART_LABELS.get(part, part)} ({signed_time_text(ns)}{share})"


def _measured(here: Spread, there: Spread, difference: Difference, interval: Interval | None) -> str:
    """How the times were measured."""
    if difference.paired:
        few = ", too few to know the noise" if interval is None else ""
        return f"paired, {counted(difference.rounds, 'round')}{few}"
    count = " and ".join(dict.fromkeys((str(here.repeats), str(there.repeats))))
    least = min(here.repeats, there.repeats)
    if least == 1:
        return f"{count} timed pass{'es' if count != '1' else ''}, too few to know the noise, unpaired"
    return f"medians of {count} timed passes{', which is few' if least < _FEW_REPEATS else ''}, unpaired"


def _range(spread: Spread) -> str:
    return f"{time_text(spread.low)} to {time_text(spread.high)}"
