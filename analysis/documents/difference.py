"""The difference in time between runs as tables: its parts, which add up to it, in full or the largest as bars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

from msgspec.structs import replace

from molprof.analysis.compare import Comparison
from molprof.analysis.compare.difference import Difference, known_parts
from molprof.analysis.compare.parts import GROUPS, MACHINE, PART_LABELS, RECORDED_LABELS, by_group
from molprof.analysis.compare.recorded import (
    PhaseDifference,
    StepDifference,
    TraceDifference,
    class_times,
    step_counts,
)
from molprof.analysis.compare.statistics import LEVEL, ConfidenceInterval
from molprof.analysis.figures.run_model import Run
from molprof.common.document import Column, Section, Table, last_rows
from molprof.common.values import NOT_RECORDED, Value, factor_text, per, signed_time_text, time_text

# What is compared: the first of them that both runs have.
_UNPROFILED, _PER_STEP = "unprofiled time", "recorded time per step"
_OF_GPUS, _OF_GPU_STEPS = "recorded time of the GPUs, whole traces", "recorded time of the GPUs, per step"
# Bars: parts at most, of several runs and of two; length of the longest. A smaller share of the largest part is not
# worth a row.
_FEW_BARS, _MOST_BARS = 4, 5
_BAR_SIZE = 12
_LEAST_BAR = 0.02
# Classes of GPU work: rows at most, and at least; and which share of the largest change is worth a row.
_CLASSES, _LEAST_CLASSES, _LEAST_CLASS = 4, 2, 0.05
_HALF = Column("±", "ns", joined=True)
_CHANGES = "change: in % of the time of {}"
_INTERVALS = "±: half of a part's interval, from all timed passes"
_NOISE = f"{_INTERVALS}; those of unequal work hold all together with {100 * LEVEL:.0f} % confidence"


class _DifferenceRow(NamedTuple):
    """A row of a difference."""

    label: str
    times_ns: Sequence[float | None]  # of every run
    beside: Sequence[Sequence[Value]] = ()  # what stands beside each of them


def _part_table(
    labels: Iterable[str], rows: Iterable[_DifferenceRow], first_ns: float | None, *beside: Column
) -> Table:
    """Return the time of every part, also in % of the first run's time if given, with extra cells."""
    columns = [Column("part")]
    for label in labels:
        columns.append(Column(label, "change_ns"))
        columns += [Column("change", "change_ratio", joined=True)] if first_ns else []
        columns += beside
    cells = []
    for row in rows:
        shown: list[Any] = [row.label]
        for time_ns, more in zip_longest(row.times_ns, row.beside):
            shown.append(time_ns)
            shown += [per(time_ns, first_ns)] if first_ns else []
            shown += [*(more or ()), *(None for _ in beside)][: len(beside)]
        cells.append(tuple(shown))
    return Table(tuple(columns), cells, missing="", spare_columns=(_HALF.title,))


