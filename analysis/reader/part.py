"""What is kept of a block of events: arrays of times and numbers, and what is alike in many events once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from isal import isal_zlib

from molprof.analysis.reader.events import (
    ABSENT,
    FED_PHASES,
    MORE_FIELDS,
    Event,
    Id,
    NeededArgs,
    Wanted,
    decode_brief,
    decode_whole,
    draft,
)
from molprof.analysis.reader.quick import LEFT_OUT, QuickBlock, QuickDecoder
from molprof.analysis.reader.times import nanoseconds

# What decoding raises for text that is no JSON, or is nested too deeply.
WRONG_TEXT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# In `Part.correlations`: the event has none, or one that is no integer of 64 bits and stays among its other args.
NO_NUMBER = -(2**63)
_NUMBERS = range(NO_NUMBER + 1, 2**63)
_ZERO = msgspec.Raw(b"0")
_ZEROS = (ABSENT, msgspec.Raw(b"null"))
# The text that waits to be fed repeats itself a lot: it becomes a tenth at 2 GB/s.
_DRAFT_LEVEL = 1
# Phases whose events are described by their label alone, besides times, place and correlation number.
_PLAIN_PHASES = frozenset("XiIR")
# The args of an event without any, as they are encoded.
_NO_ARGS_TEXT = b"{}"
_THREAD_SCOPES = (b"", b"null", b'"t"')
_NO_ARGS = NeededArgs()
_none = partial(np.empty, 0, dtype=np.int64)
_event_kind = attrgetter("cat", "ph", "name", "pid", "tid")
_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines


class Label(NamedTuple):
    """What many events have in common.

    args: the JSON text of the args but for the correlation number; more: JSON members, for a phase where they matter.
    Only category and phase are filled where the events are kept as text.
    """

    category: str | None
    phase: str | None
    name: str | None
    args: bytes
    more: bytes


# What is alike in many events, with the track: category, phase, name, pid and tid; args and more as in a label.
Kind = tuple[tuple[str | None, str | None, str | None, Id, Id], bytes, bytes]


@dataclass(slots=True)
class Part:
    """One block of events. The arrays have an entry per event that is fed.

    events: all of the block. stacks: complete events left out as Python stacks. unread: of unknown phases.
    names: kind, pid, tid and text of metadata. starts, durations, correlations: int64. kind_of: int32, the place in
    `kinds`, which all parts of a reader have in common. text: the events as JSON lines, compressed; empty where the
    kinds say it all.
    """

    events: int
    stacks: int = 0
    unread: int = 0
    open_slices: bool = False
    names: Sequence[tuple[str, Id, Id, str]] = ()
    kinds: Sequence[Kind] = ()
    kind_of: np.ndarray = field(default_factory=partial(np.empty, 0, dtype=np.int32))
    starts: np.ndarray = field(default_factory=_none)
    durations: np.ndarray = field(default_factory=_none)
    correlations: np.ndarray = field(default_factory=_none)
    text: bytes = b""


class WrongEventError(Exception):
    """An event that decodes but cannot be right. what: is wrong with it; reason: told after its block's place."""

    def __init__(self, what: str, reason: str | None = None) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason

    def message(self, events: int) -> str:
        """What to say where `events` came before its block."""
        if self.reason is None:
            return self.what
        return f"{self.what}{', ' if self.what else ''}after event {events}: {self.reason}"


class Numbered(dict[Any, int]):
    """Numbers keys in the order in which they come, and lists them."""

    def __init__(self) -> None:
        super().__init__()
        self.keys_in_order: list[Any] = []

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        self.keys_in_order.append(key)
        return number


