"""Parts: a block of events, decoded as far as needed, as arrays and shared labels.

Python stacks, flow events and memory events, most of many traces, are skipped by a decoder of their own.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress, repeat, zip_longest
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from isal import isal_zlib
from msgspec import field
from msgspec.structs import astuple, replace

from molprof.analysis.facts.gpu_slices import NO_NUMBER
from molprof.analysis.reader.arguments import NOTHING, OperatorArgs, SizeArgs, Taken, arguments_in, take_arguments
from molprof.analysis.reader.categories import OPERATORS, fed_category, is_renamed
from molprof.analysis.reader.events import (
    ABSENT,
    FED_PHASES,
    FLOW_PHASES,
    MEMORY_NAME,
    MORE_FIELDS,
    NO_ARGS,
    STACK_CATEGORY,
    WHOLE_CATEGORIES,
    Event,
    Id,
    NeededArgs,
    Wanted,
    bound_names,
    decode_brief,
    decode_whole,
    draft,
    drop_args,
    is_mark,
    is_memory,
)
from molprof.analysis.reader.text import bounded, exact_float
from molprof.analysis.reader.times import nanoseconds
from molprof.common.text import shortened
from molprof.queries import FACT_CATEGORY

# A trace has a dozen categories. Further ones are decoded the ordinary way.
_MAX_CATEGORIES = 64
# After 8 more failures than successes, only every 16th block is tried.
_PATIENCE, _PAUSE = 8, 16

# What an event that is left out has in place of the category's number.
_STACKS, _FLOWS, _MEMORIES, _FACTS = 255, 254, 253, 252
_LEFT_OUT = bytes((_STACKS, _FLOWS, _MEMORIES, _FACTS))
_IS_KEPT = bytes(code not in _LEFT_OUT for code in range(256))
_IS_STACK = bytes(code == _STACKS for code in range(256))
# An event of another phase does not fit its type and is decoded the ordinary way.
_STACK: list[Any] = [("ph", Literal["X"]), ("name", str | None, None)]
_FLOW: list[Any] = [("ph", Literal["s", "t", "f"])]
_MEMORY: list[Any] = [("ph", Literal["i"]), ("name", Literal[MEMORY_NAME])]  # type: ignore[valid-type]
_FACT: list[Any] = [("ph", Literal["X", "i", "M"])]  # which `molprof export` adds
_KEPT: list[Any] = [
    ("ph", Literal["X", "i", "I", "R"]),
    ("name", str | None, None),
    ("pid", Id, None),
    ("tid", Id, None),
    ("ts", msgspec.Raw, ABSENT),
    ("dur", float, 0.0),
    ("s", str | None, None),
]
_KEPT_WITH = {
    kind: [*_KEPT, ("args", kind, msgspec.field(default_factory=lambda: NO_ARGS))]
    for kind in (NeededArgs, OperatorArgs, SizeArgs)
}
# What decoding raises for text that is not JSON or is nested too deeply.
WRONG_TEXT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Correlation numbers; in `Part.correlations` any other value is NO_NUMBER, and stays among the other args.
_NUMBERS = range(NO_NUMBER + 1, 2**63)
_ZERO = msgspec.Raw(b"0")
# Drafts shrink to a tenth, at 2 GB/s.
_DRAFT_LEVEL = 1
# Phases whose events need nothing but label, times, track and correlation number.
_PLAIN_PHASES = frozenset("XiIR")
# Those of most events: their text keeps its category.
_UNCHANGED_PHASES = FLOW_PHASES | frozenset("XMC")
_THREAD_SCOPES = (b"", b"null", b'"t"')
_NONE_NEEDED = NeededArgs()
_none = partial(np.empty, 0, dtype=np.int64)
_place = attrgetter("cat", "ph", "name", "pid", "tid")
_name = attrgetter("name")
_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines


class QuickDecoder:
    """A decoder with a type for each category; of a skipped category only the phase is decoded.

    All text is still checked to be JSON. Where the types do not fit (an unknown category, none, a number as text) there
    is no result; then the caller decodes the events otherwise and passes them to `learn`.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._stacks = wanted.stacks
        self.operator_args = OperatorArgs if wanted.arguments else SizeArgs
        self._marks = False  # one that marks a phase was found: Python stacks are decoded whole
        self.categories: list[str] = []  # those that are kept
        self._types: dict[str, Any] = {}  # by category
        self._codes: dict[Any, int] = {_NO_CATEGORY: _FLOWS}  # of a type
        self._decode: Any = None
        self._trust = _PATIENCE
        self._pause = 0

    def decode(self, text: bytes | memoryview) -> tuple[TracePart, list[Any], bytes] | None:
        """Return a part with counts alone, the events that are kept, and the index in `categories` of each.

        Raises what is in WRONG_TEXT.
        """
        if self._decode is None or self._pause:
            self._pause = max(0, self._pause - 1)
            return None
        try:
            decoded = self._decode(text)
        except msgspec.ValidationError:
            return None
        self._trust = min(self._trust + 1, _PATIENCE)
        codes = bytes(map(self._codes.__getitem__, map(type, decoded)))
        is_stack = codes.translate(_IS_STACK)
        marks = list(map(is_mark, map(_name, compress(decoded, is_stack))))
        if any(marks):
            if not self._marks:
                self._find_marks()
                return self.decode(text)
            changed = np.frombuffer(bytearray(codes), dtype=np.uint8)
            stack_rows = np.flatnonzero(np.frombuffer(is_stack, dtype=np.int8))
            changed[stack_rows[marks]] = self.categories.index(STACK_CATEGORY)
            codes = changed.tobytes()
        events = list(compress(decoded, codes.translate(_IS_KEPT)))
        categories = codes.translate(None, delete=_LEFT_OUT)
        part = TracePart(len(decoded), codes.count(_STACKS), codes.count(_MEMORIES))
        if self._stacks and STACK_CATEGORY in self.categories:
            part.kept_stacks = categories.count(self.categories.index(STACK_CATEGORY))
        return part, events, categories

    def _find_marks(self) -> None:
        """Decode Python stacks fully from now on."""
        self._marks = True
        self.categories.append(STACK_CATEGORY)
        self._types[STACK_CATEGORY] = kind = _type(STACK_CATEGORY, _KEPT)
        self._codes[kind] = _STACKS
        self._make()

    def _make(self) -> None:
        union = functools.reduce(operator.or_, [*self._types.values(), _NO_CATEGORY])
        self._decode = msgspec.json.Decoder(list[union], float_hook=exact_float).decode  # type: ignore[valid-type]

    def learn(self, events: Iterable[Event]) -> None:
        """Add the categories of events that this decoder could not decode."""
        self._trust -= 1
        if self._trust < 0:
            self._pause = _PAUSE
        phases: defaultdict[str, set[str | None]] = defaultdict(set)
        for event in events:
            if isinstance(event.cat, str) and event.cat not in WHOLE_CATEGORIES:
                phases[event.cat].add(MEMORY_NAME if is_memory(event) else event.ph)
        room = len(self._types) < _MAX_CATEGORIES
        changed = False
        for category, seen in phases.items():
            is_left_out = category in (STACK_CATEGORY, FACT_CATEGORY) or seen <= FLOW_PHASES or seen == {MEMORY_NAME}
            if category in self.categories or (is_left_out if category in self._types else not room):
                continue
            changed = True
            if category == STACK_CATEGORY and not self._stacks:
                fields, code = _STACK, _STACKS
            elif seen <= FLOW_PHASES:
                fields, code = _FLOW, _FLOWS
            elif seen == {MEMORY_NAME}:
                fields, code = _MEMORY, _MEMORIES
            elif category == FACT_CATEGORY:
                fields, code = _FACT, _FACTS
            else:
                kind = self.operator_args if category in OPERATORS else NeededArgs
                fields, code = _KEPT if category == STACK_CATEGORY else _KEPT_WITH[kind], len(self.categories)
                self.categories.append(category)
            self._types[category] = kind = _type(category, fields)
            self._codes[kind] = code
        if changed:
            self._make()


