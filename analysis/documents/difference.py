"""Where the time difference between runs lies: parts by group with subtotals, and the ratios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from molprof.analysis.compare import Comparison
from molprof.analysis.compare.model import Difference, TraceDifference
from molprof.analysis.compare.parts import GROUPS, by_group, in_order, part_label
from molprof.analysis.figures.run_model import Run
from molprof.common.document import Column, Section, Table
from molprof.common.values import NOT_RECORDED, Value, factor_text, per, signed_time_text, time_text

_LARGEST = 3
# A larger part of the difference that is unexplained is worth a note.
_RESIDUAL_RATIO = 0.01
_SHARES = "share: of the whole difference; a part below 0 % works against it"
_FACTOR_LABELS = {"tokens": "tokens", "steps_per_token": "steps per token", "time_per_step": "time per step"}

Known = tuple[str, Difference]
_Row = tuple[Value, ...]


def difference_sections(comparison: Comparison) -> Iterator[Section]:
    """The unprofiled difference of every run that has one, then the recorded one of those that have only that."""
    first, others = comparison.labels[0], comparison.labels[1:]
    known = [(label, item) for label, item in zip(others, comparison.differences, strict=True) if item is not None]
    missing = [
        f"{label}: {NOT_RECORDED}" for label, item in zip(others, comparison.differences, strict=True) if item is None
    ]
    title = f"Difference in unprofiled time from {first}"
    if known:
        yield Section(title, (*missing, *_notes(comparison, known)), _parts(known))
    else:
        yield Section(title, tuple(missing))
    for label, item in zip(others, comparison.trace_differences, strict=True):
        if item is not None:
            yield _recorded(first, label, item)


def _parts(known: list[Known]) -> Table:
    """One row per group and per part of a group; what is 0 in every run is left out."""
    items = [item for _, item in known]

    def row(label: str, parts_ns: Sequence[int | None]) -> _Row:
        cells: list[Value] = [label]
        for part_ns, item in zip(parts_ns, items, strict=True):
            cells += [part_ns, per(part_ns, item.wall_ns)]
        return tuple(cells)

    shown = in_order(part for item in items for part in item.parts if item.parts[part])
    rows = []
    for group, parts in by_group(shown).items():
        indent = ""
        if len(parts) > 1:
            rows.append(row(GROUPS[group], [sum(item.parts.get(part, 0) for part in parts) for item in items]))
            indent = "  "
        for part in parts:
            label = part_label(part).removeprefix(f"{group}: ") if indent else part_label(part)
            rows.append(row(indent + label, [item.parts.get(part) for item in items]))
    rows.append(row("unexplained", [item.residual_ns for item in items]))
    rows.append(row("total", [item.wall_ns for item in items]))
    # One run may have its phases divided by what bounded them and another not.
    return Table(_columns("part", [label for label, _ in known]), rows, missing="")


def _columns(title: str, labels: Sequence[str]) -> tuple[Column, ...]:
    columns = [Column(title)]
    for label in labels:
        columns += [Column(label, "change_ns"), Column("share", "ratio", joined=True)]
    return tuple(columns)


def _notes(comparison: Comparison, known: list[Known]) -> Iterator[str]:
    """The largest parts, the ratios, and what one must know to read the table."""
    for label, item in known:
        parts = sorted((part for part in item.parts if item.parts[part]), key=lambda part: -abs(item.parts[part]))
        if parts:
            text = ", ".join(f"{part_label(part)} {signed_time_text(item.parts[part])}" for part in parts[:_LARGEST])
            yield f"{label}: largest parts: {text}"
        if item.factors:
            yield f"{label}: {_factors(item)}"
        if item.residual_ratio is not None and abs(item.residual_ratio) > _RESIDUAL_RATIO:
            yield f"{label}: more than 1 % of the difference is unexplained"
        if item.gpu_beyond_ns is not None and any(item.gpu_beyond_ns):
            first, this = map(time_text, item.gpu_beyond_ns)
            yield f"{label}: recorded GPU time beyond the unprofiled steps: {first} (first run), {this} (this run)"
    if any(basis == "window" for _, item in known for basis in item.basis.values()):
        yield "GPU busy, launch-bound and host sync: unprofiled time of the phase, divided as in the recorded steps"
    if any(item.wall_ns for _, item in known):
        yield _SHARES
    runs = zip(comparison.labels, comparison.runs, strict=True)
    if extra := [f"{label} {text}" for label, report in runs if (text := _first_pass(report.run))]:
        noise = " (~: no slower than the slowest timed pass)" if any(text.endswith(" ~") for text in extra) else ""
        yield f"not in the table: first pass (compiling, first use) minus the median: {', '.join(extra)}{noise}"


def _factors(item: Difference) -> str:
    """The ratio of the times as a product."""
    product = " × ".join(f"{_FACTOR_LABELS[name]} {factor_text(ratio)}" for name, ratio in item.factors.items())
    return f"time {factor_text(prod(item.factors.values()))} = {product}"


def _first_pass(run: Run | None) -> str:
    if run is None or run.first_pass_extra_ns is None:
        return ""
    wall = run.wall_ns
    noise = wall.median is not None and wall.high is not None and wall.median + run.first_pass_extra_ns <= wall.high
    return "~" if noise else signed_time_text(run.first_pass_extra_ns)


def _recorded(first: str, label: str, item: TraceDifference) -> Section:
    """The difference of recorded spans: profiled, so never beside unprofiled times."""
    parts = {part.replace("idle.", "idle: "): value for part, value in item.parts.items() if value}
    parts |= {"unexplained": item.residual_ns} if item.residual_ns else {}
    rows = [(part, value, per(value, item.span_ns)) for part, value in (parts | {"total": item.span_ns}).items()]
    notes = [
        "recorded, so the profiler's cost is included; from each device's first work to the end of its last, "
        f"summed over devices: {item.devices[0]} and {item.devices[1]}"
    ]
    notes += [_SHARES] if item.span_ns else []
    table = Table(_columns("part", [label]), rows, missing="")
    return Section(f"Difference in recorded (profiled) span from {first}", tuple(notes), table)
