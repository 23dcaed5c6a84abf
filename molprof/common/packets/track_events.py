"""Track events: slices, instants and counters on tracks, as PyTorch's profiler writes them."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from molprof.common.packets.sequences import Sequence
from molprof.common.packets.values import Values, number

# The category of instant events that hold a top-level key of Chrome JSON, such as molprof's manifest, as arg `value`.
KEY_CATEGORY = "molprof.key"
# The args of a category that are read, by name; None for all.
ArgsOf = Callable[[str | None], Container[str] | None]
SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4  # values of a track event's `type`


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
