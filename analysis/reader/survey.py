"""Survey: one pass over a trace, with times, tracks and counts of all events as arrays, and sub-tracks for overlaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, chain
from typing import Any

import msgspec
import numpy as np
from isal import isal_zlib
from msgspec import Struct, field

from molprof.analysis.facts import GPU_CALLS
from molprof.analysis.facts.arguments import Arguments
from molprof.analysis.facts.lanes import assign_lanes, time_order
from molprof.analysis.reader.arguments import arguments_by_slice, joined
from molprof.analysis.reader.categories import INCOMPLETE, KNOWN, fed_category
from molprof.analysis.reader.document import CHROME_HINT
from molprof.analysis.reader.events import (
    OPERATOR_CATEGORY,
    SLICE_PHASES,
    STACK_CATEGORY,
    Id,
    is_mark,
    usable_args,
)
from molprof.analysis.reader.part import EventLabel, TracePart, numbered
from molprof.analysis.reader.text import MOST_CHARACTERS, bounded, plain_text
from molprof.common.errors import TraceError
from molprof.common.memory import return_freed

# The engine reads times as float64 microseconds, which are exact to the ns up to 2**52 ns.
_MAX_SPAN_NS = 2**52
# More events of unknown kinds than this must not be most of a file: a small one may unpack to many tiny events.
MAX_UNREAD = 1_000_000
_NOTHING = np.empty(0, dtype=np.int64)
# The key of a file of `molprof export` that says how its events were placed.
EXPORT_KEY = "molprof_export"
_HOST_CATEGORIES = (STACK_CATEGORY, "user_annotation", "cpu_op", *GPU_CALLS)
_MOVES_FOR = "user_annotation", STACK_CATEGORY


class ExportedOrder(Struct, frozen=True):
    """The placement of events in an exported trace."""

    origin_ns: int = 0  # added to its times, the time in the file that was exported
    lanes: list[tuple[int, int, int]] = []  # process and thread number of each, and the thread number of its own track
    native: bool = False  # exported from a file in Perfetto's own format


class SurveyedTrace(Struct):
    """A trace after the survey, before it is fed.

    The arrays have one entry per event that is fed, in file order. `drafts` holds the events that labels do not
    describe, as compressed JSON lines without times and places.
    """

    events_by_category: dict[str, int] = field(default_factory=dict)  # complete events in the file, fed or not
    read_as: dict[str, dict[str, int]] = field(default_factory=dict)  # see TraceInfo
    expected_slices: dict[str, int] = field(default_factory=dict)  # that the engine must show, by the shown category
    has_open_slices: bool = False  # begin events, whose durations are not known here
    not_read: Counter[str] = field(default_factory=Counter)  # see TraceInfo
    memory_events: int = 0  # fed or not
    deep_events: int = 0  # see TraceInfo
    long_names: int = 0  # see TraceInfo
    origin_ns: int = 0
    exported: ExportedOrder = ExportedOrder()
    starts_ns: np.ndarray = _NOTHING  # int64, from the earliest event
    durations_ns: np.ndarray = _NOTHING  # int64; 0 for all but X
    order: np.ndarray = _NOTHING  # positions by start, of equal starts the latest end first
    tracks: np.ndarray = _NOTHING  # int32, index into `track_ids`
    lanes: np.ndarray = _NOTHING  # int32; 0: its own track
    label_of: np.ndarray = _NOTHING  # int32, index into `labels`
    labels: list[EventLabel] = field(default_factory=list)
    correlations: np.ndarray = _NOTHING  # int64, or `part.NO_NUMBER`; empty where `drafts` hold them
    argument_of: np.ndarray = _NOTHING  # int32, place among all in `arguments`, or NONE; empty where there are none
    arguments: list[tuple[int, bytes]] = field(default_factory=list)  # of operators: counts and packed texts
    drafts: list[bytes] = field(default_factory=list)
    track_ids: list[tuple[Id, Id]] = field(default_factory=list)
    thread_names: dict[int, str] = field(default_factory=dict)  # by track
    process_names: dict[Id, str] = field(default_factory=dict)  # by pid
    # Python stacks that are not fed: of each its label, track, start and end; none unless they were to be kept.
    stacks: np.ndarray = field(default_factory=lambda: np.empty((4, 0), dtype=np.int64))
    stack_names: list[str] = field(default_factory=list)

    def release(self) -> None:
        """Free the arrays: the engine needs their memory for the end of its reading."""
        self.starts_ns = self.durations_ns = self.order = self.correlations = _NOTHING
        self.tracks = self.lanes = self.label_of = self.argument_of = _NOTHING
        return_freed()

    def texts(self) -> Iterator[bytes]:
        """Yield the drafts as text, freed one by one."""
        self.drafts.reverse()
        while self.drafts:
            yield isal_zlib.decompress(self.drafts.pop())

    def arguments_by_slice(self) -> Arguments:
        """Return the arguments of operators by slice: the engine numbers slices of equal start by length too."""
        if not self.arguments:
            return Arguments()
        is_operator = self.has_label(label.category == OPERATOR_CATEGORY for label in self.labels)
        order = self.order[is_operator[self.order]]
        starts = self.starts_ns[order]
        return arguments_by_slice(self.argument_of[order], self.arguments, starts, starts + self.durations_ns[order])

    def has_label(self, wanted: Iterable[bool]) -> np.ndarray:
        """Return True for events with a wanted label: array of bool. wanted: one value per label."""
        wanted_labels: np.ndarray = np.fromiter(wanted, dtype=np.bool_, count=len(self.labels))
        return np.asarray(wanted_labels[self.label_of])


def survey(
    parts: Iterable[TracePart], path: str, most_stacks: int | None = None, keys: Mapping[str, Any] | None = None
) -> SurveyedTrace:
    """Return the survey of a file from all its parts. Raises TraceError.

    most_stacks: Python stacks are kept beside, unless there are more; None: they are fed. keys: the other top-level
    keys of the file, which are known behind its parts.
    """
    trace = SurveyedTrace()
    kept: list[TracePart] = []
    tracks = numbered()
    read = stacks = unread = 0
    for part in parts:
        read += part.events
        stacks += part.stacks
        if part.unread:
            trace.not_read.update(part.unread)
            unread = trace.not_read.total()
        trace.memory_events += part.memory
        trace.has_open_slices |= part.open_slices
        trace.long_names += part.long_names
        for kind, pid, tid, name in part.names:
            trace.long_names += len(name) > MOST_CHARACTERS
            if kind == "thread_name":
                trace.thread_names[tracks[_bounded_id(pid), _bounded_id(tid)]] = bounded(name)
            else:
                trace.process_names[_bounded_id(pid)] = bounded(name)
        if len(part.starts):
            kept.append(part)
        if unread > MAX_UNREAD and 2 * unread > read:
            what = f"{unread:,} of its first {read:,} events are of no known kind (ph): not a trace"
            raise TraceError(f"{path}: {what}", hint=CHROME_HINT)
    trace.argument_of, trace.arguments = joined([(len(part.starts), part.arguments) for part in kept])
    trace.starts_ns = starts = _joined(kept, "starts", np.int64)
    trace.durations_ns = _joined(kept, "durations", np.int64)
    exported = trace.exported = _exported(path, keys or {})
    homes = {(pid, tid): (pid, home) for pid, tid, home in exported.lanes}
    trace.labels, trace.label_of, trace.tracks, long_names = _labelled(kept, tracks, homes)
    trace.long_names += long_names
    trace.track_ids = list(tracks)
    trace.correlations = _joined(kept, "correlations", np.int64)
    trace.drafts = [part.text for part in kept if part.text]
    if most_stacks is not None:
        stacks += _set_stacks_aside(trace, most_stacks if not stacks else 0)
        starts = trace.starts_ns
    trace.origin_ns = int(starts.min()) if len(starts) else 0
    _check_span(path, starts, trace.durations_ns, trace.origin_ns)
    starts -= trace.origin_ns
    trace.stacks[2:] -= trace.origin_ns
    trace.origin_ns += exported.origin_ns
    ends = starts + trace.durations_ns
    complete: Counter[str] = Counter({STACK_CATEGORY: stacks})
    slices: Counter[str] = Counter()
    counts = np.bincount(trace.label_of, minlength=len(trace.labels)).tolist()
    for index, (label, count) in enumerate(zip(trace.labels, counts, strict=True)):
        category, phase = str(label.category), label.phase  # an event without one counts under 'None'
        fed = fed_category(label.category, phase, label.name)
        if phase == "X":
            complete[category] += count
            if fed in KNOWN and fed != category:
                trace.read_as.setdefault(category, Counter())[fed] += count
        if phase in SLICE_PHASES:
            slices[shown_category(fed)] += count
            if fed in INCOMPLETE or (phase == "X" and fed not in KNOWN):
                trace.not_read[category] += count
        trace.labels[index] = label if fed == label.category else label._replace(category=fed)
    trace.events_by_category = dict(sorted((+complete).items()))
    trace.expected_slices = dict(slices)
    trace.order = time_order(starts, ends)
    trace.lanes = np.zeros(len(starts), dtype=np.int32)
    is_complete = trace.has_label(label.phase == "X" for label in trace.labels)
    # An annotation that ends in a function moves: else what runs in the rest of that function would not be in it.
    annotation, function = (trace.has_label(label.category == kind for label in trace.labels) for kind in _MOVES_FOR)
    order = trace.order[is_complete[trace.order]]
    deep = assign_lanes(trace.lanes, order, trace.tracks, starts, ends, kinds=(annotation, function))
    if len(deep):
        is_host = trace.has_label(label.category in _HOST_CATEGORIES for label in trace.labels)
        trace.deep_events = len(np.unique(deep[is_host[deep]]))
    return_freed()  # the arrays of the parts lay between kinds, which stay
    return trace


def _set_stacks_aside(trace: SurveyedTrace, most: int) -> int:
    """Remove the Python stacks from the fed events, and keep them unless there are more than `most`.

    Returns how many complete events it took. Those that mark phases are fed too.
    """
    is_label = np.array([label.category == STACK_CATEGORY for label in trace.labels], dtype=np.bool_)
    is_stack = is_label[trace.label_of] if len(is_label) else np.empty(0, dtype=np.bool_)
    count = int(is_stack.sum())
    if not count:
        return 0
    is_label &= [not is_mark(label.name) for label in trace.labels]
    ends = trace.starts_ns + trace.durations_ns
    if count <= most:
        order = time_order(trace.starts_ns, ends)
        order = order[is_stack[order]]  # functions nest, whatever other slices partly overlap them
        lanes = np.zeros(len(trace.starts_ns), dtype=np.int32)
        assign_lanes(lanes, order, trace.tracks, trace.starts_ns, ends, deepest=2 * len(order) + 2)
        kept = is_stack & (lanes == 0)
        texts = {text: number for number, text in enumerate(sorted({plain_text(x.name or "") for x in trace.labels}))}
        name_of = np.array([texts[plain_text(label.name or "")] for label in trace.labels])
        trace.stack_names = list(texts)
        trace.stacks = np.array([name_of[trace.label_of[kept]], trace.tracks[kept], trace.starts_ns[kept], ends[kept]])
    fed = ~is_label[trace.label_of]
    taken = ~fed & trace.has_label(label.phase == "X" for label in trace.labels)
    for name in ("starts_ns", "durations_ns", "tracks", "label_of", "correlations", "argument_of"):
        column = getattr(trace, name)
        setattr(trace, name, column[fed] if len(column) else column)
    trace.label_of = (np.cumsum(~is_label) - 1).astype(np.int32)[trace.label_of]
    trace.labels = [label for label, left in zip(trace.labels, ~is_label, strict=True) if left]
    return int(taken.sum())


def shown_category(category: str | None) -> str:
    """Return the category as SQL shows it; the engine reads an empty one as NULL."""
    return plain_text(category) if category else "None"


def _bounded_id(value: Id) -> Id:
    return bounded(value) if isinstance(value, str) else value


def _exported(path: str, keys: Mapping[str, Any]) -> ExportedOrder:
    try:
        return msgspec.convert(keys.get(EXPORT_KEY, {}), ExportedOrder)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path}: the key {EXPORT_KEY!r} is wrong: {error}", "export the trace again") from error


def _labelled(
    parts: list[TracePart], tracks: dict[Any, int], homes: Mapping[Any, Any]
) -> tuple[list[EventLabel], np.ndarray, np.ndarray, int]:
    """Return all labels; each event's label and track, arrays of int32; and the number of long names or categories.

    homes: the track of each lane of an exported trace; its events are on that track.
    """
    readers = {id(part.kinds): part.kinds for part in parts}
    kinds = list(chain.from_iterable(readers.values()))
    before = dict(zip(readers, accumulate(map(len, readers.values()), initial=0), strict=False))
    for part in parts:
        part.kind_of += before[id(part.kinds)]
    kind_of = _joined(parts, "kind_of", np.int32)
    there = np.zeros(len(kinds), dtype=np.bool_)  # a reader may have read more than is kept
    there[kind_of] = True
    labels = numbered()
    numbers = np.zeros((2, len(kinds)), dtype=np.int32)  # of each kind its label and track
    long_names = 0
    for number in np.flatnonzero(there).tolist():
        category, phase, name, pid, tid, args, more = kinds[number]
        if max(len(category or ""), len(name or "")) > MOST_CHARACTERS:
            category, name = (None if text is None else bounded(text) for text in (category, name))
            long_names += int((kind_of == number).sum())
        label = EventLabel(category, phase, name, usable_args(category, name, args), more)
        track = _bounded_id(pid), _bounded_id(tid)
        numbers[:, number] = labels[label], tracks[homes.get(track, track)]
    return list(labels), *numbers[:, kind_of], long_names


def _joined(parts: list[TracePart], name: str, kind: Any) -> np.ndarray:
    """Return an array joined from all parts, which lose theirs."""
    arrays = [np.empty(0, dtype=kind), *(getattr(part, name) for part in parts)]
    for part in parts:
        setattr(part, name, _NOTHING)
    return np.concatenate(arrays, dtype=kind)


def _check_span(path: str, starts: np.ndarray, lengths: np.ndarray, origin: int) -> None:
    if not len(starts):
        return
    # Each alone first: the sum of wrong ones may pass int64 and come out small.
    last = max(int(starts.max()) - origin, int(lengths.max()))
    if last < _MAX_SPAN_NS:
        last = int((starts - origin + lengths).max())
    if last >= _MAX_SPAN_NS:
        what = f"times span {last} ns, more than the {_MAX_SPAN_NS} ns (52 days) in which nanoseconds stay exact"
        raise TraceError(f"{path}: {what}: an event has a wrong ts or dur")
