"""Prediction of a run on another GPU as a document: figures with their intervals, limits and evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from molprof.analysis.critical.replay import ON_GPU, ON_HOST, Replayed
from molprof.analysis.documents.plots import plot_section
from molprof.analysis.predict.predict import (
    COVERAGE,
    LIMIT_FIGURE,
    CompiledRun,
    PredictedFigure,
    Prediction,
    known_devices,
)
from molprof.analysis.predict.sizes import MEMORY_ERROR, Size, Sizes
from molprof.analysis.predict.table import FEW, stored
from molprof.analysis.reader import path_text
from molprof.analysis.roofline.peaks import peaks_of
from molprof.common.document import Cell, Document, Field, Name, Row, Section, Table, columns, named, records, table_of
from molprof.common.manifest import from_json
from molprof.common.values import Unit, counted, per, percent_text, time_text

SCHEMA = 1
_MOST = 12  # operators shown
_CLOSE = 0.9  # of the longer: which of host and GPU limits a run is a close call
_FIGURES: tuple[tuple[str, str, Unit], ...] = (
    ("launches", "launches", "count"),
    ("copies", "copies", "count"),
    ("waits of the host", "syncs", "count"),
    ("GPU time", "gpu_ns", "ns"),
    ("time", "length_ns", "ns"),
    ("GPU busy", "busy_ratio", "ratio"),
)


def predict_document(prediction: Prediction, sizes: Sizes | None = None) -> Document:
    """Return a prediction as a document. sizes: the run at other batch sizes."""
    parts = () if sizes is None else tuple(_sizes(prediction, sizes))
    return Document(
        title=f"{path_text(prediction.run.info.path)} predicted for {_device(prediction)}",
        sections=(_figures(prediction), *parts, _changes(prediction), _operators(prediction), _evidence(prediction)),
        data=lambda: {
            "schema": SCHEMA, **named(prediction, *_JSON), "batches": sizes and named(sizes, *_SIZES),
            **named(prediction, ("operators", "shares"), "models", "checks"),
        },
        records=lambda: records(
            {"figure": name, "predicted": one.value, "low": one.low, "high": one.high}
            for _, name, _ in _FIGURES
            for one in [getattr(prediction, name)]
        ),
        warnings=(*prediction.run.info.notes(), *_warnings(prediction)),
        summary=(_summary(prediction),),
        # The answer last, where a terminal stands.
        screen=(_operators(prediction), _changes(prediction), *parts, _figures(prediction)),
    )  # fmt: skip


def devices_document() -> Document:
    """Return the GPUs that can be predicted, and what is known of each."""
    sources = stored().sources
    rows = []
    for name, peaks in known_devices().items():
        models = {source.model for source in sources if peaks_of(source.device).source == peaks.source}
        rows.append({"device": name, "source": peaks.source, "models": len(models), "capacity_gb": peaks.capacity_gb})
    fields: tuple[Field, ...] = (
        ("device", "name"), ("peaks of", "text", "source"), ("models in its traces", "count", "models"),
        ("memory", "bytes", lambda row: row["capacity_gb"] and row["capacity_gb"] * 1e9),
    )  # fmt: skip
    figures = ", ".join(title for title, _, _ in _FIGURES)
    notes = (
        f"Of a run with recorded shapes: {figures}, what limits it, and the same in graphs and with torch.compile.",
        f"With traces of fewer than {FEW} models it is predicted from its peaks, and what other GPUs reach of theirs.",
    )
    return Document(
        "molprof predict: GPUs",
        (Section("GPUs", notes, table_of(rows, *fields, missing="-")),),
        data=lambda: {"schema": SCHEMA, "devices": rows, "figures": [name for _, name, _ in _FIGURES]},
        records=lambda: records(rows),
    )


def _device(prediction: Prediction) -> str:
    return prediction.device.source.replace(" data sheet", "")


def _warnings(prediction: Prediction) -> Iterator[str]:
    if not prediction.shown:
        yield (
            "The table has no traces of this GPU: its peaks are used with what other GPUs reach of theirs, which does "
            "not rank it among GPUs."
        )
    if not prediction.checks:
        yield "No held-out trace checks such a prediction: its error is not known."
    if prediction.known_ratio < 1:
        names, left = ", ".join(prediction.left_out[:4]), percent_text(1 - prediction.known_ratio)
        yield f"{left} of the run's time in operators is left out, in those that no trace shows: {names}."


def _summary(prediction: Prediction) -> str:
    steps = f"the {counted(prediction.run.steps, 'step')}" if prediction.run.steps > 1 else "the run"
    length, busy = prediction.length_ns, prediction.busy_ratio
    held = {"GPU": "the GPU's work", "host": "the host: launches, operators and Python"}[prediction.limit]
    margin = ""
    if min(prediction.host_ns, prediction.gpu_ns.value) > _CLOSE * max(prediction.host_ns, prediction.gpu_ns.value):
        margin = ", by little,"
        held += f" (alone {time_text(prediction.host_ns)} on the host, {time_text(prediction.gpu_ns.value)} on the GPU)"
    graphs = prediction.graphs.length_ns / prediction.replayed.length_ns
    return (
        f"Predicted: {steps} would take {_range(length)}, with the GPU busy for {percent_text(busy.low)} to "
        f"{percent_text(busy.high)} of it. What limits it{margin} is {held}. With all launches between two syncs in "
        f"one graph it would take {percent_text(1 - graphs)} less."
    )


def _range(figure: PredictedFigure) -> str:
    return f"{time_text(figure.value)} ({time_text(figure.low)} to {time_text(figure.high)})"


def _figures(prediction: Prediction) -> Section:
    steps = prediction.run.steps
    rows: list[Row] = []
    for title, name, unit in _FIGURES:
        one: PredictedFigure = getattr(prediction, name)
        row: list[Any] = [title, Cell(one.value, unit), Cell((one.low, one.high), unit)]
        if steps > 1:
            row.append(Cell(None if unit == "ratio" else one.value / steps, "number" if unit == "count" else unit))
        rows.append(row)
    fields: list[tuple[str, Unit]] = [("predicted", "text"), ("value", "number"), ("interval", "number")]
    if steps > 1:
        fields.append(("per step", "number"))
    shown = len({(check.model, check.origin, check.device) for check in prediction.checks})
    notes = (
        f"Nothing here was run on this GPU. Each interval is as wide as the error that {percent_text(COVERAGE)} of "
        f"{counted(shown, 'prediction')} of models whose traces were left out did not exceed (--all). Traces were "
        "recorded with the profiler on, so its cost on the host is in these figures.",
        f"Host time between operators is that of the run times {prediction.host_factor:.3g}, the ratio for operators "
        "that only make a view of a tensor.",
    )
    return Section("Predicted", notes, Table(columns(*fields), rows, missing="-"))


def _sizes(prediction: Prediction, sizes: Sizes) -> Iterator[Section]:
    manifest = prediction.run.info.manifest
    timings = None if manifest is None else from_json(manifest).timings
    ratio = None if timings is None else per(timings.profiled_steps_ns, timings.unprofiled_steps_ns)
    decoding = prediction.run.phases and all(item.name != "prefill" for item in prediction.run.phases)
    speed = "tokens/s" if decoding else "rows/s"
    fields: list[Field] = [
        ("batch", "count", "rows"), ("a step", "ns", "step_ns.value"), ("interval", "ns", _interval("step_ns")),
        (speed, "number", "per_s.value"), ("interval", "number", _interval("per_s")), ("limit", "text"),
        ("GPU busy", "ratio", "busy_ratio.value"), ("in graphs", "ns", "graph_ns.value"),
        ("interval", "ns", _interval("graph_ns")),
    ]  # fmt: skip
    notes = [
        f"Each operator has these rows in place of {sizes.rows:,}; sequences stay as long as recorded. Intervals are "
        "from predictions at the recorded size. In graphs: with all launches between two syncs in one graph.",
        f"Times and {speed} hold the profiler's cost on the host: without it, steps that the host limits are shorter"
        + (f". The recorded steps of this run took {ratio:.3g} times as long with it." if ratio and ratio > 1 else "."),
    ]
    if sizes.tokens is None:
        notes.append("The run does not record the sizes of its model, so the memory is not known.")
    else:
        fields.append(("memory", "bytes", _interval("memory_bytes")))
        notes.append(
            f"Memory: weights, KV cache of {sizes.tokens:,} tokens in each row, and logits; to "
            f"{percent_text(MEMORY_ERROR)} more, without CUDA's own."
        )
    if sizes.too_large is not None:
        rows, memory = sizes.too_large
        capacity = prediction.device.capacity_gb or 0
        notes.append(f"A batch of {rows:,} needs {memory.value / 1e9:,.0f} GB, and the GPU has {capacity:,.0f}.")
    if sizes.unknown:
        names = ", ".join(f"{name} ({count:,})" for name, count in sorted(sizes.unknown.items()))
        notes.append(f"As recorded, since their shapes do not show the rows: {names}.")
    table = table_of(sizes.each, *fields)
    joined = tuple(replace(column, joined=column.title == "interval") for column in table.columns)
    yield Section("Batch sizes", tuple(notes), replace(table, columns=joined))
    if len(sizes.each) > 1:
        yield plot_section(["rows"], (sizes.each, speed))
    if sizes.other is not None:
        rows, agreed = sizes.other
        whose = f"calls of the run of {counted(rows, 'row')}"
        text = f"{agreed.equal:,} of {agreed.calls:,} {whose} have the shapes predicted."
        differing = [(*texts, count) for texts, count in agreed.differing.items()]
        if agreed.missing:
            text += f" {counted(agreed.missing, 'call')} are in one of the two alone."
        differs: list[Field] = [
            ("operator", "name", "0"), ("predicted", "text", "1"), ("recorded", "text", "2"), ("calls", "count", "3")
        ]  # fmt: skip
        yield Section("Shapes of the other run", (text,), table_of(differing, *differs))


def _interval(name: str) -> Callable[[Size], tuple[float, float] | None]:
    def ends(size: Size) -> tuple[float, float] | None:
        figure: PredictedFigure | None = getattr(size, name)
        return None if figure is None else (figure.low, figure.high)

    return ends


def _changes(prediction: Prediction) -> Section:
    whole = prediction.replayed.length_ns
    rows: list[tuple[str, Replayed, PredictedFigure | None]] = [
        ("as it is", prediction.replayed, prediction.length_ns),
        ("launches=graph", prediction.graphs, prediction.graph_ns),
    ]  # fmt: skip
    if prediction.compiled is not None:
        rows.append(("torch.compile,launches=graph", prediction.compiled.replayed, prediction.compiled.length_ns))
    if prediction.changed is not None:
        rows.append((",".join(map(str, prediction.changes)), prediction.changed, prediction.changed_ns))
    fields: list[Field] = [
        ("change", "text", "0"), ("takes", "ns", "1.length_ns"),
        ("interval", "ns", lambda row: row[2] and (row[2].low, row[2].high)),
        ("less", "ratio", lambda row: 1 - row[1].length_ns / whole),
        ("GPU on the path", "ratio", lambda row: row[1].share(ON_GPU)),
        ("host on the path", "ratio", lambda row: row[1].share(ON_HOST)),
    ]  # fmt: skip
    note = (
        "The replay of molprof report by path. With a change, GPU time on the path is as uncertain as all GPU time, "
        "and the rest as the time of a run."
    )
    notes = (note,) if prediction.compiled is None else (note, _compiled_note(prediction.compiled))
    return Section("What changes would make of it", notes, table_of(rows, *fields))


def _compiled_note(compiled: CompiledRun) -> str:
    before, after = compiled.kernels
    return (
        f"torch.compile: of {before:,} kernels in forwards, {after:,} would stay, and the GPU's work would take "
        f"{_range(compiled.gpu_ns)}. The operators that inductor fuses are inferred from order and sizes alone."
    )


def _operators(prediction: Prediction) -> Section:
    total = prediction.gpu_ns.value
    fields: list[Field] = [
        ("operator", "name"), ("calls", "count"), ("launches", "count"), ("GPU time", "ns", "gpu_ns"),
        ("share", "ratio", lambda row: per(row.gpu_ns, total)), ("calls in traces", "count", "evidence"),
    ]  # fmt: skip
    notes = ["Of operators without calls in traces, the time is that of others of their family."]
    if prediction.measured:
        notes.append(f"{counted(prediction.measured, 'call')} have GPU times that molprof replay measured on this GPU.")
    if rest := prediction.shares[_MOST:]:
        took = time_text(sum(row.gpu_ns for row in rest))
        notes.append(f"Not shown: {counted(len(rest), 'operator')}, {took} in all.")
    return Section("Operators", tuple(notes), table_of(prediction.shares[:_MOST], *fields))


def _evidence(prediction: Prediction) -> Section:
    rows = [check for check in prediction.checks if check.figure != LIMIT_FIGURE]
    units = {name: unit for _, name, unit in _FIGURES}
    titles = {name: title for title, name, _ in _FIGURES}
    fields: list[Field] = [
        ("model", "text"), ("run of", "text", "origin"), ("GPU", "text", "device"),
        ("figure", "text", lambda row: titles[row.figure]),
        ("predicted", "number", lambda row: Cell(row.predicted, units[row.figure])),
        ("recorded", "number", lambda row: Cell(row.recorded, units[row.figure])),
    ]  # fmt: skip
    note = f"Learned from traces of {', '.join(prediction.models)}; for each row without those of its model."
    return Section("Held-out predictions", (note,), table_of(rows, *fields), detail=True)


def _replayed(replayed: Replayed, length_ns: PredictedFigure) -> dict[str, Any]:
    return named(replayed, *_REPLAYED) | {"low_ns": length_ns.low, "high_ns": length_ns.high}


_REPLAYED: tuple[Name, ...] = (
    ("length_ns", lambda replayed: float(replayed.length_ns)), ("gpu_ratio", lambda replayed: replayed.share(ON_GPU)),
)  # fmt: skip
_AGREEMENT = ("calls", "1.calls"), ("equal", "1.equal"), ("missing", "1.missing")
_SIZES: tuple[Name, ...] = (
    "rows", "tokens", "each",
    ("too_large", lambda sizes: sizes.too_large and named(sizes.too_large, ("rows", "0"), ("memory_bytes", "1.value"))),
    "unknown", ("other", lambda sizes: sizes.other and named(sizes.other, ("rows", "0"), *_AGREEMENT)),
)  # fmt: skip
_JSON: tuple[Name, ...] = (
    ("trace", "run.info.head"),
    ("device", lambda whole: whole, (("name", _device), ("source", "device.source"), ("traces_of_it", "shown"))),
    ("steps", lambda prediction: prediction.run.steps or None),
    ("predicted", lambda whole: whole, [name for _, name, _ in _FIGURES]), ("coverage", lambda _: COVERAGE), "limit",
    "host_factor", "known_ratio", ("measured_calls", "measured"),
    ("unknown", lambda prediction: {
        name: {"calls": calls, "ns": ns} for name, (calls, ns) in sorted(prediction.run.unknown.items())
    }),
    ("as_is", "replayed", _REPLAYED), ("graphs", lambda prediction: _replayed(prediction.graphs, prediction.graph_ns)),
    ("compiled", "compiled", (
        ("length_ns", lambda run: float(run.replayed.length_ns)), ("gpu_ratio", lambda run: run.replayed.share(ON_GPU)),
        "kernels", "gpu_ns", ("low_ns", "length_ns.low"), ("high_ns", "length_ns.high"),
    )),
    ("changes", lambda prediction: list(map(str, prediction.changes))),
    ("changed", lambda prediction: prediction.changed and _replayed(prediction.changed, prediction.changed_ns)),
)  # fmt: skip
