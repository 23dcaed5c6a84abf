"""Two traces kernel by kernel as JSON and as rows."""

from __future__ import annotations

from typing import Any

from molprof.analysis.compare.kernels.cut import Item, Selection
from molprof.analysis.compare.kernels.pairing import LEVELS, Change
from molprof.analysis.compare.kernels.sums import Summed, part_of
from molprof.analysis.documents.kernel_words import kernel_verdict, noun
from molprof.common.document import Column, Table

SCHEMA = 1


def beside_ns(part: Selection) -> int:
    """Time in which earlier work of the device still ran, ns: it counts for that work alone."""
    items = part.items
    return sum(item.row.dur - item.own_ns for item in items)


def kernel_records(result: Summed) -> Table:
    names = ("name", "class", "operator", "shape", "module", "layer", "source", "phase", "ts_ns", "time_ns", "idle_ns")
    columns = [Column("change"), Column("by"), Column("difference_ns", "raw"), Column("idle_difference_ns", "raw")]
    columns += [Column(f"{side}_{name}", "raw") for side in ("first", "other") for name in names]
    rows = []
    for change in result.pairing.changes:
        cells = [value for item in (change.first, change.other) for value in _values(item, len(names))]
        rows.append((part_of(change), _level(change), change.time_ns, change.idle_ns, *cells))
    return Table(tuple(columns), rows, missing="")


def _level(change: Change) -> str | None:
    return None if change.level is None else LEVELS[change.level]


def _values(item: Item | None, count: int) -> list[Any]:
    if item is None:
        return [None] * count
    row = item.row
    named = [row.name, row.cls, row.operator, row.shape, row.module, row.layer, row.source, row.phase]
    return [*named, row.ts, item.own_ns, item.gap_ns]


def kernels_data(result: Summed, region: str, labels: tuple[str, str]) -> dict[str, Any]:
    names: dict[str, int] = {}
    parts = (result.pairing.first, result.pairing.other)
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
        "sequence": [
            {
                "change": part_of(change),
                "by": _level(change),
                "difference_ns": change.time_ns,
                "idle_difference_ns": change.idle_ns,
                "first": _work(change.first, names),
                "other": _work(change.other, names),
            }
            for change in result.pairing.changes
        ],
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
        "beside_ns": beside_ns(part),
        "outside": {"count": part.outside[0], "time_ns": part.outside[1]},
    }


def _work(item: Item | None, names: dict[str, int]) -> dict[str, Any] | None:
    """A piece of work; name: its number in the list of names."""
    if item is None:
        return None
    row = item.row
    return {
        "name": names.setdefault(row.name, len(names)),
        "class": row.cls,
        "operator": row.operator,
        "shape": row.shape,
        "module": row.module,
        "layer": row.layer,
        "source": row.source,
        "phase": row.phase,
        "ts_ns": row.ts,
        "time_ns": item.own_ns,
        "idle_ns": item.gap_ns,
    }
