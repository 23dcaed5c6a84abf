"""Feeding: writes surveyed events in one of two formats for the engine, with exact times and sub-tracks.

Fuchsia's trace format (64-bit words) is read three times as fast as Chrome JSON, but cannot hold all events. See
https://fuchsia.dev/fuchsia-src/reference/tracing/trace-format. Times are integers of ns. An event without a category
gets an empty one, which SQL comparisons treat alike.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import msgspec
import numpy as np

from molprof.analysis.facts.gpu_slices import NO_NUMBER
from molprof.analysis.facts.slices import FedSlices, without_tracks
from molprof.analysis.reader.events import FLOW_PHASES, NUMBERS
from molprof.analysis.reader.part import EventLabel
from molprof.analysis.reader.places import HOME_TID, TrackTargets, find_places
from molprof.analysis.reader.source import ahead
from molprof.analysis.reader.survey import SurveyedTrace
from molprof.analysis.reader.text import exact_float, plain_lines, plain_text
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.protocol import message
from molprof.queries import FACT_CATEGORY

# Events per piece, each with at most two texts besides the names of args that many have; the format numbers 32767.
_COMPACT_EVENTS = 16000
_MAX_TEXTS = 32766
_NAMES = frozenset(f"args.{name}" for name in NUMBERS)
# Well below the format's limits: 4095 words per record, 15 args per event.
_MAX_NAME_BYTES = 32000
_MAX_ARGS_BYTES = 8000
_MAX_ARGS = 12
_INITIALIZATION, _STRING, _EVENT, _BLOB, _KERNEL_OBJECT = 1, 2, 4, 5, 7
_INSTANT, _COMPLETE, _ASYNC_INSTANT = 0, 4, 6
_PROCESS, _THREAD = 1, 2
_PERFETTO_BLOB = 3
_TRACE_PACKET, _PACKET_TIMESTAMP = 1, 8  # fields of Trace and TracePacket
_INT64, _DOUBLE, _TEXT, _KOID = 3, 5, 6, 8
# As the engine's JSON reader names an event without a name.
NO_NAME = "[No name]"
_INLINE = 0x8000
_MAGIC = 0x0016547846040010
# Instants of the whole trace or a process have no thread.
_WIDE_SCOPES = (b'"s":"g"', b'"s":"p"')
# What JSON ends with.
CLOSING = b"]}"
_CORRELATION_VALUE = 5  # word of a record
_JSON_EVENTS = 4096
_FLOW_DRAFTS = tuple(f'"ph":"{phase}"'.encode() for phase in FLOW_PHASES)
_encode = msgspec.json.Encoder().encode
_decode_args = msgspec.json.Decoder(dict[str, Any], float_hook=exact_float).decode


def feed_events(
    engine: TraceProcessor, survey: SurveyedTrace, copied: Callable[[bytes], object] | None = None, numbers: bool = True
) -> TrackTargets:
    """Feed the surveyed events, free their arrays and drafts, and return where their tracks are. Raises EngineError.

    copied: called with each piece of JSON that is fed; then nothing else is. numbers: feed correlation numbers where
    facts have them too.
    """
    targets = find_places(survey)
    with ThreadPoolExecutor(1) as second:
        fed: Future[FedSlices] | None = None
        engine.arguments = survey.arguments_by_slice()
        if copied is None and fits(survey, targets):
            chunks = compact_chunks(survey, targets, numbers)
            fed = second.submit(_fed_slices, survey, targets)
        else:
            chunks = json_chunks((survey, targets))
        with closing(ahead(chunks)) as prepared:
            for chunk in prepared:
                engine.feed(chunk)
                if copied is not None:
                    copied(chunk)
        if fed is not None:
            engine.fed = second.submit(without_tracks, fed.result())
            del fed
        survey.release()
        engine.finish()
    return targets


def _fed_slices(survey: SurveyedTrace, targets: TrackTargets) -> FedSlices:
    """Return the slices in the order in which the compact format has them: each event is one."""
    order = survey.order
    ts = survey.starts_ns[order]
    ids = list(zip(targets.pids.tolist(), targets.tids.tolist(), strict=True))
    thread_of = survey.tracks[order]
    moved = np.flatnonzero(survey.lanes[order])
    for position, event in zip(moved.tolist(), order[moved].tolist(), strict=True):
        track = int(survey.tracks[event])
        ids.append((ids[track][0], targets.lane_tids[track, int(survey.lanes[event])]))
        thread_of[position] = len(ids) - 1
    return FedSlices(
        ts=ts,
        ts_end=ts + survey.durations_ns[order],
        place=thread_of,
        places=ids,
        label=survey.label_of[order],
        labels=[(plain_text(label.category or ""), plain_text(label.name or NO_NAME)) for label in survey.labels],
        args=[label.args for label in survey.labels],
        number=survey.correlations[order],
    )


def fits(survey: SurveyedTrace, targets: TrackTargets) -> bool:
    """Return True if the format can hold all events: no counters, no separate begins and ends without names."""
    texts = itertools.chain(targets.names.values(), *((label.name, label.category) for label in survey.labels))
    fit = all(len(text or "") <= _MAX_NAME_BYTES // 4 for text in texts)
    return fit and not survey.drafts and all(map(_label_fits, survey.labels))


def _label_fits(label: EventLabel) -> bool:
    wide = label.phase != "X" and label.more in _WIDE_SCOPES
    if label.phase not in ("X", "i", "I", "R") or (label.more and not wide) or len(label.args) > _MAX_ARGS_BYTES:
        return False
    if b"[" not in label.args and label.args.count(b":") <= _MAX_ARGS and label.args.count(b",") <= _MAX_ARGS:
        return True
    args = [value for _, value in _flat("args", _decode_args(label.args))]
    # The engine's JSON reader gives all elements of an array one flat key, which this format cannot.
    return len(args) <= _MAX_ARGS and not any(isinstance(value, list) for value in args)


def compact_chunks(survey: SurveyedTrace, targets: TrackTargets, numbers: bool = True) -> Iterator[bytes]:
    """Yield the trace for the engine by start, the longer event first: the engine nests slices in this order.

    numbers: with correlation numbers. These make most sets of args differ: without them the engine takes three quarters
    of the time and memory.
    """
    texts = _Texts()
    yield _words(_MAGIC, _INITIALIZATION | 2 << 4, 10**9)  # ticks per second
    yield _named(targets, texts)
    for begin in range(0, len(survey.order), _COMPACT_EVENTS):
        events = survey.order[begin : begin + _COMPACT_EVENTS]
        yield _pause(int(survey.starts_ns[events[0]])) + _records(survey, targets, texts, events, numbers)


def _pause(ts: int) -> bytes:
    """Return the record of an empty packet of Perfetto's own format, of which no table gets a row.

    The engine merges a queue of such packets with that of the events, and frees the memory of sorted events only where
    it goes from one queue to the other; without packets at the end, when their tables are full.
    """
    timestamp = message((_PACKET_TIMESTAMP, ts))
    packet = message((_TRACE_PACKET, timestamp))
    words = _padded(packet)
    return _words(_BLOB | 1 + len(words) // 8 << 4 | len(packet) << 32 | _PERFETTO_BLOB << 48) + words


def _records(
    survey: SurveyedTrace, targets: TrackTargets, texts: _Texts, events: np.ndarray, with_numbers: bool
) -> bytes:
    """Return the record of some events: templates of their kinds, with times, indices and numbers filled in."""
    labels = survey.label_of[events]
    numbers = survey.correlations[events]
    has_number = (numbers != NO_NUMBER) & with_numbers
    tracks = survey.tracks[events]
    pids = targets.pids[tracks]
    tids = targets.tids[tracks]
    # A kind: label, whether there is a number, and for a slice on a lane the tid of its own track.
    kinds = labels.astype(np.int64) * 2 + has_number
    first_moved = 2 * len(survey.labels)
    moved: dict[tuple[int, int], int] = {}
    for position in np.flatnonzero(survey.lanes[events]).tolist():
        key = int(kinds[position]), int(tids[position])
        kinds[position] = moved.setdefault(key, first_moved + len(moved))
        tids[position] = targets.lane_tids[int(tracks[position]), int(survey.lanes[events[position]])]
    # numpy.unique sorts, which takes longer than all else here.
    is_there = np.zeros(first_moved + len(moved), dtype=np.bool_)
    is_there[kinds] = True
    distinct = np.flatnonzero(is_there)
    kind_of = (np.cumsum(is_there) - 1)[kinds]
    keys = [(kind, -1) for kind in distinct.tolist() if kind < first_moved] + list(moved)
    new_texts = texts.begin(2 * len(keys) + len(_NAMES))
    templates = [_template(survey.labels[kind // 2], bool(kind % 2), home, texts) for kind, home in keys]
    lengths = np.array([len(template) for template in templates])
    begins = np.cumsum(lengths) - lengths
    sizes = lengths[kind_of]
    ends = np.cumsum(sizes)
    at = ends - sizes
    words = np.concatenate(templates)[np.repeat(begins[kind_of] - at, sizes) + np.arange(int(ends[-1]))]
    starts = survey.starts_ns[events]
    words[at + 1] = starts
    words[at + 2] = pids
    words[at + 3] = tids
    words[at[has_number] + _CORRELATION_VALUE] = numbers[has_number]
    is_complete = np.array([survey.labels[kind // 2].phase == "X" for kind, _ in keys])[kind_of]
    words[ends[is_complete] - 1] = (starts + survey.durations_ns[events])[is_complete]
    return b"".join([*new_texts, words.tobytes()])


def _template(label: EventLabel, has_number: bool, home: int, texts: _Texts) -> np.ndarray:
    """Return the words of an event, int64, with 0 where events of one kind differ."""
    args = [_arg("args.correlation", 0, texts)] if has_number else []
    values = _decode_args(label.args)
    if "device" in values and values["device"] is None:
        values["device"] = "None"  # a device, unlike a missing one
    args += [_arg(key, value, texts) for key, value in _flat("args", values)]
    if home >= 0:
        args.append(_arg(f"args.{HOME_TID}", home, texts))
    kind = _COMPLETE if label.phase == "X" else _ASYNC_INSTANT if label.more else _INSTANT
    body = b"".join(args) + (b"" if kind == _INSTANT else _words(0))  # end, or number of an async event
    size = 4 + len(body) // 8
    category = texts[label.category or ""]
    name = texts[label.name or NO_NAME]
    head = _EVENT | size << 4 | kind << 16 | len(args) << 20 | category << 32 | name << 48
    return np.frombuffer(_words(head, 0, 0, 0) + body, dtype=np.int64)


def _flat(key: str, value: Any) -> Iterator[tuple[str, int | float | str]]:
    """Yield args under the keys that the engine's JSON reader gives them."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(f"{key}.{plain_text(name)}", item)
    elif isinstance(value, str):
        yield key, plain_text(value)
    elif isinstance(value, int):
        yield key, int(value) if -(2**63) <= value < 2**63 else str(value)
    elif value is not None:
        yield key, value


