"""Memory of a trace: use at the peak and over time, who allocates it, how it grows, the need of a batch of N."""

from __future__ import annotations

from typing import Any

import numpy as np

from molprof.analysis.documents.plots import plot_section
from molprof.analysis.memory import HOST, MEANINGS, WEIGHTS, BatchMemory, Memory, MemoryTimeline
from molprof.analysis.reader import path_text
from molprof.common.document import Document, Field, Section, named, objects, records, table_of
from molprof.common.values import bytes_text, counted, per, percent_text, short_name, short_source

SCHEMA = 1
# Rows below this share of what lives at the peak, and of all that is allocated, are left out of tables.
LEAST_RATIO = 0.01
# Samples of the course in JSON.
_SAMPLES = 200
# In JSON and CSV.
_PLACE = (("path", lambda node: "/".join(node.path)), "allocations", "bytes", "peak_bytes", "left_bytes")
_BATCH = (
    "rows", ("fixed_bytes", "fixed"), ("cache_bytes", "cache"), ("logits_bytes", "logits"), ("rest_bytes", "rest"),
    ("bytes", "total"),
)  # fmt: skip


def memory_document(memory: Memory) -> Document:
    """Return the document of a trace's memory."""
    course = memory.courses[0] if memory.courses else None
    sections = [] if course is None else [_peak(course), plot_section(["memory"], course)]
    sections += _batches(memory)
    sections += [] if course is None else [*_growth(course), _places(course)]
    return Document(
        title=f"{path_text(memory.info.path)}: memory",
        sections=(*sections, *_others(memory)),
        data=lambda: {"schema": SCHEMA, **named(memory, *_JSON)},
        records=lambda: records(objects([node for course in memory.courses[:1] for node in course.places], *_PLACE)),
        warnings=memory.notes,
        summary=_summary(memory),
    )


def _name(course: MemoryTimeline) -> str:
    return "the host" if course.device == HOST else course.name or f"device {course.device}"


def _summary(memory: Memory) -> tuple[str, ...]:
    lines = []
    for course in memory.courses[:1]:
        held = f"; torch held {bytes_text(course.reserved_bytes)}" if course.reserved_bytes else ""
        most = next(iter(course.at_peak.items()), None)
        what = f", most of it {most[0]} ({bytes_text(most[1])})" if most else ""
        peak = bytes_text(course.peak_bytes)
        if course.device == HOST:  # of which torch does not tell what was there before
            since = "What was there before, as weights are, is not counted."
            lines.append(f"Of what the recording saw allocated on the host, at most {peak} lived{what}{held}. {since}")
        else:
            lines.append(f"At most {peak} lived on {_name(course)}{what}{held}.")
    if (model := memory.model) is not None and (token_bytes := model.needs.cache_of_token):
        lines.append(
            f"Weights take {bytes_text(model.needs.weights)}; the cache grows by {bytes_text(token_bytes)} per "
            f"token and row, to {bytes_text(token_bytes * model.tokens)} at {counted(model.tokens, 'token')}."
        )
    # An engine may have taken its cache before: then that is what limits a batch.
    is_whole = memory.model is not None or any("cache" in course.live for course in memory.courses[:1])
    if is_whole and memory.most_rows is not None and memory.capacity_bytes is not None:
        what = "rows fit" if memory.model else "times the recorded batch fits"
        lines.append(f"Of {bytes_text(memory.capacity_bytes)}, at most {memory.most_rows:,} {what}.")
    return tuple(lines)


def _peak(course: MemoryTimeline) -> Section:
    table = table_of(
        course.at_peak.items(),
        ("category", "name", "0"), ("bytes", "bytes", "1"),
        ("share", "ratio", lambda item: per(item[1], course.peak_bytes)),
        ("what it is", "text", lambda item: MEANINGS.get(item[0])),
    )  # fmt: skip
    notes = [f"They add up to the {bytes_text(course.peak_bytes)} that torch recorded."]
    if course.device == HOST:
        notes.append("On a host torch counts what is allocated after the recording began.")
    return Section("At the peak", tuple(notes), table)


def _growth(course: MemoryTimeline) -> list[Section]:
    if not course.growth_steps or not any(course.growth.values()):
        return []
    fields: list[Field] = [
        ("category", "name", "0"), ("grown", "bytes", "1"),
        ("per step", "bytes", lambda item: item[1] / course.growth_steps),
    ]  # fmt: skip
    if tokens := course.growth_tokens:
        fields.append(("per token", "bytes", lambda item: item[1] / tokens))
    note = f"From the start of the second decode step to that of the last, {counted(course.growth_steps, 'step')}."
    rows = [item for item in course.growth.items() if item[1]]
    return [Section("Growth", (note,), table_of(rows, *fields))]


