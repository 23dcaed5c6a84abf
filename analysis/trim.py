"""Trimming: writes a smaller trace. One pass reads columns and makes a mask of kept events, a second copies them.

Of most blocks of events all are kept, or none: their text is written or left as it is, and only others are decoded.

Each event belongs to the time at which it starts, GPU work to that of its call. Events are written as they were read.
"""

from __future__ import annotations

import json
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
from isal import isal_zlib
from msgspec import to_builtins

from molprof.analysis.facts import GPU_WORK
from molprof.analysis.frame import read_frame
from molprof.analysis.reader.categories import fed_category
from molprof.analysis.reader.document import TracePass
from molprof.analysis.reader.events import ABSENT, FLOW_PHASES, STACK_CATEGORY
from molprof.analysis.reader.load import MANIFEST_HINT
from molprof.analysis.reader.open import open_trace
from molprof.analysis.reader.part import TracePart, numbered, or_zero, times_ns
from molprof.analysis.reader.pieces import Pieces
from molprof.analysis.reader.source import open_source
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.errors import TraceError, UsageError
from molprof.common.files import replacing_packed
from molprof.common.manifest import KEY, TRIMMED_KEY, Trimmed, from_json, trimmed_from_json
from molprof.common.text import whole_json
from molprof.queries import FACT_CATEGORY

ANNOTATION = "user_annotation"
# Phases of events that start and end at a moment of their own.
_TIMED = frozenset("XiIRC")
_MAX_NUMBER = 2**63  # of an int64
_NO_BLOCK = 0, -1
Array = np.ndarray
Kind = tuple[str | None, str | int | None, str | None]  # phase, category, name


@dataclass(frozen=True)
class Wish:
    """The parts to keep; by default all."""

    steps: tuple[int, int] | None = None  # first and last number
    batch: int | None = None  # of the steps; None: the first that is recorded
    phases: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()  # the only ones
    without: tuple[str, ...] = ()  # categories left out
    start_ns: int | None = None  # from the earliest event of the trace
    end_ns: int | None = None  # not in it

    def wants(self, category: str | int | None) -> bool:
        """Return True if events of the category are to be kept."""
        return str(category) not in self.without and (not self.categories or str(category) in self.categories)


@dataclass(frozen=True)
class TrimResult:
    """Counts of events of a trim."""

    before: int  # complete events
    after: int
    unplaced: int  # events with a separate begin and end, all of which were kept


def trim(path: Path, output: Path, wish: Wish, force: bool = True) -> TrimResult:
    """Write what `wish` keeps of the trace at `path`, whole or not at all; gzip if `output` ends in `.gz`.

    Without `force`, a file that appears at `output` meanwhile is kept: see `replacing`.
    Reads the trace twice. Needs about 60 bytes of memory per event.
    Raises TraceError, or UsageError where the steps or phases do not exist or nothing would be left.
    """
    try:
        columns, keys = _read(path)
    except TraceError as problem:
        if "--partial" not in (problem.hint or ""):
            raise
        raise TraceError(str(problem), hint="copy or record the file again: only whole traces are trimmed") from problem
    steps, phases = _annotated(columns, path)
    chosen = _chosen(path, steps, wish)
    span_ns = _span(columns, wish, chosen)
    kept = _kept(columns, path, span_ns, phases, wish)
    complete = columns.are(lambda kind: kind[0] == "X" and kind[1] != FACT_CATEGORY)
    after = int((kept & complete).sum())
    if not after or span_ns[0] > columns.last_ns:  # a sequence's slice, which is cut, would remain
        hint = f"its events start within {(columns.last_ns - columns.origin_ns) / 1e6:.3f} ms"
        raise UsageError(f"no event of {path} would be left", hint=hint)
    trimmed = _record(path, wish, chosen, trimmed_from_json(keys.get(TRIMMED_KEY)))
    left = [step for step in steps if span_ns[0] <= step.start_ns < span_ns[1]]
    if isinstance(keys.get(KEY), dict) and len(left) < len(steps):
        keys[KEY] = _trimmed_manifest(path, keys[KEY], left)
    keys |= {"traceName": output.name, TRIMMED_KEY: to_builtins(trimmed)}
    with replacing_packed(output, force) as out:
        _write(out, path, columns, kept, span_ns)
        for key, value in keys.items():
            out.write(whole_json(f",\n{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}").encode())
        out.write(b"\n}\n")
    unplaced = columns.are(lambda kind: kind[0] not in {*_TIMED, *FLOW_PHASES, "M"})
    return TrimResult(int(complete.sum()), after, int(unplaced.sum()))


