"""What packets of one writer refer to: interned names, defaults, and clocks."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from molprof.common.packets.stream import DamageError

_CLEARED = 1  # of `sequence_flags`
# Clocks up to here are the machine's; the others belong to one writer.
_LAST_GLOBAL_CLOCK = 63
_BOOT_CLOCK = 6  # of packets that name no clock
_MAX_NS = 2**63


class Sequence:
    """The state of one writer, from packet to packet."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.track_uuid: int | None = None
        self.clock: int | None = None
        self._interned: dict[str, dict[int, Any]] = defaultdict(dict)

    def take(self, packet: Any) -> None:
        """Takes what a packet tells of those behind it."""
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

    def find(self, kind: str, number: int, place: int) -> Any:
        """The entry of interned data that the packet at `place` refers to. Raises DamageError where there is none."""
        try:
            return self._interned[kind][number]
        except KeyError:
            raise DamageError(f"refers to number {number} of its {kind}, which is missing", place) from None

    def name(self, kind: str, number: int, place: int) -> str:
        """The name of an entry of interned data. Raises DamageError."""
        return str(self.find(kind, number, place).name)


class Clocks:
    """Times of all packets in ns of one clock: that of packets without a clock, or of the first snapshot."""

    def __init__(self) -> None:
        # By clock, with its sequence if it belongs to one: time in ns, the same in ns of the trace, ns per tick, and
        # whether each time counts from the one before it.
        self._snapshots: dict[tuple[int, int], tuple[int, int, int, bool]] = {}
        self._only: tuple[int, int] | None = None  # a clock without a snapshot

    def snapshot(self, sequence: int, clocks: Any) -> None:
        """Takes the times of several clocks at one moment."""
        found = [(_key(clock.clock_id, sequence), clock, clock.unit_multiplier_ns or 1) for clock in clocks]
        boot = next((clock.timestamp * unit for key, clock, unit in found if key[0] == _BOOT_CLOCK), None)
        if boot is None:  # the time of a clock that is known already, else of the first
            known = [(key, clock.timestamp * unit) for key, clock, unit in found if key in self._snapshots]
            boot = self._at(*known[0]) if known else found[0][1].timestamp * found[0][2] if found else 0
        for key, clock, unit in found:
            self._snapshots[key] = clock.timestamp * unit, boot, unit, clock.is_incremental

    def time_ns(self, packet: Any, sequence: Sequence, place: int) -> int:
        """The time of the packet at `place`. Raises DamageError where there is none."""
        if not packet.HasField("timestamp"):
            raise DamageError("has an event without a time", place)
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
            raise DamageError(f"has times of clock {clock} and of others, without a snapshot of these clocks", place)
        else:
            self._only = key
        if not 0 <= time < _MAX_NS:
            raise DamageError(f"has an event at {time} ns, which is no time", place)
        return time

    def _at(self, key: tuple[int, int], time: int) -> int:
        at, in_trace, _, _ = self._snapshots[key]
        return in_trace + time - at


def _key(clock: int, sequence: int) -> tuple[int, int]:
    return clock, 0 if clock <= _LAST_GLOBAL_CLOCK else sequence
