"""Events in packets: track events, GPU render stages and counters, with their names and clocks.

Track events are slices, instants and counters, as PyTorch's profiler writes them. Render stages are how writers that
use Perfetto's own GPU events record kernels, copies and sets. PyTorch's writer puts what Chrome JSON has in `args` into
`extra_data`, as text. A stage says what kind of work it is, and a hardware queue is a stream.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from typing import Any

import msgspec

from molprof.analysis.reader.packets.stream import DamageError

_CLEARED = 1  # of `sequence_flags`
# Clocks up to here are the machine's; the others belong to one writer.
_LAST_GLOBAL_CLOCK = 63
_BOOT_CLOCK = 6  # of packets that name no clock
_MAX_NS = 2**63
# The category of instant events that hold a top-level key of Chrome JSON, such as molprof's manifest, as arg `value`.
KEY_CATEGORY = "molprof.key"
# The args of a category that are read, by name; None for all.
ArgsOf = Callable[[str | None], Container[str] | None]
# Fields of values that are taken as they are: of args, and of launch arguments.
_SIMPLE = ("int_value", "string_value", "bool_value", "uint_value")
_ARGUMENTS = ("int_value", "uint_value", "string_value")
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_MAX_KNOWN = 10_000
# Categories of Chrome JSON by the beginning of a stage's name.
_CATEGORIES = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset", "annotation": "gpu_user_annotation"}
_COMPUTE = 2  # category of a stage's specification
# Names in `extra_data` and of launch arguments, and those of Chrome JSON.
_RENAMED = {
    "device id": "device",
    "context id": "context",
    "stream id": "stream",
    "registers_per_thread": "registers per thread",
}
_INTEGER = re.compile(r"0|-?[1-9]\d{0,18}")
_STREAM = re.compile(r"\bstream (\d{1,18})\b", re.IGNORECASE)


class PacketSequence:
    """The state of one writer, from packet to packet."""

    def __init__(self, number: int, texts: dict[str, Any]) -> None:
        self.number = number
        self._texts = texts  # JSON texts that were checked, of all writers
        self.track_uuid: int | None = None
        self.clock: int | None = None
        self._interned: dict[str, dict[int, Any]] = defaultdict(dict)

    def take(self, packet: Any) -> None:
        """Apply the packet's data that later packets refer to."""
        if packet.sequence_flags & _CLEARED or packet.incremental_state_cleared:
            self._interned.clear()
            self.track_uuid = self.clock = None
        if packet.HasField("trace_packet_defaults"):
            defaults = packet.trace_packet_defaults
            if defaults.HasField("timestamp_clock_id"):
                self.clock = defaults.timestamp_clock_id
            if defaults.track_event_defaults.HasField("track_uuid"):
                self.track_uuid = defaults.track_event_defaults.track_uuid
        if packet.HasField("interned_data"):
            for field, entries in packet.interned_data.ListFields():
                self._interned[field.name].update((entry.iid, entry) for entry in entries)

    def find(self, kind: str, number: int) -> Any:
        """Return the entry of interned data. Raises DamageError if there is none."""
        try:
            return self._interned[kind][number]
        except KeyError:
            raise DamageError(f"refers to number {number} of its {kind}, which is missing") from None

    def name(self, kind: str, item: Any) -> str:
        """Return the name of an item: its own, or that of an entry of interned data. Raises DamageError."""
        return str(self.find(kind, item.name_iid).name if item.name_iid else item.name)

    def described(self, event: Any, args_of: ArgsOf | None = None) -> dict[str, Any]:
        """Return the category (left out if there is none), name and args of an event. Raises DamageError."""
        result: dict[str, Any] = {}
        if event.categories:
            result["cat"] = event.categories[0]
        elif event.category_iids:
            result["cat"] = str(self.find("event_categories", event.category_iids[0]).name)
        category = result.get("cat")
        result["name"] = self.name("event_names", event)
        wanted = None if args_of is None or category == KEY_CATEGORY else args_of(category)
        result["args"] = {} if wanted == () else self._args(event.debug_annotations, wanted)
        return result

    def _args(self, annotations: Any, wanted: Container[str] | None = None) -> dict[str, Any]:
        """Return debug annotations as args, only the wanted ones; None means all. Raises DamageError."""
        return {
            name: self._value(item)
            for item in annotations
            for name in [self.name("debug_annotation_names", item) if item.name_iid else item.name]
            if wanted is None or name in wanted
        }

    def _value(self, item: Any) -> Any:
        for field in _SIMPLE:
            if item.HasField(field):
                return getattr(item, field)
        if item.HasField("double_value"):
            return _number(item.double_value)
        if item.HasField("legacy_json_value"):
            return self._json(item.legacy_json_value)
        if item.HasField("string_value_iid"):
            text = self.find("debug_annotation_string_values", item.string_value_iid).str
            return text.decode("utf-8", "replace")
        if item.HasField("pointer_value"):
            return hex(item.pointer_value)
        if item.dict_entries:
            return self._args(item.dict_entries)
        return [self._value(entry) for entry in item.array_values]

    def _json(self, text: str) -> Any:
        """Return JSON text as it is; as a text if it is not JSON."""
        if text not in self._texts:
            if len(self._texts) > _MAX_KNOWN:
                self._texts.clear()
            try:
                _decode_raw(text)
                # An event is one line.
                self._texts[text] = msgspec.Raw(text.replace("\n", " ").encode())
            except (msgspec.DecodeError, RecursionError):
                self._texts[text] = text
        return self._texts[text]


