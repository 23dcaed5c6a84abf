"""Origin of GPU work: a tree, and the callers of launches, copies and host syncs; replayed graphs opened."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from statistics import median_low
from typing import Any

from msgspec import to_builtins

from molprof.analysis.documents.sampled import sampled_sections
from molprof.analysis.figures.sequence import blocks
from molprof.analysis.figures.shapes import shapes_text
from molprof.analysis.origin.match import KnownOrigin as Origin
from molprof.analysis.origin.opened import Graph, NodeWork, Opened
from molprof.analysis.origin.read import NO_CALL, CallLocation, Origins, places_of
from molprof.analysis.origin.tree import NAMES, Tree, build_tree
from molprof.analysis.reader import path_text
from molprof.common.document import Document, Field, Name, Section, named, objects, records, table_of
from molprof.common.values import class_names, counted, per, percent_text, short_name, short_source, time_text

SCHEMA = 1
# Nodes below this share of the whole are left out of tables.
LEAST_RATIO = 0.005
# Of the host's time, in a trace with GPU work.
LEAST_HOST_RATIO = 0.05
# In deeper trees a level is one space.
_MOST_INDENTED = 6
_FUNCTIONS = ("function", "library")
_WHAT = {"module": "module", "source": "Python function", "operator": "operator", "kernel": "kernel class"}
# What may be known of a kernel in a graph, and how sure that is.
_KNOWN = ("operator", "shapes", "module", "source")
_CERTAINTIES = ("exact", "aligned", "likely")
_MEANING = (
    "exact: the replay's own annotation names it; aligned: names in order, all equal or with no other match; "
    "likely: another position fits as well, or names agree in part or not at all"
)

_POSITION: tuple[Field, ...] = (
    ("position", "count"), ("alike", "count"), ("kernel", "name", "name"), ("operator", "name"),
    ("p50", "ns", "p50_ns"), ("match", "text", "certainty"),
    ("module", "path", lambda item: item["module"] if item["alike"] == 1 else _classes(item["module"])),
    ("source", "path"),
    ("shapes", "text", lambda item: None if item["shapes"] is None else shapes_text(item["shapes"])),
)  # fmt: skip
# Where shapes and the device's peaks are known; of the work that a formula is for.
_ROOFLINE: tuple[Field, ...] = (
    ("known", "ratio", lambda row: per(row["known_ns"], row["gpu_ns"])),
    ("TFLOP/s", "number", lambda row: per(row["flops"] / 1e3, row["known_ns"]) if row["flops"] else None),
    ("TB/s", "number", lambda row: per(row["moved_bytes"] / 1e3, row["known_ns"])),
    ("reached", "ratio", lambda row: per(row["least_ns"], row["known_ns"])),
    ("bound by", "name", lambda row: _bound(row["memory_ns"], row["least_ns"])),
)
# In JSON; nothing of what no call is recorded for.
_PLACE: tuple[Name, ...] = (
    ("module", lambda location: location.module if location.known else None),
    ("modules", lambda location: len(location.modules) if location.known else None),
    ("source", lambda location: location.source if location.known else None), "operator", "count", "time_ns",
)  # fmt: skip
# What a tree needs, in words, and its kinds of frames.
_NEEDS = {
    "module": ("modules or Python functions", {"module", "range", "function"}),
    "source": ("Python functions", {"function"}),
}


def origin_document(origins: Origins, by: str) -> Document:
    """Return the document of a tree of operators, modules, functions or phases."""
    tree = build_tree(origins, by)
    calls = {name: places_of(origins, name) for name in ("launches", "copies", "syncs")}
    sections = [_tree(origins, tree, by)]
    if origins.has_gpu:
        sections += [
            _places("Who launches", "GPU time", calls["launches"]),
            _places("Who copies, casts and concatenates", "GPU time", calls["copies"]),
            _places("Who waits for the GPU", "time in the syncs", calls["syncs"]),
        ]
    else:
        calls["operators"] = places_of(origins, "operators")
        sections.append(_places("Who runs operators", "self time", calls["operators"]))
    if by == "source" and origins.sampled is not None:
        sections[1:1] = sampled_sections(origins.sampled)
    return Document(
        title=f"{path_text(origins.info.path)} by {by}",
        sections=tuple(section for section in sections if section.table is not None and section.table.rows),
        data=lambda: {
            "schema": SCHEMA, "trace": origins.info.head, "by": by, "steps": origins.steps or None,
            "tokens": origins.tokens,
            "without_call": dict(zip(("name", "count", "gpu_ns"), (NO_CALL, *origins.without_call), strict=True)),
            **({} if origins.sampled is None else {"sampled": to_builtins(origins.sampled)}),
            "tree": tree.to_json(),
            "locations": {name: objects(locations, *_PLACE) for name, locations in calls.items()},
        },
        records=lambda: records(_nodes(tree)),
        warnings=_without_stacks(origins, by),
        summary=_summary(origins, tree),
    )  # fmt: skip


def _without_stacks(origins: Origins, by: str) -> tuple[str, ...]:
    """Return a line on what a tree by modules or functions lacks, and how to record it; none if nothing is lacking."""
    what, needed = _NEEDS.get(by, ("", origins.kinds))
    if origins.kinds & needed:
        return ()
    manifest, option = origins.info.manifest, "--modules" if by == "module" else "--stacks"
    command = "run" if manifest is not None and "program" in manifest else "capture"
    how = f"molprof {command} {option}"
    if manifest is None:
        ranges = ", or with named ranges (record_function)" if by == "module" else ""
        how = f"torch.profiler.profile(with_stack=True), or molprof run or capture {option}{ranges}"
    lacks = f"no {what}"
    if by == "source" and origins.sampled is not None:
        lacks = f"{what} of processors alone, as they were sampled"
    return (f"the trace has {lacks}: record all with {how}",)


def _summary(origins: Origins, tree: Tree) -> tuple[str, ...]:
    left_out = {"in molprof's own marks": origins.marks_ns, "of threads that only wait": origins.waiting_ns}
    parts = [f"{time_text(time_ns)} {what}" for what, time_ns in left_out.items() if time_ns]
    return (*_what(origins, tree), *([f"Left out: {', '.join(parts)}."] if parts else []))


def _what(origins: Origins, tree: Tree) -> tuple[str, ...]:
    if not origins.has_gpu:
        what = (
            f"{counted(tree.amount('operators'), 'leaf operator')}, {time_text(tree.amount('operator_ns'))} on the CPU"
        )
        if tree.amount("python_ns"):
            what += f", {time_text(tree.amount('python_ns'))} in Python"
        return (f"The trace records no GPU: {what}.",)
    lines = [
        f"{time_text(tree.amount('gpu_ns'))} of GPU work: {counted(tree.amount('kernels'), 'kernel')}, "
        f"{counted(tree.amount('launches'), 'launch', 'es')}, "
        f"{counted(tree.amount('graph_launches'), 'graph launch', 'es')}, {counted(tree.amount('syncs'), 'host sync')}."
    ]
    alone, ns = origins.without_call
    if alone:
        lines.append(
            f"No call is recorded for {counted(alone, 'piece')} of it, {time_text(ns)} "
            f"({percent_text(ns / max(1, tree.amount('gpu_ns')))}): the origin of these is not known."
        )
    return tuple(lines)


def _row(node: Tree) -> dict[str, Any]:
    """Return the kind, number and amounts of a node; own amounts have names with `own_`."""
    inclusive = dict(zip(NAMES, node.inclusive, strict=False))
    own = {f"own_{name}": amount for name, amount in zip(NAMES, node.own, strict=False)}
    return {"kind": node.kind, "count": node.count, **inclusive, **own}


def _host_ns(node: Tree, own: bool = False) -> int:
    """Return the time of operators and Python on the host."""
    return node.amount("operator_ns", own) + node.amount("python_ns", own)


def _tree(origins: Origins, tree: Tree, by: str) -> Section:
    """Return nodes by share of GPU time, and those with much host time; without a GPU by share of host time."""
    has_work, host_ns = bool(tree.amount("gpu_ns")), _host_ns(tree)
    whole = tree.amount("gpu_ns") if has_work else host_ns
    least_ns = (LEAST_HOST_RATIO if has_work else LEAST_RATIO) * host_ns

    def wanted(node: Tree) -> bool:
        return (has_work and node.amount("gpu_ns") >= LEAST_RATIO * whole) or 0 < least_ns <= _host_ns(node)

    shown: list[tuple[int, Tree]] = []
    passed = _choose(tree, 0, wanted, by == "source", shown)
    left_out = sum(1 for _ in tree.walk()) - 1 - len(shown) - passed
    notes = []
    if left_out:
        what = f"{counted(left_out, 'node')} below {percent_text(LEAST_RATIO)} of the time"
        notes.append(f"Not shown: {what}. JSON, CSV and speedscope have all.")
    if passed:
        notes.append(f"Not shown: {counted(passed, 'function')} that only call one other.")
    fields: list[Field] = [(_WHAT[by], "name", "name"), *((("alike", "count", "count"),) if by == "module" else ())]
    fields.append(("share", "ratio", lambda row: per(row["gpu_ns" if has_work else "host_ns"], whole)))
    spare: tuple[str, ...] = ()
    if by == "operator" and not origins.has_gpu:
        fields.append(("runs", "count", lambda row: row["own_runs"] if row["kind"] == "operator" else ""))
    if origins.has_gpu:
        fields += [("GPU time", "ns", "gpu_ns"), ("own GPU", "ns", "own_gpu_ns"), ("launches", "count")]
        spare = ("own GPU", "own host", "GPU time")
        if count := origins.tokens or (origins.steps if origins.steps > 1 else 0):
            title = "launches per token" if origins.tokens else "launches per step"
            fields.append((title, "number", lambda row: row["step_launches"] / count))
            spare = ("launches", *spare)
    else:
        fields.append(("leaf operators", "count", "operators"))
        spare = ("leaf operators",)
    if origins.pieces is not None and has_work:
        fields += _ROOFLINE
        spare = (*spare[:-1], "TB/s", "TFLOP/s", "GPU waits", "known", spare[-1])
        ratio = per(tree.amount("known_ns"), whole) or 0
        notes.append(f"Reached: of the GPU's peaks, by work that a formula is known for, {percent_text(ratio)} of all.")
    if by != "kernel":
        fields += [("host", "ns", "host_ns"), ("own host", "ns", "own_host_ns")]
        fields.append(("GPU waits", "ns", "wait_ns") if origins.has_gpu else ("CPU operators", "ns", "operator_ns"))
    indent = "  " if max((depth for depth, _ in shown), default=0) <= _MOST_INDENTED else " "
    how: dict[str, Any] = {"spare_columns": spare} | ({} if origins.pieces is None else {"missing": "-"})
    rows = [
        {
            "name": indent * depth + (_function(node.name) if node.kind in _FUNCTIONS else short_name(node.name)),
            "host_ns": _host_ns(node), "own_host_ns": _host_ns(node, own=True), **_row(node),
        }
        for depth, node in shown
    ]  # fmt: skip
    return Section(f"By {_WHAT[by]}", tuple(notes), table_of(rows, *fields, **how))


def _bound(memory_ns: int, least_ns: int) -> str | None:
    """Return the kind of limit that accounts for most of the least time."""
    return None if not least_ns else "memory" if 2 * memory_ns >= least_ns else "compute"


def _function(name: str) -> str:
    """Return a function before its file, without the outer folders, so that a cut text still shows the function."""
    location, colon, function = short_source(name).rpartition("): ")
    return f"{function} {location.replace('(', ':')}" if colon else name


def _choose(tree: Tree, depth: int, wanted: Callable[[Tree], bool], skip: bool, chosen: list[tuple[int, Tree]]) -> int:
    """Add the wanted nodes below these; with `skip`, without those that only call another. Returns their number."""
    skipped = 0
    for child in filter(wanted, tree.children):
        if skip and child.kind in _FUNCTIONS and any(inner.inclusive == child.inclusive for inner in child.children):
            skipped += 1 + _choose(child, depth, wanted, skip, chosen)
        else:
            chosen.append((depth, child))
            skipped += _choose(child, depth + 1, wanted, skip, chosen)
    return skipped


def _places(title: str, time: str, locations: Sequence[CallLocation]) -> Section:
    table = table_of(
        locations,
        ("operator", "path"), ("count", "count"),
        ("modules", "count", lambda location: len(location.modules)), (time, "ns", "time_ns"), ("module", "path"),
        ("function", "path", "source"),
    )  # fmt: skip
    return Section(title, table=table, detail=True)


def _nodes(tree: Tree) -> Iterator[dict[str, Any]]:
    """Yield the nodes in order, each with its path."""
    path: list[str] = []
    for depth, node in tree.walk():
        path[depth:] = [node.name]
        yield {"path": "/".join(path[1:]), **_row(node)}


def opened_sections(opened: Opened) -> list[Section]:
    """Return sections on graphs: how much is known of their kernels, each graph by position, and what is unknown."""
    shares = table_of(
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
    sentences = (_told(graph, opened.run is not None) for graph in opened.graphs)
    return [
        Section("Kernels of graphs opened", (*opened.remarks, *sentences, *_agreeing(opened), _MEANING), shares),
        *(
            Section(f"Graph {graph.number} opened", table=table_of(_folded(graph, opened.places), *_POSITION))
            for graph in opened.graphs
            if any(opened.places[work.id].certainty for work in graph.work)  # else the report's table says as much
        ),
        Section("Kernels of graphs that are not known", none, unknown if unknown.rows else None),
        *([_differences(opened)] if opened.differences else []),
    ]


def _agreeing(opened: Opened) -> Iterator[str]:
    same, pairs = opened.agreeing
    if pairs:
        yield f"of {counted(pairs, 'pair')} outside graphs, whose operator both runs record, {same:,} have the same one"


def _differences(opened: Opened) -> Section:
    """Return the section on where the graphs and the other run differ between the same neighbours."""
    table = table_of(
        sorted(opened.differences, key=lambda item: -item.times * max(len(item.here), len(item.there))),
        ("graph", "index"), ("times", "count"),
        ("what", "text", lambda item: _kind(len(item.here), len(item.there))),
        ("in the graph", "text", lambda item: _names(item.here)),
        ("in the other run", "text", lambda item: _names(item.there)),
    )  # fmt: skip
    return Section("Where the graphs and the other run differ", ("no kernel of these is named",), table)


def _kind(here: int, there: int) -> str:
    if not there:
        return "only in the graph"
    if not here:
        return "only in the other run"
    what = "fused or left out" if here < there else "split or added" if here > there else "other kernels"
    return f"{here:,} for {there:,}: {what}"


def _names(names: Sequence[str]) -> str:
    """Return names in order as text; consecutive equal names once, with their number."""
    return ", ".join(
        short_name(name) if (times := len(list(group))) == 1 else f"{times} x {short_name(name)}"
        for name, group in groupby(names)
    )


def opened_data(opened: Opened) -> dict[str, Any]:
    """Return the JSON of opened graphs."""
    graph: tuple[Name, ...] = (
        ("graph", "number"), "replays", "captures", ("capture_nodes", "nodes"), "consistent_ratio", "doubts",
        "host_functions", "host_wait_ns",
        ("unused_nodes", "unused", ("operator", "name")), ("positions", lambda item: [*_folded(item, opened.places)]),
    )  # fmt: skip
    return named(
        opened, "capture", "remarks", ("names_from", "run"),
        ("segments", "segments", ("name", ("nodes", lambda item: len(item.nodes)))), ("known", _shares),
        ("graphs", "graphs", graph), ("unknown", _without),
        ("differences", "differences", ("graph", "here", "there", "times")),
        ("agreeing_operators", lambda it: dict(zip(("same", "pairs"), it.agreeing, strict=True))),
    )  # fmt: skip


def _told(graph: Graph, from_run: bool) -> str:
    size = len(graph.work) // graph.replays
    text = f"graph {graph.number}: {counted(graph.replays, 'replay')} of {counted(size, 'node')}"
    if not graph.captures:
        return f"{text}; no {'step of the other run' if from_run else 'capture'} fits"
    if from_run:
        more = f" and {len(graph.captures) - 1} more" if len(graph.captures) > 1 else ""
        text += f", named from {graph.captures[0]}{more} ({counted(graph.nodes, 'piece')} of work)"
    elif len(graph.captures) == 1:
        text += f", captured in {graph.captures[0]} ({counted(graph.nodes, 'node')})"
    else:
        names = ", ".join(dict.fromkeys(graph.captures))
        text += f", captured in one of {len(graph.captures)} that fit equally: {names}"
    if graph.host_functions:
        wait = time_text(graph.host_wait_ns / graph.replays)
        text += f"; {counted(graph.host_functions, 'host function')} in it, for which the GPU waits {wait} of a replay"
    if graph.doubts:
        text += f"; not sure: {'; '.join(graph.doubts)}"
    if graph.consistent_ratio is not None:
        ratio = percent_text(graph.consistent_ratio)
        text += (
            f"; of those matched by order alone, {ratio} meet the kernel that their operator and shapes meet elsewhere"
        )
    return text


def _kernels(opened: Opened) -> Iterator[tuple[NodeWork, Origin]]:
    for graph in opened.graphs:
        yield from ((work, opened.places[work.id]) for work in graph.work if work.category == "kernel")


def _shares(opened: Opened) -> dict[str, dict[str, Any]]:
    """Return the share of kernels in graphs for which each property is known, and how sure the match is."""
    kernels = list(_kernels(opened))
    total_ns = sum(work.dur for work, _ in kernels)

    def share(test: Callable[[Origin], bool]) -> dict[str, Any]:
        times_ns = [work.dur for work, origin in kernels if test(origin)]
        return {
            "kernels": len(times_ns),
            "ratio": per(len(times_ns), len(kernels)),
            "time_ns": sum(times_ns),
            "time_ratio": per(sum(times_ns), total_ns),
        }

    return {
        **{name: share(lambda origin, name=name: getattr(origin, name) is not None) for name in _KNOWN},  # type: ignore[misc]
        **{name: share(lambda origin, name=name: origin.certainty == name) for name in _CERTAINTIES},  # type: ignore[misc]
        "not known": share(lambda origin: origin.certainty is None),
    }


def _without(opened: Opened) -> list[dict[str, Any]]:
    """Return the kernels that lack an operator, shapes or module, by name."""
    lacks = (
        (
            work.graph,
            ", ".join(name for name in ("operator", "shapes", "module") if getattr(origin, name) is None),
            work,
        )
        for work, origin in _kernels(opened)
    )
    counts = Counter((graph, names, work.name) for graph, names, work in lacks if names)
    return [
        {"graph": graph, "without": names, "name": name, "count": count}
        for (graph, names, name), count in counts.items()
    ]


def _folded(graph: Graph, origins: dict[int, Origin]) -> Iterator[dict[str, Any]]:
    """Yield positions in order, repeated blocks as one: equal kernels of equal origin, but for numbers of modules."""
    by_position: defaultdict[int, list[NodeWork]] = defaultdict(list)
    for work in graph.work:
        if work.position is not None:
            by_position[work.position].append(work)
    works = [by_position[position] for position in sorted(by_position)]
    keys = []
    for first, *_ in works:
        origin = origins[first.id]
        keys.append(
            (first.name, origin.operator, origin.shapes, _classes(origin.module), origin.source, origin.certainty)
        )
    for block in blocks(keys):
        for start in range(block.start, block.start + block.length):
            alike = works[start : block.stop : block.length]
            first, times = alike[0][0], [work.dur for replays in alike for work in replays]
            yield {
                "position": first.position,
                "alike": len(alike),
                "block": block.length if block.times > 1 else 0,
                "name": first.name,
                "category": first.category,
                **{name: value for name, value in origins[first.id]._asdict().items() if name != "frames"},
                "p50_ns": median_low(times),
                "shortest_ns": min(times),
                "longest_ns": max(times),
                "time_ns": sum(times),
            }


def _classes(module: str | None) -> str | None:
    return module and class_names(module)