def bars(comparison: Comparison) -> Iterator[Section]:
    """Yield the parts that are worth a look, the rest, and their sum; of two runs also in %, with interval and bar."""
    of_gpus = comparison.trace_differences
    kinds: Mapping[str, Sequence[Difference | TraceDifference | PhaseDifference | StepDifference | None]] = {
        _UNPROFILED: comparison.differences,
        _PER_STEP: comparison.phase_differences,
        _OF_GPU_STEPS: per_step_of(of_gpus),
        _OF_GPUS: of_gpus,
    }
    kind = next((kind for kind, items in kinds.items() if any(items)), _UNPROFILED)
    by_label: dict[str, tuple[Mapping[str, float], float]] = {}  # by label, parts and total
    for label, item in zip(comparison.labels[1:], kinds[kind], strict=True):
        if isinstance(item, Difference):
            by_label[label] = known_parts(item), item.wall_ns
        elif item is not None:
            by_label[label] = item.parts, item.span_ns
    changes = list(by_label.values())
    sizes = {part: max(abs(of.get(part, 0)) for of, _ in changes) for parts, _ in changes for part in parts}
    longest = max(sizes.values(), default=0)
    if not longest:
        return
    worth = sorted((part for part in sizes if sizes[part] >= _LEAST_BAR * longest), key=lambda part: -sizes[part])
    several = len(comparison.labels) > 2
    measured = comparison.differences[0] if not several and kind == _UNPROFILED else None
    noisy = [_HALF] if measured and measured.intervals else []

    def beside(interval: ConfidenceInterval | None, ns: Sequence[float | None] = ()) -> list[tuple[Value, ...]]:
        """Return the cells next to each part of one other run: half of its interval, and its bar."""
        if several:
            return []
        drawn = [("█" if (each or 0) > 0 else "░") * round(_BAR_SIZE * abs(each or 0) / longest) for each in ns]
        return [(_half(interval), bar) if noisy else (bar,) for bar in drawn or [""]]

    shown = worth[: _FEW_BARS if several else _MOST_BARS]
    names = PART_LABELS | RECORDED_LABELS
    rows = []
    for part in shown:
        times_ns = [parts.get(part) for parts, _ in changes]
        interval = measured.intervals.get(part) if measured else None
        rows.append(_DifferenceRow(names.get(part, part), times_ns, beside(interval, times_ns)))
    rows.append(
        _DifferenceRow(
            "the rest", [total_ns - sum(parts.get(part, 0) for part in shown) for parts, total_ns in changes]
        )
    )
    total = beside(_total_interval(measured) if measured else None)
    rows.append(_DifferenceRow("total", [total_ns for _, total_ns in changes], total))
    what = f"Difference in {kind}"
    first = comparison.labels[0]
    if several:
        title, table = f"{what} from {first}", _part_table(by_label, rows, None)
    else:
        title = f"{what}, and in % of the time of {first}"
        table = _part_table(by_label, rows, _first_ns(comparison, kind), *noisy, Column(joined=True))
    # Without one of the rows the others would not add up.
    yield Section(
        title, (_INTERVALS,) if noisy else (), replace(table, spare=(tuple(range(len(rows))),)), text_only=True
    )


def classes(comparison: Comparison) -> Iterator[Section]:
    """Yield the classes of GPU work whose time differs most, of two traces."""
    if len(comparison.runs) != 2:
        return
    counts = step_counts(*comparison.runs)
    differences = class_times(*comparison.runs, counts)
    longest = max((abs(item.change_ns) for item in differences), default=0)
    shown = [item for item in differences if abs(item.change_ns) > _LEAST_CLASS * longest][:_CLASSES]
    if not shown:
        return
    first, second = comparison.labels
    columns = (
        Column("class"), Column(first, "ns"), Column(second, "ns"), Column("difference", "change_ns"),
        Column("runs", "number"), Column("then", "number", joined=True), Column("mostly in", "name"),
    )  # fmt: skip
    cells = [(item.name, *item.times_ns, item.change_ns, *item.counts, item.location) for item in shown]
    notes = tuple(filter(None, (_reason(comparison, item.name, item.change_ns > 0) for item in shown)))
    titles = "per step" if counts else "whole traces"
    spare = (*last_rows(len(cells), _LEAST_CLASSES), tuple(range(_LEAST_CLASSES)))
    yield Section(f"Difference in GPU time by class, {titles}", notes, Table(columns, cells, missing="", spare=spare))


def _reason(comparison: Comparison, name: str, grew: bool) -> str:
    """Return the setting of the programs that explains the change of a class; empty where none is known to."""
    more, less = reversed(comparison.runs) if grew else comparison.runs
    label = comparison.labels[grew]

    def differ(setting: str) -> tuple[str, str] | None:
        here, there = more.trace.program.get(setting), less.trace.program.get(setting)
        return (here, there) if here and there and here != there else None

    if name == "matmul" and (types := differ("matrix products")):
        return f"matmul: {label} multiplies {types[0]}, the other {types[1]}"
    if name in ("memcpy DtoD", "copy") and differ("GPU graphs") == ("replayed", "none"):
        return f"{name}: {label} replays graphs, whose inputs are copied to where the graphs read them"
    if name in ("elementwise", "norm", "reduce", "softmax", "copy") and differ("torch.compile") == ("no", "yes"):
        return f"{name}: {label} is not compiled: one compiled kernel does what several do in it"
    return ""


