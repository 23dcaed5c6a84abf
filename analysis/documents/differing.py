"""The differences of several runs on one screen: settings, the largest parts of the time difference, figures."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from molprof.analysis.compare import Comparison
from molprof.analysis.compare.rows import ComparedRow
from molprof.analysis.documents.difference import bars, classes
from molprof.analysis.documents.figures import (
    Reports,
    compared_certificates,
    figures_table,
    reports_of,
    settings_section,
)
from molprof.common.document import Section, last_rows, pairs

# Of the first screen: settings and figures at most, figures where there are no parts, and figures at least.
_SETTINGS, _FIGURES, _MOST_FIGURES, _LEAST_FIGURES = 4, 6, 10, 3
# Figures that change by less are not shown there.
_LEAST_CHANGE, _LEAST_UNKNOWN = 0.01, 0.1
# With longer paths a command takes more than a line.
_LONGEST_PATHS = 70
# Words of the notes without which the verdict misleads.
_GRAVE = ("are not comparable", "random weights")


def compare_command(paths: Sequence[str]) -> str:
    """Return the command that compares these traces."""
    arguments = shlex.join(paths)
    if len(arguments) > _LONGEST_PATHS:
        arguments = "A B" if len(paths) == 2 else "TRACES"
    return f"molprof compare {arguments}"


def first_screen(comparison: Comparison, reports: Reports) -> Iterator[Section]:
    """Yield the sections on what differs and where the time went."""
    several = len(comparison.labels) > 2
    if grave := [note for note in comparison.notes if any(words in note for words in _GRAVE)]:
        yield Section("Notes", tuple(grave))
    if rows := list(_unlike(comparison, reports)):
        most = _SETTINGS - 2 * several
        more = [("also", ", ".join(name for name, _ in rows[most:]))] if len(rows) > most else []
        yield Section("Settings that differ", table=pairs([*rows[:most], *more]))
    parts = list(bars(comparison))
    yield from parts
    of_classes = list(classes(comparison))
    yield from of_classes
    yield from _largest_differences(comparison, _LEAST_FIGURES if of_classes else _FIGURES if parts else _MOST_FIGURES)


def _unlike(comparison: Comparison, reports: Reports) -> Iterator[tuple[str, str]]:
    """Yield each setting, device or version that is not the same in all runs, and its values."""
    programs = [report.trace.program for report in comparison.runs]
    names: dict[str, None] = {}
    for mappings in (comparison.surroundings, programs):
        names |= (here := dict.fromkeys(name for mapping in mappings for name in mapping))
        for name in here:
            values = [mapping.get(name) for mapping in mappings]
            if len(set(values) - {None}) > 1:
                yield name, " -> ".join(dict.fromkeys(value or "-" for value in values))
    settings = settings_section(reports).table
    if settings is None:
        return
    for index, (setting, *cells) in enumerate(settings.cells()):
        name = str(setting.value)
        if index in settings.marked and name not in {*names, "devices in the trace"}:
            yield name, " -> ".join(dict.fromkeys(map(settings.text, cells)))


def _largest_differences(comparison: Comparison, most: int) -> Iterator[Section]:
    """Yield the figures that differ most: beyond noise, or by a tenth where noise is unknown; of equal ratios one."""
    sizes: dict[str, float] = {}
    seen = {_ratios(comparison.wall)}  # the verdict has it
    per_step = all(report.typical_step is not None for report in comparison.runs)
    for row in comparison.rows:
        in_trace = per_step and row.figure.label.endswith(" in the trace")  # which also depends on how long it is
        if in_trace or row.figure.id.startswith("wall_"):
            continue
        key = _ratios(row)
        if key in seen and any(ratio is not None for ratio in row.ratios[1:]):
            continue
        for index in range(1, len(row.values)):
            here, first = row.numbers(index)
            if here is None or first is None or here == first or row.significant[index] is False:
                continue
            size = abs(math.log(here / first)) if here > 0 and first > 0 else math.log(2)
            if size >= (_LEAST_CHANGE if row.significant[index] else _LEAST_UNKNOWN):
                sizes[row.figure.id] = max(size, sizes.get(row.figure.id, 0.0))
                seen.add(key)
    if sizes:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:most]
        doubts = bool(compared_certificates(reports_of(comparison)))
        notes = ("not every figure is exact: --all has the certificate",) if doubts else ()
        spare = (*last_rows(len(largest), _LEAST_FIGURES), tuple(range(_LEAST_FIGURES)))
        table = replace(figures_table(comparison, largest), spare=spare)
        yield Section("Figures that differ most", notes, table)


def _ratios(row: ComparedRow) -> tuple[float | None, ...]:
    """Return the ratios of a row, rounded as they are shown."""
    return tuple(None if ratio is None else float(f"{ratio:.3g}") for ratio in row.ratios)
