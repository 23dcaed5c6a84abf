"""The runs of a comparison in one table: time, constraint, answers; and warnings of several runs, each shown once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from molprof.analysis.compare import Comparison
from molprof.analysis.compare.base import is_constrained
from molprof.analysis.compare.rows import ComparedRow
from molprof.analysis.figures.model import Report, ServedTimes
from molprof.analysis.figures.run_model import Run
from molprof.analysis.reader import path_text
from molprof.common.document import Cell, Column, Row, Section, Table
from molprof.common.values import Unit, count_text, per

# From this share of answers that the token limit ended, total times depend on the limit.
_CUT_RATIO = 0.1
# The time of a request, where a client measured it.
_REQUEST = "request_p50_ns"
_NUMBER = re.compile(r"(\d+(?:[.,]\d+)*)")
_NUMBERED = re.compile(r" #\d+$")
_ONCE = "made once"


def by_token(comparison: Comparison) -> bool:
    """Return True if the time per token says more than the total: the token limit decided the length of some run."""
    runs = [report.run for report in comparison.runs]
    first, others = runs[0], [run for run in runs[1:] if run is not None]
    if first is None or len(others) < len(runs) - 1 or None in comparison.tokens.ratios:
        return False
    # Tokens of two tokenizers are not of equal length.
    alike = {run.setup.tokenizer for run in others} == {first.setup.tokenizer}
    unlike = [run for run in others if run.generated_tokens != first.generated_tokens]
    return alike and any(_is_cut(run) or _is_cut(first) for run in unlike)


def _is_cut(run: Run) -> bool:
    return run.cut_answers >= _CUT_RATIO * run.molecules


def runs_section(comparison: Comparison) -> Section | None:
    """Return a row for each run.

    None where no time of two of them can be compared, or a sentence has all of two traces.
    """
    times = _times(comparison)
    if times is None or (len(comparison.runs) == 2 and not any(it.run or it.served for it in comparison.runs)):
        return None
    columns, cells, legend = times
    for title, unit, more in _further_rows(comparison):
        if any(cell.value is not None for cell in more):
            columns.append(Column(title, unit))
            cells = [(*row, cell) for row, cell in zip(cells, more, strict=True)]
    if any(_NUMBERED.search(label) for label in comparison.labels):  # runs of one name
        columns.append(Column("file", "path"))
        paths = [PurePath(path_text(report.trace.path)).name for report in comparison.runs]
        cells = [(*row, Cell(path, "path")) for row, path in zip(cells, paths, strict=True)]
    rows: list[Row] = [(label, *row) for label, row in zip(comparison.labels, cells, strict=True)]
    notes = tuple(filter(None, (comparison.base, legend)))
    table = Table((Column("run"), *columns), rows, missing="-")
    return Section("Runs", notes, table)


def _times(comparison: Comparison) -> tuple[list[Column], list[tuple[Cell, ...]], str] | None:
    """Return columns of the first time that two runs have, their cells, and a legend of intervals and signs."""
    rows = {row.figure.id: row for row in comparison.rows}
    request = rows.get(_REQUEST)
    names = (("time per token", comparison.tokens),) if by_token(comparison) else ()
    measures: tuple[tuple[str, ComparedRow | None], ...] = (
        *names, ("total time", comparison.wall), ("time of a request (p50)", request),
    )  # fmt: skip
    for title, row in measures:
        if row is not None and any(ratio is not None for ratio in row.ratios[1:]):
            cells = [_of_times(row, index, any(row.intervals)) for index in range(len(row.values))]
            return [*_columns(title, any(row.intervals))], cells, _legend(row)
    steps = [report.typical_step for report in comparison.runs]
    kinds = {(step.source, step.kind) for step in steps if step is not None}
    times = [None if step is None else step.time_ns for step in steps]
    if len(kinds) != 1 or times[0] is None or not any(times[1:]):
        return None
    ((_, kind),) = kinds
    title = f"recorded time of a {kind or ''} step".replace("  ", " ")
    return (
        [*_columns(title, False)],
        [(Cell(time, "ns"), Cell(per(time, times[0]) if index else "", "factor")) for index, time in enumerate(times)],
        "",
    )


def _legend(row: ComparedRow) -> str:
    """Return the legend of intervals and `~`, as far as the row has them."""
    levels = [interval.level for interval in row.intervals if interval is not None]
    what = "mean of the rounds" if row.paired else "median of the passes"
    said = [f"interval: range of the {what}, at {100 * min(levels):.0f} %"] if levels else []
    if any(row.within_noise(index) for index in range(1, len(row.values))):
        said.append("~: no ratio beyond noise, as its interval contains 1")
    return "; ".join(said)


def _columns(title: str, has_intervals: bool) -> Iterator[Column]:
    yield Column(title, "number")
    if has_intervals:
        yield Column("interval", "number", joined=True)
    yield Column("ratio", "factor", joined=True)


def _of_times(row: ComparedRow, index: int, has_intervals: bool) -> tuple[Cell, ...]:
    interval, ratio = row.intervals[index], row.ratios[index] if index else ""
    cells = [Cell(row.values[index], row.figure.unit)]
    if has_intervals:
        cells.append(Cell(None if interval is None else (interval.low, interval.high), row.figure.unit))
    return *cells, Cell(ratio, "factor", noise=bool(index) and row.within_noise(index))


def _further_rows(comparison: Comparison) -> Iterator[tuple[str, Unit, list[Cell]]]:
    """Yield the rows on the constraint's cost and on the answers; None: not recorded."""
    rows = {row.figure.id: row for row in comparison.rows}
    reports = comparison.runs
    yield "processor per step", "number", [Cell(value, "ns") for value in rows["processor_ns"].values]
    yield _ONCE, "number", [_construction_time(report) for report in reports]
    yield "valid", "number", [_valid(report) for report in reports]
    noun = "molecule" if any(report.run is not None and report.run.of_molecules for report in reports) else "answer"
    yield f"{noun} tokens", "number", [Cell(value, "number") for value in rows["tokens_per_molecule"].values]


