"""Operators of a trace by their arguments, and the time of one of them here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from molprof.analysis.reader import path_text
from molprof.analysis.roofline.formulas import work_of
from molprof.analysis.roofline.script import ScriptCall
from molprof.common.document import Document, Field, Section, named, objects, records, table_of
from molprof.common.values import counted, per, time_text

SCHEMA = 1
_SHOWN = 30
# A numbered operator in JSON and CSV.
_ROW = (
    ("op", "0"), ("operator", "1.operator"), ("shapes", "1.arguments"), ("calls", "1.calls"), ("time_ns", "1.time_ns"),
    ("own_ns", "1.own_ns"), ("on_gpu", "1.on_gpu"),
)  # fmt: skip


def operators_document(path: str, script_calls: Sequence[ScriptCall], notes: Sequence[str]) -> Document:
    """Return the list of operators that the numbers of `--op` refer to."""
    rows = list(enumerate(script_calls, 1))
    rest = len(rows) - _SHOWN
    what = "GPU time" if script_calls[0].on_gpu else "host time"
    lines = [f"Not shown: {counted(rest, 'row')}. JSON and CSV have all."] if rest > 0 else []
    own_time: list[Field] = [] if script_calls[0].on_gpu else [("own", "ns", "1.own_ns")]
    if own_time:
        lines.insert(0, "By self time. Rows that look equal differ in types or strides.")
    table = table_of(
        rows[:_SHOWN],
        ("op", "count", "0"), ("operator", "name", "1.operator"), ("shapes", "path", "1.arguments"),
        ("calls", "count", "1.calls"), (what, "ns", "1.time_ns"), *own_time,
        ("each", "ns", lambda row: row[1].time_ns / row[1].calls),
    )  # fmt: skip
    return Document(
        title=f"{path_text(path)}: operators by their arguments",
        sections=(Section("Operators", tuple(lines), table),),
        data=lambda: {"schema": SCHEMA, "trace": path, "operators": objects(rows, *_ROW)},
        records=lambda: records(objects(rows, *_ROW)),
        warnings=tuple(notes),
        summary=("molprof replay TRACE --op N runs one of them here; with --script FILE it is written.",),
    )


def replayed_document(path: str, number: int, called: ScriptCall, measured: Mapping[str, Any]) -> Document:
    """Return one operator, as recorded and as it ran here. measured: what its script prints as JSON."""
    each_ns = called.time_ns / called.calls
    where = f"{measured['device']}, torch {measured['torch']}"
    kind = "of the GPU" if called.on_gpu else "of the host, the profiler's cost included"
    rows = [
        {"where": f"recorded, {kind}", "ns": each_ns, "of": f"mean of {called.calls:,}"},
        {"where": f"here, {where}", "ns": measured["median_ns"], "of": "median"},
    ]
    gpu_ns = measured["gpu_ns"]
    if gpu_ns is not None:
        rows.append({"where": "here, of the GPU", "ns": gpu_ns, "of": "median, data from its memory"})
    table = table_of(rows, ("a call", "text", "where"), ("time", "ns", "ns"), ("which", "text", "of"))
    low, high = (time_text(measured[name]) for name in ("low_ns", "high_ns"))
    note = (
        f"Here: 80 % of the measurements lie between {low} and {high}. A call takes the longer of host and device, and "
        "its data may stay in a cache."
    )
    row = named((number, called), *_ROW)
    work = work_of(called.operator, called.operands)
    ratio = per(gpu_ns if called.on_gpu and gpu_ns is not None else measured["median_ns"], each_ns)
    return Document(
        title=f"{path_text(path)}: operator {number} by itself",
        sections=(Section(f"{called.operator} {called.arguments}", (note,), table),),
        data=lambda: {
            "schema": SCHEMA, "trace": path, **row, "work": work, "measured": measured, "ratio": ratio,
        },
        records=lambda: records([{**row, **measured}]),
    )  # fmt: skip