class RecordedStep(NamedTuple):
    """A step of any trace: its number, and its batch if molprof captured it."""

    start_ns: int
    dur_ns: int
    number: int
    batch: int | None


def read_recorded_steps(engine: TraceProcessor, origin_ns: int = 0) -> list[RecordedStep]:
    """Return all steps in order of start, their times since the trace's earliest event and `origin_ns`."""
    rows = read_frame(engine, "steps", "ts dur number batch").rows()
    return [
        RecordedStep(origin_ns + ts, dur, index if number is None else number, batch)
        for index, (ts, dur, number, batch) in enumerate(rows)
    ]


def _annotated(columns: _Columns, path: Path) -> tuple[list[RecordedStep], list[tuple[int, int, str]]]:
    """Return steps, and start, end and name of phases, as the SQL package finds them; times as in the file."""
    with tempfile.TemporaryDirectory(prefix="molprof-trim-") as folder:
        annotations = Path(folder, "annotations.json")
        with annotations.open("wb") as file:
            file.writelines((b'{"traceEvents":[', b",\n".join(columns.annotations), b"]}"))
        with open_trace(annotations, all_args=False) as (engine, info):
            steps = read_recorded_steps(engine, info.origin_ns)
            _, phases = query_rows(engine, Query("phases", "SELECT ts, ts + dur, phase FROM molprof_phase ORDER BY ts"))
            origin = info.origin_ns
    return steps, [(start + origin, end + origin, name) for start, end, name in phases]


def _chosen(path: Path, steps: list[RecordedStep], wish: Wish) -> list[RecordedStep]:
    """Return the steps that were selected by number."""
    if wish.steps is None:
        return []
    if not steps:
        raise UsageError(f"{path} has no annotated steps", hint="give a span of time with --from and --to")
    batch = steps[0].batch if wish.batch is None else wish.batch
    of_batch = [step for step in steps if step.batch == batch]
    first, last = wish.steps
    chosen = [step for step in of_batch if first <= step.number <= last]
    if not chosen:
        of = "" if batch is None else f" of batch {batch}"
        numbers = [step.number for step in of_batch]
        there = f"{min(numbers)}:{max(numbers)}" if numbers else "none"
        raise UsageError(f"{path} has no recorded steps {first}:{last}{of}", hint=f"those recorded are {there}")
    return chosen


def _record(path: Path, wish: Wish, chosen: list[RecordedStep], earlier: Trimmed | None) -> Trimmed:
    """Return the record of the trim in the new file."""
    # No figure uses Python stacks.
    whole = not (wish.phases or wish.categories or set(wish.without) - {STACK_CATEGORY})
    whole = whole and wish.start_ns is None and wish.end_ns is None
    wished = {name: getattr(wish, name) for name in ("phases", "categories", "without", "start_ns", "end_ns")}
    return Trimmed(
        source=path.name,
        whole_steps=whole and (earlier is None or earlier.whole_steps),
        batch=chosen[0].batch if chosen else None,
        first_step=chosen[0].number if chosen else None,
        last_step=chosen[-1].number if chosen else None,
        **wished,
    )