class PartReader:
    """Makes parts of blocks of events. kinds: those of all its parts, which grow."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._quick = QuickDecoder(wanted.stacks)
        self._numbers = Numbered()
        self.kinds = self._numbers.keys_in_order

    def read(self, text: bytes) -> Part:
        """The part of a JSON array of events.

        Raises msgspec.DecodeError, UnicodeDecodeError, RecursionError for text that does not decode, WrongEventError.
        """
        if not text.isascii():
            # Only what has a type is checked by the decoder; the rest reaches the engine as it is.
            text.decode()
        if self._wanted.all_args:
            return self._part(decode_whole(text))
        block = self._quick.decode(text)
        part = None if block is None else self._quick_part(block)
        if part is None:
            events = decode_brief(text)
            self._quick.learn(events)
            part = self._part(events)
        return part

    def _numbered(self, kinds: Iterable[Kind], count: int) -> np.ndarray:
        return np.fromiter(map(self._numbers.__getitem__, kinds), dtype=np.int32, count=count)

    def _quick_part(self, block: QuickBlock) -> Part | None:
        """The part of a block all of whose events are of the kinds that nearly all are of; else None."""
        events, stacks = block.events, block.stacks
        if not events:
            return Part(block.count, stacks)
        phases = [event.ph for event in events]
        complete = phases.count("X") == len(phases)
        if not complete and any(event.ph != "X" and event.s not in (None, "t") for event in events):
            return None
        try:
            starts = nanoseconds([event.ts for event in events])
        except ValueError:
            return None
        # Durations are short enough for float64, whose error is far from what rounding to ns decides.
        exact = np.array([event.dur for event in events], dtype=np.float64) * 1000
        durations = np.rint(exact)
        if not (np.all(np.abs(exact - durations) < 0.25) and np.all(exact >= 0) and np.all(exact < 2**50)):
            return None
        if not complete:
            durations[[phase != "X" for phase in phases]] = 0
        # Most events are of a kind whose args are left out.
        having = [position for position, event in enumerate(events) if event.args is not LEFT_OUT]
        args = [events[position].args for position in having]
        correlations = np.full(len(events), NO_NUMBER, dtype=np.int64)
        correlations[having] = _take_correlations(args)
        texts = [_NO_ARGS_TEXT] * len(events)
        for position, text in zip(having, _encode_lines(args).splitlines(), strict=True):
            texts[position] = text
        kinds = zip(map(_event_kind, events), texts, itertools.repeat(b""))  # repeat has no end
        return Part(
            events=block.count,
            stacks=stacks,
            kinds=self.kinds,
            kind_of=self._numbered(kinds, len(events)),
            starts=starts,
            durations=durations.astype(np.int64),
            correlations=correlations,
        )

    def _part(self, events: list[Event]) -> Part:
        """The part of any events."""
        phases = Counter([event.ph for event in events])
        part = Part(
            events=len(events),
            unread=sum(count for phase, count in phases.items() if phase not in FED_PHASES and phase != "M"),
            open_slices=phases["B"] + phases["b"] > 0,
            names=_names(events) if phases["M"] else [],
        )
        chosen = self._wanted.chosen(events)
        part.stacks = phases["X"] - sum([event.ph == "X" for event in chosen])
        if not chosen:
            return part
        for event in chosen:
            event.cat = _category(event)
        part.starts = _times(chosen, [event.ts for event in chosen], "ts")
        part.durations = _durations(chosen)
        part.kinds = self.kinds
        try:
            if self._wanted.all_args:
                part.kind_of = self._numbered(
                    (((_category(event), event.ph, None, event.pid, event.tid), b"", b"") for event in chosen),
                    len(chosen),
                )
                part.text = isal_zlib.compress(draft(chosen), _DRAFT_LEVEL)
            else:
                part.correlations = _take_correlations(
                    event.args if isinstance(event.args, NeededArgs) else _NO_ARGS for event in chosen
                )
                part.kind_of = self._numbered(map(_kind, chosen), len(chosen))
        except RecursionError:
            raise WrongEventError("", "an event is nested too deeply") from None
        return part


def _take_correlations(args: Iterable[Any]) -> np.ndarray:
    """Takes the correlation numbers out of decoded args."""
    numbers = []
    unset = msgspec.UNSET
    for needed in args:
        number = needed.correlation
        if number.__class__ is int and number in _NUMBERS:
            needed.correlation = unset
            numbers.append(number)
        else:
            numbers.append(NO_NUMBER)
    return np.array(numbers, dtype=np.int64)


def _kind(event: Any) -> Kind:
    args = event.args
    text = bytes(args) if isinstance(args, msgspec.Raw) else _encode(args) if isinstance(args, NeededArgs) else b""
    more = b""
    if event.ph not in _PLAIN_PHASES or (event.ph != "X" and bytes(event.s) not in _THREAD_SCOPES):
        fields = {field: value for field in MORE_FIELDS if (value := getattr(event, field))}
        more = _encode(fields)[1:-1]
    return _event_kind(event), text.replace(b"\n", b" ") or _NO_ARGS_TEXT, more.replace(b"\n", b" ")


def _category(event: Event) -> str | None:
    return str(event.cat) if isinstance(event.cat, int) else event.cat


def _times(events: list[Event], texts: list[Any], field: str) -> np.ndarray:
    try:
        return nanoseconds(texts)
    except ValueError as error:
        reason, position = error.args
        event = events[position]
        raise WrongEventError(f"{field} of event {event.name!r} (ph {event.ph!r})", reason) from None


def _durations(events: list[Event]) -> np.ndarray:
    # An X event without dur took no time; other events have none.
    texts = [event.dur if event.ph == "X" else _ZERO for event in events]
    if _ZEROS[0] in texts or _ZEROS[1] in texts:
        texts = [_ZERO if text in _ZEROS else text for text in texts]
    durations = _times(events, texts, "dur")
    if durations.min() < 0:
        worst = events[int(durations.argmin())]
        raise WrongEventError(f"event {worst.name!r} has a negative dur, {bytes(worst.dur).decode()} us")
    return durations


def _names(events: list[Event]) -> list[tuple[str, Id, Id, str]]:
    """The names that metadata give: kind, pid, tid, text."""
    names = []
    for event in events:
        if event.ph != "M" or event.name not in ("thread_name", "process_name"):
            continue
        if isinstance(event.args, msgspec.UnsetType):  # an event of a category whose args are looked into, without any
            continue
        try:
            args = msgspec.json.decode(_encode(event.args), type=dict[str, Any])
        except msgspec.DecodeError:
            continue
        if isinstance(name := args.get("name"), str):
            names.append((event.name, event.pid, event.tid, name))
    return names
