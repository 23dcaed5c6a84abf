"""A Perfetto trace as Chrome JSON: one event per slice, with exact times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from molprof.common.errors import TraceError
from molprof.common.packets import track_events
from molprof.common.packets.recording import BEGIN, COMPLETE, COUNTER, END, INSTANT, OPEN, Recording, durations
from molprof.common.packets.render_stages import RenderStages
from molprof.common.packets.runs import check_one_run, check_written_once
from molprof.common.packets.schema import packet_class
from molprof.common.packets.sequences import Clocks, Sequence
from molprof.common.packets.stream import DamageError, packets, unpacked
from molprof.common.packets.track_events import ArgsOf, Values
from molprof.common.packets.tracks import Place, Tracks
from molprof.common.packets.writing import Counted, event_texts

_OTHER_HINT = "give a trace that torch.profiler wrote: Chrome JSON, or .pftrace with track events or GPU render stages"
_MAX_DURATION_NS = 2**63
_encode = msgspec.json.Encoder().encode


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
        self._values = Values()
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
            sequence = self._sequences[number] = Sequence(number)
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
            time = self._clocks.time_ns(packet, sequence, place)
            for name, owner, value in self._stages.counters(packet.gpu_counter_event, sequence, place):
                track = self._track(Counted(name, owner))
                self.recording.add(COUNTER, time, track, place, {"args": {"": value}})

    def _track(self, home: int | Place | Counted) -> int:
        return self._numbers.setdefault(home, len(self._numbers))

    def _track_event(self, packet: Any, sequence: Sequence, place: int) -> None:
        event = packet.track_event
        time = self._clocks.time_ns(packet, sequence, place)
        uuid = event.track_uuid or sequence.track_uuid or 0
        kind = event.type
        if kind == track_events.COUNTER:
            value = {"args": {"": track_events.counted(event)}}
            self.recording.add(COUNTER, time, self._track(-1 - uuid), place, value)
            return
        home = uuid or Place(f"sequence {sequence.number}", 0)
        if kind == track_events.SLICE_END:
            self.recording.add(END, time, self._track(home), place, None)
        elif kind in (track_events.SLICE_BEGIN, track_events.INSTANT):
            found = track_events.described(event, sequence, self._values, place, self._args_of)
            is_slice = kind == track_events.SLICE_BEGIN
            if found.get("cat") == track_events.KEY_CATEGORY and not is_slice:
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
        time = self._clocks.time_ns(packet, sequence, place)
        if event.duration >= _MAX_DURATION_NS:
            raise DamageError(f"has a GPU render stage of {event.duration} ns", place)
        found = self._stages.event(event, sequence, place)
        stream, queue = found["args"].get("stream"), found.pop("queue")
        home = Place(event.gpu_id, queue if stream is None else stream)
        self._tracks.name_thread(home, queue)
        position = self.recording.add(COMPLETE, time, self._track(home), place, found, int(event.duration))
        self.recording.link(position, found)
        if "correlation" not in found["args"]:
            self.recording.stages[event.event_id] = position
