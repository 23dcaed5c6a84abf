"""A Perfetto trace as Chrome JSON: one event per slice, with exact times."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from isal import isal_zlib

from molprof.analysis.facts import GPU_CALLS, GPU_WORK
from molprof.analysis.reader.packets.events import (
    KEY_CATEGORY,
    ArgsOf,
    PacketClocks,
    PacketSequence,
    RenderStages,
    counted,
)
from molprof.analysis.reader.packets.runs import Linked, check_one_run, check_written_once
from molprof.analysis.reader.packets.stream import DamageError, packet_class, packets, unpacked
from molprof.analysis.reader.packets.tracks import BEGIN, COUNTER, END, INSTANT, OPEN, Tracks, set_durations
from molprof.common.errors import TraceError

_OTHER_HINT = "give a trace that torch.profiler wrote: Chrome JSON, or .pftrace with track events or GPU render stages"
_DAMAGE_HINT = "copy or record the file again, or read the intact part with --partial"
_MAX_DURATION_NS = 2**63
_STAGE = 5  # the kind of an event that is a GPU render stage
_PHASES = {BEGIN: "X", _STAGE: "X", INSTANT: "i", COUNTER: "C"}
_COLUMNS = 5
_BLOCK_EVENTS = 4096
_LEVEL = 1
_ARGS = b'"args":{'
_encode = msgspec.json.Encoder().encode


def chrome_text(name: str, blocks: Iterator[bytes], args_of: ArgsOf | None = None) -> Iterator[bytes]:
    """Return the trace of the file `name`, whose bytes `blocks` gives, as Chrome JSON in blocks.

    With `args_of`, only the args that it names are read, and no flows: for an event with all its args it takes twice
    as long. All of it is read before the first block. What is whole is given before what is wrong is raised.

    Raises TraceError: the trace is damaged, at which byte; it holds several runs, or nothing of PyTorch's profiler.
    """
    reader = _ChromeReader(name, args_of)
    problem: TraceError | None = None
    try:
        for byte, content in packets(blocks):
            reader.read(byte, content)
    except DamageError as damage:
        problem = reader.error(damage.what, damage.byte)
    except TraceError as error:
        problem = error
    if not reader.events:
        what = "is a Perfetto trace without track events and GPU render stages, so no profile of PyTorch"
        raise problem or TraceError(f"{name} {what}", hint=_OTHER_HINT)
    yield from reader.texts(problem)


class _ChromeReader:
    """The events of the trace `name` read so far, in file order; an event's position counts from 0."""

    def __init__(self, name: str, args_of: ArgsOf | None) -> None:
        # Imported on use: few traces need it.
        from google.protobuf.message import DecodeError

        self.events = 0
        self._name = name
        self._args_of = args_of
        self._wrong = DecodeError
        self._packet = packet_class().FromString
        self._rows = array("q")  # of each event: kind, time and duration in ns, number of its track, byte of its packet
        self._lines: list[bytes] = []  # category, name and args as JSON without the opening brace
        self._packed: list[bytes] = []  # blocks of lines, compressed
        # Of each track, by whether it is a counter's; and its uuid, pid and tid, or name and pid.
        self._track_numbers: dict[tuple[bool, Any], int] = {}
        self._linked: list[Linked] = []
        self._flows: list[tuple[int, int]] = []  # number and position
        # Without a correlation: positions of GPU render stages by their event number, and those of calls.
        self._stages: dict[int, int] = {}
        self._calls: list[int] = []
        self._submitted: list[tuple[int, list[int]]] = []  # positions of calls, and the event numbers they started
        self._keys: dict[str, Any] = {}
        self._sequences: dict[int, PacketSequence] = {}
        self._texts: dict[str, Any] = {}
        self._clocks = PacketClocks()
        self._tracks = Tracks()
        self._render_stages = RenderStages()

    def error(self, what: str, byte: int | None) -> TraceError:
        """Return the error for what is wrong at a byte of the trace."""
        where = f"byte {byte} of the trace, after {self.events} events"
        return TraceError(f"{self._name} {what} ({where})", _DAMAGE_HINT)

    def read(self, byte: int, content: bytes) -> None:
        """Add the packet that begins at `byte`. Raises DamageError."""
        try:
            self._take(self._packet(content), byte)
        except (self._wrong, UnicodeDecodeError, RecursionError) as error:
            reason = "invalid UTF-8" if isinstance(error, UnicodeDecodeError) else "it does not decode"
            raise DamageError(f"has a wrong packet: {reason}", byte) from error
        except DamageError as damage:
            raise DamageError(damage.what, byte) from None

    def _take(self, packet: Any, byte: int) -> None:
        number = packet.trusted_packet_sequence_id
        sequence = self._sequences.get(number)
        if sequence is None:
            sequence = self._sequences[number] = PacketSequence(number, self._texts)
        sequence.take(packet)
        # A packet holds one of these, most often the first.
        if packet.HasField("track_event"):
            self._track_event(packet.track_event, sequence, self._clocks.time_ns(packet, sequence), byte)
        elif packet.HasField("compressed_packets"):
            for text in unpacked(packet.compressed_packets):
                self.read(byte, text)
        elif packet.HasField("clock_snapshot"):
            self._clocks.snapshot(number, packet.clock_snapshot.clocks)
        elif packet.HasField("track_descriptor"):
            self._tracks.describe(packet.track_descriptor)
        elif packet.HasField("gpu_render_stage_event"):
            self._render_stage(packet, sequence, byte)
        elif packet.HasField("gpu_counter_event"):
            time = self._clocks.time_ns(packet, sequence)
            for track, value in self._render_stages.counters(packet.gpu_counter_event, sequence):
                self._add(COUNTER, time, track, byte, {"args": {"": value}})

    def _track_event(self, event: Any, sequence: PacketSequence, time_ns: int, byte: int) -> None:
        uuid = event.track_uuid or sequence.track_uuid or 0
        track = uuid or (f"sequence {sequence.number}", 0)
        if event.type == COUNTER:
            self._add(COUNTER, time_ns, uuid, byte, {"args": {"": counted(event)}})
        elif event.type == END:
            self._add(END, time_ns, track, byte, None)
        elif event.type in (BEGIN, INSTANT):
            described = sequence.described(event, self._args_of)
            if described.get("cat") == KEY_CATEGORY and event.type == INSTANT:
                self._keys[described["name"]] = described["args"].get("value")
                return
            position = self._add(event.type, time_ns, track, byte, described)
            if self._args_of is None:
                self._flows += [(flow, position) for flow in (*event.flow_ids, *event.terminating_flow_ids)]
            if event.HasField("gpu_correlation"):
                stages = list(event.gpu_correlation.render_stage_submission_event_ids)
                self._submitted.append((position, stages))

    def _render_stage(self, packet: Any, sequence: PacketSequence, byte: int) -> None:
        event = packet.gpu_render_stage_event
        self._render_stages.specify(event)
        if not event.HasField("event_id") and not event.HasField("duration"):
            return  # descriptions alone
        time = self._clocks.time_ns(packet, sequence)
        if event.duration >= _MAX_DURATION_NS:
            raise DamageError(f"has a GPU render stage of {event.duration} ns")
        described, queue = self._render_stages.event(event, sequence)
        stream = described["args"].get("stream")
        thread = event.gpu_id, queue if stream is None else stream
        self._tracks.thread_names.setdefault(thread, queue)
        position = self._add(_STAGE, time, thread, byte, described, int(event.duration))
        if "correlation" not in described["args"]:
            self._stages[event.event_id] = position

    def _add(
        self, kind: int, time_ns: int, track: Any, byte: int, event: dict[str, Any] | None, duration_ns: int = OPEN
    ) -> int:
        """Add an event: category, name and args, or None of an end. Returns its position."""
        position = self.events
        self.events += 1
        number = self._track_numbers.setdefault((kind == COUNTER, track), len(self._track_numbers))
        self._rows.extend((kind, time_ns, duration_ns, number, byte))
        self._lines.append(b"" if event is None else _encode(event)[1:])
        if len(self._lines) == _BLOCK_EVENTS:
            self._pack()
        if event is not None and ((category := event.get("cat")) in GPU_CALLS or category in GPU_WORK):
            correlation = event["args"].get("correlation")
            if isinstance(correlation, int) and 0 <= correlation < 2**63:
                device, is_graph = event["args"].get("device"), "GraphLaunch" in event["name"]
                self._linked.append(Linked(position, correlation, category in GPU_WORK, device, is_graph))
            elif correlation is None and category in GPU_CALLS:
                self._calls.append(position)
        return position

    def _pack(self) -> None:
        self._packed.append(isal_zlib.compress(b"\n".join(self._lines), _LEVEL))
        self._lines.clear()

    def texts(self, problem: TraceError | None) -> Iterator[bytes]:
        """Yield the read events as blocks of JSON; raise the problem, or TraceError, after the whole ones."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, _COLUMNS)
        recorded = rows[:, :-1].copy()
        kinds, times, durations, tracks, at = rows.T
        alone = set_durations(durations, kinds, times, tracks)
        if problem is None and alone is not None:
            what = "a slice that does not end" if kinds[alone] == BEGIN else "the end of a slice that did not begin"
            problem = self.error(f"has {what}", at[alone])
        members = [self._members(*track) for track in self._track_numbers]
        pids = [members[tracks[event.position]]["pid"] for event in self._linked]
        check_one_run(self._name, self._linked, pids, self._tracks.process_names)
        slices = np.stack([tracks, times, durations], axis=1)
        calls = [(*slices[event.position].tolist(), event.number) for event in self._linked if not event.is_work]
        calls_array = np.array(calls, dtype=np.int64).reshape(-1, 4)
        check_written_once(self._name, recorded, slices[durations != OPEN], calls_array)
        keys = b"".join(b"%b:%b," % (_encode(key), _encode(value)) for key, value in self._keys.items())
        names = list(self._tracks.metadata()) or [{"ph": "M"}]
        yield b"{" + keys + b'"traceEvents":[' + b",\n".join(map(_encode, names))
        yield from self._events(rows, members)
        yield from self._flow_events(rows, members)
        if problem is not None:
            raise problem
        yield b"]}"

    def _members(self, is_counter: bool, track: Any) -> dict[str, Any]:
        """Return the members of an event in Chrome JSON that name its track, once all tracks are described."""
        if is_counter:
            name, pid = self._tracks.counter(track) if isinstance(track, int) else track
            return {"name": name, "pid": pid}
        pid, tid = self._tracks.thread(track) if isinstance(track, int) else track
        return {"pid": pid, "tid": tid}

    def _events(self, rows: np.ndarray, members: list[dict[str, Any]]) -> Iterator[bytes]:
        """Yield blocks of events, each after a comma; slices without an end are left out."""
        heads: dict[tuple[int, int], bytes] = {}  # an event up to its time, by kind and track
        correlations = self._missing_correlations()
        first = 0
        if self._lines:
            self._pack()
        self._packed.reverse()
        while self._packed:
            lines = isal_zlib.decompress(self._packed.pop()).split(b"\n")
            block = rows[first : first + len(lines)].tolist()
            events: list[bytes] = []
            for position, (line, row) in enumerate(zip(lines, block, strict=True), first):
                kind, time, duration, track, _ = row
                if duration == OPEN and kind not in (INSTANT, COUNTER):
                    continue
                if (kind, track) not in heads:
                    scope = {"s": "t"} if kind == INSTANT else {}
                    heads[kind, track] = _encode({"ph": _PHASES[kind], **members[track], **scope})[:-1] + b',"ts":'
                if position in correlations:
                    line = _with_correlation(line, correlations[position])
                times = b"%d.%03d" % divmod(time, 1000)
                if duration != OPEN:
                    times += b',"dur":%d.%03d' % divmod(duration, 1000)
                events.append(b"%b%b,%b" % (heads[kind, track], times, line))
            first += len(lines)
            if events:
                yield b",\n" + b",\n".join(events)

    def _missing_correlations(self) -> dict[int, int]:
        """Return the correlations to add, by position, where calls name the GPU render stages that they started.

        A stage without one gets that of its call, or where this has none both get the number of the call's first stage.
        All others that lack one get one of their own: they have no call, or no work.
        """
        if not self._submitted:
            return {}
        linked = {event.position: event.number for event in self._linked}
        numbers = linked.copy()
        for call, stages in self._submitted:
            if work := [self._stages[stage] for stage in stages if stage in self._stages]:
                numbers |= dict.fromkeys(work, numbers.setdefault(call, stages[0]))
        for stage, position in self._stages.items():
            numbers.setdefault(position, stage)
        last = max([*self._stages, *numbers.values()], default=0)
        for number, position in enumerate(self._calls, last + 1):
            numbers.setdefault(position, number)
        return {position: number for position, number in numbers.items() if position not in linked}

    def _flow_events(self, rows: np.ndarray, members: list[dict[str, Any]]) -> Iterator[bytes]:
        """Yield flows as torch.profiler writes them: from the first event of a number to each of the others."""
        correlations = {event.position: event.number for event in self._linked}
        ends: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)  # time, position and track
        for flow, position in self._flows:
            kind, time, duration, track, _ = rows[position].tolist()
            if kind == INSTANT or duration != OPEN:
                ends[flow].append((time, position, track))
        for flow, events in ends.items():
            if len(events) < 2:
                continue
            numbers = {correlations.get(position) for _, position, _ in events}
            # From a call to its work; from operators to those of the backward pass; among the nodes of a graph.
            kind = "ac2g" if numbers == {flow} else "fwdbwd" if numbers == {None} else "graph"
            for index, (time, _, track) in enumerate(sorted(events)):
                binding = {"bp": "e"} if index else {}
                described = {"ph": "f" if index else "s", "cat": kind, "name": kind, "id": flow, **binding}
                head = _encode(described | members[track])[:-1]
                yield b',\n%b,"ts":%d.%03d}' % (head, *divmod(time, 1000))


def _with_correlation(line: bytes, number: int) -> bytes:
    """Return the event with a correlation among its args."""
    before, _, behind = line.partition(_ARGS)
    return b'%b%b"correlation":%d%b%b' % (before, _ARGS, number, b"" if behind.startswith(b"}") else b",", behind)
