"""The answers of the tools of `molprof mcp`, and their size limits; runs in the process that reads traces."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import to_builtins

from molprof import api
from molprof.analysis.figures import Report
from molprof.analysis.figures.build import DEVICES, OPERATIONS
from molprof.analysis.figures.catalog import COMPARED, FIGURES
from molprof.analysis.figures.figure import Figure, evidence_of
from molprof.analysis.figures.model import Finding
from molprof.analysis.origin.read import CallLocation
from molprof.analysis.origin.tree import Tree
from molprof.analysis.trace_processor import NATIVE_PATH_VARIABLE
from molprof.common.document import Document
from molprof.common.errors import EngineError, MolprofError, UsageError
from molprof.common.values import plain

_EVENTS = "SELECT category, COUNT() AS count FROM slice GROUP BY category ORDER BY category"
# The column of molprof_origin that a tree is by, and the columns of each row.
_COLUMNS = {"module": "module", "source": "source", "operator": "operator", "kernel": "name"}
_AMOUNTS = ("gpu_ns", "kernels", "launches", "syncs", "operators", "operator_ns", "python_ns", "wait_ns")
_MOST_PLACES = 10
_MOST_CHARACTERS = 24_000  # of an answer as JSON
_MOST_TEXT = 2_000  # of one text in a list


def answer(tool: str, arguments: dict[str, Any]) -> bytes:
    """Return the answer of a tool as JSON, in the process that reads traces."""
    # A native trace processor can open files; the embedded one has none.
    os.environ.pop(NATIVE_PATH_VARIABLE, None)
    try:
        return bounded(_TOOLS[tool](**arguments))
    except MolprofError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise EngineError(f"this is a bug in molprof: {error!r}") from error


def bounded(data: dict[str, Any], most: int = _MOST_CHARACTERS) -> bytes:
    """Return the answer as JSON of at most `most` characters.

    The longest list is halved until all fits; `left_out` says how many entries of which list are missing.
    """
    data = {key: _cut(value) for key, value in data.items()}
    left_out: dict[str, Any] = dict(data.get("left_out") or {})
    while True:
        text = msgspec.json.encode({**data, "left_out": left_out})
        if len(text) <= most:
            return text
        sizes = {
            key: len(msgspec.json.encode(value)) for key, value in data.items() if isinstance(value, list) and value
        }
        if not sizes:
            raise UsageError("the answer is too large", hint="ask for less")
        longest = max(sizes, key=lambda key: sizes[key])
        kept = len(data[longest]) // 2
        left_out[longest] = left_out.get(longest, 0) + len(data[longest]) - kept
        data[longest] = data[longest][:kept]


def limited(data: dict[str, Any], key: str, items: Sequence[Any], limit: int) -> None:
    """Add the first `limit` items as `key`, and to `left_out` how many are missing."""
    data[key] = list(items[:limit])
    if len(items) > limit:
        data.setdefault("left_out", {})[key] = len(items) - limit


def _cut(value: Any) -> Any:
    """Return the value with long texts in lists shortened."""
    if isinstance(value, str):
        return value if len(value) <= _MOST_TEXT else f"{value[:_MOST_TEXT]}... ({len(value) - _MOST_TEXT} more)"
    if isinstance(value, (list, tuple)):
        return [_cut(item) for item in value]
    return {key: _cut(item) for key, item in value.items()} if isinstance(value, dict) else value


def _report(trace: str, select: str, limit: int) -> dict[str, Any]:
    from molprof.analysis.documents.headline import overview_lines, report_verdict
    from molprof.analysis.documents.questions import not_answered

    report = _load(trace)
    figures = [figure for figure in _selected(FIGURES, select) if figure.value(report) is not None or select]
    counted = to_builtins(report.trace)
    data: dict[str, Any] = {
        "trace": {name: counted[name] for name in ("path", "bytes", "events_by_category", "lost_events", "complete")},
        "verdict": [*report_verdict(report), *overview_lines(report)],
        "certificate": _certificate(report),
        "broken_checks": [check.text for check in report.checks if not check.holds],
    }
    limited(data, "figures", [_figure(figure, report) for figure in figures], limit)
    data["not_answered"] = not_answered(report)
    data["memory_operations"] = [
        {"name": name, **to_builtins(item)} for name, item in report.counts.memory_operations.items()
    ]
    data["devices"] = [{"device": name, **to_builtins(item)} for name, item in report.devices.items()]
    data["sql"] = {"memory_operations": OPERATIONS.sql, "devices": DEVICES.sql, "events_by_category": _EVENTS}
    limited(data, "findings", [_finding(item) for item in report.findings], limit)
    return data


def _compare(traces: list[str], select: str, limit: int) -> dict[str, Any]:
    from molprof.analysis.documents.questions import not_answered
    from molprof.analysis.documents.verdict import comparison_verdict

    comparison = api.compare(*api.reports(traces))
    reports = comparison.runs
    chosen = {figure.id for figure in _selected(tuple(COMPARED.values()), select)}
    whole = comparison.to_json()
    rows = [
        {
            **{name: row[name] for name in ("id", "label", "unit", "values", "ratios")},
            "within_noise": [False, *map(compared.within_noise, range(1, len(reports)))],
            "evidence": [to_builtins(evidence_of(compared.figure, report)) for report in reports],
        }
        for compared, row in zip(comparison.rows, whole["rows"], strict=True)
        if row["id"] in chosen and (select or len(set(row["values"])) > 1)
    ]
    data: dict[str, Any] = {
        "labels": list(comparison.labels),
        "base": comparison.base,
        "verdict": list(comparison_verdict(comparison)),
        "not_answered": [not_answered(report) for report in reports],
        "notes": list(comparison.notes),
        "certificates": [_certificate(report) for report in reports],
        "difference": whole["difference"],
        "trace_difference": whole["trace_difference"],
    }
    limited(data, "figures", rows, limit)
    return data


def _query(trace: str, sql: str, parameters: dict[str, str], stacks: bool, limit: int) -> dict[str, Any]:
    from molprof.analysis.query import check_reads, find_statement

    statement = find_statement(sql, parameters, files=False)
    check_reads(statement.sql)
    with api.load(trace, stacks=stacks) as loaded:
        result = loaded.run(statement)
    rows = result.frame.rows()
    data: dict[str, Any] = {
        "sql": statement.sql,
        "modules": list(statement.modules),
        "certificate": _certificate(_load(trace)),
        "columns": list(result.frame.names),
        "row_count": len(rows),
    }
    shown = [[value.hex() if isinstance(value, bytes) else value for value in row] for row in rows[:limit]]
    limited(data, "rows", shown + rows[limit:], limit)
    data["notes"] = list(result.notes)
    return data


def _origin(trace: str, by: str, depth: int, limit: int) -> dict[str, Any]:
    from molprof.analysis.origin.read import origins_of, places_of
    from molprof.analysis.origin.tree import build_tree

    with api.load(trace) as loaded:
        origins, notes = loaded.read(origins_of, stacks=True), loaded.info.notes()
    tree = build_tree(origins, by)
    weight = "gpu_ns" if tree.amount("gpu_ns") else "operator_ns"
    nodes = sorted(_nodes(tree, depth), key=lambda node: -node[2].amount(weight))
    column = _COLUMNS[by]
    data: dict[str, Any] = {
        "by": by,
        "certificate": _certificate(_load(trace)),
        "whole": {name: tree.amount(name) for name in _AMOUNTS},
        "steps": origins.steps or None,
        "tokens": origins.tokens,
        "sql": {
            "gpu_ns": f"SELECT {column}, COUNT() AS count, SUM(dur) AS gpu_ns FROM molprof_origin GROUP BY {column}"
            " ORDER BY gpu_ns DESC",
            "calls": "SELECT origin.operator, origin.module, origin.source, SUM(fact.launches) AS launches,"
            " SUM(fact.syncs) AS syncs, SUM(fact.sync_ns) AS sync_ns FROM molprof_call_fact AS fact"
            " JOIN molprof_call_origin AS origin USING (call_id) GROUP BY 1, 2, 3 ORDER BY launches DESC",
        },
        "needs_stacks": True,
    }
    limited(data, "tree", [_node(*node) for node in nodes], limit)
    for name in ("launches", "copies", "syncs") if origins.has_gpu else ("operators",):
        limited(data, name, [_place(location) for location in places_of(origins, name)], min(limit, _MOST_PLACES))
    data["notes"] = list(notes)
    return data


def _queries(name: str) -> dict[str, Any]:
    from molprof.queries.catalog import catalog, find_module
    from molprof.queries.pages import example_command

    modules = catalog()
    if not name:
        return {"modules": [{"name": module.name, "purpose": module.line} for module in modules.values()]}
    module = find_module(name, modules)
    return {
        "name": module.name,
        "purpose": list(module.comment),
        "entries": [to_builtins(entry) for entry in module.entries],
        "example": module.example,
        "parameters": dict(module.defaults),
        "command": example_command(module),
    }


def document_data(document: Document, notes: Sequence[str], limit: int) -> dict[str, Any]:
    """Return the data of a document as `--format json` has it, with at most `limit` entries of each list.

    The limit is halved until the answer fits. `left_out` says how many entries are missing, by the names of the lists.
    """
    whole = document.json()
    while True:
        left_out: dict[str, int] = {}
        data = _shortened(whole, limit, "", left_out)
        data = {**(data if isinstance(data, dict) else {"rows": data}), "notes": list(notes), "left_out": left_out}
        if limit == 1 or len(msgspec.json.encode(_cut(data))) <= _MOST_CHARACTERS:
            return data
        limit //= 2


def _shortened(value: Any, limit: int, name: str, left_out: dict[str, int]) -> Any:
    if isinstance(value, (list, tuple)):
        if len(value) > limit:
            left_out[name] = left_out.get(name, 0) + len(value) - limit
        return [_shortened(item, limit, name, left_out) for item in value[:limit]]
    if isinstance(value, dict):
        return {key: _shortened(item, limit, f"{name}.{key}".strip("."), left_out) for key, item in value.items()}
    return value


def _path(trace: str, changes: list[str], limit: int) -> dict[str, Any]:
    from molprof.analysis.documents.critical import critical_document

    critical, notes = api.critical_path(trace, changes=changes)
    return document_data(critical_document(critical), notes, limit)


def _shape(trace: str, peaks: list[str], limit: int) -> dict[str, Any]:
    from molprof.analysis.documents.roofline import roofline_document

    roofline, notes = api.roofline(trace, peaks=peaks)
    return document_data(roofline_document(roofline), notes, limit)


def _memory(trace: str, limit: int) -> dict[str, Any]:
    from molprof.analysis.documents.memory import memory_document

    memory, notes = api.memory(trace)
    return document_data(memory_document(memory), notes, limit)


def _ranks(traces: list[str], limit: int) -> dict[str, Any]:
    from molprof.analysis.documents.ranks import ranks_document

    return document_data(ranks_document(api.ranks([Path(trace) for trace in traces])), (), limit)


def _predict(trace: str, device: str, changes: list[str], batches: str, limit: int) -> dict[str, Any]:
    from molprof.analysis.documents.predict import predict_document

    if batches and changes:
        raise UsageError("`changes` are of the run as it is", hint="leave `batches` out")
    prediction, sizes = (
        api.predict_sizes(trace, device, batches) if batches else (api.predict(trace, device, None, changes), None)
    )
    return document_data(predict_document(prediction, sizes), prediction.run.info.notes(), limit)


def _bench(file: str, limit: int) -> dict[str, Any]:
    from molprof.analysis.documents.benchmark import bench_document
    from molprof.common.bench_records import read_results

    results = read_results(Path(file))
    return document_data(bench_document(results, file), results.notes, limit)


_TOOLS: dict[str, Callable[..., dict[str, Any]]] = {
    tool.__name__.strip("_"): tool
    for tool in (
        _report, _compare, _queries, _query, _origin, _path, _shape, _memory, _ranks, _predict, _bench,
    )
}  # fmt: skip


def _load(trace: str) -> Report:
    with api.load(trace, cached=True) as loaded:
        return loaded.report


def _selected(figures: Sequence[Figure], select: str) -> list[Figure]:
    """Return figures with one of the words in id, label or heading; all without words."""
    words = select.lower().split()
    selected = [
        figure
        for figure in figures
        if not words or any(word in f"{figure.id} {figure.label} {figure.group}".lower() for word in words)
    ]
    if not selected:
        raise UsageError(f"no figure is called {select!r}", hint="leave `select` out to see all")
    # One that is meant by its id comes first.
    return sorted(selected, key=lambda figure: figure.id not in words) if words else selected


def _figure(figure: Figure, report: Report) -> dict[str, Any]:
    named = {name: getattr(figure, name) for name in ("id", "label", "unit")}
    return {**named, "value": figure.value(report), **to_builtins(evidence_of(figure, report))}


def _certificate(report: Report) -> dict[str, Any]:
    """Return the verdict on the trace, and on each group of figures that is not exact."""
    if report.certificate is None:
        return {"verdict": None, "uncertain": []}
    names = ("group", "verdict", "reason", "bounds")
    uncertain = [{name: plain(to_builtins(item))[name] for name in names} for item in report.certificate.uncertain]
    return {"verdict": report.certificate.verdict, "uncertain": uncertain}


def _finding(finding: Finding) -> dict[str, Any]:
    return {name: value for name, value in finding.to_json().items() if name != "explanation"}


def _nodes(tree: Tree, depth: int) -> list[tuple[str, int, Tree]]:
    """Return path, depth and node of the tree down to a depth."""
    path: list[str] = []
    nodes = []
    for level, node in tree.walk():
        path[level:] = [node.name]
        if 0 < level <= depth:
            nodes.append(("/".join(path[1:]), level, node))
    return nodes


def _node(path: str, depth: int, node: Tree) -> dict[str, Any]:
    amounts = {name: node.amount(name) for name in _AMOUNTS if name == "gpu_ns" or node.amount(name)}
    return {
        "path": path,
        "kind": node.kind,
        "alike": node.count,
        **amounts,
        "own_gpu_ns": node.amount("gpu_ns", own=True),
    }


def _place(location: CallLocation) -> dict[str, Any]:
    names = ("operator", "source", "module", "count", "time_ns", "step_count")
    return {**{name: getattr(location, name) for name in names}, "alike": len(location.modules)}
