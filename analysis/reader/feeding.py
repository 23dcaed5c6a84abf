"""Feeds the events of a surveyed trace to the engine, with exact times and on their lanes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing

import msgspec
import numpy as np

from molprof.analysis.reader.ahead import ahead
from molprof.analysis.reader.compact import compact_chunks, fits
from molprof.analysis.reader.events import FLOW_PHASES
from molprof.analysis.reader.part import NO_NUMBER, Label
from molprof.analysis.reader.places import HOME_TID, Places, find_places
from molprof.analysis.reader.survey import Survey
from molprof.analysis.reader.text import plain_lines
from molprof.analysis.trace_processor import TraceProcessor

_EVENTS = 4096
_FLOW_DRAFTS = tuple(f'"ph":"{phase}"'.encode() for phase in FLOW_PHASES)
_encode = msgspec.json.Encoder().encode


def feed_events(engine: TraceProcessor, found: Survey) -> None:
    """Feeds what the survey found, and frees its arrays and drafts. Raises EngineError."""
    places = find_places(found)
    chunks = compact_chunks(found, places) if fits(found, places) else json_chunks((found, places))
    with closing(ahead(chunks)) as made:
        for chunk in made:
            engine.feed(chunk)
    found.release()
    engine.finish()


def json_chunks(*traces: tuple[Survey, Places]) -> Iterator[bytes]:
    """Traces as one in Chrome JSON, times in us from the earliest event. Frees their drafts."""
    opening = b'{"traceEvents":['
    for found, places in traces:
        events = _events(found, places)
        yield opening + next(events)  # the engine finds the format from the first piece
        yield from events
        opening = b","
    yield b"]}"


def _events(found: Survey, places: Places) -> Iterator[bytes]:
    """The events, without what stands before the first and behind the last."""
    # An event is written as its track's head, its times and its draft.
    ids = zip(places.pids.tolist(), places.tids.tolist(), strict=True)
    heads = [b'},{"pid":%d,"tid":%d,"ts":' % pair for pair in ids]
    yield _encode(places.names)[1:-2] if places.names else b'{"ph":"M"'
    complete = found.has_label(label.phase == "X" for label in found.labels)
    done = 0
    # A newline stands only between events. The pieces lack the braces of each event.
    split = (text[1:-2].split(b"}\n{") for text in found.texts())
    for drafts in split if found.drafts else _drafts(found):
        yield _filled(drafts, heads, complete, found, places, slice(done, done + len(drafts)))
        done += len(drafts)
    yield b"}"


def _drafts(found: Survey) -> Iterator[list[bytes]]:
    """Drafts of events that their labels describe."""
    parts = _plain_parts(found.labels)
    whole = [b'%b"args":%b' % part for part in parts]
    for begin in range(0, len(found.label_of), _EVENTS):
        span = slice(begin, begin + _EVENTS)
        labels, numbers = found.label_of[span].tolist(), found.correlations[span]
        drafts = [whole[label] for label in labels]
        for position in np.flatnonzero(numbers != NO_NUMBER).tolist():
            text, args = parts[labels[position]]
            comma = b"" if args == b"{}" else b","
            drafts[position] = b'%b"args":{"correlation":%d%b%b' % (text, numbers[position], comma, args[1:])
        yield drafts


def _plain_parts(labels: list[Label]) -> list[tuple[bytes, bytes]]:
    """Of each label, the text of an event up to its args, without the opening brace, and its args."""
    lines = []
    for label in labels:
        keys = {"ph": label.phase, "cat": label.category, "name": label.name}
        text = _encode({key: value for key, value in keys.items() if value is not None})
        lines += [b",".join(filter(None, [text[:-1], label.more])) + b"}", label.args]
    plain = plain_lines(b"\n".join([*lines, b""])).split(b"\n")  # at once: short texts take longest
    return [(text[1:-1] + b",", args) for text, args in zip(plain[:-1:2], plain[1::2], strict=True)]


def _filled(
    drafts: list[bytes], heads: list[bytes], complete: np.ndarray, found: Survey, places: Places, span: slice
) -> bytes:
    """The events of one block with their times and places."""
    tracks = found.tracks[span]
    heads = [heads[track] for track in tracks.tolist()]
    durations = _texts_us(found.durations_ns[span])
    keys = [b',"dur":'] * len(drafts)
    for position in np.flatnonzero(~complete[span]).tolist():
        keys[position] = durations[position] = b""
    if places.lane_tids:
        _move(drafts, heads, found, places, span)
    starts = _texts_us(found.starts_ns[span])
    parts = zip(heads, starts, keys, durations, itertools.repeat(b","), drafts)  # repeat is endless
    return b"".join(itertools.chain.from_iterable(parts))


def _texts_us(times_ns: np.ndarray) -> list[bytes]:
    # A multiple of 1/1000, rounded once to float64, is written with three decimals again.
    return _encode((times_ns / 1000).tolist())[1:-1].split(b",")


def _move(drafts: list[bytes], heads: list[bytes], found: Survey, places: Places, span: slice) -> None:
    """Puts slices of a block on their lanes, and the flow events that belong to them."""
    tracks = found.tracks[span]
    lanes = found.lanes[span]

    def move(position: int, track: int, lane: int) -> None:
        place = int(places.pids[track]), places.lane_tids[track, lane]
        heads[position] = b'},{"pid":%d,"tid":%d,"ts":' % place

    for position in np.flatnonzero(lanes).tolist():
        track = int(tracks[position])
        drafts[position] = _with_home(drafts[position], int(places.tids[track]))
        move(position, track, int(lanes[position]))
    # A flow event belongs to the slice that starts at its time, and goes to its lane.
    starts_ns = found.starts_ns[span]
    for position in np.flatnonzero(np.isin(tracks, [track for track, _ in places.lane_tids])).tolist():
        if drafts[position].startswith(_FLOW_DRAFTS):
            track = int(tracks[position])
            lane = places.lane_starts.get((track, int(starts_ns[position])))
            if lane is not None:
                move(position, track, lane)


def _with_home(draft: bytes, tid: int) -> bytes:
    """The draft with the tid of its own track among its args."""
    event = msgspec.json.decode(b"{" + draft + b"}", type=dict[str, msgspec.Raw])
    home = b'"%b":%d' % (HOME_TID.encode(), tid)
    args = bytes(event.get("args", b"")).strip()
    if args in (b"", b"null"):
        args = b"{}"
    if args.startswith(b"{"):
        rest = args[1:].lstrip()
        event["args"] = msgspec.Raw(b"{" + home + (b"" if rest == b"}" else b",") + rest)
    return _encode(event)[1:-1]
