"""A decoder that skips Python stacks, flow events and memory events, most of many traces."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter, defaultdict
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
    stacks: int  # Python stacks left out
    memory: int  # memory events left out


class QuickDecoder:
    """Decodes each category into a type of its own; of a skipped category only the phase is decoded.

    All text is still checked to be JSON. Where the types do not fit (an unknown category, none, a number as text) there
    is no result; then the caller decodes the events otherwise and passes them to `learn`.
    """

    def __init__(self, stacks: bool) -> None:
        self._stacks = stacks
        self._types: dict[str, Any] = {}
        self._left_out: dict[str, Any] = {}
        self._kept_types: frozenset[Any] = frozenset()
        self._memory_types: list[Any] = []
        self._decode: Any = None
        self._trust = _PATIENCE
        self._pause = 0

    def decode(self, text: bytes) -> Decoded | None:
        """Raises what is in WRONG_TEXT."""
        if self._decode is None or self._pause:
            self._pause = max(0, self._pause - 1)
            return None
        try:
            decoded = self._decode(text)
        except msgspec.ValidationError:
            return None
        types = list(map(type, decoded))
        events = list(itertools.compress(decoded, map(self._kept_types.__contains__, types)))
        self._trust = min(self._trust + 1, _PATIENCE)
        left_out = Counter(types) if len(events) < len(decoded) else Counter[Any]()
        stacks = left_out[self._left_out.get(STACK_CATEGORY)]
        memory = sum(left_out[kind] for kind in self._memory_types)
        return Decoded(len(decoded), events, stacks, memory)

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
                self._left_out[category] = _type(category, _STACK)
            elif found <= FLOW_PHASES:
                self._left_out[category] = _type(category, _FLOW)
            elif found == {MEMORY_NAME}:
                self._left_out[category] = kind = _type(category, _MEMORY)
                self._memory_types.append(kind)
            else:
                self._types[category] = _type(category, _KEPT if category in ARGLESS_CATEGORIES else _KEPT_WITH_ARGS)
        if changed:
            self._kept_types = frozenset(self._types.values())
            types = [*self._types.values(), *self._left_out.values(), _NO_CATEGORY]
            union = functools.reduce(operator.or_, types)
            self._decode = msgspec.json.Decoder(list[union], float_hook=exact_float).decode  # type: ignore[valid-type]


def _type(category: str, fields: list[Any]) -> Any:
    alike: dict[str, Any] = {"cat": category, "more": b""}
    if fields is not _KEPT_WITH_ARGS:
        alike["args"] = NO_ARGS
    return msgspec.defstruct("QuickEvent", fields, namespace=alike, tag_field="cat", tag=category, gc=False)


# With a single type msgspec does not check the category, so there is a second one that no event has.
_NO_CATEGORY = _type("molprof: no category", _FLOW)
