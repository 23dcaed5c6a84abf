"""A decoder that skips Python stacks, flow events and memory events, most of many traces."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import msgspec

from molprof.analysis.reader.events import (
    ABSENT,
    ARGLESS_CATEGORIES,
    FLOW_PHASES,
    MEMORY_NAME,
    STACK_CATEGORY,
    WHOLE_CATEGORIES,
    Event,
    Id,
    NeededArgs,
    is_memory,
)
from molprof.analysis.reader.text import exact_float

# A trace has a dozen categories. Further ones are decoded the ordinary way.
_MAX_CATEGORIES = 64
# After 8 more failures than successes, only every 16th block is tried.
_PATIENCE, _PAUSE = 8, 16

# In place of args that are skipped or missing.
NO_ARGS = b"{}"
# What an event that is left out has in place of the category's number.
_STACKS, _FLOWS, _MEMORIES = 255, 254, 253
_LEFT_OUT = bytes((_STACKS, _FLOWS, _MEMORIES))
_IS_KEPT = bytes(code not in _LEFT_OUT for code in range(256))
# An event of another phase does not fit its type and is decoded the ordinary way.
_STACK: list[Any] = [("ph", Literal["X"])]
_FLOW: list[Any] = [("ph", Literal["s", "t", "f"])]
_MEMORY: list[Any] = [("ph", Literal["i"]), ("name", Literal[MEMORY_NAME])]  # type: ignore[valid-type]
_KEPT: list[Any] = [
    ("ph", Literal["X", "i", "I", "R"]),
    ("name", str | None, None),
    ("pid", Id, None),
    ("tid", Id, None),
    ("ts", msgspec.Raw, ABSENT),
    ("dur", float, 0.0),
    ("s", str | None, None),
]
_KEPT_WITH_ARGS = [*_KEPT, ("args", NeededArgs, msgspec.field(default_factory=lambda: NO_ARGS))]


class Decoded(NamedTuple):
    """What a block holds."""

    total: int  # all events
    events: list[Any]  # those that are kept
    categories: bytes  # of each of these, a place in `QuickDecoder.categories`
    stacks: int  # Python stacks left out
    memory: int  # memory events left out

    def without_memory(self) -> Decoded:
        """The same less the memory events of categories that hold others too."""
        kept = [not is_memory(event) for event in self.events]
        events = list(itertools.compress(self.events, kept))
        categories = bytes(itertools.compress(self.categories, kept))
        return Decoded(self.total, events, categories, self.stacks, self.memory + len(kept) - len(events))


class QuickDecoder:
    """Decodes each category into a type of its own; of a skipped category only the phase is decoded.

    All text is still checked to be JSON. Where the types do not fit (an unknown category, none, a number as text) there
    is no result; then the caller decodes the events otherwise and passes them to `learn`.
    """

    def __init__(self, stacks: bool) -> None:
        self._stacks = stacks
        self.categories: list[str] = []  # those of `_types`
        self._types: dict[str, Any] = {}
        self._left_out: dict[str, Any] = {}
        self._codes: dict[Any, int] = {_NO_CATEGORY: _FLOWS}  # of a type
        self._decode: Any = None
        self._trust = _PATIENCE
        self._pause = 0

    def decode(self, text: bytes | memoryview) -> Decoded | None:
        """Raises what is in WRONG_TEXT."""
        if self._decode is None or self._pause:
            self._pause = max(0, self._pause - 1)
            return None
        try:
            decoded = self._decode(text)
        except msgspec.ValidationError:
            return None
        self._trust = min(self._trust + 1, _PATIENCE)
        codes = bytes(map(self._codes.__getitem__, map(type, decoded)))
        events = list(itertools.compress(decoded, codes.translate(_IS_KEPT)))
        categories = codes.translate(None, delete=_LEFT_OUT)
        return Decoded(len(decoded), events, categories, codes.count(_STACKS), codes.count(_MEMORIES))

    def learn(self, events: Iterable[Event]) -> None:
        """Adds the categories of events that this decoder could not decode."""
        self._trust -= 1
        if self._trust < 0:
            self._pause = _PAUSE
        phases: defaultdict[str, set[str | None]] = defaultdict(set)
        for event in events:
            if isinstance(event.cat, str) and event.cat not in WHOLE_CATEGORIES:
                phases[event.cat].add(MEMORY_NAME if is_memory(event) else event.ph)
        room = len(self._types) + len(self._left_out) < _MAX_CATEGORIES
        changed = False
        for category, found in phases.items():
            if category in self._left_out:
                if category == STACK_CATEGORY or found <= FLOW_PHASES or found == {MEMORY_NAME}:
                    continue
                del self._left_out[category]
            elif category in self._types or not room:
                continue
            changed = True
            if category == STACK_CATEGORY and not self._stacks:
                there, fields, code = self._left_out, _STACK, _STACKS
            elif found <= FLOW_PHASES:
                there, fields, code = self._left_out, _FLOW, _FLOWS
            elif found == {MEMORY_NAME}:
                there, fields, code = self._left_out, _MEMORY, _MEMORIES
            else:
                there, code = self._types, len(self._types)
                fields = _KEPT if category in ARGLESS_CATEGORIES else _KEPT_WITH_ARGS
            there[category] = kind = _type(category, fields)
            self._codes[kind] = code
        if changed:
            self.categories = list(self._types)
            types = [*self._types.values(), *self._left_out.values(), _NO_CATEGORY]
            union = functools.reduce(operator.or_, types)
            self._decode = msgspec.json.Decoder(list[union], float_hook=exact_float).decode  # type: ignore[valid-type]


def _type(category: str, fields: list[Any]) -> Any:
    return msgspec.defstruct("QuickEvent", fields, tag_field="cat", tag=category, gc=False)


# With a single type msgspec does not check the category, so there is a second one that no event has.
_NO_CATEGORY = _type("molprof: no category", _FLOW)