def _batches(memory: Memory) -> list[Section]:
    if not memory.batches:
        return []
    model = memory.model
    fields: list[Field] = [
        ("rows" if model else "times the batch", "count", "rows"),
        (WEIGHTS if model else "before", "bytes", "fixed"), ("cache", "bytes"), ("logits", "bytes"),
        ("rest", "bytes"), ("in all", "bytes", "total"),
    ]  # fmt: skip
    if memory.courses == ():
        del fields[4]
    if capacity := memory.capacity_bytes:
        fields.append(("of the device", "ratio", lambda batch: batch.total / capacity))
    if model:
        notes = [f"Each row with {counted(model.tokens, 'token')} in the cache, the most in this run."]
        if memory.courses:
            notes.append(
                "Logits and the rest as at the recorded peak, by row. A prefill that is not recorded took more."
            )
        else:
            notes.append("Without activations, which memory events show.")
        if memory.measured_bytes is not None:
            measured = f"{bytes_text(memory.measured_bytes)}, {memory.measured_of}"
            notes.append(f"Measured with {counted(model.rows, 'row')}, at most: {measured}.")
    else:
        notes = [
            "What was allocated in the recording grows with the batch; what was there before does not. An engine that "
            "took its cache before has no more room than that."
        ]
    shown = [batch for batch in memory.batches if not _is_far(batch, memory)]
    return [Section("A batch of N", tuple(notes), table_of(shown, *fields, missing="-"))]


def _is_far(batch: BatchMemory, memory: Memory) -> bool:
    """Return True if the batch is far beyond the device's memory."""
    return memory.capacity_bytes is not None and batch.total > 4 * memory.capacity_bytes


def _places(course: MemoryTimeline) -> Section:
    """Return the tree of locations that allocate memory."""
    allocated = sum(node.bytes for node in course.places if len(node.path) == 1)
    lives = sum(node.peak_bytes for node in course.places if len(node.path) == 1)
    shown = [
        node
        for node in course.places
        if node.peak_bytes >= LEAST_RATIO * max(1, lives) or node.bytes >= LEAST_RATIO * allocated
    ]
    notes = ["At the peak: what lives of it then. Left: what is not freed up to the end."]
    if rest := len(course.places) - len(shown):
        notes.append(f"Not shown: {counted(rest, 'row')} below {percent_text(LEAST_RATIO)}. JSON and CSV have all.")
    table = table_of(
        shown,
        ("location", "name", lambda node: "  " * (len(node.path) - 1) + short_name(short_source(node.path[-1]))),
        ("allocations", "count"), ("allocated", "bytes", "bytes"), ("at the peak", "bytes", "peak_bytes"),
        ("left", "bytes", "left_bytes"),
        spare_columns=("left", "allocations"),
    )  # fmt: skip
    return Section("Who allocates", tuple(notes), table)


def _others(memory: Memory) -> list[Section]:
    if len(memory.courses) < 2:
        return []
    table = table_of(
        memory.courses,
        ("device", "name"), ("events", "count", lambda course: len(course.ts)), ("peak", "bytes", "peak_bytes"),
        ("reserved", "bytes", "reserved_bytes"),
    )  # fmt: skip
    return [Section("Devices", ("The sections above are of the first.",), table)]


def _samples(course: MemoryTimeline) -> dict[str, Any]:
    """Return memory use at evenly spaced moments, and at the peak."""
    at = np.unique(np.append(np.linspace(0, len(course.ts) - 1, _SAMPLES).astype(int), course.peak))
    return {"ts": course.ts[at].tolist(), **{name: live[at].tolist() for name, live in course.live.items()}}


_COURSE = (
    "device", "name", "capacity_bytes", ("events", lambda course: len(course.ts)),
    ("unexplained_events", "unexplained"), "peak_bytes", ("peak_ts", lambda course: course.ts[course.peak]),
    "reserved_bytes", "at_peak",
    ("growth", lambda course: course, (("bytes", "growth"), ("steps", "growth_steps"), ("tokens", "growth_tokens"))),
    ("course", _samples), ("locations", "places", _PLACE),
)  # fmt: skip
_MODEL = (
    ("weights_bytes", "needs.weights"), ("token_bytes", "needs.cache_of_token"),
    ("logits_bytes", lambda model: sum(model.needs.logits_of_row)), "tokens", "rows",
)  # fmt: skip
_JSON = (
    ("trace", "info.head"), ("devices", "courses", _COURSE), ("model", "model", _MODEL), "measured_bytes",
    "capacity_bytes", "most_rows", ("batches", "batches", _BATCH),
)  # fmt: skip
