"""What decides how long a trace takes: its critical path, what each part could gain, and what changes would make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from molprof.analysis.critical.changes import LAUNCHES
from molprof.analysis.critical.path import LEAST_RATIO, CriticalPath
from molprof.analysis.critical.replay import BETWEEN, ON_GPU, ON_HOST, Piece, Replayed
from molprof.analysis.reader import path_text
from molprof.common.document import Document, Field, Section, records, table_of
from molprof.common.values import counted, percent_text, time_text

SCHEMA = 1
_MODEL = (
    "Kept: the order of calls and of kernels, host time before a launch, and what a sync waits for. What these do not "
    "explain stays as long as recorded."
)
_NAMES = {ON_GPU: "GPU work", ON_HOST: "host time", BETWEEN: "waiting in between"}


def critical_document(found: CriticalPath) -> Document:
    return Document(
        title=f"{path_text(found.info.path)}: critical path",
        sections=(*_changed(found), _path(found), *_without(found)),
        data=lambda: _data(found),
        records=lambda: records([_row(piece, ns, found.recorded) for piece, ns in _sorted(found.recorded.path)]),
        warnings=found.notes,
        summary=_summary(found),
    )


def _summary(found: CriticalPath) -> tuple[str, ...]:
    what = f"The {counted(found.steps, 'step')}" if found.steps > 1 else "The step" if found.steps else "The trace"
    takes = "take" if found.steps > 1 else "takes"
    lines = [f"{what} {takes} {time_text(found.recorded.length_ns)}. What decides it is {_shares(found.recorded)}."]
    if found.changed is not None:
        asked = ", ".join(map(str, found.changes))
        ratio = found.changed.length_ns / found.recorded.length_ns
        less = f"{percent_text(abs(1 - ratio))} {'less' if ratio <= 1 else 'more'}"
        then = f" Then it is {_shares(found.changed)}." if found.changed.length_ns else ""
        lines.append(f"With {asked}: {time_text(found.changed.length_ns)}, {less}.{then}")
    return tuple(lines)


def _shares(replayed: Replayed) -> str:
    each = sorted(((replayed.share(where), name) for where, name in _NAMES.items()), reverse=True)
    texts = [f"{percent_text(share)} {name}" for share, name in each if share >= LEAST_RATIO]
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _sorted(path: Mapping[Piece, float]) -> list[tuple[Piece, float]]:
    return sorted(((piece, ns) for piece, ns in path.items() if ns), key=lambda item: (-item[1], item[0][:2]))


def _path(found: CriticalPath) -> Section:
    fields = [
        *_piece(found.recorded.path), ("time", "ns", "1"),
        ("share", "ratio", lambda item: item[1] / found.recorded.length_ns),
    ]  # fmt: skip
    if found.steps > 1:
        fields.append(("per step", "ns", lambda item: item[1] / found.steps))
    rows = _sorted(found.recorded.path)
    shown = [row for row in rows if row[1] >= LEAST_RATIO * found.recorded.length_ns]
    notes = [f"From the end back, what each waited for. All parts add up to {time_text(found.recorded.length_ns)}."]
    if rest := len(rows) - len(shown):
        took = time_text(sum(ns for _, ns in rows) - sum(ns for _, ns in shown))
        notes.append(f"Not shown: {counted(rest, 'part')} below {percent_text(LEAST_RATIO)}, {took} in all.")
    return Section("The critical path", tuple(notes), table_of(shown, *fields, missing="-"))


def _piece(pieces: Iterable[Piece]) -> list[Field]:
    """What is on a path; its phase, where any has one."""
    phase: list[Field] = [("phase", "name", "0.phase")] if any(piece.phase for piece in pieces) else []
    return [("where", "name", "0.where"), ("what", "name", "0.what"), *phase]


def _without(found: CriticalPath) -> list[Section]:
    if not found.without:
        return []
    whole = found.recorded.length_ns
    table = table_of(
        found.without,
        ("change", "text", lambda item: str(item[0])), ("takes", "ns", "1.length_ns"),
        ("at most gained", "ns", lambda item: whole - item[1].length_ns),
        ("share", "ratio", lambda item: 1 - item[1].length_ns / whole),
    )  # fmt: skip
    note = (
        "Each change alone, as --what-if takes it. Gains do not add up: another part decides as soon as one is fast "
        "enough. Host time is that of the trace, the profiler's own cost included."
    )
    return [Section("What each could gain at most", (note, _MODEL), table)]


def _changed(found: CriticalPath) -> list[Section]:
    if found.changed is None:
        return []
    before, after = found.recorded.path, found.changed.path
    rows = [(piece, before.get(piece, 0), after.get(piece, 0)) for piece in {**before, **after}]
    least = LEAST_RATIO * found.recorded.length_ns
    rows = sorted((row for row in rows if max(row[1:]) >= least), key=lambda row: (-row[2], -row[1], row[0][:2]))
    fields = [*_piece(row[0] for row in rows), ("recorded", "ns", "1"), ("changed", "ns", "2")]
    notes = ["The two critical paths. What leaves the path may still run beside it."]
    if any(change.name == LAUNCHES for change in found.changes):
        notes.append(
            f"The calls between two host syncs of a step become one: {counted(found.launches, 'call')} in all."
        )
    title = f"With {', '.join(map(str, found.changes))}"
    return [Section(title, tuple(notes), table_of(rows, *fields, missing="-"))]


def _row(piece: Piece, ns: float, replayed: Replayed) -> dict[str, Any]:
    return {
        "where": piece.where,
        "what": piece.what,
        "phase": piece.phase,
        "ns": float(ns),
        "ratio": float(ns / replayed.length_ns),
    }


def _replayed(replayed: Replayed) -> dict[str, Any]:
    return {
        "length_ns": float(replayed.length_ns),
        "path": [_row(piece, ns, replayed) for piece, ns in _sorted(replayed.path)],
    }


def _data(found: CriticalPath) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "trace": found.info.head,
        "steps": found.steps or None,
        "recorded": _replayed(found.recorded),
        "without": [
            {"change": str(change), "length_ns": float(replayed.length_ns)} for change, replayed in found.without
        ],
        "changes": [str(change) for change in found.changes],
        "changed": None if found.changed is None else _replayed(found.changed),
    }