def _arg(name: str, value: int | float | str, texts: _Texts) -> bytes:
    if name in _NAMES:  # by number: the engine need not look it up
        name_ref, text = texts[name], b""
    else:
        text = name.encode()
        name_ref = _INLINE | len(text)
    if isinstance(value, str):
        content = value.encode()
        kind, info, words = _TEXT, _INLINE | len(content), _padded(content)
    elif isinstance(value, int):
        kind, info, words = _INT64, 0, struct.pack("<q", value)
    else:
        kind, info, words = _DOUBLE, 0, struct.pack("<d", value)
    words = _padded(text) + words
    return _words(kind | 1 + len(words) // 8 << 4 | name_ref << 16 | info << 32) + words


class _Texts(dict[str, int]):
    """Numbers for texts that the engine has already received."""

    def begin(self, most: int) -> list[bytes]:
        """Make room for `most` new texts; return the list that receives their records."""
        if len(self) + most > _MAX_TEXTS:
            self.clear()
        self[""] = 0
        self._records: list[bytes] = []
        return self._records

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        content = plain_text(text).encode()
        words = _padded(content)
        self._records.append(_words(_STRING | 1 + len(words) // 8 << 4 | number << 16 | len(content) << 32) + words)
        return number


def _named(targets: TrackTargets, texts: _Texts) -> bytes:
    """Return the records that name processes and threads."""
    chunks = []
    for (pid, tid), text in targets.names.items():
        records = texts.begin(2)
        name = texts[text]
        if tid is None:
            words = _words(_KERNEL_OBJECT | 2 << 4 | _PROCESS << 16 | name << 24, pid)
        else:
            head = _KERNEL_OBJECT | 4 << 4 | _THREAD << 16 | name << 24 | 1 << 40
            words = _words(head, tid, _KOID | 2 << 4 | texts["process"] << 16, pid)
        chunks += [*records, words]
    return b"".join(chunks)


def _padded(text: bytes) -> bytes:
    return text + bytes(-len(text) % 8)


def _words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def json_chunks(*traces: tuple[SurveyedTrace, TrackTargets]) -> Iterator[bytes]:
    """Yield the traces as one in Chrome JSON, times in us from the earliest event. Frees their drafts."""
    opening = b'{"traceEvents":['
    for surveyed, targets in traces:
        events = _events(surveyed, targets)
        yield opening + next(events)  # the engine finds the format from the first piece
        yield from events
        opening = b","
    yield CLOSING


def _events(survey: SurveyedTrace, targets: TrackTargets) -> Iterator[bytes]:
    """Yield the events, without the text before the first and after the last."""
    # An event is written as its track's head, its times and its draft.
    ids = zip(targets.pids.tolist(), targets.tids.tolist(), strict=True)
    heads = [b'},{"pid":%d,"tid":%d,"ts":' % pair for pair in ids]
    names = []
    lanes = {(int(targets.pids[track]), tid) for (track, _), tid in targets.lane_tids.items()}
    for (pid, tid), name in targets.names.items():
        kind = {"name": "thread_name", "tid": tid} if tid is not None else {"name": "process_name", "tid": pid}
        # The reader gives lanes names of its own again.
        of_lane = {"cat": FACT_CATEGORY} if (pid, tid) in lanes else {}
        names.append({"ph": "M", "pid": pid, "ts": 0, **kind, **of_lane, "args": {"name": name}})
    yield _encode(names)[1:-2] if names else b'{"ph":"M"'
    complete = survey.has_label(label.phase == "X" for label in survey.labels)
    done = 0
    # A newline stands only between events. The pieces lack the braces of each event.
    split = (text[1:-2].split(b"}\n{") for text in survey.texts())
    for drafts in split if survey.drafts else _drafts(survey):
        yield _filled(drafts, heads, complete, survey, targets, slice(done, done + len(drafts)))
        done += len(drafts)
    yield b"}"


def _drafts(survey: SurveyedTrace) -> Iterator[list[bytes]]:
    """Yield lists of drafts of events, by their labels."""
    lines = []
    for label in survey.labels:
        keys = {"ph": label.phase, "cat": label.category, "name": label.name}
        text = _encode({key: value for key, value in keys.items() if value is not None})
        lines += [b",".join(filter(None, [text[:-1], label.more])) + b"}", label.args]
    plain = plain_lines(b"\n".join([*lines, b""])).split(b"\n")  # at once: short texts take longest
    # Of each label, the text up to its args, without the opening brace, and its args.
    parts = [(text[1:-1] + b",", args) for text, args in zip(plain[:-1:2], plain[1::2], strict=True)]
    whole = [b'%b"args":%b' % part for part in parts]
    for begin in range(0, len(survey.label_of), _JSON_EVENTS):
        span = slice(begin, begin + _JSON_EVENTS)
        labels, numbers = survey.label_of[span].tolist(), survey.correlations[span]
        drafts = [whole[label] for label in labels]
        for position in np.flatnonzero(numbers != NO_NUMBER).tolist():
            text, args = parts[labels[position]]
            comma = b"" if args == b"{}" else b","
            drafts[position] = b'%b"args":{"correlation":%d%b%b' % (text, numbers[position], comma, args[1:])
        yield drafts


def _filled(
    drafts: list[bytes],
    heads: list[bytes],
    complete: np.ndarray,
    survey: SurveyedTrace,
    targets: TrackTargets,
    span: slice,
) -> bytes:
    """Return the events of one block with their times and threads."""
    tracks = survey.tracks[span]
    heads = [heads[track] for track in tracks.tolist()]
    durations = _texts_us(survey.durations_ns[span])
    keys = [b',"dur":'] * len(drafts)
    for position in np.flatnonzero(~complete[span]).tolist():
        keys[position] = durations[position] = b""
    if targets.lane_tids:
        _move(drafts, heads, survey, targets, span)
    starts = _texts_us(survey.starts_ns[span])
    parts = zip(heads, starts, keys, durations, itertools.repeat(b","), drafts)  # repeat is endless
    return b"".join(itertools.chain.from_iterable(parts))


def _texts_us(times_ns: np.ndarray) -> list[bytes]:
    # A multiple of 1/1000, rounded once to float64, is written with three decimals again.
    return _encode((times_ns / 1000).tolist())[1:-1].split(b",")


def _move(drafts: list[bytes], heads: list[bytes], survey: SurveyedTrace, targets: TrackTargets, span: slice) -> None:
    """Put slices of a block on their sub-tracks, with the flow events that belong to them."""
    tracks, starts_ns, lanes = survey.tracks[span], survey.starts_ns[span], survey.lanes[span].copy()
    for position in np.flatnonzero(lanes).tolist():
        drafts[position] = _with_home(drafts[position], int(targets.tids[tracks[position]]))
    # A flow event belongs to the slice that starts at its time, and goes to its lane.
    for position in np.flatnonzero(np.isin(tracks, [track for track, _ in targets.lane_tids])).tolist():
        if drafts[position].startswith(_FLOW_DRAFTS):
            lanes[position] = targets.lane_starts.get((int(tracks[position]), int(starts_ns[position])), 0)
    for position in np.flatnonzero(lanes).tolist():
        track = int(tracks[position])
        thread = int(targets.pids[track]), targets.lane_tids[track, int(lanes[position])]
        heads[position] = b'},{"pid":%d,"tid":%d,"ts":' % thread


def _with_home(draft: bytes, tid: int) -> bytes:
    """Return the draft with the tid of its own track among its args."""
    event = msgspec.json.decode(b"{" + draft + b"}", type=dict[str, msgspec.Raw])
    home = b'"%b":%d' % (HOME_TID.encode(), tid)
    args = bytes(event.get("args", b"")).strip()
    if args in (b"", b"null"):
        args = b"{}"
    if args.startswith(b"{") and HOME_TID not in msgspec.json.decode(args):
        rest = args[1:].lstrip()
        event["args"] = msgspec.Raw(b"{" + home + (b"" if rest == b"}" else b",") + rest)
    return _encode(event)[1:-1]
