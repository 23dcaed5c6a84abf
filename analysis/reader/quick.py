"""Decoding that makes little of what is left out: Python stacks and flow events, most of many traces."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from molprof.analysis.reader.events import (
    ABSENT,
    ARGLESS_CATEGORIES,
    FLOW_PHASES,
    STACK_CATEGORY,
    WHOLE_CATEGORIES,
    Event,
    Id,
    NeededArgs,
)
from molprof.analysis.reader.text import exact_float

# A trace has a dozen categories; one that names them by the event is decoded in the ordinary way.
_MAX_CATEGORIES = 64
# So many blocks more may fail than succeed before only one in so many is tried.
_PATIENCE, _PAUSE = 8, 16

# The args of events whose args are left out, or that have none.
LEFT_OUT = NeededArgs()
# Phases are part of the types: an event of another kind is decoded in the ordinary way.
_STACK: list[Any] = [("ph", Literal["X"])]
_FLOW: list[Any] = [("ph", Literal["s", "t", "f"])]
_KEPT: list[Any] = [
    ("ph", Literal["X", "i", "I", "R"]),
    ("name", str | None, None),
    ("pid", Id, None),
    ("tid", Id, None),
    ("ts", msgspec.Raw, ABSENT),
    ("dur", float, 0.0),
    ("s", str | None, None),
]
_KEPT_WITH_ARGS = [*_KEPT, ("args", NeededArgs, msgspec.field(default_factory=lambda: LEFT_OUT))]


@dataclass(frozen=True)
class QuickBlock:
    """count: events of the block; events: those not left out; stacks: complete events left out as Python stacks."""

    count: int
    events: list[Any]
    stacks: int


class QuickDecoder:
    """Decodes each category into a type of its own, so that of one that is left out only the phase is looked at.

    All text is still checked to be JSON. What the types do not provide for (an unknown category, none at all, a number
    as text) gives no result, and the events, decoded in the ordinary way, are to be learnt from.
    """

    def __init__(self, stacks: bool) -> None:
        self._stacks = stacks
        self._types: dict[str, Any] = {}
        self._left_out: dict[str, Any] = {}
        self._kept_types: frozenset[Any] = frozenset()
        self._decode: Any = None
        self._trust = _PATIENCE
        self._pause = 0

    def decode(self, text: bytes) -> QuickBlock | None:
        """The events of the JSON array, or None. Raises msgspec.DecodeError and others for text that is none."""
        if self._decode is None or self._pause:
            self._pause = max(0, self._pause - 1)
            return None
        try:
            decoded = self._decode(text)
        except msgspec.ValidationError:
            return None
        types = list(map(type, decoded))
        events = list(itertools.compress(decoded, map(self._kept_types.__contains__, types)))
        stacks = 0
        if len(events) < len(decoded) and (stack := self._left_out.get(STACK_CATEGORY)):
            stacks = types.count(stack)
        self._trust = min(self._trust + 1, _PATIENCE)
        return QuickBlock(len(decoded), events, stacks)

    def learn(self, events: Iterable[Event]) -> None:
        """Provides for the categories of events that could not be decoded so."""
        self._trust -= 1
        if self._trust < 0:
            self._pause = _PAUSE
        phases: defaultdict[str, set[str | None]] = defaultdict(set)
        for event in events:
            if isinstance(event.cat, str) and event.cat not in WHOLE_CATEGORIES:
                phases[event.cat].add(event.ph)
        before = len(self._types) + len(self._left_out)
        changed = False
        for category, found in phases.items():
            if category in self._left_out:
                if category == STACK_CATEGORY or found <= FLOW_PHASES:
                    continue
                del self._left_out[category]
            elif category in self._types or before >= _MAX_CATEGORIES:
                continue
            changed = True
            if category == STACK_CATEGORY and not self._stacks:
                self._left_out[category] = _type(category, _STACK)
            elif found <= FLOW_PHASES:
                self._left_out[category] = _type(category, _FLOW)
            else:
                self._types[category] = _type(category, _KEPT if category in ARGLESS_CATEGORIES else _KEPT_WITH_ARGS)
        if changed:
            self._kept_types = frozenset(self._types.values())
            types = [*self._types.values(), *self._left_out.values(), _NO_CATEGORY]
            union = functools.reduce(operator.or_, types)
            self._decode = msgspec.json.Decoder(list[union], float_hook=exact_float).decode  # type: ignore[valid-type]


def _type(category: str, fields: list[Any]) -> Any:
    # What is no field is the same for all.
    alike = {"cat": category} if fields is _KEPT_WITH_ARGS else {"cat": category, "args": LEFT_OUT}
    return msgspec.defstruct("QuickEvent", fields, namespace=alike, tag_field="cat", tag=category, gc=False)


# Of one type alone msgspec does not ask whether an event names its category; so there is another, which no event is of.
_NO_CATEGORY = _type("molprof: no category", _FLOW)
