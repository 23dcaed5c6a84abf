"""Where GPU work comes from, as a document: a tree, and who asks for launches, copies and host syncs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from molprof.analysis.figures.model import Finding
from molprof.analysis.findings import Known, find_all
from molprof.analysis.origin.places import PLACES, Place, operator_places
from molprof.analysis.origin.read import NO_CALL, Origins
from molprof.analysis.origin.tree import AMOUNTS, Tree
from molprof.analysis.reader import path_text
from molprof.common.document import Column, Document, Field, Section, Table, records, table_of
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
    left_out = sum(1 for _ in tree.walk()) - 1 - len(shown) - passed
    notes = []
    if left_out:
        what = f"{counted(left_out, 'node')} below {percent_text(LEAST_RATIO)} of the time"
        notes.append(f"Not shown: {what}. JSON, CSV and speedscope have all.")
    if passed:
        notes.append(f"Not shown: {counted(passed, 'function')} that only call one other.")
    name: Field = (_WHAT[by], "name", lambda item: "  " * item[0] + _short(item[1]))
    return Section(f"By {_WHAT[by]}", tuple(notes), table_of(shown, name, *_fields(origins, by, weight, whole)))


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


def _fields(origins: Origins, by: str, weight: str, whole: int) -> Iterator[Field]:
    """Columns of a depth and a node; the share is of the whole."""
    if by == "module":
        yield "alike", "count", "1.count"
    yield "share", "ratio", lambda item: per(item[1].amount(weight), whole)
    if origins.has_gpu:
        yield "GPU time", "ns", lambda item: item[1].amount("gpu_ns")
        yield "own GPU", "ns", lambda item: item[1].amount("gpu_ns", own=True)
        yield "launches", "count", lambda item: item[1].amount("launches")
        yield "own", "count", lambda item: item[1].amount("launches", own=True)
        if origins.steps > 1:
            yield "per step", "number", lambda item: item[1].amount("step_launches") / origins.steps
        if origins.tokens:
            yield "per token", "number", lambda item: item[1].amount("step_launches") / (origins.tokens or 1)
    else:
        yield "leaf operators", "count", lambda item: item[1].amount("operators")
    if by != "kernel":
        yield "CPU", "ns", lambda item: item[1].amount("operator_ns")
        if not origins.has_gpu:
            yield "own CPU", "ns", lambda item: item[1].amount("operator_ns", own=True)


def _places(title: str, time: str, places: Sequence[Place]) -> Section:
    table = table_of(
        places,
        ("operator", "path"), ("count", "count"),
        ("modules", "count", lambda place: len(place.modules)), (time, "ns", "time_ns"), ("module", "path"),
        ("function", "path", "source"),
    )  # fmt: skip
    return Section(title, table=table, detail=True)


def _records(tree: Tree) -> Table:
    rows = []
    path: list[str] = []
    for depth, node in tree.walk():
        path[depth:] = [node.name]
        inclusive = dict(zip(AMOUNTS, node.inclusive, strict=True))
        own = {f"own_{name}": amount for name, amount in zip(AMOUNTS, node.own, strict=True)}
        rows.append({"path": "/".join(path[1:]), "kind": node.kind, "count": node.count, **inclusive, **own})
    return records(rows)


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
