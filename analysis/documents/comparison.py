"""A comparison as a document: figures side by side, where the difference lies, predictions, how sure it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod
from typing import Any

from molprof.analysis.compare import Comparison
from molprof.analysis.compare.model import Difference, Prediction, TraceDifference
from molprof.analysis.compare.parts import GROUPS, MACHINE, PART_LABELS, RECORDED_LABELS, by_group
from molprof.analysis.compare.statistics import LEVEL, Interval
from molprof.analysis.documents.certificate import compared_certificates
from molprof.analysis.documents.figures import Reports, compared_figures, settings_section
from molprof.analysis.documents.plots.subject import plot_sections, subject_of
from molprof.analysis.documents.report import findings_section, report_sections, warnings
from molprof.analysis.documents.verdict import comparison_verdict
from molprof.analysis.figures.run_model import Run
from molprof.common.document import Cell, Column, Document, Section, Table
from molprof.common.values import NOT_RECORDED, factor_text, per, signed_time_text, time_text

_LARGEST = 3
# A larger part of the difference that is unexplained is worth a note.
_RESIDUAL_RATIO = 0.01
_SHARES = "share: of the whole difference; a part below 0 % works against it"

_NOISE = (
    "±: half of a part's interval, from all timed passes; those of unequal work hold all together with "
    f"{100 * LEVEL:.0f} % confidence"
)

# A name, its time in every run, and half of its interval there, ns.
_Part = tuple[str, Sequence[int | None], Sequence[float | None]]


def comparison_document(comparison: Comparison) -> Document:
    """The document; findings and the tables of each report are for pages alone."""
    labels = comparison.labels
    reports = Reports(labels, comparison.runs)
    return Document(
        f"molprof compare: {', '.join(labels[1:])} against {labels[0]}",
        (
            *compared_certificates(reports),
            plot_sections(subject_of(comparison)),
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
    notes, table = (_notes(comparison, known), _parts(known)) if known else ((), None)
    yield Section(f"Difference in unprofiled time from {first}", (*missing, *notes), table)
    recorded = {label: item for label, item in zip(others, comparison.trace_differences, strict=True) if item}
    if recorded:
        yield _recorded(first, recorded)


def _parts(known: Mapping[str, Difference]) -> Table:
    """One row per group and per part of a group; what is 0 in every run is left out."""
    items = known.values()
    rows: list[_Part] = []
    unknown = [None] * len(items)
    for group, parts in by_group(part for item in items for part in item.parts if item.parts[part]).items():
        indent = ""
        if len(parts) > 1 or group == MACHINE:
            rows.append((GROUPS[group], [sum(item.parts.get(part, 0) for part in parts) for item in items], unknown))
            indent = "  "
        for part in parts:
            label = PART_LABELS[part].removeprefix(f"{group}: ") if indent else PART_LABELS[part]
            # One run may have its phases divided by what bounded them and another not.
            noise = [_half(item.intervals.get(part)) for item in items]
            rows.append((indent + label, [item.parts.get(part) for item in items], noise))
    rows.append(("unexplained", [item.residual_ns for item in items], unknown))
    total = [_half(item.wall_interval) for item in items]
    return _part_table(known, [*rows, ("total", [item.wall_ns for item in items], total)])


def _half(interval: Interval | None) -> float | None:
    return None if interval is None else (interval.high - interval.low) / 2


def _part_table(labels: Iterable[str], rows: Sequence[_Part]) -> Table:
    """The time of every part, its share of the last row, the total, and its noise, if any is known."""
    noisy = any(half is not None for _, _, noise in rows for half in noise)
    columns = [Column("part")]
    for label in labels:
        columns += [Column(label, "change_ns"), Column("share", "ratio", joined=True)]
        columns += [Column("±", "ns", joined=True)] if noisy else []
    totals_ns = rows[-1][1]
    cells = []
    for part, times_ns, noise in rows:
        row: list[Any] = [part]
        for time_ns, total_ns, half in zip(times_ns, totals_ns, noise, strict=True):
            row += [time_ns, per(time_ns, total_ns)]
            row += [half] if noisy else []
        cells.append(tuple(row))
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


def _recorded(first: str, known: Mapping[str, TraceDifference]) -> Section:
    """The difference of recorded spans: profiled, so never beside unprofiled times."""
    items = known.values()
    parts = dict.fromkeys(part for item in items for part in item.parts if item.parts[part])
    unknown = [None] * len(items)
    rows: list[_Part] = [
        (RECORDED_LABELS.get(part, part), [item.parts.get(part) for item in items], unknown) for part in parts
    ]
    if any(item.residual_ns for item in items):
        rows.append(("unexplained", [item.residual_ns for item in items], unknown))
    rows.append(("total", [item.span_ns for item in items], unknown))
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


def _confidence(comparison: Comparison) -> list[Section]:
    """How far chance explains the times, and what else to keep in mind."""
    row = next(row for row in comparison.rows if row.figure.id == "wall_ns")
    rows = [
        (f"total time of {label}", Cell((item.low, item.high), "ns"), item.level)
        for label, item in zip(comparison.labels, row.intervals, strict=True)
        if item is not None
    ] + [
        (f"ratio of {label}", Cell((item.low, item.high), "factor"), item.level)
        for label, item in zip(comparison.labels, row.ratio_intervals, strict=True)
        if item is not None
    ]
    notes = comparison.notes
    if rows:
        notes += (
            f"~: the confidence interval of the ratio, from all timed passes, contains 1 ({100 * LEVEL:.0f} % where "
            "there are enough passes). Counts are the same in every pass. GPU times are measured once, in the "
            "recorded steps.",
        )
    columns = (Column("figure"), Column("interval", "number"), Column("confidence", "ratio"))
    return [Section("Confidence and notes", notes, Table(columns, rows))] if notes else []
