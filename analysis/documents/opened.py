"""Replayed graphs opened, as sections and JSON: what each kernel is, how sure that is, and what is not known."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import median_low
from typing import Any

from molprof.analysis.figures.sequence import Block, blocks
from molprof.analysis.figures.shapes import shapes_text
from molprof.analysis.origin.opened import Graph, Opened, Place, Work
from molprof.common.document import Field, Section, table_of
from molprof.common.values import class_names, counted, per, percent_text

_KNOWN = ("operator", "shapes", "module", "source")
_CERTAINTIES = ("exact", "aligned", "likely")
_MEANING = (
    "exact: the replay's own annotation names it; aligned: names in order, all alike or with no other place that fits; "
    "likely: another place fits as well, or names agree in part or not at all"
)

_POSITION: tuple[Field, ...] = (
    ("position", "index"), ("alike", "count"), ("kernel", "name", "name"), ("operator", "name"),
    ("p50", "ns", "p50_ns"), ("match", "text", "certainty"),
    ("module", "path", lambda item: item["module"] if item["alike"] == 1 else _classes(item["module"])),
    ("source", "path"),
    ("shapes", "text", lambda item: None if item["shapes"] is None else shapes_text(item["shapes"])),
)  # fmt: skip


def opened_sections(opened: Opened) -> list[Section]:
    """How much is known of the graphs' kernels, each graph by position, and what is not known."""
    known = table_of(
        _shares(opened).items(),
        ("known", "name", "0"), ("kernels", "count", "1.kernels"), ("share", "ratio", "1.ratio"),
        ("of time", "ratio", "1.time_ratio"),
    )  # fmt: skip
    unknown = table_of(
        _without(opened),
        ("graph", "index"),
        ("without", "name"),
        ("kernel", "name", "name"),
        ("count", "count", "count"),
    )
    none = () if unknown.rows else ("none",)
    return [
        Section("Kernels of graphs opened", (*map(_told, opened.graphs), _MEANING), known),
        *(
            Section(f"Graph {graph.number} opened", table=table_of(_folded(graph, opened.places), *_POSITION))
            for graph in opened.graphs
            if any(opened.places[work.id].certainty for work in graph.work)  # else the report's table says as much
        ),
        Section("Kernels of graphs that are not known", none, unknown if unknown.rows else None),
    ]


def opened_data(opened: Opened) -> dict[str, Any]:
    return {
        "capture": opened.capture,
        "segments": [{"name": item.name, "nodes": len(item.nodes)} for item in opened.segments],
        "known": _shares(opened),
        "graphs": [
            {
                "graph": graph.number,
                "replays": graph.replays,
                "captures": list(graph.captures),
                "capture_nodes": graph.nodes,
                "consistent_ratio": graph.consistent_ratio,
                "unused_nodes": [{"operator": node.operator, "name": node.name} for node in graph.unused],
                "positions": list(_folded(graph, opened.places)),
            }
            for graph in opened.graphs
        ],
        "unknown": _without(opened),
    }


def _told(graph: Graph) -> str:
    size = len(graph.work) // graph.replays
    text = f"graph {graph.number}: {counted(graph.replays, 'replay')} of {counted(size, 'node')}"
    if not graph.captures:
        return f"{text}; no capture fits"
    if len(graph.captures) == 1:
        text += f", captured in {graph.captures[0]} ({counted(graph.nodes, 'node')})"
    else:
        names = ", ".join(dict.fromkeys(graph.captures))
        text += f", captured in one of {len(graph.captures)} that fit equally: {names}"
    if graph.unused:
        text += f"; {counted(len(graph.unused), 'captured node')} without a match"
    if graph.consistent_ratio is not None:
        ratio = percent_text(graph.consistent_ratio)
        text += (
            f"; of those matched by order alone, {ratio} meet the kernel that their operator and shapes meet elsewhere"
        )
    return text


def _kernels(opened: Opened) -> Iterator[tuple[Work, Place]]:
    for graph in opened.graphs:
        for work in graph.work:
            if work.category == "kernel":
                yield work, opened.places[work.id]


def _shares(opened: Opened) -> dict[str, dict[str, Any]]:
    """Of the kernels in graphs, those of which each is known, and how sure the match is."""
    kernels = list(_kernels(opened))
    tests = {name: [work for work, place in kernels if getattr(place, name) is not None] for name in _KNOWN}
    tests |= {name: [work for work, place in kernels if place.certainty == name] for name in _CERTAINTIES}
    tests["not known"] = [work for work, place in kernels if place.certainty is None]
    total_ns = sum(work.dur for work, _ in kernels)
    return {
        name: {
            "kernels": len(found),
            "ratio": per(len(found), len(kernels)),
            "time_ns": (time_ns := sum(work.dur for work in found)),
            "time_ratio": per(time_ns, total_ns),
        }
        for name, found in tests.items()
    }


def _without(opened: Opened) -> list[dict[str, Any]]:
    """Kernels that lack an operator, shapes or module, by name."""
    found: Counter[tuple[int, str, str]] = Counter()
    for work, place in _kernels(opened):
        lacks = [name for name in ("operator", "shapes", "module") if getattr(place, name) is None]
        if lacks:
            found[work.graph, ", ".join(lacks), work.name] += 1
    return [
        {"graph": graph, "without": lacks, "name": name, "count": count}
        for (graph, lacks, name), count in found.items()
    ]


def _folded(graph: Graph, places: dict[int, Place]) -> Iterator[dict[str, Any]]:
    """Positions in order, blocks that repeat as one: equal kernels of equal origin, but for numbers of modules."""
    durations: defaultdict[int, list[int]] = defaultdict(list)
    first: dict[int, Work] = {}
    for work in graph.work:
        if work.position is not None:
            durations[work.position].append(work.dur)
            first.setdefault(work.position, work)
    works = [first[position] for position in sorted(first)]
    keys = [(work.name, *_alike(places[work.id])) for work in works]
    for block in blocks(keys):
        for place in range(block.start, block.start + block.length):
            yield _position(works[place : block.stop : block.length], block, places, durations)


def _position(
    works: Sequence[Work], block: Block, places: dict[int, Place], durations: dict[int, list[int]]
) -> dict[str, Any]:
    place = places[works[0].id]
    times = [time for work in works if work.position is not None for time in durations[work.position]]
    return {
        "position": works[0].position,
        "alike": len(works),
        "block": block.length if block.times > 1 else 0,
        "name": works[0].name,
        "category": works[0].category,
        "operator": place.operator,
        "shapes": None if place.shapes is None else list(map(list, place.shapes)),
        "module": place.module,
        "source": place.source,
        "layer": place.layer,
        "certainty": place.certainty,
        "how": place.how,
        "p50_ns": median_low(times),
        "shortest_ns": min(times),
        "longest_ns": max(times),
        "time_ns": sum(times),
    }


def _alike(place: Place) -> tuple[Any, ...]:
    return place.operator, place.shapes, _classes(place.module), place.source, place.certainty


def _classes(module: str | None) -> str | None:
    return module and class_names(module)
