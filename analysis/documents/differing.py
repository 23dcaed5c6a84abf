"""What differs between runs, on one screen: settings, the largest parts of the difference as bars, figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from molprof.analysis.compare import Comparison
from molprof.analysis.compare.difference import Difference, known_parts
from molprof.analysis.compare.parts import PART_LABELS, RECORDED_LABELS
from molprof.analysis.documents.figures import (
    Reports,
    compared_certificates,
    figures_table,
    reports_of,
    settings_section,
)
from molprof.common.document import Column, Section, Table, pairs
from molprof.common.values import per

# Of the first screen: settings, parts and figures at most, figures where there are no parts; and how long the longest
# bar is beside so many runs.
_SETTINGS, _PARTS, _FIGURES, _MOST_FIGURES = 4, 5, 6, 10
_BAR_SIZES = {1: 24, 2: 8}
# Parts below this share of the largest have no bar, and figures that change by less are not shown there.
_LEAST_BAR = 0.02
_LEAST_CHANGE, _LEAST_UNKNOWN = 0.01, 0.1
# Words of the notes without which the verdict misleads.
_GRAVE = ("are not comparable", "stopped at the token limit", "random weights")


def first_screen(comparison: Comparison, reports: Reports) -> Iterator[Section]:
    """What differs, and where the time went."""
    several = len(comparison.labels) > 2
    if grave := [note for note in comparison.notes if any(words in note for words in _GRAVE)]:
        yield Section("Notes", tuple(grave))
    if rows := list(_unlike(comparison, reports)):
        most = _SETTINGS - 2 * several
        more = [("also", ", ".join(name for name, _ in rows[most:]))] if len(rows) > most else []
        yield Section("Settings that differ", table=pairs([*rows[:most], *more]))
    bars = list(_bars(comparison))
    yield from bars
    yield from _telling(comparison, _FIGURES - 3 * several if bars else _MOST_FIGURES)


def _unlike(comparison: Comparison, reports: Reports) -> Iterator[tuple[str, str]]:
    """Name of each setting, device or version that is not the same in all runs, and its values."""
    around = comparison.surroundings
    names = dict.fromkeys(name for found in around for name in found)
    for name in names:
        values = [found.get(name) for found in around]
        if len(set(values) - {None}) > 1:
            yield name, " -> ".join(dict.fromkeys(value or "-" for value in values))
    settings = settings_section(reports).table
    if settings is None:
        return
    for place, (setting, *cells) in enumerate(settings.cells()):
        name = str(setting.value)
        if place in settings.marked and name not in {*names, "devices in the trace"}:
            yield name, " -> ".join(dict.fromkeys(map(settings.text, cells)))


def _bars(comparison: Comparison) -> Iterator[Section]:
    """The parts that are worth a look, with a bar for each, the rest, and their sum."""
    recorded = not any(comparison.differences)
    items = comparison.trace_differences if recorded else comparison.differences
    known: dict[str, tuple[dict[str, int], int]] = {}
    for label, item in zip(comparison.labels[1:], items, strict=True):
        if isinstance(item, Difference):
            known[label] = {PART_LABELS[part]: ns for part, ns in known_parts(item).items()}, item.wall_ns
        elif item is not None:
            parts = {RECORDED_LABELS.get(part, part): ns for part, ns in item.parts.items() if ns}
            known[label] = parts, item.span_ns
    largest: dict[str, int] = {}
    for parts, _ in known.values():
        for part, ns in parts.items():
            largest[part] = max(largest.get(part, 0), abs(ns))
    longest = max(largest.values(), default=0)
    if not longest:
        return
    worth = [part for part in largest if largest[part] >= _LEAST_BAR * longest]
    shown = sorted(worth, key=lambda part: -largest[part])[: _PARTS - (len(known) > 1)]
    columns, size = [Column("part")], _BAR_SIZES.get(len(known), 0)
    for label in known:
        columns += [Column(label, "change_ns"), Column("share", "ratio", joined=True)]
        columns += [Column("")] if size else []
    first_ns = first_ns_of(comparison, recorded)
    rows = []
    rest = "the rest" if recorded else "the rest, small or within noise"
    for part in (*shown, rest, "total"):
        row: list[Any] = [part]
        for parts, total_ns in known.values():
            rest_ns = total_ns - sum(parts.get(name, 0) for name in shown)
            time_ns = {rest: rest_ns, "total": total_ns}.get(part, parts.get(part))
            row += [time_ns, per(time_ns, first_ns)]
            if size:
                bar = round(size * abs(time_ns) / longest) if time_ns and part in shown else 0
                row.append(("█" if (time_ns or 0) > 0 else "░") * bar)
        rows.append(tuple(row))
    what = "recorded time of the GPUs, whole traces" if recorded else "unprofiled time"
    title = f"Difference in {what}, and its share of the time of {comparison.labels[0]}"
    yield Section(title, table=Table(tuple(columns), rows, missing=""))


def _telling(comparison: Comparison, most: int) -> Iterator[Section]:
    """The figures that differ most: beyond noise, or by a tenth where it is unknown; of equal ratios one."""
    sizes: dict[str, float] = {}
    seen = set()
    per_step = all(report.typical_step is not None for report in comparison.runs)
    for row in comparison.rows:
        in_trace = per_step and row.figure.label.endswith(" in the trace")  # which also depends on how long it is
        if in_trace or row.figure.id.startswith("wall_"):  # the verdict has the latter
            continue
        key = tuple(None if ratio is None else float(f"{ratio:.3g}") for ratio in row.ratios)
        if key in seen and any(ratio is not None for ratio in row.ratios[1:]):
            continue
        for place in range(1, len(row.values)):
            here, first = row.numbers(place)
            if here is None or first is None or here == first or row.significant[place] is False:
                continue
            size = abs(math.log(here / first)) if here > 0 and first > 0 else math.log(2)
            if size >= (_LEAST_CHANGE if row.significant[place] else _LEAST_UNKNOWN):
                sizes[row.figure.id] = max(size, sizes.get(row.figure.id, 0.0))
                seen.add(key)
    if sizes:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:most]
        doubts = bool(compared_certificates(reports_of(comparison)))
        notes = ("not every figure is exact: --all has the certificate",) if doubts else ()
        yield Section("Figures that differ most", notes, figures_table(comparison, largest))


def first_ns_of(comparison: Comparison, recorded: bool = False) -> float | None:
    """The time of the first run; recorded: of its GPUs, from their first work to the end of their last."""
    if recorded:
        return sum(device.span_ns for device in comparison.runs[0].devices.values())
    return next(row for row in comparison.rows if row.figure.id == "wall_ns").numbers(0)[1]
