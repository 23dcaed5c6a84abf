"""What decides how long a trace takes: its critical path, what each part could gain, and what changes would make."""

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


def critical_document(found: CriticalPath) -> Document:
    """Return the document of a critical path."""
    return Document(
        title=f"{path_text(found.info.path)}: critical path",
        sections=(*_changed(found), _path(found), *_without(found)),
        data=lambda: {"schema": SCHEMA, **named(found, *_JSON)},
        records=lambda: records(_rows(found.recorded)),
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


def _rows(replayed: Replayed) -> list[dict[str, Any]]:
    """Return the parts of the path by their names in JSON and CSV, the longest first."""
    found = sorted(((piece, ns) for piece, ns in replayed.path.items() if ns), key=lambda item: (-item[1], item[0][:2]))
    return [{**piece._asdict(), "ns": float(ns), "ratio": float(ns / replayed.length_ns)} for piece, ns in found]


def _path(found: CriticalPath) -> Section:
    rows = _rows(found.recorded)
    fields = [*_piece(rows), ("time", "ns", "ns"), ("share", "ratio", "ratio")]
    if found.steps > 1:
        fields.append(("per step", "ns", lambda row: row["ns"] / found.steps))
    shown = [row for row in rows if row["ns"] >= LEAST_RATIO * found.recorded.length_ns]
    notes = [f"From the end back, what each waited for. All parts add up to {time_text(found.recorded.length_ns)}."]
    if rest := len(rows) - len(shown):
        took = time_text(sum(row["ns"] for row in rows) - sum(row["ns"] for row in shown))
        notes.append(f"Not shown: {counted(rest, 'part')} below {percent_text(LEAST_RATIO)}, {took} in all.")
    return Section("The critical path", tuple(notes), table_of(shown, *fields, missing="-"))


def _piece(rows: Iterable[Mapping[str, Any]]) -> list[Field]:
    """Return the fields of a piece of a path, with its phase where any piece has one."""
    phase: list[Field] = [("phase", "name")] if any(row["phase"] for row in rows) else []
    return [("where", "name"), ("what", "name"), *phase]


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
    both = [(piece, before.get(piece, 0), after.get(piece, 0)) for piece in {**before, **after}]
    least = LEAST_RATIO * found.recorded.length_ns
    both = sorted((row for row in both if max(row[1:]) >= least), key=lambda row: (-row[2], -row[1], row[0][:2]))
    rows = [{**piece._asdict(), "recorded": first, "changed": other} for piece, first, other in both]
    fields: list[Field] = [*_piece(rows), ("recorded", "ns"), ("changed", "ns")]
    notes = ["The two critical paths. What leaves the path may still run beside it."]
    if any(change.name == LAUNCHES for change in found.changes):
        notes.append(
            f"The calls between two host syncs of a step become one: {counted(found.launches, 'call')} in all. Between "
            f"two kernels of one lie at most {time_text(GRAPH_PAUSE_NS)}, as in recorded graphs of an H100."
        )
    title = f"With {', '.join(map(str, found.changes))}"
    return [Section(title, tuple(notes), table_of(rows, *fields, missing="-"))]


_WITHOUT = (("change", lambda item: str(item[0])), ("length_ns", lambda item: float(item[1].length_ns)))
_REPLAYED = (("length_ns", lambda replayed: float(replayed.length_ns)), ("path", _rows))
_JSON = (
    ("trace", "info.head"), ("steps", lambda found: found.steps or None), ("recorded", "recorded", _REPLAYED),
    ("without", "without", _WITHOUT),
    ("changes", lambda found: list(map(str, found.changes))), ("changed", "changed", _REPLAYED),
)  # fmt: skip
