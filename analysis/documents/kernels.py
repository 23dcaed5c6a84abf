"""Two traces kernel by kernel as a document: the sum, where it is, what differs, and both sequences side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import PurePath
from typing import Any

from molprof.analysis.compare.kernels.cut import Item
from molprof.analysis.compare.kernels.pairing import MATCHED, Change
from molprof.analysis.compare.kernels.sums import EQUAL, NO_LAYER, PARTS, Hunk, Sum, Summed, location_of, part_of, what
from molprof.analysis.documents.kernel_data import beside_ns, kernel_records, kernels_data
from molprof.analysis.documents.kernel_words import PART_WORDS, kernel_verdict, lines_of, noun, region_words
from molprof.common.document import Column, Document, Plot, Row, Section, Table
from molprof.common.values import count_text, counted, per, short_name, time_text

# A page shows so many rows of a table, and so many tables of the sequences; JSON and CSV have all.
_ROWS, _TABLES = 500, 20
SIDES = ("first", "second")
_CAPTION = "From the time of the first trace, part by part, to that of the second"


def kernels_document(result: Summed, region: str) -> Document:
    """The difference between two traces by kernel, or by operator where no GPU is recorded."""
    labels = _labels(result)
    word = noun(result)
    sections = [
        Section("Sum", (*_notes(result, region, labels),), _sum(result, labels)),
        Section(
            "", parts=(Section("From the first to the second", plot=Plot(_CAPTION, partial(_svg, result, labels))),)
        ),
        Section("By place", ("layers together",), _places(result), detail=True),
        Section(
            f"Where {word}s differ",
            ("between two matches; those that differ alike together",),
            _hunks(result),
            detail=True,
        ),
        Section(f"Matched {word}s", (), _matched(result), detail=True),
    ]
    if any(layer is not None for layer in result.layers):
        sections.append(Section("By layer", (), _layers(result), detail=True))
    sections += _side_by_side(result, labels)
    return Document(
        title=f"molprof compare by {word}: {labels[1]} against {labels[0]}",
        sections=tuple(sections),
        data=lambda: kernels_data(result, region, labels),
        records=lambda: kernel_records(result),
        warnings=tuple(f"the sum does not hold: {problem}" for problem in result.problems),
        summary=kernel_verdict(result, labels),
    )


def _labels(result: Summed) -> tuple[str, str]:
    """Names of the files; their paths where names are equal."""
    paths = [str(part.trace.info.path) for part in (result.pairing.first, result.pairing.other)]
    names = [PurePath(path).name.removesuffix(".gz").removesuffix(".json").removesuffix(".pftrace") for path in paths]
    if names[0] == names[1]:
        names = paths if paths[0] != paths[1] else ["first", "second"]
    return names[0], names[1]


def _notes(result: Summed, region: str, labels: tuple[str, str]) -> Iterator[str]:
    parts = (result.pairing.first, result.pairing.other)
    for side, label, part in zip(SIDES, labels, parts, strict=True):
        count = len(part.items)
        text = f"{side}: {label}, {region_words(part, region)}, {counted(count, noun(result))}"
        if part.outside[0]:
            text += f"; outside and not compared: {count_text(part.outside[0])}, {time_text(part.outside[1])}"
        yield text
    beside = [beside_ns(part) for part in parts]
    if any(beside) and parts[0].trace.has_gpu:
        yield f"work beside earlier work counts once: {' and '.join(map(time_text, beside))} are left out"
    if parts[0].trace.has_gpu:
        yield "recorded GPU time, from the end of the work before to the end of the last; a gap counts for what ends it"
    else:
        yield (
            "recorded CPU time, the profiler's cost included; an operator without those that it calls; idle between: "
            "outside operators, such as Python"
        )


def _sum(result: Summed, labels: tuple[str, str]) -> Table:
    counts = Counter(map(part_of, result.pairing.changes))
    rows: list[Row] = [
        (
            PART_WORDS[part],
            None if part == "idle" else counts[part],
            result.whole.parts[part],
            per(result.whole.parts[part], result.span_ns),
        )
        for part in PARTS
    ]
    rows.insert(2, (PART_WORDS[EQUAL], counts[EQUAL], None, None))
    if result.residual_ns:
        rows.append(("unexplained", None, result.residual_ns, per(result.residual_ns, result.span_ns)))
    rows.append((f"total of {labels[1]} against {labels[0]}", len(result.pairing.changes), result.span_ns, 1.0))
    columns = (
        Column("part"),
        Column(f"{noun(result)}s", "count"),
        Column("time", "change_ns"),
        Column("share", "ratio"),
    )
    return Table(columns, rows, missing="")


def _svg(result: Summed, labels: tuple[str, str]) -> str:
    from molprof.analysis.documents.plots.waterfall import sum_svg  # loads matplotlib

    totals = result.pairing.first.span_ns, result.pairing.other.span_ns
    parts = {PART_WORDS[part]: result.whole.parts[part] for part in PARTS}
    what = "recorded GPU time" if result.pairing.first.trace.has_gpu else "recorded CPU time"
    return sum_svg(labels, totals, parts, what)


def _columns(title: str, result: Summed) -> tuple[Column, ...]:
    counts = [Column(f"{noun(result)}s, {side}", "count") for side in SIDES]
    times = [Column(f"time, {side}", "ns") for side in SIDES]
    parts = [Column(PART_WORDS[part], "change_ns") for part in PARTS]
    return (Column(title), *counts, *times, Column("difference", "change_ns"), *parts)


def _row(name: str, item: Sum) -> Row:
    parts = [item.parts[part] for part in PARTS]
    return (name, item.first[0], item.other[0], item.first[1], item.other[1], item.total_ns, *parts)


def _places(result: Summed) -> Table:
    rows = [
        _row(place.short, item)
        for place, item in sorted(result.locations.items(), key=lambda pair: -abs(pair[1].total_ns))
    ]
    if result.pairing.tail_ns:
        tail = Sum()
        tail.parts["idle"] = result.pairing.tail_ns
        rows.append(_row(f"after the last {noun(result)} of a step", tail))
    return Table(_columns("place", result), rows)


def _layers(result: Summed) -> Table:
    layers = sorted(result.layers.items(), key=lambda pair: -1 if pair[0] is None else pair[0])
    rows = [_row(NO_LAYER if layer is None else f"layer {layer}", item) for layer, item in layers]
    return Table(_columns("layer", result), rows)


def _hunks(result: Summed) -> Table:
    columns = (
        Column("place", "path"), Column("times", "count"), Column("difference", "change_ns"),
        Column("only in the first"), Column("only in the second"), Column("moved"), Column("after"), Column("before"),
    )  # fmt: skip
    rows = [
        (item.location.short, item.count, item.sum.total_ns, *_texts(item), *map(_short, item.between))
        for item in result.hunks
    ]
    return Table(columns, rows, missing="", keys=2)


def _texts(hunk: Hunk) -> tuple[str, ...]:
    return tuple(
        ", ".join(lines_of([_short(name) or "" for name in names])) for names in (hunk.first, hunk.other, hunk.moved)
    )


def _short(name: str | None) -> str | None:
    return None if name is None else short_name(name)


def _matched(result: Summed) -> Table:
    """What is matched by what it is, the largest difference first."""
    found: dict[tuple[str, str], list[int]] = {}
    for change in result.pairing.changes:
        if change.first is not None and change.other is not None:
            key = what(change.first.row), what(change.other.row)
            amounts = found.setdefault(key, [0, 0, 0])
            for place, amount in enumerate((1, change.first.own_ns, change.other.own_ns)):
                amounts[place] += amount
    rows = [
        (*map(short_name, key), count, first_ns, other_ns, per(other_ns, first_ns), other_ns - first_ns)
        for key, (count, first_ns, other_ns) in sorted(found.items(), key=lambda pair: -abs(pair[1][2] - pair[1][1]))
    ]
    columns = (
        *(Column(side, "name") for side in SIDES), Column("pairs", "count"),
        *(Column(f"time, {side}", "ns") for side in SIDES), Column("ratio", "factor", joined=True),
        Column("difference", "change_ns"),
    )  # fmt: skip
    return Table(columns, rows, missing="-")


def _side_by_side(result: Summed, labels: tuple[str, str]) -> Iterator[Section]:
    """Both sequences in order. Neighbouring work of a layer and phase is folded with other layers and steps like it."""
    columns = (
        Column("place", "path"), Column("times", "count"),
        Column(labels[0], "name"), Column("time", "ns"), Column("gap before", "ns"),
        Column(labels[1], "name"), Column("time", "ns"), Column("gap before", "ns"),
        Column("difference", "change_ns"), Column("change"),
    )  # fmt: skip
    rows: list[Row] = []
    marked: list[int] = []
    for block in _blocks(result.pairing.changes):
        for column in block:
            if column[0].kind != MATCHED:
                marked.append(len(rows))
            rows.append(_beside_row(column))
    for start in range(0, min(len(rows), _ROWS * _TABLES), _ROWS):
        end = min(start + _ROWS, len(rows))
        table = Table(
            columns, rows[start:end], frozenset(row - start for row in marked if start <= row < end), missing=""
        )
        title = "Side by side" if len(rows) <= _ROWS else f"Side by side, {start + 1} to {end} of {len(rows):,}"
        notes = ("equal layers and steps together, with their times added up",) if start == 0 else ()
        yield Section(title, notes, table, page_only=True, detail=True)


def _blocks(changes: Sequence[Change]) -> list[list[list[Change]]]:
    """Blocks in order of their first one; of each place in it the changes of all blocks that are alike."""
    found: dict[Any, list[list[Change]]] = {}
    for _, group in groupby(changes, key=lambda change: (change.row.phase, change.row.layer)):
        block = list(group)
        signature = tuple(
            (change.kind, _what(change.first), _what(change.other), location_of(change.row)) for change in block
        )
        columns = found.setdefault(signature, [[] for _ in block])
        for column, change in zip(columns, block, strict=True):
            column.append(change)
    return list(found.values())


def _what(item: Item | None) -> str | None:
    return None if item is None else what(item.row)


def _beside_row(changes: Sequence[Change]) -> Row:
    total = Sum()
    for change in changes:
        total.add(change)
    cells: list[Any] = []
    for item, amounts in ((changes[0].first, total.first), (changes[0].other, total.other)):
        cells += [None, None, None] if item is None else [what(item.row), amounts[1], amounts[2]]
    kinds = {part_of(change) for change in changes}
    kind = kinds.pop() if len(kinds) == 1 else MATCHED
    return (location_of(changes[0].row).text, len(changes), *cells, total.total_ns, kind)