def _trimmed_manifest(path: Path, raw: dict[str, Any], kept: Sequence[RecordedStep]) -> dict[str, Any]:
    """Return the manifest with window and step times of the steps `kept`; all else is of the whole run.

    Raises TraceError.
    """
    try:
        manifest = from_json(raw)
    except TraceError as error:
        raise TraceError(f"{path}: {error}", hint=error.hint or MANIFEST_HINT) from error
    steps = [(step.batch, step.number) for step in kept if step.batch is not None]
    window = raw["window"]
    if len({batch for batch, _ in steps}) == 1:
        numbers = [number for _, number in steps]
        window = {"full": False, "batch": steps[0][0], "first_step": min(numbers), "last_step": max(numbers)}
    same = [
        sum(repeat.steps_ns[batch][step] for batch, step in steps)
        for repeat in manifest.timings.repeats
        if all(batch < len(repeat.steps_ns) and step < len(repeat.steps_ns[batch]) for batch, step in steps)
    ]
    timings = {
        **raw["timings"],
        "profiled_steps_ns": sum(step.dur_ns for step in kept),
        "unprofiled_steps_ns": round(median(same)) if same else 0,
        "profiled_wall_ns": None,
    }
    return {**raw, "window": window, "timings": timings}


class _TrimmedArgs(msgspec.Struct, gc=False):
    correlation: Any = None


class _TrimmedEvent(msgspec.Struct, gc=False):
    ph: str | None = None
    cat: str | int | None = None
    name: str | None = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    id: msgspec.Raw = ABSENT
    args: _TrimmedArgs | None = None


_decode_texts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_events = msgspec.json.Decoder(list[_TrimmedEvent]).decode
_kind = attrgetter("ph", "cat", "name")


def _category(kind: Kind) -> str | None:
    """Return the category that SQL reads."""
    phase, category, name = kind
    return fed_category(None if category is None else str(category), phase, name)


@dataclass
class _Columns:
    """All events of a file, in its order: an entry per event. Times are ns as in the file."""

    kinds: list[Kind]
    annotations: list[bytes]  # the text of annotations and metadata
    kind_of: Array  # int32, place in `kinds`
    starts_ns: Array  # int64; 0 for events without a time, such as metadata
    ends_ns: Array
    # What a call and the GPU work that it started have in common, or the ends of a flow; below 0: no whole number.
    numbers: Array  # int64
    blocks: list[tuple[int, int]]  # of each block of the text its events, and a checksum

    def __post_init__(self) -> None:
        timed = self.starts_ns[self.are(lambda kind: kind[0] != "M" and kind[1] != FACT_CATEGORY)]
        self.origin_ns, self.last_ns = (int(timed.min()), int(timed.max())) if len(timed) else (0, 0)

    def are(self, test: Callable[[Kind], bool]) -> Array:
        """Return True for events of the kinds that pass the test."""
        of_kind: Array = np.fromiter(map(test, self.kinds), np.bool_, len(self.kinds))
        return np.asarray(of_kind[self.kind_of])


def _read(path: Path) -> tuple[_Columns, dict[str, Any]]:
    """Return the columns of a trace, and its other top-level keys. Raises TraceError."""
    kinds, ids = numbered(), numbered()
    columns: list[tuple[Array, ...]] = [tuple(np.empty(0, kind) for kind in (np.int32, *[np.int64] * 3))]
    blocks: list[tuple[int, int]] = []
    annotations: list[bytes] = []

    def number(event: _TrimmedEvent) -> int:
        if event.ph in FLOW_PHASES:
            text = bytes(event.id)
            return int(text) if text.isdigit() and int(text) < _MAX_NUMBER else -1 - ids[text]
        correlation = None if event.args is None else event.args.correlation
        return correlation if isinstance(correlation, int) and 0 <= correlation < _MAX_NUMBER else -1

    def read(text: bytes) -> TracePart:
        if not text.isascii():
            text.decode()  # the decoder does not check what is copied
        events = _decode_events(text)
        starts = times_ns(events, or_zero([event.ts for event in events]), "ts")
        durations = times_ns(events, or_zero([event.dur for event in events]), "dur")
        event_kinds = list(map(_kind, events))
        marks = [kind[0] == "M" or (kind[0] == "X" and _category(kind) == ANNOTATION) for kind in event_kinds]
        if any(marks):
            annotations.extend(map(bytes, compress(_decode_texts(text), marks)))
        count = len(events)
        kind_of = np.fromiter(map(kinds.__getitem__, event_kinds), np.int32, count)
        columns.append((kind_of, starts, starts + durations, np.fromiter(map(number, events), np.int64, count)))
        blocks.append((count, isal_zlib.crc32(text)))
        return TracePart(events=count)

    keys = pass_over(path, read)
    kind_of, starts_ns, ends_ns, numbers = map(np.concatenate, zip(*columns, strict=True))
    return _Columns(list(kinds), annotations, kind_of, starts_ns, ends_ns, numbers, blocks), keys