def differences(comparison: Comparison) -> Iterator[Section]:
    """Yield the unprofiled difference of every run that has one, then the recorded one of those that have only that."""
    first, others = comparison.labels[0], comparison.labels[1:]
    unprofiled = {label: item for label, item in zip(others, comparison.differences, strict=True) if item is not None}
    missing = [f"{label}: {NOT_RECORDED}" for label in others if label not in unprofiled]
    notes, table = (_notes(comparison, unprofiled), _part_rows(comparison, unprofiled)) if unprofiled else ((), None)
    yield Section(f"Difference in unprofiled time from {first}", (*missing, *notes), table)
    recorded = {label: item for label, item in zip(others, comparison.trace_differences, strict=True) if item}
    if recorded:
        yield _recorded(comparison, recorded)
    phases = {label: item for label, item in zip(others, comparison.phase_differences, strict=True) if item}
    if phases:
        yield _phases(first, phases, "step")
    if tokens := {label: item.per_token for label, item in phases.items() if item.per_token}:
        yield _phases(first, tokens, "generated token")


def _part_rows(comparison: Comparison, by_label: Mapping[str, Difference]) -> Table:
    """Return one row per group and per part of a group, without those that are 0 in every run."""
    items = by_label.values()
    rows = []

    def add(label: str, times_ns: Sequence[int | None], intervals: Sequence[ConfidenceInterval | None] = ()) -> None:
        rows.append(_DifferenceRow(label, times_ns, [(_half(item),) for item in intervals]))

    for group, parts in by_group(part for item in items for part in item.parts if item.parts[part]).items():
        grouped = len(parts) > 1 or group == MACHINE
        if grouped:
            add(GROUPS[group], [sum(item.parts.get(part, 0) for part in parts) for item in items])
        for part in parts:
            label = f"  {PART_LABELS[part].removeprefix(f'{group}: ')}" if grouped else PART_LABELS[part]
            # One run may have its phases divided by what bounded them and another not.
            add(label, [item.parts.get(part) for item in items], [item.intervals.get(part) for item in items])
    add("unexplained", [item.residual_ns for item in items])
    add("total", [item.wall_ns for item in items], [_total_interval(item) for item in items])
    noisy = any(half is not None for row in rows for (half,) in row.beside)
    return _part_table(by_label, rows, _first_ns(comparison), *[_HALF] * noisy)


def per_step_of(differences: Sequence[TraceDifference | None]) -> Sequence[StepDifference | None]:
    """Return the differences per step; none where one of the traces has none."""
    steps = [None if item is None else item.per_step for item in differences]
    whole = [item is not None for item in differences]
    return steps if whole == [item is not None for item in steps] else [None] * len(steps)


def _total_interval(item: Difference) -> ConfidenceInterval | None:
    """Return the interval of the total; None without pairs, where its middle is not the difference of medians."""
    return item.wall_interval if item.paired else None


def _half(interval: ConfidenceInterval | None) -> float | None:
    return None if interval is None else (interval.high - interval.low) / 2


