"""A Perfetto trace as Chrome JSON: one event per slice, with exact times."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from molprof.analysis.reader.packets.events import (
    KEY_CATEGORY,
    TYPE_BEGIN,
    TYPE_COUNTER,
    TYPE_END,
    TYPE_INSTANT,
    ArgsOf,
    Clocks,
    RenderStages,
    Sequence,
    counted,
)
from molprof.analysis.reader.packets.recording import (
    BEGIN,
    COMPLETE,
    COUNTER,
    END,
    INSTANT,
    OPEN,
    Place,
    Recording,
    check_one_run,
    check_written_once,
    durations,
)
from molprof.analysis.reader.packets.stream import DamageError, packet_class, packets, unpacked
from molprof.common.errors import TraceError

_OTHER_HINT = "give a trace that torch.profiler wrote: Chrome JSON, or .pftrace with track events or GPU render stages"
_MAX_DURATION_NS = 2**63
_encode = msgspec.json.Encoder().encode
# PyTorch gives threads and streams tracks of their own, which only their names tell apart.
_NUMBERED = re.compile(r"(?P<annotations>GPU annotations )?(?:thread|stream) (?P<number>-?\d{1,18})\b")
_MAX_DEPTH = 64
_PHASES = {BEGIN: "X", COMPLETE: "X", INSTANT: "i"}
_ARGS = b'"args":{'


def chrome_text(name: str, blocks: Iterator[bytes], args_of: ArgsOf | None = None) -> Iterator[bytes]:
    """The trace of the file `name`, whose bytes `blocks` gives, as Chrome JSON in blocks.

    With `args_of`, only the args that it names are read, and no flows: for an event with all its args it takes twice
    as long.
    All of it is read before the first block. What is whole is given before what is wrong is raised. Raises TraceError:
    the trace is damaged, at which byte; it holds several runs, or nothing of PyTorch's profiler.
    """
    reader = _Reader(args_of)
    problem: TraceError | None = None
    try:
        for place, content in packets(blocks):
            reader.read(place, content)
    except DamageError as damage:
        problem = damage.error(name, len(reader.recording))
    except TraceError as error:
        problem = error
    if problem is None and not len(reader.recording):
        what = "is a Perfetto trace without track events and GPU render stages, so no profile of PyTorch"
        raise TraceError(f"{name} {what}", hint=_OTHER_HINT)
    if problem is not None and not len(reader.recording):
        raise problem
    yield from reader.texts(name, problem)


class _Reader:
    """What was read of a trace so far."""

    def __init__(self, args_of: ArgsOf | None) -> None:
        # Imported on use: few traces need it.
        from google.protobuf.message import DecodeError

        self.recording = Recording()
        self._args_of = args_of
        self._wrong = DecodeError
        self._packet = packet_class().FromString
        self._sequences: dict[int, Sequence] = {}
        self._clocks = Clocks()
        self._texts: dict[str, Any] = {}
        self._tracks = Tracks()
        self._stages = RenderStages()
        self._keys: dict[str, Any] = {}
        # Numbers of tracks, by uuid, by -1 - uuid for a counter, or by place.
        self._numbers: dict[int | Place | Counted, int] = {}

    def read(self, place: int, content: bytes) -> None:
        """Takes the packet that begins at byte `place`. Raises DamageError."""
        try:
            self._take(self._packet(content), place)
        except (self._wrong, UnicodeDecodeError, RecursionError) as error:
            reason = "invalid UTF-8" if isinstance(error, UnicodeDecodeError) else "it does not decode"
            raise DamageError(f"has a wrong packet: {reason}", place) from error
        except DamageError as damage:
            raise damage if damage.place is not None else DamageError(damage.what, place) from None

    def texts(self, name: str, problem: TraceError | None) -> Iterator[bytes]:
        """What was read as blocks of JSON; raises the problem, or TraceError, behind what is whole."""
        recording = self.recording
        kinds = np.array(recording.kinds, dtype=np.int8)
        lasting, strays = durations(kinds, np.array(recording.times_ns), np.array(recording.tracks))
        lasting[kinds == COMPLETE] = np.array(recording.durations_ns)[kinds == COMPLETE]
        unended = np.flatnonzero((kinds == BEGIN) & (lasting == OPEN))
        if problem is None and (strays or len(unended)):
            position = min([*strays, *unended.tolist()])
            what = "the end of a slice that did not begin" if position in strays else "a slice that does not end"
            problem = DamageError(f"has {what}", recording.packets[position]).error(name, len(recording))
        homes = [self._home(track) for track in self._numbers]
        places = [homes[recording.tracks[event.position]] for event in recording.linked]
        process_names = self._tracks.process_names
        check_one_run(name, recording.linked, [place for place in places if isinstance(place, Place)], process_names)
        whole = ((kinds == BEGIN) & (lasting != OPEN)) | (kinds == COMPLETE)
        rows = np.stack([np.array(recording.tracks), np.array(recording.times_ns), lasting], axis=1)
        found = [(event.position, event.number) for event in recording.linked if not event.is_work]
        calls = np.array(found, dtype=np.int64).reshape(-1, 2)
        events = (rows[:, 1], rows[:, 0], kinds, np.array(recording.durations_ns))
        check_written_once(name, events, rows[whole], np.column_stack([rows[calls[:, 0]], calls[:, 1]]))
        opening = b"{"
        for key, value in self._keys.items():
            opening += _encode(key) + b":" + _encode(value) + b","
        names = list(self._tracks.metadata()) or [{"ph": "M"}]
        yield opening + b'"traceEvents":[' + b",\n".join(map(_encode, names))
        yield from event_texts(recording, homes, lasting, recording.missing_numbers())
        if problem is not None:
            raise problem
        yield b"]}"

    def _home(self, track: int | Place | Counted) -> Place | Counted:
        if not isinstance(track, int):
            return track
        return self._tracks.place(track) if track >= 0 else Counted(*self._tracks.counter(-1 - track))

    def _take(self, packet: Any, place: int) -> None:
        number = packet.trusted_packet_sequence_id
        sequence = self._sequences.get(number)
        if sequence is None:
            sequence = self._sequences[number] = Sequence(number, self._texts)
        sequence.take(packet)
        # A packet holds one of these, most often the first.
        if packet.HasField("track_event"):
            self._track_event(packet, sequence, place)
        elif packet.HasField("compressed_packets"):
            for inner, text in unpacked(packet.compressed_packets, place):
                self.read(inner, text)
        elif packet.HasField("clock_snapshot"):
            self._clocks.snapshot(number, packet.clock_snapshot.clocks)
        elif packet.HasField("track_descriptor"):
            self._tracks.describe(packet.track_descriptor)
        elif packet.HasField("gpu_render_stage_event"):
            self._render_stage(packet, sequence, place)
        elif packet.HasField("gpu_counter_event"):
            time = self._clocks.time_ns(packet, sequence)
            for name, owner, value in self._stages.counters(packet.gpu_counter_event, sequence):
                track = self._track(Counted(name, owner))
                self.recording.add(COUNTER, time, track, place, {"args": {"": value}})

    def _track(self, home: int | Place | Counted) -> int:
        return self._numbers.setdefault(home, len(self._numbers))

    def _track_event(self, packet: Any, sequence: Sequence, place: int) -> None:
        event = packet.track_event
        time = self._clocks.time_ns(packet, sequence)
        uuid = event.track_uuid or sequence.track_uuid or 0
        kind = event.type
        if kind == TYPE_COUNTER:
            value = {"args": {"": counted(event)}}
            self.recording.add(COUNTER, time, self._track(-1 - uuid), place, value)
            return
        home = uuid or Place(f"sequence {sequence.number}", 0)
        if kind == TYPE_END:
            self.recording.add(END, time, self._track(home), place, None)
        elif kind in (TYPE_BEGIN, TYPE_INSTANT):
            found = sequence.described(event, self._args_of)
            is_slice = kind == TYPE_BEGIN
            if found.get("cat") == KEY_CATEGORY and not is_slice:
                self._keys[found["name"]] = found["args"].get("value")
                return
            position = self.recording.add(BEGIN if is_slice else INSTANT, time, self._track(home), place, found)
            self.recording.link(position, found)
            if self._args_of is None:
                flows = (*event.flow_ids, *event.terminating_flow_ids)
                self.recording.flows += [(flow, position) for flow in flows]
            if event.HasField("gpu_correlation"):
                started = list(event.gpu_correlation.render_stage_submission_event_ids)
                self.recording.submitted.append((position, started))

    def _render_stage(self, packet: Any, sequence: Sequence, place: int) -> None:
        event = packet.gpu_render_stage_event
        self._stages.specify(event)
        if not event.HasField("event_id") and not event.HasField("duration"):
            return  # descriptions alone
        time = self._clocks.time_ns(packet, sequence)
        if event.duration >= _MAX_DURATION_NS:
            raise DamageError(f"has a GPU render stage of {event.duration} ns")
        found = self._stages.event(event, sequence)
        stream, queue = found["args"].get("stream"), found.pop("queue")
        home = Place(event.gpu_id, queue if stream is None else stream)
        self._tracks.name_thread(home, queue)
        position = self.recording.add(COMPLETE, time, self._track(home), place, found, int(event.duration))
        self.recording.link(position, found)
        if "correlation" not in found["args"]:
            self.recording.stages[event.event_id] = position


class Tracks:
    """All tracks by their uuid, and the names of processes and threads."""

    def __init__(self) -> None:
        self._descriptors: dict[int, Any] = {}
        self.process_names: dict[int | str, str] = {}
        self._threads: dict[Place, str] = {}

    def describe(self, descriptor: Any) -> None:
        """Takes the description of a track; a later one of the same track adds to it."""
        if descriptor.uuid in self._descriptors:
            self._descriptors[descriptor.uuid].MergeFrom(descriptor)
        else:
            self._descriptors[descriptor.uuid] = descriptor

    def place(self, uuid: int) -> Place:
        """Where the events of a track go; once all tracks are described."""
        chain = list(self._chain(uuid))
        pid = self._process(chain, uuid)
        if not chain:
            return Place(pid, 0)
        own = chain[0]
        name = own.name or own.static_name
        numbered = _NUMBERED.match(name)
        if own.HasField("thread"):
            place = Place(pid, own.thread.tid)
            name = own.thread.thread_name or name
        elif own.HasField("process"):
            place = Place(pid, pid)
        else:
            place = Place(pid, int(numbered["number"]) if numbered else name or f"track {uuid}")
        # In Chrome JSON, a stream's annotations stand beside its work.
        if name and not own.HasField("process") and not (numbered and numbered["annotations"]):
            self._threads.setdefault(place, name)
        return place

    def counter(self, uuid: int) -> tuple[str, int | str]:
        """The name of a counter, and the process it belongs to: `Power (W)` of `GPU 0 Counters`."""
        own = self._descriptors.get(uuid)
        name = "" if own is None else own.name or own.static_name
        return name or f"track {uuid}", self._process(list(self._chain(uuid)), uuid)

    def name_thread(self, place: Place, name: str) -> None:
        """Names a thread that has no track."""
        self._threads.setdefault(place, name)

    def metadata(self) -> Iterator[dict[str, Any]]:
        """The events of Chrome JSON that name processes and threads with events."""
        for pid, name in self.process_names.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for place, name in self._threads.items():
            yield {"ph": "M", "name": "thread_name", "pid": place.pid, "tid": place.tid, "args": {"name": name}}

    def _process(self, chain: list[Any], uuid: int) -> int | str:
        """The process of a track, from those above it; where none is one, the name of the topmost."""
        for track in chain:
            if track.HasField("process"):
                if track.process.process_name:
                    self.process_names.setdefault(track.process.pid, track.process.process_name)
                return int(track.process.pid)
        for track in chain:
            if track.HasField("thread"):
                return int(track.thread.pid)
        return (chain[-1].name or chain[-1].static_name if chain else "") or f"track {uuid}"

    def _chain(self, uuid: int) -> Iterator[Any]:
        """The track and those above it."""
        for _ in range(_MAX_DEPTH):
            if uuid not in self._descriptors:
                return
            yield self._descriptors[uuid]
            uuid = self._descriptors[uuid].parent_uuid
            if not uuid:
                return


class Counted(Struct, frozen=True):
    """The track of a counter: its name and its process."""

    name: str
    pid: int | str


def event_texts(
    recording: Recording, homes: list[Place | Counted], lasting: np.ndarray, numbers: dict[int, int]
) -> Iterator[bytes]:
    """Blocks of events, each behind a comma; slices without an end are left out.

    homes: of the track numbers. lasting: ns of each slice. numbers: correlations to add, by position.
    """
    heads = {
        (kind, track): _head(kind, home)
        for kind, track in set(zip(recording.kinds, recording.tracks, strict=True))
        if kind != END
        for home in [homes[track]]
    }
    durations: list[int] = lasting.tolist()
    position = 0
    for lines in recording.lines():
        events: list[bytes] = []
        for line in lines:
            kind = recording.kinds[position]
            if kind != END and (kind != BEGIN or durations[position] != OPEN):
                if position in numbers:
                    line = _with_number(line, numbers[position])
                time = b"%d.%03d" % divmod(recording.times_ns[position], 1000)
                if kind in (BEGIN, COMPLETE):
                    time += b',"dur":%d.%03d' % divmod(durations[position], 1000)
                events.append(b"%b%b,%b" % (heads[kind, recording.tracks[position]], time, line))
            position += 1
        if events:
            yield b",\n" + b",\n".join(events)
    yield from _flows(recording, homes, lasting)


def _head(kind: int, home: Place | Counted) -> bytes:
    """An event up to its time."""
    if isinstance(home, Counted):
        keys = {"ph": "C", "name": home.name, "pid": home.pid}
    else:
        keys = {"ph": _PHASES.get(kind, "C"), "pid": home.pid, "tid": home.tid}
        if kind == INSTANT:
            keys["s"] = "t"
    return _encode(keys)[:-1] + b',"ts":'


def _with_number(line: bytes, number: int) -> bytes:
    """The event with a correlation among its args."""
    before, _, behind = line.partition(_ARGS)
    return b'%b%b"correlation":%d%b%b' % (before, _ARGS, number, b"" if behind.startswith(b"}") else b",", behind)


def _flows(recording: Recording, homes: list[Place | Counted], lasting: np.ndarray) -> Iterator[bytes]:
    """Flows as torch.profiler writes them: from the first event of a number to each of the others."""
    linked = {event.position: event for event in recording.linked}
    ends: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, position in recording.flows:
        if recording.kinds[position] != BEGIN or lasting[position] != OPEN:
            ends[number].append((recording.times_ns[position], position))
    for number, found in ends.items():
        if len(found) < 2:
            continue
        found.sort()
        numbers = {linked[position].number if position in linked else None for _, position in found}
        # From a call to its work; from operators to those of the backward pass; among the nodes of a graph.
        kind = "ac2g" if numbers == {number} else "fwdbwd" if numbers == {None} else "graph"
        for place, (time, position) in enumerate(found):
            home = homes[recording.tracks[position]]
            assert isinstance(home, Place)
            keys: dict[str, Any] = {"ph": "f" if place else "s", "cat": kind, "name": kind, "id": number}
            keys |= {"bp": "e"} if place else {}
            head = _encode(keys | {"pid": home.pid, "tid": home.tid})[:-1]
            yield b',\n%b,"ts":%d.%03d}' % (head, *divmod(time, 1000))
