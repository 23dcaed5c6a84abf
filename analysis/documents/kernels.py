"""Two traces kernel by kernel as a document: the verdict, the sum, differences by location, both sequences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

from msgspec.structs import replace

from molprof.analysis.compare.kernels.pick import Kernels
from molprof.analysis.compare.kernels.read import STEP, STEPS, RecordedWork, Selection
from molprof.analysis.compare.kernels.sums import (
    DELETED,
    INSERTED,
    LEVELS,
    MATCHED,
    MOVED,
    NO_LAYER,
    PART_WORDS,
    PARTS,
    FoldedLocation,
    Hunk,
    RowSum,
    Summed,
    WorkChange,
    location_of,
    part_of,
    what,
)
from molprof.analysis.documents.by import by_data, by_document, labels_of, paths_of, unlike_sides
from molprof.analysis.documents.differing import compare_command
from molprof.analysis.documents.plots import plot_section
from molprof.common.document import (
    Document,
    Field,
    Name,
    Section,
    Table,
    last_rows,
    named,
    objects,
    records,
    table_of,
)
from molprof.common.values import (
    count_text,
    counted,
    cut,
    factor_text,
    number_text,
    numbered,
    per,
    short_name,
    short_source,
    signed_time_text,
    time_text,
)

SCHEMA = 1
SIDES = ("first", "second")
# A pair of work in JSON and CSV; a side without a counterpart is None. `_WORK`: the names of each side.
_CHANGE: tuple[Name, ...] = (
    ("change", part_of), ("by", lambda change: None if change.level is None else LEVELS[change.level]),
    ("difference_ns", "time_ns"), ("idle_difference_ns", "idle_ns"),
)  # fmt: skip
_WORK: dict[str, str | Callable[[Any], Any]] = {
    "name": "name", "class": "cls", "operator": "operator", "shape": "shape", "module": "module", "layer": "layer",
    "source": "source", "phase": "phase", "ts_ns": "ts", "time_ns": "own_ns", "idle_ns": "gap_ns",
}  # fmt: skip
_FLAT = [(f"{side}_{name}", f"{side}.{where}") for side in ("first", "other") for name, where in _WORK.items()]
# In JSON.
_SIDE: tuple[Name, ...] = (
    ("path", "trace.info.path"), ("complete", "trace.info.complete"),
    ("steps", lambda side: [step.name for step in side.steps]), "span_ns", ("count", lambda side: len(side.items)),
    ("beside_ns", lambda side: _beside_ns(side)),
    ("outside", lambda side: dict(zip(("count", "time_ns"), side.outside, strict=True))),
)  # fmt: skip
_DIFFERENCE: tuple[Name, ...] = (
    "span_ns", ("parts", "whole.parts"), ("counts", "whole.counts"), ("matched", "whole.matched"), "residual_ns",
    ("after_last_ns", "tail_ns"), "problems",
)  # fmt: skip
_HUNK: tuple[Name, ...] = (
    ("phase", "location.phase"), ("module", "location.module"), "count", ("deleted", "first"), ("inserted", "other"),
    "moved", ("after", "between.0"), ("before", "between.1"),
)  # fmt: skip
_VERBS = {INSERTED: "adds", DELETED: "leaves out", MOVED: "moves"}
_ALIKE = "between two matches; those that differ alike together"
# In a sentence about kernels.
_MOST_LOCATIONS, _MOST_NAMES = 2, 3
_LONGEST = 60
# A screen shows so many locations at most, and at least.
_LOCATIONS, _LEAST_PLACES = 8, 3


def kernels_document(kernels: Kernels) -> Document:
    """Return the difference between two traces: medians over steps where they mark some, and their work in order."""
    word = noun(kernels.pairs) if kernels.pairs else kernels.steps[0].by
    labels = labels_of(*kernels.sides)
    if kernels.pairs is None:
        return by_document(kernels.steps, labels, word)
    pairs = _pairs_document(kernels.pairs, kernels.region, labels)
    if not kernels.steps:
        return pairs
    steps = by_document(kernels.steps, labels, word)
    return replace(
        steps,
        sections=(*steps.sections, *(replace(section, detail=True) for section in pairs.sections)),
        data=lambda: {**pairs.data(), **by_data(kernels.steps, labels)},
        records=pairs.records,
        warnings=(*steps.warnings, *pairs.warnings),
    )


def _pairs_document(result: Summed, region: str, labels: tuple[str, str]) -> Document:
    """Return the difference between two traces by kernel, or operator where no GPU is recorded, pair by pair."""
    word = noun(result)
    recorded = f"recorded {'GPU' if result.first.trace.has_gpu else 'CPU'} time"
    parts = {PART_WORDS[part]: result.whole.parts[part] for part in PARTS}
    spans = result.first.span_ns, result.other.span_ns
    layers = [
        (NO_LAYER if layer is None else f"layer {layer}", item)
        for layer, item in sorted(result.layers.items(), key=lambda pair: -1 if pair[0] is None else pair[0])
    ]
    by_layer = [Section("By layer", (), _sums("layer", result, layers), detail=True)] if len(layers) > 1 else []
    total = Section("Sum", tuple(_notes(result, region, labels)), _sum(result))
    unlike = unlike_sides(result.first, result.other)
    return Document(
        title=f"molprof compare by {word}: {labels[1]} against {labels[0]}",
        sections=(
            total,
            plot_section(["sum"], (labels, spans, parts, recorded)),
            Section("By location", ("layers together",), _sums("place", result, _locations(result)), detail=True),
            Section(f"Where {word}s differ", (_ALIKE,), _hunks(result), detail=True),
            Section(f"Matched {word}s", (), _matched(result), detail=True),
            *by_layer,
            _side_by_side(result, labels),
        ),
        data=lambda: _data(result, region, labels),
        records=lambda: records(objects(result.changes, *_CHANGE, *_FLAT), missing=""),
        warnings=tuple(f"the sum does not hold: {problem}" for problem in result.problems),
        summary=(*kernel_verdict(result, labels), *([unlike] if unlike else [])),
        screen=(
            total,
            _largest(result),
            Section("Next", (f"{compare_command(paths_of(result.first, result.other))} --by kernel --all",)),
        ),
    )


def _largest(result: Summed) -> Section:
    """Return the locations whose times differ most."""
    rows = [pair for pair in islice(_locations(result), _LOCATIONS) if any(pair[1].counts.values())]
    table = table_of(
        rows,
        ("location", "path", "0"), (SIDES[0], "ns", "1.first.span_ns"), (SIDES[1], "ns", "1.other.span_ns"),
        ("difference", "change_ns", "1.total_ns"),
        keys=4, spare=(*last_rows(len(rows), _LEAST_PLACES), tuple(range(_LEAST_PLACES))),
    )  # fmt: skip
    return Section("Largest locations, with the idle time before their work", table=table)


def noun(result: Summed) -> str:
    """Return the noun for one sequence: molecule, answer or request."""
    return "kernel" if result.first.trace.has_gpu else "operator"


def _notes(result: Summed, region: str, labels: tuple[str, str]) -> Iterator[str]:
    parts = (result.first, result.other)
    for side, label, part in zip(SIDES, labels, parts, strict=True):
        text = f"{side}: {label}, {_region(part, region)}, {_amount(part.items, noun(result))}"
        outside, outside_ns = part.outside
        yield f"{text}; not compared: {count_text(outside)} outside, {time_text(outside_ns)}" if outside else text
    beside = [_beside_ns(part) for part in parts]
    if any(beside) and parts[0].trace.has_gpu:
        yield f"work that overlaps earlier work counts once: {' and '.join(map(time_text, beside))} are left out"
    if text := result.whole.split_text:
        yield f"of matched {noun(result)}s: {text}"
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


def _sum(result: Summed) -> Table:
    counts = Counter(map(part_of, result.changes))
    rows = [
        (words, None if part == "idle" else counts[part], result.whole.parts.get(part))
        for part, words in PART_WORDS.items()
    ]
    rows = [row for row in rows if row[1] or row[2]]
    if result.residual_ns:
        rows.append(("unexplained", None, result.residual_ns))
    rows.append(("total", len(result.changes), result.span_ns))
    return table_of(
        rows,
        ("part", "text", "0"), ("count", "count", "1"), ("time", "change_ns", "2"),
        ("change", "change_ratio", lambda row: per(row[2], result.first.span_ns)),
        missing="", keys=4, spare=(tuple(range(len(rows))),),  # the verdict has them
    )  # fmt: skip


def _sums(title: str, result: Summed, sums: Iterable[tuple[str, RowSum]]) -> Table:
    """Return a table with a row for each sum, by its name."""
    parts: list[Field] = [(PART_WORDS[part], "change_ns", f"1.parts.{part}") for part in PARTS]
    return table_of(
        sums,
        (title, "text", "0"),
        ("count, first", "count", "1.first.count"), ("count, second", "count", "1.other.count"),
        ("time, first", "ns", "1.first.time_ns"), ("time, second", "ns", "1.other.time_ns"),
        ("difference", "change_ns", "1.total_ns"), *parts,
    )  # fmt: skip


def _locations(result: Summed) -> Iterator[tuple[str, RowSum]]:
    for location, item in sorted(result.locations.items(), key=lambda pair: -abs(pair[1].total_ns)):
        yield location.short, item
    if result.tail_ns:
        tail = RowSum()
        tail.parts["idle"] = result.tail_ns
        yield f"after the last {noun(result)} of a step", tail


def _hunks(result: Summed) -> Table:
    def names(title: str, which: str) -> Field:
        """Return a column of distinct names in order, each with its number."""

        def text(hunk: Hunk) -> str:
            counts = Counter(map(short_name, getattr(hunk, which)))
            return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())

        return title, "text", text

    return table_of(
        result.hunks,
        ("location", "path", "location.short"), ("times", "count", "count"),
        ("difference", "change_ns", "sum.total_ns"),
        names("only in the first", "first"), names("only in the second", "other"), names("moved", "moved"),
        ("after", "name", "between.0"), ("before", "name", "between.1"),
        missing="", keys=2,
    )  # fmt: skip


def _matched(result: Summed) -> Table:
    """Return the table of matched work by operator and class, the largest difference first."""
    sums: defaultdict[tuple[str, str], RowSum] = defaultdict(RowSum)
    for change in result.changes:
        if change.first is not None and change.other is not None:
            sums[what(change.first), what(change.other)].add(change)
    return table_of(
        sorted(sums.items(), key=lambda pair: -abs(pair[1].other.time_ns - pair[1].first.time_ns)),
        ("first", "name", "0.0"), ("second", "name", "0.1"), ("pairs", "count", "1.first.count"),
        ("time, first", "ns", "1.first.time_ns"), ("time, second", "ns", "1.other.time_ns"),
        ("ratio", "factor", lambda pair: per(pair[1].other.time_ns, pair[1].first.time_ns)),
        ("difference", "change_ns", lambda pair: pair[1].other.time_ns - pair[1].first.time_ns),
        missing="-",
    )  # fmt: skip


def _side_by_side(result: Summed, labels: tuple[str, str]) -> Section:
    """Return both sequences side by side, in order."""

    def side(name: str, label: str) -> Iterator[Field]:
        yield label, "name", lambda item: (work := getattr(item[0], name)) and what(work)
        yield "time", "ns", lambda item: getattr(item[0], name) and getattr(item[1], name).time_ns
        yield "gap before", "ns", lambda item: getattr(item[0], name) and getattr(item[1], name).idle_ns

    fields: list[Field] = [
        ("location", "path", lambda item: location_of(item[0].work).text),
        ("times", "count", lambda item: sum(item[1].counts.values())), *side("first", labels[0]),
        *side("other", labels[1]), ("difference", "change_ns", "1.total_ns"),
        ("change", "text", lambda item: next(iter(item[2])) if len(item[2]) == 1 else MATCHED),
    ]  # fmt: skip
    rows = _folded(result.changes)
    marked = frozenset(index for index, (change, _, _) in enumerate(rows) if change.kind != MATCHED)
    notes = ("equal layers and steps together, with their times added up",)
    table = table_of(rows, *fields, marked=marked, missing="")
    return Section("Side by side", notes, table, page_only=True, detail=True)


def _folded(changes: Sequence[WorkChange]) -> list[tuple[WorkChange, RowSum, set[str]]]:
    """Return changes with their sums and parts; adjacent ones of a layer and phase that are similar are folded."""
    blocks: dict[Any, list[tuple[WorkChange, RowSum, set[str]]]] = {}
    for _, group in groupby(changes, key=lambda change: (change.work.phase, change.work.layer)):
        block = list(group)
        signature = tuple(
            (change.kind, *(item and what(item) for item in (change.first, change.other)), location_of(change.work))
            for change in block
        )
        folded = blocks.setdefault(signature, [(change, RowSum(), set()) for change in block])
        for change, (_, total, parts) in zip(block, folded, strict=True):
            total.add(change)
            parts.add(part_of(change))
    return [item for block in blocks.values() for item in block]


def _beside_ns(part: Selection) -> int:
    """Return the time in which earlier work of the device still ran, ns: it counts for that work alone."""
    return sum(item.dur - item.own_ns for item in part.items)


def _data(result: Summed, region: str, labels: tuple[str, str]) -> dict[str, Any]:
    names: dict[str, int] = {}  # work has the number of its name
    work = [*(_WORK | {"name": lambda item: names.setdefault(item.name, len(names))}).items()]
    sequence = objects(result.changes, *_CHANGE, ("first", "first", work), ("other", "other", work))
    sides = zip(labels, objects((result.first, result.other), *_SIDE), strict=True)
    return {
        "schema": SCHEMA, "by": noun(result), "region": region,
        "traces": [{"label": label, **side} for label, side in sides],
        "difference": named(result, *_DIFFERENCE), "verdict": kernel_verdict(result, labels),
        "locations": objects(result.locations.items(), ("phase", "0.phase"), ("module", "0.module"), *_of_sum("1")),
        "layers": objects(result.layers.items(), ("layer", "0"), *_of_sum("1")),
        "hunks": objects(result.hunks, *_HUNK, *_of_sum("sum")), "sequence": sequence, "names": list(names),
    }  # fmt: skip


def _of_sum(where: str) -> list[Name]:
    """Return the names of a `RowSum` that an item has there."""
    names = ("parts", "counts", "matched", "first", "other")
    return [("difference_ns", f"{where}.total_ns"), *((name, f"{where}.{name}") for name in names)]


def kernel_verdict(result: Summed, labels: tuple[str, str]) -> tuple[str, ...]:
    """Return sentences on the second trace: how much longer, extra, missing and moved work, largest differences."""
    if not result.span_ns and not any(result.whole.parts.values()) and not result.hunks:
        return (f"{labels[1]} and {labels[0]} ran the same {noun(result)}s in the same time.",)
    lines = (
        _total(result, labels),
        *(_only(result, kind) for kind in _VERBS),
        *(_most(result, part) for part in ("slower", "faster")),
    )
    return tuple(filter(None, lines))


def _total(result: Summed, labels: tuple[str, str]) -> str:
    first_ns, other_ns = result.first.span_ns, result.other.span_ns
    ratio = f", {factor_text(other_ns / first_ns)}" if first_ns else ""
    said = [
        f"{PART_WORDS[part]} {signed_time_text(ns)}"
        + (f" ({_amount(_of_kind(result, part), noun(result))})" if part in _VERBS else "")
        for part, ns in sorted(result.whole.parts.items(), key=lambda item: -abs(item[1]))
        if ns
    ]
    span = "GPU span" if result.first.trace.has_gpu else "span of operators"
    total = f"{labels[1]} has a recorded {span} of {time_text(other_ns)}, {labels[0]} of {time_text(first_ns)}"
    return f"{total} ({signed_time_text(result.span_ns)}{ratio}): {', '.join(said)}." if said else f"{total}."


def _only(result: Summed, kind: str) -> str:
    """Return text on added or removed work of one kind, by its location and caller."""
    changes = [change for change in result.changes if change.kind == kind]
    if not changes:
        return ""
    # A count, or its mean per step.
    steps = len((result.first if kind == DELETED else result.other).steps)
    around: dict[FoldedLocation, Hunk] = {}  # the first hunk of each location that has such changes
    for hunk in result.hunks:
        if any(change.kind == kind for change in hunk.example):
            around.setdefault(hunk.location, hunk)
    by_location: dict[FoldedLocation, list[WorkChange]] = {}
    for change in changes:
        by_location.setdefault(location_of(change.work), []).append(change)
    said = [
        f"{number_text(len(same) / (steps or 1))} {_where(where, around.get(where))}: {_work_names(same, steps or 1)}"
        for where, same in sorted(by_location.items(), key=lambda item: -len(item[1]))
    ]
    number = _amount([change.work for change in changes], noun(result), steps or 1)
    time_ns = sum(change.time_ns for change in changes)
    start = f"It {_VERBS[kind]} {number}{' per step' if steps else ''} ({signed_time_text(time_ns)})"
    return f"{start}: {_listed(said, _MOST_LOCATIONS, 'more location', ';')}."


def _listed(texts: Sequence[str], most: int, noun: str, mark: str = "") -> str:
    """Return the first texts, and how many more there are.

    Mark: what stands before `and`, and between the texts, else ,.
    """
    said, more = f"{mark or ','} ".join(texts[:most]), len(texts) - most
    return f"{said}{mark} and {counted(more, noun)}" if more > 0 else said


def _where(location: FoldedLocation, hunk: Hunk | None) -> str:
    """Return the phase and module of a location as text, or the work before and after it."""
    inside = [f"in the {location.phase} phase"] if location.phase else []
    inside += [f"in {location.inner}"] if location.module else []
    before, after = (None if change is None else change.work for change in (hunk.around if hunk else (None, None)))
    if location.phase and before and after and location.phase not in (before.phase, after.phase):
        inside.append(f"between {before.phase} and {after.phase}")
    elif not inside:
        start, end = (_work_name(before) if before else "the start"), (_work_name(after) if after else "the end")
        inside.append(f"between {start} and {end}")
    return ", ".join(inside)


def _work_names(changes: Sequence[WorkChange], steps: int) -> str:
    """Return the most frequent operators, and the functions that call them."""
    groups = Counter((_work_name(change.work), change.work.source) for change in changes)
    sources = {source for _, source in groups}
    said = [
        f"{number_text(number / steps)} {name}"
        + (f" from {short_source(source)}" if source and len(sources) > 1 else "")
        for (name, source), number in groups.most_common()
    ]
    source = sources.pop() if len(sources) == 1 else None
    return _listed(said, _MOST_NAMES, "other") + (f" from {short_source(source)}" if source else "")


def _of_kind(result: Summed, kind: str) -> list[RecordedWork]:
    return [change.work for change in result.changes if change.kind == kind]


def _amount(rows: Sequence[RecordedWork], word: str, steps: int = 1) -> str:
    """Return the number of kernels, or operators, per step; copies and memsets are counted apart."""
    kinds = Counter(_memory_kind(row) for row in rows)
    copies = kinds["memcpy"] / steps
    said = [numbered(kinds[None] / steps, word)] if kinds[None] or not rows else []
    said += [f"{number_text(copies)} {'copy' if copies == 1 else 'copies'}"] if copies else []
    said += [numbered(kinds["memset"] / steps, "memset")] if kinds["memset"] else []
    return " and ".join(filter(None, [", ".join(said[:-1]), said[-1]]))


def _memory_kind(row: RecordedWork) -> str | None:
    """Return memcpy or memset; None for kernels and operators."""
    return next((kind for kind in ("memcpy", "memset") if row.cls is not None and row.cls.startswith(kind)), None)


def _work_name(row: RecordedWork) -> str:
    """Return the operator of the work, with the class of a copy or memset; without operator its own name."""
    if row.operator is None:
        return cut(short_name(row.name), _LONGEST)
    return cut(f"{row.cls} of {row.operator}" if _memory_kind(row) else row.operator, _LONGEST)


def _most(result: Summed, part: str) -> str:
    times = [(location.short, item.parts[part]) for location, item in result.locations.items() if item.parts[part]]
    said = [f"{location} {signed_time_text(ns)}" for location, ns in sorted(times, key=lambda item: -abs(item[1]))]
    if not said:
        return ""
    return f"Matched {noun(result)}s are {part} most in {_listed(said, _MOST_LOCATIONS, 'more location')}."
