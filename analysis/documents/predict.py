"""What a run would be on a GPU that is not here: its figures with their intervals, what limits it, and the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from molprof.analysis.critical.replay import ON_GPU, ON_HOST, Replayed
from molprof.analysis.predict.predict import COVERAGE, LIMIT_FIGURE, Figure, Prediction, Share
from molprof.analysis.predict.table import Check
from molprof.analysis.reader import path_text
from molprof.common.document import Cell, Document, Field, Row, Section, Table, columns, records, table_of
from molprof.common.values import Unit, counted, per, percent_text, time_text

SCHEMA = 1
_MOST = 12  # operators shown
_FIGURES: tuple[tuple[str, str, Unit], ...] = (
    ("launches", "launches", "count"),
    ("GPU time", "gpu_ns", "ns"),
    ("time", "length_ns", "ns"),
    ("GPU busy", "busy_ratio", "ratio"),
)


def predict_document(found: Prediction) -> Document:
    return Document(
        title=f"{path_text(found.run.info.path)} predicted for {_device(found)}",
        sections=(_figures(found), _changes(found), _operators(found), _evidence(found)),
        data=lambda: _data(found),
        records=lambda: records([_row(name, getattr(found, name)) for _, name, _ in _FIGURES]),
        warnings=tuple(_warnings(found)),
        summary=(_summary(found),),
    )


def _device(found: Prediction) -> str:
    return found.device.source.partition(" data sheet")[0]


def _warnings(found: Prediction) -> Iterator[str]:
    if not found.shown:
        yield "The table has no traces of this GPU: its peaks are used with what other GPUs reach of theirs."
    if not found.checks:
        yield "No held-out trace checks such a prediction: its error is not known."
    if found.known_ratio < 1:
        names = ", ".join(sorted(found.run.unknown, key=lambda name: -found.run.unknown[name][1])[:4])
        left = percent_text(1 - found.known_ratio)
        yield f"{left} of the run's time in operators is left out, in those that no trace shows: {names}."


def _summary(found: Prediction) -> str:
    steps = f"the {counted(found.run.steps, 'step')}" if found.run.steps > 1 else "the run"
    length, busy = found.length_ns, found.busy_ratio
    held = {"GPU": "the GPU's work", "host": "the host: launches, operators and Python"}[found.limit]
    graphs = found.graphs.length_ns / found.replayed.length_ns
    return (
        f"Predicted: {steps} would take {_range(length)}, with the GPU busy for {percent_text(busy.low)} to "
        f"{percent_text(busy.high)} of it. What limits it is {held}. With all launches between two syncs in one graph "
        f"it would take {percent_text(1 - graphs)} less."
    )


def _range(figure: Figure) -> str:
    return f"{time_text(figure.value)} ({time_text(figure.low)} to {time_text(figure.high)})"


def _figures(found: Prediction) -> Section:
    steps = found.run.steps
    rows: list[Row] = []
    for title, name, unit in _FIGURES:
        one: Figure = getattr(found, name)
        row: list[Any] = [title, Cell(one.value, unit), Cell((one.low, one.high), unit)]
        if steps > 1:
            row.append(Cell(None if unit == "ratio" else one.value / steps, "number" if unit == "count" else unit))
        rows.append(row)
    fields: list[tuple[str, Unit]] = [("predicted", "text"), ("value", "number"), ("interval", "number")]
    if steps > 1:
        fields.append(("per step", "number"))
    shown = len({(check.model, check.origin, check.device) for check in found.checks})
    notes = (
        f"Nothing here was run on this GPU. {percent_text(COVERAGE)} of {counted(shown, 'prediction')} of models whose "
        "traces were left out were within such an interval of what was recorded. Traces were recorded with the "
        "profiler on, so its cost on the host is in these figures.",
        f"Host time between operators is that of the run times {found.host_factor:.3g}, the ratio for operators that "
        "only make a view of a tensor.",
    )
    return Section("Predicted", notes, Table(columns(*fields), rows, missing="-"))


def _changes(found: Prediction) -> Section:
    whole = found.replayed.length_ns
    rows = [("as it is", found.replayed), ("launches=graph", found.graphs)]
    if found.changed is not None:
        rows.append((",".join(map(str, found.changes)), found.changed))
    fields: list[Field] = [
        ("change", "text", "0"), ("takes", "ns", "1.length_ns"),
        ("less", "ratio", lambda row: 1 - row[1].length_ns / whole),
        ("GPU on the path", "ratio", lambda row: row[1].share(ON_GPU)),
        ("host on the path", "ratio", lambda row: row[1].share(ON_HOST)),
    ]  # fmt: skip
    note = "The replay of molprof report --by path."
    return Section("What changes would make of it", (note,), table_of(rows, *fields))


def _operators(found: Prediction) -> Section:
    total = found.gpu_ns.value
    fields: list[Field] = [
        ("operator", "name"), ("calls", "count"), ("launches", "count"), ("GPU time", "ns", "gpu_ns"),
        ("share", "ratio", lambda row: per(row.gpu_ns, total)), ("calls in traces", "count", "evidence"),
    ]  # fmt: skip
    notes = ["Of operators without calls in traces, the time is that of others of their family."]
    if rest := found.shares[_MOST:]:
        took = time_text(sum(row.gpu_ns for row in rest))
        notes.append(f"Not shown: {counted(len(rest), 'operator')}, {took} in all.")
    return Section("Operators", tuple(notes), table_of(found.shares[:_MOST], *fields))


def _evidence(found: Prediction) -> Section:
    rows = [check for check in found.checks if check.figure != LIMIT_FIGURE]
    units = {name: unit for _, name, unit in _FIGURES}
    titles = {name: title for title, name, _ in _FIGURES}
    fields: list[Field] = [
        ("model", "text"), ("run of", "text", "origin"), ("GPU", "text", "device"),
        ("figure", "text", lambda row: titles[row.figure]),
        ("predicted", "number", lambda row: Cell(row.predicted, units[row.figure])),
        ("recorded", "number", lambda row: Cell(row.recorded, units[row.figure])),
    ]  # fmt: skip
    note = f"Learned from traces of {', '.join(found.models)}; for each row without those of its model."
    return Section("Held-out predictions", (note,), table_of(rows, *fields), detail=True)


def _row(name: str, figure: Figure) -> dict[str, Any]:
    return {"figure": name, "predicted": figure.value, "low": figure.low, "high": figure.high}


def _replayed(replayed: Replayed) -> dict[str, Any]:
    return {"length_ns": float(replayed.length_ns), "gpu_ratio": float(replayed.share(ON_GPU))}


def _share(share: Share) -> dict[str, Any]:
    return share._asdict()


def _check(check: Check) -> dict[str, Any]:
    return {name: getattr(check, name) for name in check.__struct_fields__}


def _data(found: Prediction) -> dict[str, Any]:
    run = found.run
    return {
        "schema": SCHEMA,
        "trace": {"path": run.info.path, "complete": run.info.complete, "problem": run.info.problem},
        "device": {"name": _device(found), "source": found.device.source, "traces_of_it": found.shown},
        "steps": run.steps or None,
        "predicted": {name: getattr(found, name)._asdict() for _, name, _ in _FIGURES},
        "coverage": COVERAGE,
        "limit": found.limit,
        "host_factor": found.host_factor,
        "known_ratio": found.known_ratio,
        "unknown": {name: {"calls": calls, "ns": ns} for name, (calls, ns) in sorted(run.unknown.items())},
        "as_is": _replayed(found.replayed),
        "graphs": _replayed(found.graphs),
        "changes": list(map(str, found.changes)),
        "changed": None if found.changed is None else _replayed(found.changed),
        "operators": [_share(share) for share in found.shares],
        "models": list(found.models),
        "checks": [_check(check) for check in found.checks],
    }
