"""Track events: slices, instants and counters on tracks, as PyTorch's profiler writes them."""

from __future__ import annotations

from typing import Any

from molprof.common.packets.sequences import Sequence
from molprof.common.packets.values import Values, number

SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4  # values of a track event's `type`


def described(event: Any, sequence: Sequence, values: Values, place: int) -> dict[str, Any]:
    """Category (left out where there is none), name and args of an event. Raises DamageError."""
    args = values.args(event.debug_annotations, sequence, place)
    result: dict[str, Any] = {}
    if event.categories:
        result["cat"] = event.categories[0]
    elif event.category_iids:
        result["cat"] = sequence.name("event_categories", event.category_iids[0], place)
    result["name"] = sequence.name("event_names", event.name_iid, place) if event.name_iid else event.name
    result["args"] = args
    return result


def counted(event: Any) -> int | float | str:
    """The value of a counter."""
    return number(event.double_counter_value) if event.HasField("double_counter_value") else event.counter_value