def _notes(comparison: Comparison, by_label: Mapping[str, Difference]) -> Iterator[str]:
    """Yield the ratios, and notes that explain the table."""
    for label, item in by_label.items():
        if item.factors:
            product = " × ".join(
                f"{name.replace('_', ' ')} {factor_text(ratio)}" for name, ratio in item.factors.items()
            )
            yield f"{label}: time {factor_text(prod(item.factors.values()))} = {product}"
        if item.intervals:
            yield f"{label}: parts within noise, all together: {signed_time_text(item.within_noise_ns)}"
        if item.gpu_beyond_ns is not None and any(item.gpu_beyond_ns):
            first, this = map(time_text, item.gpu_beyond_ns)
            yield f"{label}: recorded GPU time beyond the unprofiled steps: {first} (first run), {this} (this run)"
    if any(basis == "window" for item in by_label.values() for basis in item.basis.values()):
        yield "GPU busy, launch-bound and host sync: unprofiled time of the phase, divided as in the recorded steps"
    if any(item.wall_ns for item in by_label.values()):
        yield _CHANGES.format(comparison.labels[0])
    if any(item.intervals for item in by_label.values()):
        yield _NOISE
    runs = zip(comparison.labels, comparison.runs, strict=True)
    if extra := [f"{label} {signed_time_text(ns)}" for label, report in runs if (ns := _first_pass_ns(report.run))]:
        yield f"not in the table: first pass (compiling, first use) minus the median: {', '.join(extra)}"


def _first_pass_ns(run: Run | None) -> int | None:
    """Return the time of the first pass beyond the median one; None if it was no slower than the slowest one."""
    if run is None or run.first_pass_extra_ns is None:
        return None
    wall = run.wall_ns
    noise = wall.median is not None and wall.high is not None and wall.median + run.first_pass_extra_ns <= wall.high
    return None if noise else run.first_pass_extra_ns


def _recorded(comparison: Comparison, by_label: Mapping[str, TraceDifference]) -> Section:
    """Return the difference of recorded spans, which are profiled and so never shown with unprofiled times."""
    first, items = comparison.labels[0], by_label.values()
    parts = dict.fromkeys(part for item in items for part in item.parts if item.parts[part])
    rows = [_DifferenceRow(RECORDED_LABELS.get(part, part), [item.parts.get(part) for item in items]) for part in parts]
    if any(item.residual_ns for item in items):
        rows.append(_DifferenceRow("unexplained", [item.residual_ns for item in items]))
    rows.append(_DifferenceRow("total", [item.span_ns for item in items]))
    notes = ["recorded, so the profiler's cost is included; from each GPU's first work to the end of its last"]
    if any(max(item.devices) > 1 for item in items):
        counts = (
            (first, next(iter(items)).devices[0]),
            *((label, item.devices[1]) for label, item in by_label.items()),
        )
        notes.append(f"summed over GPUs: {', '.join(f'{count} of {label}' for label, count in counts)}")
    notes += [_CHANGES.format(first)] if any(item.span_ns for item in items) else []
    table = _part_table(by_label, rows, _first_ns(comparison, _OF_GPUS))
    return Section(f"Difference in recorded (profiled) span from {first}", tuple(notes), table)


def _phases(first: str, by_label: Mapping[str, PhaseDifference], what: str) -> Section:
    """Return the difference per step or token of an engine, by phase; profiled, as the above."""
    items = list(by_label.values())
    parts = dict.fromkeys(part for item in items for part in item.parts if item.parts[part])
    rows = [_DifferenceRow(RECORDED_LABELS.get(part, part), [item.parts.get(part) for item in items]) for part in parts]
    rows.append(_DifferenceRow("total", [item.span_ns for item in items]))
    notes = (
        f"recorded span per {what}, so the profiler's cost is included; phases without those inside them",
        *(("tokens counted by the names of steps, without the first token of each prompt",) * (what != "step")),
        _CHANGES.format(first),
    )
    table = _part_table(by_label, rows, items[0].first_ns)
    return Section(f"Difference by phase, per {what}, from {first}", notes, table)


def _first_ns(comparison: Comparison, kind: str = _UNPROFILED) -> float | None:
    """Return the first run's time: GPU time from first to last work, or the time of this kind of step."""
    if kind == _OF_GPUS:
        return sum(device.span_ns for device in comparison.runs[0].devices.values())
    if kind == _OF_GPU_STEPS:
        return next(item.first_ns for item in per_step_of(comparison.trace_differences) if item is not None)
    if kind == _PER_STEP:
        return next(item.first_ns for item in comparison.phase_differences if item is not None)
    return comparison.wall.numbers(0)[1]