class PacketClocks:
    """Times of all packets in ns of one clock: that of packets without a clock, or of the first snapshot."""

    def __init__(self) -> None:
        # By clock, with its sequence if it belongs to one: time in ns, the same in ns of the trace, ns per tick, and
        # whether each time counts from the one before it.
        self._snapshots: dict[tuple[int, int], tuple[int, int, int, bool]] = {}
        self._only: tuple[int, int] | None = None  # a clock without a snapshot

    def snapshot(self, sequence: int, clocks: Any) -> None:
        """Add the times of several clocks at one moment."""
        times = {}
        for clock in clocks:
            unit = clock.unit_multiplier_ns or 1
            times[_key(clock.clock_id, sequence)] = clock.timestamp * unit, unit, clock.is_incremental
        # The moment by the boot clock, else by a clock that is known already, else by the first.
        moments = [times[key][0] for key in times if key[0] == _BOOT_CLOCK]
        for key in filter(self._snapshots.__contains__, times):
            at, in_trace, _, _ = self._snapshots[key]
            moments.append(in_trace + times[key][0] - at)
        moments += [time for time, _, _ in times.values()]
        for key, (time, unit, is_incremental) in times.items():
            self._snapshots[key] = time, moments[0], unit, is_incremental

    def time_ns(self, packet: Any, sequence: PacketSequence) -> int:
        """Return the time of a packet, ns. Raises DamageError where there is none."""
        if not packet.HasField("timestamp"):
            raise DamageError("has an event without a time")
        clock = packet.timestamp_clock_id or sequence.clock or _BOOT_CLOCK
        key = _key(clock, sequence.number)
        time = int(packet.timestamp)
        if key in self._snapshots:
            at, in_trace, unit, incremental = self._snapshots[key]
            time *= unit
            if incremental:
                self._snapshots[key] = at + time, in_trace + time, unit, True
                time += at
            time = in_trace + time - at
        elif self._only not in (None, key):
            raise DamageError(f"has times of clock {clock} and of others, without a snapshot of these clocks")
        else:
            self._only = key
        if not 0 <= time < _MAX_NS:
            raise DamageError(f"has an event at {time} ns, which is no time")
        return time


def _key(clock: int, sequence: int) -> tuple[int, int]:
    return clock, 0 if clock <= _LAST_GLOBAL_CLOCK else sequence


