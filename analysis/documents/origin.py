"""Where GPU work comes from, as a document: a tree, and who asks for launches, copies and host syncs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from molprof.analysis.figures.model import Finding
from molprof.analysis.findings import Known, find_all
from molprof.analysis.origin.places import PLACES, Place, operator_places
from molprof.analysis.origin.read import NO_CALL, Origins
from molprof.analysis.origin.tree import AMOUNTS, Tree
from molprof.analysis.reader.info import path_text
from molprof.common.document import Column, Document, Row, Section, Table
from molprof.common.values import counted, per, percent_text, short_name, short_source, time_text

SCHEMA = 1
# Nodes below this share of the whole are left out of tables.
LEAST_RATIO = 0.005
_FUNCTIONS = ("function", "library")
_WHAT = {"module": "module", "source": "Python function", "operator": "operator", "kernel": "kernel class"}
_NO_STACKS = (
    "the trace has no modules or Python functions: record it with molprof capture --stacks, or with "
    "torch.profiler.profile(with_stack=True), or with named ranges (record_function)"
)


def origin_document(origins: Origins, by: str) -> Document:
    known = Known(origins=origins)
    tree, findings = known.tree(by), find_all(known)
    places = {name: known.places(name) for name in PLACES}
    sections = [_findings(findings), _tree(origins, tree, by)]
    if origins.has_gpu:
        sections += [
            _places("Who launches", "GPU time", places["launches"]),
            _places("Who copies, casts and concatenates", "GPU time", places["copies"]),
            _places("Who waits for the GPU", "time in the syncs", places["syncs"]),
        ]
    else:
        places["operators"] = operator_places(origins)
        sections.append(_places("Who runs operators", "self time", places["operators"]))
    return Document(
        title=f"{path_text(origins.info.path)} by {by}",
        sections=tuple(section for section in sections if section.table is not None and section.table.rows),
        data=lambda: _data(origins, tree, by, places, findings),
        records=lambda: _records(tree),
        warnings=_warnings(origins, by),
        summary=_summary(origins, tree),
    )


def _warnings(origins: Origins, by: str) -> tuple[str, ...]:
    return () if origins.has_stacks or by in ("operator", "kernel") else (_NO_STACKS,)


def _summary(origins: Origins, tree: Tree) -> tuple[str, ...]:
    if not origins.has_gpu:
        what = (
            f"{counted(tree.amount('operators'), 'leaf operator')}, {time_text(tree.amount('operator_ns'))} on the CPU"
        )
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


def _findings(findings: Sequence[Finding]) -> Section:
    rows = [row for item in findings for row in ((item.title, item.evidence), ("", f"fix: {item.fix}"))]
    return Section("Findings", table=Table((Column(), Column()), rows))


def _tree(origins: Origins, tree: Tree, by: str) -> Section:
    """Nodes by share: of GPU time, without GPU of the CPU time of operators."""
    weight = "gpu_ns" if tree.amount("gpu_ns") else "operator_ns"
    whole = tree.amount(weight)
    shown: list[tuple[int, Tree]] = []
    passed = _choose(tree, 0, lambda node: node.amount(weight) >= LEAST_RATIO * whole, by == "source", shown)
    columns, values = _columns(origins, by)
    rows: list[Row] = [
        ("  " * depth + _short(node), *(value(node, whole, weight) for value in values)) for depth, node in shown
    ]
    left_out = sum(1 for _ in tree.walk()) - 1 - len(shown) - passed
    notes = []
    if left_out:
        what = f"{counted(left_out, 'node')} below {percent_text(LEAST_RATIO)} of the time"
        notes.append(f"Not shown: {what}. JSON, CSV and speedscope have all.")
    if passed:
        notes.append(f"Not shown: {counted(passed, 'function')} that only call one other.")
    return Section(f"By {_WHAT[by]}", tuple(notes), Table((Column(_WHAT[by], "name"), *columns), rows))


def _short(node: Tree) -> str:
    """The name, of a function without the outer folders of its file."""
    return short_source(node.name) if node.kind in _FUNCTIONS else short_name(node.name)


def _choose(tree: Tree, depth: int, wanted: Callable[[Tree], bool], skip: bool, found: list[tuple[int, Tree]]) -> int:
    """Nodes that are wanted, below those that are. With `skip`, not those that only call another; returns how many."""
    skipped = 0
    for child in filter(wanted, tree.children):
        if skip and child.kind in _FUNCTIONS and any(inner.inclusive == child.inclusive for inner in child.children):
            skipped += 1 + _choose(child, depth, wanted, skip, found)
        else:
            found.append((depth, child))
            skipped += _choose(child, depth + 1, wanted, skip, found)
    return skipped


def _columns(origins: Origins, by: str) -> tuple[list[Column], list[Any]]:
    """Headings, and what stands below them, from a node, the whole and its name."""
    columns: list[tuple[Column, Any]] = []
    if by == "module":
        columns.append((Column("alike", "count"), lambda node, whole, weight: node.count))
    columns.append((Column("share", "ratio"), lambda node, whole, weight: per(node.amount(weight), whole)))
    if origins.has_gpu:
        columns += [
            (Column("GPU time", "ns"), lambda node, whole, weight: node.amount("gpu_ns")),
            (Column("own GPU", "ns"), lambda node, whole, weight: node.amount("gpu_ns", own=True)),
            (Column("launches", "count"), lambda node, whole, weight: node.amount("launches")),
            (Column("own", "count"), lambda node, whole, weight: node.amount("launches", own=True)),
        ]
        if origins.steps > 1:
            columns.append(
                (
                    Column("per step", "number"),
                    lambda node, whole, weight: node.amount("step_launches") / origins.steps,
                )
            )
        if origins.tokens:
            columns.append(
                (
                    Column("per token", "number"),
                    lambda node, whole, weight: node.amount("step_launches") / (origins.tokens or 1),
                )
            )
    else:
        columns.append((Column("leaf operators", "count"), lambda node, whole, weight: node.amount("operators")))
    if by != "kernel":
        columns.append((Column("CPU", "ns"), lambda node, whole, weight: node.amount("operator_ns")))
        if not origins.has_gpu:
            columns.append((Column("own CPU", "ns"), lambda node, whole, weight: node.amount("operator_ns", own=True)))
    return [column for column, _ in columns], [value for _, value in columns]


def _places(title: str, time: str, places: Sequence[Place]) -> Section:
    rows = [
        (place.operator, place.count, len(place.modules), place.time_ns, place.module, place.source) for place in places
    ]
    columns = (
        Column("operator", "path"),
        Column("count", "count"),
        Column("modules", "count"),
        Column(time, "ns"),
        Column("module", "path"),
        Column("function", "path"),
    )
    return Section(title, table=Table(columns, rows), detail=True)


def _records(tree: Tree) -> Table:
    rows: list[Row] = []
    path: list[str] = []
    for depth, node in tree.walk():
        path[depth:] = [node.name]
        rows.append(("/".join(path[1:]), node.kind, node.count, *node.inclusive, *node.own))
    columns = [Column("path"), Column("kind"), Column("count", "raw")]
    columns += [Column(name, "raw") for name in AMOUNTS]
    columns += [Column(f"own_{name}", "raw") for name in AMOUNTS]
    return Table(tuple(columns), rows)


def _data(
    origins: Origins, tree: Tree, by: str, places: dict[str, list[Place]], findings: Sequence[Finding]
) -> dict[str, Any]:
    alone, alone_ns = origins.without_call
    return {
        "schema": SCHEMA,
        "trace": {"path": origins.info.path, "complete": origins.info.complete, "problem": origins.info.problem},
        "by": by,
        "steps": origins.steps or None,
        "tokens": origins.tokens,
        "without_call": {"name": NO_CALL, "count": alone, "gpu_ns": alone_ns},
        "tree": tree.to_json(),
        "places": {
            name: [
                {
                    "module": place.module if place.known else None,
                    "modules": len(place.modules) if place.known else None,
                    "source": place.source if place.known else None,
                    "operator": place.operator,
                    "count": place.count,
                    "time_ns": place.time_ns,
                }
                for place in found
            ]
            for name, found in places.items()
        },
        "findings": [finding.to_json() for finding in findings],
    }
