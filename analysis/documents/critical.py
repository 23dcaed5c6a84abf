"""The critical path of a trace as a document: what each part could gain, and the time after changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from molprof.analysis.critical.changes import GRAPH_PAUSE_NS, LAUNCHES
from molprof.analysis.critical.path import LEAST_RATIO, CriticalPath
from molprof.analysis.critical.replay import BETWEEN, ON_GPU, ON_HOST, Replayed
from molprof.analysis.reader import path_text
from molprof.common.document import Document, Field, Section, named, records, table_of
from molprof.common.values import counted, percent_text, time_text

SCHEMA = 1
_MODEL = (
    "Kept: the order of calls and of kernels, host time before a launch, and what a sync waits for. What these do not "
    "explain stays as long as recorded."
)
_NAMES = {ON_GPU: "GPU work", ON_HOST: "host time", BETWEEN: "waiting in between"}


def critical_document(critical_path: CriticalPath) -> Document:
    """Return the document of a critical path."""
    return Document(
        title=f"{path_text(critical_path.info.path)}: critical path",
        sections=(*_changed(critical_path), _path(critical_path), *_without(critical_path)),
        data=lambda: {"schema": SCHEMA, **named(critical_path, *_JSON)},
        records=lambda: records(_rows(critical_path.recorded)),
        warnings=critical_path.notes,
        summary=_summary(critical_path),
    )


def _summary(critical_path: CriticalPath) -> tuple[str, ...]:
    what = (
        f"The {counted(critical_path.steps, 'step')}"
        if critical_path.steps > 1
        else "The step"
        if critical_path.steps
        else "The trace"
    )
    takes = "take" if critical_path.steps > 1 else "takes"
    lines = [
        f"{what} {takes} {time_text(critical_path.recorded.length_ns)}. "
        f"What decides it is {_shares(critical_path.recorded)}."
    ]
    if critical_path.changed is not None:
        changes = ", ".join(map(str, critical_path.changes))
        ratio = critical_path.changed.length_ns / critical_path.recorded.length_ns
        less = f"{percent_text(abs(1 - ratio))} {'less' if ratio <= 1 else 'more'}"
        then = f" Then it is {_shares(critical_path.changed)}." if critical_path.changed.length_ns else ""
        lines.append(f"With {changes}: {time_text(critical_path.changed.length_ns)}, {less}.{then}")
    return tuple(lines)


def _shares(replayed: Replayed) -> str:
    each = sorted(((replayed.share(where), name) for where, name in _NAMES.items()), reverse=True)
    texts = [f"{percent_text(share)} {name}" for share, name in each if share >= LEAST_RATIO]
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _rows(replayed: Replayed) -> list[dict[str, Any]]:
    """Return the parts of the path by their names in JSON and CSV, the longest first."""
    parts = sorted(((piece, ns) for piece, ns in replayed.path.items() if ns), key=lambda item: (-item[1], item[0][:2]))
    return [{**piece._asdict(), "ns": float(ns), "ratio": float(ns / replayed.length_ns)} for piece, ns in parts]


def _path(critical_path: CriticalPath) -> Section:
    rows = _rows(critical_path.recorded)
    fields = [*_piece(rows), ("time", "ns", "ns"), ("share", "ratio", "ratio")]
    if critical_path.steps > 1:
        fields.append(("per step", "ns", lambda row: row["ns"] / critical_path.steps))
    shown = [row for row in rows if row["ns"] >= LEAST_RATIO * critical_path.recorded.length_ns]
    notes = [
        f"From the end back, what each waited for. All parts add up to {time_text(critical_path.recorded.length_ns)}."
    ]
    if rest := len(rows) - len(shown):
        took = time_text(sum(row["ns"] for row in rows) - sum(row["ns"] for row in shown))
        notes.append(f"Not shown: {counted(rest, 'part')} below {percent_text(LEAST_RATIO)}, {took} in all.")
    return Section("The critical path", tuple(notes), table_of(shown, *fields, missing="-"))


def _piece(rows: Iterable[Mapping[str, Any]]) -> list[Field]:
    """Return the fields of a piece of a path, with its phase where any piece has one."""
    phase: list[Field] = [("phase", "name")] if any(row["phase"] for row in rows) else []
    return [("where", "name"), ("what", "name"), *phase]


def _without(critical_path: CriticalPath) -> list[Section]:
    if not critical_path.without:
        return []
    whole = critical_path.recorded.length_ns
    table = table_of(
        critical_path.without,
        ("change", "text", lambda item: str(item[0])), ("takes", "ns", "1.length_ns"),
        ("at most gained", "ns", lambda item: whole - item[1].length_ns),
        ("share", "ratio", lambda item: 1 - item[1].length_ns / whole),
    )  # fmt: skip
    note = (
        "Each change alone, as --what-if takes it. Gains do not add up: another part decides as soon as one is fast "
        "enough. Host time is that of the trace, the profiler's own cost included."
    )
    return [Section("What each could gain at most", (note, _MODEL), table)]


def _changed(critical_path: CriticalPath) -> list[Section]:
    if critical_path.changed is None:
        return []
    before, after = critical_path.recorded.path, critical_path.changed.path
    both = [(piece, before.get(piece, 0), after.get(piece, 0)) for piece in {**before, **after}]
    least = LEAST_RATIO * critical_path.recorded.length_ns
    both = sorted((row for row in both if max(row[1:]) >= least), key=lambda row: (-row[2], -row[1], row[0][:2]))
    rows = [{**piece._asdict(), "recorded": first, "changed": other} for piece, first, other in both]
    fields: list[Field] = [*_piece(rows), ("recorded", "ns"), ("changed", "ns")]
    notes = ["The two critical paths. What leaves the path may still run beside it."]
    if any(change.name == LAUNCHES for change in critical_path.changes):
        notes.append(
            f"The calls between two host syncs of a step become one: {counted(critical_path.launches, 'call')} in all. "
            f"Between two kernels of one lie at most {time_text(GRAPH_PAUSE_NS)}, as in recorded graphs of an H100."
        )
    title = f"With {', '.join(map(str, critical_path.changes))}"
    return [Section(title, tuple(notes), table_of(rows, *fields, missing="-"))]


_WITHOUT = (("change", lambda item: str(item[0])), ("length_ns", lambda item: float(item[1].length_ns)))
_REPLAYED = (("length_ns", lambda replayed: float(replayed.length_ns)), ("path", _rows))
_JSON = (
    ("trace", "info.head"), ("steps", lambda path: path.steps or None), ("recorded", "recorded", _REPLAYED),
    ("without", "without", _WITHOUT),
    ("changes", lambda path: list(map(str, path.changes))), ("changed", "changed", _REPLAYED),
)  # fmt: skip
