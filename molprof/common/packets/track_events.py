"""Track events (slices, instants and counters, as PyTorch's profiler writes them), with their values as Chrome JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from typing import Any

import msgspec

from molprof.common.packets.sequences import Sequence

# The category of instant events that hold a top-level key of Chrome JSON, such as molprof's manifest, as arg `value`.
KEY_CATEGORY = "molprof.key"
# The args of a category that are read, by name; None for all.
ArgsOf = Callable[[str | None], Container[str] | None]
SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4  # values of a track event's `type`
_SIMPLE = ("int_value", "string_value", "bool_value", "uint_value")
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_MAX_KNOWN = 10_000


class Values:
    """Reads the args of events, and keeps JSON texts that were checked."""

    def __init__(self) -> None:
        self._texts: dict[str, Any] = {}

    def args(
        self, annotations: Any, sequence: Sequence, place: int, wanted: Container[str] | None = None
    ) -> dict[str, Any]:
        """Debug annotations as args; the wanted ones, None for all. Raises DamageError."""
        return {
            name: self._value(item, sequence, place)
            for item in annotations
            for name in [self._name(item, sequence, place)]
            if wanted is None or name in wanted
        }

    def _name(self, item: Any, sequence: Sequence, place: int) -> str:
        if item.name_iid:
            return sequence.name("debug_annotation_names", item.name_iid, place)
        return str(item.name)

    def _value(self, item: Any, sequence: Sequence, place: int) -> Any:
        for field in _SIMPLE:
            if item.HasField(field):
                return getattr(item, field)
        if item.HasField("double_value"):
            return number(item.double_value)
        if item.HasField("legacy_json_value"):
            return self._json(item.legacy_json_value)
        if item.HasField("string_value_iid"):
            text = sequence.find("debug_annotation_string_values", item.string_value_iid, place).str
            return text.decode("utf-8", "replace")
        if item.HasField("pointer_value"):
            return hex(item.pointer_value)
        if item.dict_entries:
            return self.args(item.dict_entries, sequence, place)
        return [self._value(entry, sequence, place) for entry in item.array_values]

    def _json(self, text: str) -> Any:
        """JSON text as it is; as a text where it is not JSON."""
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


def number(value: float) -> float | str:
    """The number, or as a text what JSON has not."""
    return value if math.isfinite(value) else str(value)


def described(
    event: Any, sequence: Sequence, values: Values, place: int, args_of: ArgsOf | None = None
) -> dict[str, Any]:
    """Category (left out where there is none), name and args of an event. Raises DamageError."""
    result: dict[str, Any] = {}
    if event.categories:
        result["cat"] = event.categories[0]
    elif event.category_iids:
        result["cat"] = sequence.name("event_categories", event.category_iids[0], place)
    category = result.get("cat")
    result["name"] = sequence.name("event_names", event.name_iid, place) if event.name_iid else event.name
    wanted = None if args_of is None or category == KEY_CATEGORY else args_of(category)
    result["args"] = {} if wanted == () else values.args(event.debug_annotations, sequence, place, wanted)
    return result


def counted(event: Any) -> int | float | str:
    """The value of a counter."""
    return number(event.double_counter_value) if event.HasField("double_counter_value") else event.counter_value