def pass_over(path: Path, read: Callable[[bytes], TracePart]) -> dict[str, Any]:
    """Give every block of events to `read`; returns the other top-level keys. Raises TraceError."""
    with open_source(path) as source:
        document = TracePass(source.name, source.blocks, Pieces(read), partial=False)
        deque(document.parts(), maxlen=0)
        return document.keys


def _span(columns: _Columns, wish: Wish, steps: list[RecordedStep]) -> tuple[int, int]:
    """Return begin and end of the time to keep: ns as in the file, the end exclusive."""
    begin = columns.origin_ns + (wish.start_ns or 0)
    end = _MAX_NUMBER - 1 if wish.end_ns is None else columns.origin_ns + wish.end_ns
    if steps:
        begin = max(begin, min(step.start_ns for step in steps))
        end = min(end, max(step.start_ns + step.dur_ns for step in steps))
    return begin, end


def _kept(
    columns: _Columns, path: Path, span_ns: tuple[int, int], phases: list[tuple[int, int, str]], wish: Wish
) -> Array:
    """Return True for events to keep: those of a span of time and of phases, with the GPU work of their calls.

    Raises UsageError for a phase or category that is not recorded.
    """
    names = sorted({name for _, _, name in phases})
    if unknown := [name for name in wish.phases if name not in names]:
        hint = f"those recorded are {', '.join(names)}" if names else "only molprof's own traces have phases"
        raise UsageError(f"{path} has no recorded phase {unknown[0]!r}", hint=hint)
    categories = sorted({str(category) for phase, category, _ in columns.kinds if phase == "X"} - {FACT_CATEGORY})
    if unknown := [name for name in (*wish.categories, *wish.without) if name not in categories]:
        raise UsageError(f"{path} has no category {unknown[0]!r}", hint=f"it has {', '.join(categories)}")
    starts, ends, numbers = columns.starts_ns, columns.ends_ns, columns.numbers
    in_time = (starts >= span_ns[0]) & (starts < span_ns[1])
    in_phases = in_time
    if wish.phases:
        # Sorted and disjoint.
        begins, stops = np.array([phase[:2] for phase in phases if phase[2] in wish.phases], np.int64).T
        span_before = np.searchsorted(begins, starts, side="right") - 1
        in_phases = in_time & (span_before >= 0) & (starts < stops[span_before])
    # GPU work is kept by its call where that is recorded, else by its own start.
    linked = columns.are(lambda kind: kind[0] == "X") & (numbers >= 0)
    is_work = columns.are(lambda kind: _category(kind) in GPU_WORK)
    calls, work = linked & ~is_work, linked & is_work
    has_call = np.isin(numbers, np.intersect1d(numbers[calls], numbers[work]))
    by_call = np.where(has_call, np.isin(numbers, numbers[calls & in_phases]), in_phases)
    work &= by_call
    # An annotation of the GPU spans the work of what it annotates on the CPU.
    around_work = (starts >= starts[work].min(initial=span_ns[1])) & (ends <= ends[work].max(initial=span_ns[0]))
    # A flow from a call to what it started has both ends where both are kept; others bind operators.
    wanted = columns.are(lambda kind: wish.wants(kind[1]))
    both = np.intersect1d(numbers[calls & in_phases & wanted], numbers[work & wanted])
    launches = columns.are(lambda kind: kind[1] == "ac2g") & (numbers >= 0)
    by_ends = np.where(launches, np.isin(numbers, both), in_phases & wish.wants("cpu_op"))
    is_flow, named = columns.are(lambda kind: kind[0] in FLOW_PHASES), numbered()
    name_of = np.array([named[kind[1:]] for kind in columns.kinds], np.int64)[columns.kind_of[is_flow]]
    _, ids = np.unique(numbers[is_flow], return_inverse=True)
    _, flow_of = np.unique(name_of * len(ids) + ids, return_inverse=True)
    by_ends[is_flow] = np.bincount(flow_of, ~by_ends[is_flow])[flow_of] == 0
    rules = (
        # What `molprof export` added is of the whole trace.
        (columns.are(lambda kind: kind[1] == FACT_CATEGORY), False),
        (is_flow, by_ends),
        (columns.are(lambda kind: kind[0] not in _TIMED or kind[1] == "molprof.sequence"), True),
        (columns.are(_is_own), in_time),
        (~wanted, False),
        (is_work, by_call),
        (columns.are(lambda kind: _category(kind) == "gpu_user_annotation"), around_work),
    )
    tests, choices = zip(*rules, strict=True)
    return np.asarray(np.select(tests, choices, in_phases))