def _type(category: str, fields: list[Any]) -> Any:
    return msgspec.defstruct("QuickEvent", fields, tag_field="cat", tag=category, gc=False)


# With a single type msgspec does not check the category, so there is a second one that no event has.
_NO_CATEGORY = _type("molprof: no category", _FLOW)


class EventLabel(NamedTuple):
    """The properties that many events share; of events kept as text only category and phase."""

    category: str | None
    phase: str | None
    name: str | None
    args: bytes  # JSON text without the correlation number
    more: bytes  # JSON members that some phases need


# Category, phase, name, pid and tid; args and more as in a label.
Kind = tuple[str | None, str | None, str | None, Id, Id, bytes, bytes]


class TracePart(msgspec.Struct):
    """One block of events. The arrays have an entry per event that is fed."""

    events: int  # all of the block
    stacks: int = 0  # Python stacks left out
    memory: int = 0  # memory events, left out or not
    kept_stacks: int = 0
    unread: Mapping[str, int] = field(default_factory=dict)  # of unknown phases, by category
    open_slices: bool = False
    long_names: int = 0  # events whose name or category is bounded here, in place of that of their kind
    names: Sequence[tuple[str, Id, Id, str]] = ()  # metadata: kind, pid, tid, text
    kinds: Collection[Kind] = ()  # the same object in all parts of a reader
    kind_of: np.ndarray = field(default_factory=partial(np.empty, 0, dtype=np.int32))  # place in `kinds`
    starts: np.ndarray = field(default_factory=_none)  # ns
    durations: np.ndarray = field(default_factory=_none)  # ns
    correlations: np.ndarray = field(default_factory=_none)  # or NO_NUMBER
    arguments: Taken = NOTHING  # of operators
    text: bytes = b""  # events as compressed JSON lines; empty where their kinds describe them


