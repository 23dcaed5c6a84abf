"""Two traces kernel by kernel as a document: the sum, where it is, what differs, and both sequences side by side."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import PurePath
from typing import Any

from molprof.analysis.compare.kernels.cut import STEP, STEPS, Item, Selection
from molprof.analysis.compare.kernels.pairing import LEVELS, MATCHED, Change
from molprof.analysis.compare.kernels.sums import (
    EQUAL,
    NO_LAYER,
    PARTS,
    Sum,
    Summed,
    location_of,
    part_of,
    what,
)
from molprof.analysis.documents.kernel_verdict import PART_WORDS, kernel_verdict, noun
from molprof.analysis.documents.plots import plot_section
from molprof.common.document import Document, Field, Section, Table, columns, records, table_of, values
from molprof.common.values import (
    count_text,
    counted,
    per,
    short_name,
    time_text,
)

SCHEMA = 1
SIDES = ("first", "second")
# A piece of work in JSON and CSV.
_WORK: tuple[Field, ...] = (
    ("name", "text", "row.name"), ("class", "text", "row.cls"), ("operator", "text", "row.operator"),
    ("shape", "text", "row.shape"), ("module", "text", "row.module"), ("layer", "raw", "row.layer"),
    ("source", "text", "row.source"), ("phase", "text", "row.phase"), ("ts_ns", "raw", "row.ts"),
    ("time_ns", "raw", "own_ns"), ("idle_ns", "raw", "gap_ns"),
)  # fmt: skip
# A page shows so many rows of a table, and so many tables of the sequences; JSON and CSV have all.
_ROWS, _TABLES = 500, 20


def kernels_document(result: Summed, region: str) -> Document:
    """The difference between two traces by kernel, or by operator where no GPU is recorded."""
    labels = _labels(result)
    word = noun(result)
    recorded = f"recorded {'GPU' if result.pairing.first.trace.has_gpu else 'CPU'} time"
    parts = {PART_WORDS[part]: result.whole.parts[part] for part in PARTS}
    spans = result.pairing.first.span_ns, result.pairing.other.span_ns
    alike = ("between two matches; those that differ alike together",)
    sections = [
        Section("Sum", tuple(_notes(result, region, labels)), _sum(result, labels)),
        plot_section(["sum"], (labels, spans, parts, recorded)),
        Section("By place", ("layers together",), _sums("place", result, _places(result)), detail=True),
        Section(f"Where {word}s differ", alike, _hunks(result), detail=True),
        Section(f"Matched {word}s", (), _matched(result), detail=True),
        *_by_layer(result),
        *_side_by_side(result, labels),
    ]
    return Document(
        title=f"molprof compare by {word}: {labels[1]} against {labels[0]}",
        sections=tuple(sections),
        data=lambda: _data(result, region, labels),
        records=lambda: _records(result),
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
        text = f"{side}: {label}, {_region(part, region)}, {counted(count, noun(result))}"
        if part.outside[0]:
            text += f"; outside and not compared: {count_text(part.outside[0])}, {time_text(part.outside[1])}"
        yield text
    beside = [_beside_ns(part) for part in parts]
    if any(beside) and parts[0].trace.has_gpu:
        yield f"work beside earlier work counts once: {' and '.join(map(time_text, beside))} are left out"
    if parts[0].trace.has_gpu:
        yield "recorded GPU time, from the end of the work before to the end of the last; a gap counts for what ends it"
    else:
        yield (
            "recorded CPU time, the profiler's cost included; an operator without those that it calls; idle between: "
            "outside operators, such as Python"
        )


def _region(part: Selection, region: str) -> str:
    if region == STEP:
        return f"step {part.steps[0].name!r}"
    return counted(len(part.steps), "step") if region == STEPS else "the whole trace"


def _sum(result: Summed, labels: tuple[str, str]) -> Table:
    counts = Counter(map(part_of, result.pairing.changes))
    rows: list[tuple[Any, ...]] = [
        (PART_WORDS[part], None if part == "idle" else counts[part], result.whole.parts[part]) for part in PARTS
    ]
    rows.insert(2, (PART_WORDS[EQUAL], counts[EQUAL], None))
    if result.residual_ns:
        rows.append(("unexplained", None, result.residual_ns))
    shares = [(*row, per(row[2], result.span_ns)) for row in rows]
    shares.append((f"total of {labels[1]} against {labels[0]}", len(result.pairing.changes), result.span_ns, 1.0))
    heads = columns(("part", "text"), (f"{noun(result)}s", "count"), ("time", "change_ns"), ("share", "ratio"))
    return Table(heads, shares, missing="")


def _sums(title: str, result: Summed, sums: Iterable[tuple[str, Sum]]) -> Table:
    """A row for each sum by its name."""
    parts: list[Field] = [(PART_WORDS[part], "change_ns", f"1.parts.{part}") for part in PARTS]
    return table_of(
        sums,
        (title, "text", "0"),
        (f"{noun(result)}s, first", "count", "1.first.0"), (f"{noun(result)}s, second", "count", "1.other.0"),
        ("time, first", "ns", "1.first.1"), ("time, second", "ns", "1.other.1"),
        ("difference", "change_ns", "1.total_ns"), *parts,
    )  # fmt: skip


def _places(result: Summed) -> Iterator[tuple[str, Sum]]:
    for place, item in sorted(result.locations.items(), key=lambda pair: -abs(pair[1].total_ns)):
        yield place.short, item
    if result.pairing.tail_ns:
        tail = Sum()
        tail.parts["idle"] = result.pairing.tail_ns
        yield f"after the last {noun(result)} of a step", tail


def _by_layer(result: Summed) -> Iterator[Section]:
    layers = sorted(result.layers.items(), key=lambda pair: -1 if pair[0] is None else pair[0])
    if any(layer is not None for layer, _ in layers):
        named = ((NO_LAYER if layer is None else f"layer {layer}", item) for layer, item in layers)
        yield Section("By layer", (), _sums("layer", result, named), detail=True)


def _hunks(result: Summed) -> Table:
    def names(which: str) -> Any:
        return lambda item: ", ".join(_counted(map(short_name, getattr(item, which))))

    return table_of(
        result.hunks,
        ("place", "path", "location.short"), ("times", "count", "count"), ("difference", "change_ns", "sum.total_ns"),
        ("only in the first", "text", names("first")), ("only in the second", "text", names("other")),
        ("moved", "text", names("moved")), ("after", "text", lambda item: _short(item.between[0])),
        ("before", "text", lambda item: _short(item.between[1])),
        missing="", keys=2,
    )  # fmt: skip


def _counted(names: Iterable[str]) -> Iterator[str]:
    """Names in order, each once with its number."""
    for name, count in Counter(names).items():
        yield name if count == 1 else f"{count} x {name}"


def _short(name: str | None) -> str | None:
    return None if name is None else short_name(name)


def _matched(result: Summed) -> Table:
    """What is matched by what it is, the largest difference first."""
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for change in result.pairing.changes:
        if change.first is not None and change.other is not None:
            amounts = found[what(change.first.row), what(change.other.row)]
            for place, amount in enumerate((1, change.first.own_ns, change.other.own_ns)):
                amounts[place] += amount
    rows = [
        (*map(short_name, key), count, first_ns, other_ns, per(other_ns, first_ns), other_ns - first_ns)
        for key, (count, first_ns, other_ns) in sorted(found.items(), key=lambda pair: -abs(pair[1][2] - pair[1][1]))
    ]
    heads = columns(
        ("first", "name"), ("second", "name"), ("pairs", "count"), ("time, first", "ns"), ("time, second", "ns"),
        ("ratio", "factor"), ("difference", "change_ns"),
    )  # fmt: skip
    return Table(tuple(replace(head, joined=head.title == "ratio") for head in heads), rows, missing="-")


def _side_by_side(result: Summed, labels: tuple[str, str]) -> Iterator[Section]:
    """Both sequences in order. Neighbouring work of a layer and phase is folded with other layers and steps like it."""
    heads = columns(
        ("place", "path"), ("times", "count"), (labels[0], "name"), ("time", "ns"), ("gap before", "ns"),
        (labels[1], "name"), ("time", "ns"), ("gap before", "ns"), ("difference", "change_ns"), ("change", "text"),
    )  # fmt: skip
    folded = [column for block in _blocks(result.pairing.changes) for column in block]
    rows = list(map(_beside_row, folded))
    for start in range(0, min(len(rows), _ROWS * _TABLES), _ROWS):
        end = min(start + _ROWS, len(rows))
        marked = (row for row, column in enumerate(folded[start:end]) if column[0].kind != MATCHED)
        table = Table(heads, rows[start:end], frozenset(marked), missing="")
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
        found_columns = found.setdefault(signature, [[] for _ in block])
        for column, change in zip(found_columns, block, strict=True):
            column.append(change)
    return list(found.values())


def _what(item: Item | None) -> str | None:
    return None if item is None else what(item.row)


def _beside_row(changes: Sequence[Change]) -> tuple[Any, ...]:
    total = Sum()
    for change in changes:
        total.add(change)
    cells: list[Any] = []
    for item, amounts in ((changes[0].first, total.first), (changes[0].other, total.other)):
        cells += [None, None, None] if item is None else [what(item.row), amounts[1], amounts[2]]
    kinds = {part_of(change) for change in changes}
    kind = kinds.pop() if len(kinds) == 1 else MATCHED
    return (location_of(changes[0].row).text, len(changes), *cells, total.total_ns, kind)


def _beside_ns(part: Selection) -> int:
    """Time in which earlier work of the device still ran, ns: it counts for that work alone."""
    return sum(item.row.dur - item.own_ns for item in part.items)


def _sequence(result: Summed) -> Iterator[dict[str, Any]]:
    """Each pair or piece of work: `first` and `other` are None, or values by the names of _WORK."""
    changes = result.pairing.changes
    names = [field[0] for field in _WORK]
    sides = [values([getattr(change, side) for change in changes], *_WORK) for side in ("first", "other")]
    for change, *pair in zip(changes, *sides, strict=True):
        first, other = (None if cells[0] is None else dict(zip(names, cells, strict=True)) for cells in pair)
        yield {
            "change": part_of(change),
            "by": None if change.level is None else LEVELS[change.level],
            "difference_ns": change.time_ns,
            "idle_difference_ns": change.idle_ns,
            "first": first,
            "other": other,
        }


def _records(result: Summed) -> Table:
    rows = []
    for item in _sequence(result):
        sides = {side: item.pop(side) or {} for side in ("first", "other")}
        cells = {f"{side}_{field[0]}": found.get(field[0]) for side, found in sides.items() for field in _WORK}
        rows.append({**item, **cells})
    return records(rows, missing="")


def _data(result: Summed, region: str, labels: tuple[str, str]) -> dict[str, Any]:
    names: dict[str, int] = {}  # work has the number of its name
    parts = (result.pairing.first, result.pairing.other)
    sequence = list(_sequence(result))
    for work in (item[side] for item in sequence for side in ("first", "other")):
        if work is not None:
            work["name"] = names.setdefault(work["name"], len(names))
    return {
        "schema": SCHEMA,
        "by": noun(result),
        "region": region,
        "traces": [_trace(label, part) for label, part in zip(labels, parts, strict=True)],
        "difference": {
            "span_ns": result.span_ns,
            "parts": result.whole.parts,
            "counts": result.whole.counts,
            "residual_ns": result.residual_ns,
            "after_last_ns": result.pairing.tail_ns,
            "problems": list(result.problems),
        },
        "verdict": list(kernel_verdict(result, labels)),
        "places": [
            {"phase": place.phase, "module": place.module, **item.to_json()} for place, item in result.locations.items()
        ],
        "layers": [{"layer": layer, **item.to_json()} for layer, item in result.layers.items()],
        "stretches": [
            {
                "phase": item.location.phase,
                "module": item.location.module,
                "count": item.count,
                "deleted": list(item.first),
                "inserted": list(item.other),
                "moved": list(item.moved),
                "after": item.between[0],
                "before": item.between[1],
                **item.sum.to_json(),
            }
            for item in result.hunks
        ],
        "sequence": sequence,
        "names": list(names),
    }


def _trace(label: str, part: Selection) -> dict[str, Any]:
    return {
        "label": label,
        "path": part.trace.info.path,
        "complete": part.trace.info.complete,
        "steps": [step.name for step in part.steps],
        "span_ns": part.span_ns,
        "count": len(part.items),
        "beside_ns": _beside_ns(part),
        "outside": {"count": part.outside[0], "time_ns": part.outside[1]},
    }