def _is_own(kind: Kind) -> bool:
    """Return True for events that only molprof writes."""
    _, category, name = kind
    return category == "molprof.token" or (category == ANNOTATION and str(name).startswith("molprof."))


def _write(out: BinaryIO, path: Path, columns: _Columns, kept: Array, span_ns: tuple[int, int]) -> None:
    """Write the text of kept events, in an array that ends the text. Raises TraceError."""
    sequences = columns.are(lambda kind: kind[0] in _TIMED and kind[1] == "molprof.sequence")
    begins, ends = (np.clip(times, *span_ns) for times in (columns.starts_ns, columns.ends_ns))
    at, before, blocks = 0, b'{"traceEvents": [\n', iter(columns.blocks)
    changed = TraceError(f"{path} was changed while it was read", hint="trim it again")
    count, checksum = next(blocks, _NO_BLOCK)

    def write(text: bytes) -> None:
        nonlocal before
        if text:
            out.write(before + text)
            before = b",\n"

    def read(text: bytes) -> TracePart:
        nonlocal at, count, checksum
        if isal_zlib.crc32(text) != checksum:
            _decode_texts(text)  # raises where the reader guessed wrongly where an event ends, as in the first pass
            raise changed
        block = slice(at, at + count)
        if kept[block].all() and not sequences[block].any():
            write(text[1:-1])
        elif kept[block].any():
            texts: list[Any] = _decode_texts(text)
            for index in np.flatnonzero(sequences[block]).tolist():
                texts[index] = _shortened(texts[index], int(begins[at + index]), int(ends[at + index]))
            write(b",\n".join(compress(texts, kept[block].tolist())))
        part = TracePart(events=count)
        at, (count, checksum) = at + count, next(blocks, _NO_BLOCK)
        return part

    pass_over(path, read)
    if at != len(kept):
        raise changed
    out.write(b"\n]")


def _shortened(text: msgspec.Raw, start_ns: int, end_ns: int) -> bytes:
    """Return a sequence's slice, cut to the recorded steps that remain."""
    event: dict[str, Any] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    for name, ns in (("ts", start_ns), ("dur", end_ns - start_ns)):
        event[name] = msgspec.Raw(b"%d.%03d" % divmod(ns, 1000))
    return msgspec.json.encode(event)