def _number(value: float) -> float | str:
    """Return the number, or its text if JSON has no such number."""
    return value if math.isfinite(value) else str(value)


def counted(event: Any) -> int | float | str:
    """Return the value of a counter."""
    return _number(event.double_counter_value) if event.HasField("double_counter_value") else event.counter_value


class RenderStages:
    """Converter of render stages to complete events, and of counter samples to counters."""

    def __init__(self) -> None:
        # Descriptions that hold for the whole trace, in older files.
        self._queues: list[str] = []
        self._stages: list[str] = []
        self._counters: dict[int, str] = {}

    def specify(self, event: Any) -> None:
        """Add the description of queues and stages in an event, if there is one."""
        if event.HasField("specifications"):
            self._queues = [item.name for item in event.specifications.hw_queue]
            self._stages = [item.name for item in event.specifications.stage]

    def event(self, event: Any, sequence: PacketSequence) -> tuple[dict[str, Any], str]:
        """Return a stage's category, name and args; and the name of its queue. Raises DamageError."""
        args = dict(_args(event, sequence))
        queue = _listed(self._queues, event.hw_queue_id) or f"queue {event.hw_queue_id}"
        if event.hw_queue_iid:
            queue = str(sequence.find("gpu_specifications", event.hw_queue_iid).name)
        stage, is_compute = _listed(self._stages, event.stage_id), event.HasField("launch")
        if event.stage_iid:
            entry = sequence.find("gpu_specifications", event.stage_iid)
            stage, is_compute = str(entry.name), is_compute or entry.category == _COMPUTE
        by_name = next((kind for text, kind in _CATEGORIES.items() if stage.lower().startswith(text)), None)
        category = by_name or ("kernel" if is_compute else stage or "gpu_render_stage")
        args["device"] = event.gpu_id
        if not isinstance(args.get("stream"), int) and (match := _STREAM.search(queue)):
            args["stream"] = int(match[1])
        name = sequence.name("event_names", event)
        if not name and event.kernel_iid:
            kernel = sequence.find("compute_kernels", event.kernel_iid)
            name = str(kernel.demangled_name or kernel.name)
        return {"cat": category, "name": name or stage, "args": args}, queue

    def counters(self, event: Any, sequence: PacketSequence) -> Iterator[tuple[tuple[str, str], Any]]:
        """Yield the samples of a counter event: name and owner, and value of each. Raises DamageError."""
        gpu, names = event.gpu_id, self._counters
        if event.HasField("counter_descriptor_iid"):
            entry = sequence.find("gpu_counter_descriptors", event.counter_descriptor_iid)
            gpu = event.gpu_id if event.HasField("gpu_id") else entry.gpu_id
            names = {spec.counter_id: spec.name for spec in entry.counter_descriptor.specs}
        else:
            names.update((spec.counter_id, spec.name) for spec in event.counter_descriptor.specs)
        for sample in event.counters:
            value = sample.int_value if sample.HasField("int_value") else _number(sample.double_value)
            name = names.get(sample.counter_id) or f"counter {sample.counter_id}"
            yield (name, f"GPU {gpu} Counters"), value


def _args(event: Any, sequence: PacketSequence) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the args of a stage. Raises DamageError."""
    for item in event.extra_data:
        text = item.value
        yield _RENAMED.get(item.name, item.name), int(text) if _INTEGER.fullmatch(text) else text
    for field, name in (("grid_size", "grid"), ("workgroup_size", "block")):
        if event.launch.HasField(field):
            size = getattr(event.launch, field)
            yield name, [size.x, size.y, size.z]
    for item in event.launch.args:
        name = sequence.name("compute_arg_names", item)
        value = next((getattr(item, field) for field in _ARGUMENTS if item.HasField(field)), None)
        yield _RENAMED.get(name, name), _number(item.double_value) if value is None else value


def _listed(names: list[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else ""
