"""Two traces by kernel, operator, module, function or phase as a document: differences per step beyond the noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from molprof.analysis.compare import surroundings, unlike_surroundings
from molprof.analysis.compare.kernels.by import LEAST_STEPS, BySteps, StepRow
from molprof.analysis.compare.kernels.host import MODULE, SOURCE
from molprof.analysis.compare.kernels.read import Selection
from molprof.analysis.compare.kernels.sums import FoldedLocation
from molprof.analysis.documents.differing import compare_command
from molprof.analysis.figures.build import software
from molprof.common.document import Cell, Column, Document, Name, Row, Section, Table, objects, records
from molprof.common.values import by_unit, counted, cut, factor_text, number_text, per, signed_time_text, time_text

SCHEMA = 1
# Letters of a name before its class.
_LONGEST = 34
# Rows of a screen, and rows that a sentence names.
_ROWS, _MOST_NAMED = 10, 3
_TITLES = {"source": "function"}
_SIDE: tuple[Name, ...] = (
    "median_ns", "count", "spread_ns",
)  # fmt: skip
_ROW: tuple[Name, ...] = (
    "name", ("first", "first", _SIDE), ("other", "other", _SIDE), ("difference_ns", "change_ns"), "noise_ns",
    "within_noise", ("same_work", "is_same_work"),
)  # fmt: skip
_RECORD: tuple[Name, ...] = (
    "name", ("first_count", "first.count"), ("other_count", "other.count"), ("first_ns", "first.median_ns"),
    ("other_ns", "other.median_ns"), ("difference_ns", "change_ns"), "noise_ns", "within_noise",
)  # fmt: skip


def by_document(by_steps: Sequence[BySteps], labels: tuple[str, str], word: str) -> Document:
    """Return the difference by module, function, phase or operator.

    Of the kind of step that most are of, then of others.
    """
    main = by_steps[0]
    return Document(
        title=f"molprof compare by {word}: {labels[1]} against {labels[0]}",
        sections=tuple(by_sections(by_steps, labels, word)),
        data=lambda: {"schema": SCHEMA, "by": main.by, "labels": list(labels), **by_data(by_steps, labels)},
        records=lambda: records(objects(main.rows, *_RECORD), missing=""),
        warnings=sum_warnings(by_steps),
        summary=by_verdict(main, labels),
        screen=(
            _table(main, labels, word, _ROWS),
            Section("Next", (f"{compare_command(paths_of(main.first, main.other))} --by {main.by} --all",)),
        ),
    )


def labels_of(*sides: Selection) -> tuple[str, str]:
    """Return the names of the files; their paths where names are equal."""
    paths = paths_of(*sides)
    names = [PurePath(path).name.removesuffix(".gz").removesuffix(".json").removesuffix(".pftrace") for path in paths]
    if names[0] == names[1]:
        names = paths if paths[0] != paths[1] else ["first", "second"]
    return names[0], names[1]


def paths_of(*sides: Selection) -> list[str]:
    """Return the paths of the traces."""
    return [str(side.trace.info.path) for side in sides]


def unlike_sides(*sides: Selection) -> str:
    """Return a sentence on the hardware and software in which two traces differ; empty where none is known to."""
    infos = [side.trace.info for side in sides]
    around = (surroundings((str(device.get("name", "")) for device in it.devices), software(it.keys)) for it in infos)
    return unlike_surroundings(*around).strip()


def by_sections(by_steps: Sequence[BySteps], labels: tuple[str, str], word: str) -> Iterator[Section]:
    """Yield the rows of each kind of step."""
    for item in by_steps:
        yield _table(item, labels, word)


def by_data(by_steps: Sequence[BySteps], labels: tuple[str, str]) -> dict[str, Any]:
    """Return the JSON of each kind of step, that with most steps first."""
    return {"verdict": by_verdict(by_steps[0], labels), "kinds": [_kind_data(item) for item in by_steps]}


def _kind_data(item: BySteps) -> dict[str, Any]:
    (whole,) = objects([item.whole], *_ROW)
    return {
        "kind": item.kind, "steps": list(item.steps), "step": {**whole, "name": None},
        "rows": objects(item.rows, *_ROW), "rest_ns": item.rest_ns,
        "causes": [row.name for row in item.unlike], "problems": list(item.problems),
    }  # fmt: skip


def sum_warnings(by_steps: Sequence[BySteps]) -> tuple[str, ...]:
    """Return a warning for each sum that does not hold."""
    return tuple(f"the sum does not hold: {problem}" for item in by_steps for problem in item.problems)


def _step(item: BySteps) -> str:
    if not item.first.steps:
        return "whole trace"
    return f"{item.kind} step" if item.kind else "step"


def _table(item: BySteps, labels: tuple[str, str], word: str, most: int | None = None) -> Section:
    """Return a table with a row for each that takes time in a step; on a screen only the largest changes."""
    rows = [row for row in item.rows if row.first.median_ns or row.other.median_ns]
    shown = rows[:most]
    noisy = item.is_noise_known
    columns = [
        Column(_TITLES.get(item.by, word), "path" if item.by == MODULE else "name"),
        Column("first", "ns"), Column("second", "ns"), Column("difference", "change_ns"),
        *([Column("±", "ns", joined=True)] if noisy else []), Column("ratio", "factor", joined=True),
        Column("count", "number"), Column("then", "number", joined=True),
    ]  # fmt: skip
    cells: list[Row] = [_cells(_display_name(row.name, item.by), row, noisy) for row in shown]
    if left := rows[len(shown) :]:
        change_ns = sum(row.change_ns for row in left)
        medians = [sum(getattr(row, side).median_ns for row in left) for side in ("first", "other")]
        cells.append(_pad((f"{counted(len(left), 'other')}", *medians, change_ns), len(columns)))
    if round(item.rest_ns):
        cells.append(_pad(("medians that do not add up", None, None, item.rest_ns), len(columns)))
    cells.append(_cells("whole step" if item.first.steps else "whole trace", item.whole, noisy))
    table = Table(tuple(columns), cells, missing="", spare_columns=("then", "count", "ratio"))
    return Section(f"Per {_step(item)}" if item.first.steps else "Whole traces", tuple(_notes(item, labels)), table)


def _display_name(name: str, by: str) -> str:
    """Return a function before its file, and a class after what is left of a long operator.

    Tables cut the end of a name.
    """
    if by == SOURCE:
        location, colon, function = name.rpartition("): ")
        return f"{function} ({location.replace('(', ':')})" if colon else name
    head, mark, cls = name.rpartition(" (")
    return f"{cut(head, _LONGEST)}{mark}{cls}" if mark else name


def _pad(cells: tuple[Any, ...], size: int) -> Row:
    return (*cells, *(None for _ in range(size - len(cells))))


def _cells(name: str, row: StepRow, noisy: bool) -> Row:
    sure = not row.within_noise or not row.change_ns
    ratio = Cell(per(row.other.median_ns, row.first.median_ns), "factor", noise=noisy and not sure)
    counts = (row.first.count, row.other.count) if row.is_counted else (None, None)
    return (
        name, row.first.median_ns, row.other.median_ns, row.change_ns, *([row.noise_ns] if noisy else []), ratio,
        *counts,
    )  # fmt: skip


def _notes(item: BySteps, labels: tuple[str, str]) -> Iterator[str]:
    has_gpu = item.first.trace.has_gpu
    sides = list(zip(("first", "second"), labels, item.steps, strict=True))
    if item.first.steps:
        texts = [f"{side}: {label}, {counted(count, 'step')}" for side, label, count in sides]
        yield f"medians over steps; {'; '.join(texts)}"
    else:
        yield "; ".join(f"{side}: {label}" for side, label, _ in sides)
    what = "GPU work, from the end of the work before" if has_gpu else "CPU time, the profiler's cost included"
    where = ""
    if item.by in item.first.trace.host:
        where = "; time without work is of what the host was in meanwhile"
    each = " per step" * bool(item.first.steps)
    yield f"recorded {what}{where}; count: {'GPU work' if has_gpu else 'operators'}{each}"
    if item.is_noise_known:
        yield "±: a difference up to this is noise, as the steps of both traces overlap (~)"


def by_verdict(item: BySteps, labels: tuple[str, str]) -> tuple[str, ...]:
    """Return sentences on how much longer a step takes, the unequal work, and equal work that takes another time."""
    whole = item.whole
    if not any(row.change_ns for row in item.rows) and not whole.change_ns:
        return (f"{labels[1]} and {labels[0]} take the same time, and so does each {item.by} of them.",)
    sentences = [_total(item, labels), *_causes(item, labels), *_same(item)]
    unlike = unlike_sides(item.first, item.other)
    return (" ".join([*sentences, *([unlike] if unlike else [])]),)


def _total(item: BySteps, labels: tuple[str, str]) -> str:
    whole, what = item.whole, _step(item)
    first_ns, other_ns = whole.first.median_ns, whole.other.median_ns
    ratio = f", {factor_text(other_ns / first_ns)}" if first_ns else ""
    times = f"{time_text(other_ns)} against {time_text(first_ns)} ({signed_time_text(whole.change_ns)}{ratio})"
    if not item.first.steps:
        return f"{labels[1]} takes {times} in the {what}; steps are not marked, so the noise is not known."
    one, two = item.steps
    measured = counted(one, "recorded step") if one == two else f"{one} and {counted(two, 'recorded step')}"
    said = f"A {what} of {labels[1]} takes {times}, medians of {measured}"
    if not item.is_noise_known:
        return f"{said}: with fewer than {LEAST_STEPS} the noise is not known."
    ranges = [by_unit("ns", side.spread_ns) for side in (whole.other, whole.first)]
    overlap = "within the noise, as the steps overlap" if whole.within_noise else "beyond the spread over steps"
    return f"{said}: {overlap} ({ranges[0]} against {ranges[1]})."


def _causes(item: BySteps, labels: tuple[str, str]) -> Iterator[str]:
    """Yield the sentences on rows whose work is unequal."""
    if not item.unlike:
        if item.uneven:
            uneven = sorted(item.uneven, key=lambda row: -abs(row.other.count - row.first.count))[:_MOST_NAMED]
            names = ", ".join(f"{_named(row.name, item.by)}{_counts(row)}" for row in uneven)
            yield f"Work that they did not do as often takes no time beyond the noise: {names}. No cause is named."
        else:
            yield "Both did the same work as often, so nothing of the program is named as a cause."
        return
    for text, rows in (
        ("takes more for", [row for row in item.unlike if row.change_ns > 0]),
        ("takes less for", [row for row in item.unlike if row.change_ns < 0]),
    ):
        if rows:
            yield f"{labels[1]} {text} other work: {_listed(rows, item.by)}."


def _same(item: BySteps) -> Iterator[str]:
    """Yield the sentences on rows whose work is equal but takes another time."""
    if not item.slower:
        return
    why = "sizes of inputs, Python's own work or the machine, which counts cannot distinguish"
    beyond = "" if item.is_noise_known else ", of unknown noise"
    yield f"As often, but in another time{beyond}: {_listed(item.slower, item.by)}. That may be {why}."


def _listed(rows: Sequence[StepRow], by: str) -> str:
    texts = [f"{_named(row.name, by)} {signed_time_text(row.change_ns)}{_counts(row)}" for row in rows[:_MOST_NAMED]]
    more = len(rows) - len(texts)
    rest_ns = sum(row.change_ns for row in rows[len(texts) :])
    return ", ".join(texts) + (f" and {counted(more, 'other')} {signed_time_text(rest_ns)}" if more else "")


def _named(name: str, by: str) -> str:
    """Return a row's name in a sentence: of modules the last two."""
    return FoldedLocation(None, name).inner if by == MODULE else _display_name(name, by)


def _counts(row: StepRow) -> str:
    here, before = row.other.count, row.first.count
    return "" if here == before else f" ({number_text(here)} instead of {number_text(before)})"