class WrongEventError(Exception):
    """An event that decodes but must be wrong; with its number in its block, from 1, if known."""

    def __init__(self, reason: str, event: Any = None, number: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.event = event
        self.number = number

    def message(self, events: int) -> str:
        """Return the text of the error; `events`: how many the file has before the block that the error is in."""
        if self.event is None:
            return f"an event after event {events} {self.reason}"
        return f"event {events + self.number}, {shortened(repr(self.event.name))} (ph {self.event.ph!r}), {self.reason}"


def numbered() -> defaultdict[Any, int]:
    """Return numbers for keys in order of appearance, from 0."""
    return defaultdict(itertools.count().__next__)


class PartReader:
    """A reader of blocks of events. kinds: those of all its parts, which grow, and their numbers."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._quick = QuickDecoder(wanted)
        self.kinds = numbered()

    def read(self, text: bytes | memoryview) -> TracePart:
        """Return the part of a JSON array of events. Raises WrongEventError, or one of WRONG_TEXT.

        The memory of `text` may be used again afterwards.
        """
        if np.frombuffer(text, dtype=np.int8).min() < 0:  # not ASCII
            # The decoder does not check the text that is copied.
            bytes(text).decode()
        if self._wanted.all_args:
            return self._part(decode_whole(bytes(text)))
        decoded = self._quick.decode(text)
        part = None if decoded is None else self._quick_part(*decoded)
        if part is None:
            events = decode_brief(bytes(text))
            self._quick.learn(events)
            part = self._part(events)
        return part

    def leave_out_stacks(self) -> None:
        """Leave out Python stacks from the next part on."""
        self._wanted = replace(self._wanted, stacks=False)
        self._quick = QuickDecoder(self._wanted)

    def _numbered(self, kinds: Iterable[Any], count: int) -> np.ndarray:
        return np.fromiter(map(self.kinds.__getitem__, kinds), dtype=np.int32, count=count)

    def _quick_part(self, part: TracePart, events: list[Any], categories: bytes) -> TracePart | None:
        """Return the part with the common events of a block; None where an event is of another kind."""
        if not events:
            return part
        # Types without args are shorter.
        columns = zip_longest(*map(astuple, events), fillvalue=NO_ARGS)
        phases, names, pids, tids, times, lengths, scopes, *args = columns
        complete = phases.count("X") == len(phases)
        if not complete and MEMORY_NAME in names and not all(kept := [not is_memory(event) for event in events]):
            part.memory += kept.count(False)
            return self._quick_part(part, list(compress(events, kept)), bytes(compress(categories, kept)))
        if not complete and any(ph != "X" and s not in (None, "t") for ph, s in zip(phases, scopes, strict=True)):
            return None
        try:
            starts = nanoseconds(times)
        except ValueError:
            return None
        # Up to 2**50 ns, float64 is exact enough to round to ns.
        exact = np.array(lengths) * 1000
        durations = np.rint(exact)
        if exact.min() < 0 or exact.max() >= 2**50 or np.abs(exact - durations).max() >= 0.25:
            return None
        if not complete:
            durations[[phase != "X" for phase in phases]] = 0
        correlations = np.full(len(phases), NO_NUMBER, dtype=np.int64)
        texts = list(args[0]) if args else [NO_ARGS] * len(phases)
        part.arguments = take_arguments(texts, names, self._quick.operator_args)
        if having := [position for position, value in enumerate(texts) if value.__class__ is not bytes]:
            needed = [texts[position] for position in having]
            correlations[having] = _take_correlations(needed)
            for position, text in zip(having, _encode_lines(needed).splitlines(), strict=True):
                texts[position] = text
        named = map(self._quick.categories.__getitem__, categories)
        kinds = zip(named, phases, names, pids, tids, texts, repeat(b""))  # repeat is endless
        part.kinds = self.kinds
        part.kind_of = self._numbered(kinds, len(phases))
        part.starts = starts
        part.durations = durations.astype(np.int64)
        part.correlations = correlations
        return part

    def _part(self, events: list[Event]) -> TracePart:
        """Return the part of any events."""
        count = len(events)
        events = [event for event in events if event.cat != FACT_CATEGORY]
        phases = Counter([event.ph for event in events])
        part = TracePart(
            events=count,
            memory=sum(map(is_memory, events)),
            unread=_unread(events) if phases.keys() - FED_PHASES - {"M"} else {},
            open_slices=phases["B"] + phases["b"] > 0,
            names=_names(events) if phases["M"] else [],
        )
        chosen = self._wanted.chosen(events)
        part.stacks = phases["X"] - sum([event.ph == "X" for event in chosen])
        part.kept_stacks = sum([event.cat == STACK_CATEGORY for event in chosen])
        if not chosen:
            return part
        for event in chosen:
            if isinstance(event.cat, int):
                event.cat = str(event.cat)
        if self._wanted.all_args:
            part.long_names = bound_names(chosen)
        try:
            part.starts = times_ns(chosen, [event.ts for event in chosen], "ts")
            part.durations = _durations(chosen)
        except WrongEventError as error:
            error.number = next(number for number, event in enumerate(events, 1) if event is error.event)
            raise
        part.kinds = self.kinds
        try:
            part.arguments = arguments_in(chosen) if self._wanted.arguments else NOTHING
            if self._wanted.all_args:
                renamed = {event.cat for event in chosen if is_renamed(event.cat)}
                kinds = (
                    (event.cat, event.ph, event.name if event.cat in renamed else None, event.pid, event.tid, b"", b"")
                    for event in chosen
                )
                part.kind_of = self._numbered(kinds, len(chosen))
                if renamed or not phases.keys() <= _UNCHANGED_PHASES:
                    for event in chosen:
                        event.cat = fed_category(None if event.cat is None else str(event.cat), event.ph, event.name)
                part.text = isal_zlib.compress(draft(chosen), _DRAFT_LEVEL)
            else:
                drop_args(chosen)
                args = [event.args if isinstance(event.args, NeededArgs) else _NONE_NEEDED for event in chosen]
                part.correlations = _take_correlations(args)
                part.kind_of = self._numbered(map(_kind, chosen), len(chosen))
        except RecursionError:
            raise WrongEventError("is nested too deeply") from None
        return part


def _unread(events: Iterable[Event]) -> Counter[str]:
    return Counter([bounded(str(event.cat)) for event in events if event.ph not in FED_PHASES and event.ph != "M"])


def _take_correlations(args: Sequence[Any]) -> np.ndarray:
    """Remove the correlation numbers from decoded args and return them."""
    numbers = [needed.correlation for needed in args]
    if set(map(type, numbers)) != {int} or min(numbers) not in _NUMBERS or max(numbers) not in _NUMBERS:
        numbers = [number if number.__class__ is int and number in _NUMBERS else NO_NUMBER for number in numbers]
    for needed, number in zip(args, numbers, strict=True):
        if number != NO_NUMBER:
            needed.correlation = msgspec.UNSET
    return np.array(numbers, dtype=np.int64)


def _kind(event: Any) -> Kind:
    args = event.args
    text = bytes(args) if isinstance(args, msgspec.Raw) else _encode(args) if isinstance(args, NeededArgs) else b""
    more = b""
    if event.ph not in _PLAIN_PHASES or (event.ph != "X" and bytes(event.s) not in _THREAD_SCOPES):
        fields = {field: value for field in MORE_FIELDS if (value := getattr(event, field))}
        more = _encode(fields)[1:-1]
    return (*_place(event), text.replace(b"\n", b" ") or NO_ARGS, more.replace(b"\n", b" "))


def times_ns(events: Sequence[Any], texts: list[msgspec.Raw], field: str) -> np.ndarray:
    """Return the nanoseconds of the texts, one of each event. Raises WrongEventError."""
    try:
        return nanoseconds(texts)
    except ValueError as error:
        reason, position = error.args
        what = f"a wrong {field}: {reason}" if bytes(texts[position]) else f"no {field}"
        raise WrongEventError(f"has {what}", events[position], position + 1) from None


def or_zero(texts: list[msgspec.Raw]) -> list[msgspec.Raw]:
    """Return the texts with 0 for missing ones."""
    missing = (ABSENT, msgspec.Raw(b"null"))
    return [_ZERO if text in missing else text for text in texts] if any(map(texts.__contains__, missing)) else texts


def _durations(events: list[Event]) -> np.ndarray:
    # A missing dur is 0; only X events have one.
    durations = times_ns(events, or_zero([event.dur if event.ph == "X" else _ZERO for event in events]), "dur")
    if durations.min() < 0:
        row = int(durations.argmin())
        reason = f"has a negative dur, {shortened(bytes(events[row].dur).decode())} us"
        raise WrongEventError(reason, events[row], row + 1)
    return durations


def _names(events: list[Event]) -> list[tuple[str, Id, Id, str]]:
    """Return the names in metadata: kind, pid, tid, text."""
    names = []
    for event in events:
        if event.ph != "M" or event.name not in ("thread_name", "process_name"):
            continue
        if isinstance(event.args, msgspec.UnsetType):  # no args
            continue
        with suppress(msgspec.DecodeError):
            args = msgspec.json.decode(_encode(event.args), type=dict[str, Any])
            if isinstance(name := args.get("name"), str):
                names.append((event.name, event.pid, event.tid, name))
    return names