def _construction_time(report: Report) -> Cell:
    """Return the time of making a constraint, which a run without one does not need."""
    made_ns = None if report.run is None else report.run.processor_once_ns
    if made_ns is None and is_constrained(report) is False:
        return Cell("none", "text")
    return Cell(made_ns, "ns")


def _valid(report: Report) -> Cell:
    if isinstance(report.served, ServedTimes):
        return Cell(report.served.values.get("valid_ratio"), "ratio")
    run = report.run
    if run is None or run.valid_molecules is None or not run.has_answers:
        return Cell(None, "text")
    return Cell(f"{count_text(run.valid_molecules)} of {count_text(run.molecules)}", "text")


def told_once(labels: Sequence[str], lines: Sequence[str]) -> tuple[str, ...]:
    """Return lines that begin with a run's label; equal lines of several runs are merged, with ranges of numbers."""
    by_text: dict[str, list[tuple[str, list[str]]]] = {}
    for line in lines:
        label = max((name for name in labels if line.startswith(f"{name}: ")), key=len, default="")
        text = line[len(label) + 2 :] if label else line
        by_text.setdefault(_NUMBER.sub("#", text), []).append((label, _NUMBER.split(text)))
    return tuple(_merged(labels, each) for each in by_text.values())


def _merged(labels: Sequence[str], each: Sequence[tuple[str, list[str]]]) -> str:
    names = list(dict.fromkeys(label for label, _ in each))
    whole = len(names) == len(labels) > 2
    head = "all runs: " if whole else f"{listed(names)}: " if any(names) else ""
    texts = [
        _range(same) if index % 2 else same[0]
        for index, same in enumerate(zip(*(parts for _, parts in each), strict=True))
    ]
    return head + "".join(texts)


def listed(names: Sequence[str]) -> str:
    """Return names as an enumeration in a sentence."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _range(numbers: Sequence[str]) -> str:
    distinct = sorted(set(numbers), key=lambda text: float(text.replace(",", "")))
    return distinct[0] if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"
