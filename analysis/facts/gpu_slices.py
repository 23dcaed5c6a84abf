"""Calls of the runtime and driver, and GPU work: the args that link them and locate the work, as columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import UNSET, Struct

from molprof.analysis.facts import GPU_CALLS, GPU_WORK
from molprof.analysis.facts.gaps import NO_STREAM, NONE, Array
from molprof.common.errors import QueryError

if TYPE_CHECKING:
    from molprof.analysis.trace_processor import TraceProcessor

# A call or work without correlation number.
NO_NUMBER = -(2**63)
_NUMBERS = range(NO_NUMBER + 1, 2**63)
_ASKED = f"""
SELECT id, category, name,
  IFNULL(EXTRACT_ARG(arg_set_id, 'args.correlation'), {{no_number}}) AS correlation,
  IFNULL(IIF(category IN {GPU_WORK}, EXTRACT_ARG(arg_set_id, 'args.stream'), NULL), {NO_STREAM}) AS stream,
  IFNULL(EXTRACT_ARG(arg_set_id, 'args.device'), {{no_number}}) AS device
FROM slice
WHERE category IN {(*GPU_CALLS, *GPU_WORK)}
ORDER BY id
"""
# Category and name; None where an event has no name.
Label = tuple[str, str | None]


class GpuSlices(Struct, frozen=True):
    """Calls of the runtime and driver, and GPU work, in order of slice: arrays of int64."""

    id: Array
    number: Array  # correlation number; NO_NUMBER where none is recorded
    stream: Array  # of work; NO_STREAM where not recorded
    device: Array  # a number of the device that the event names, which equal ones share; NONE where it names none
    label: Array  # index into `labels`
    labels: tuple[Label, ...]  # distinct ones


class _GpuArgs(Struct):
    """The args of a call or of a piece of GPU work."""

    correlation: Any = UNSET
    stream: Any = UNSET
    device: Any = UNSET


_decode = msgspec.json.Decoder(_GpuArgs | None).decode


def fed(ids: Array, kinds: Array, labels: Sequence[Label], args: Sequence[bytes], number: Array) -> GpuSlices:
    """Return the slices from the reader's columns. Raises QueryError for text where a number is expected.

    kinds: index of each one's kind, of which `labels` and `args`, as JSON, are told. number: the correlation number of
    each slice; NO_NUMBER where it is not an integer, or among the args.
    """
    decoded = [_decode(text) or _GpuArgs() for text in args]
    numbers = _integers(labels, "correlation number", [one.correlation for one in decoded], NO_NUMBER)
    streams = _integers(
        labels,
        "stream",
        [one.stream if category in GPU_WORK else UNSET for one, (category, _) in zip(decoded, labels, strict=True)],
        NO_STREAM,
    )
    # A device that is null is one, unlike a missing one. 1, 1.0, true and "1" are four.
    devices, _ = _numbered([None if one.device is UNSET else repr(one.device) for one in decoded])
    label, distinct = _numbered(labels)
    number = np.where(number == NO_NUMBER, numbers[kinds], number)
    return GpuSlices(ids, _known(number), streams[kinds], devices[kinds], label[kinds], distinct)


def asked(engine: TraceProcessor) -> GpuSlices:
    """Return the slices from the engine's tables. Raises QueryError for text where a number is expected."""
    # SQLite has no literal of the least integer.
    columns: dict[str, Any] = engine.query(_ASKED.format(no_number=f"({NO_NUMBER + 1} - 1)"))
    label, labels = _numbered(list(zip(columns["category"].tolist(), columns["name"].tolist(), strict=True)))

    def label_of(row: int) -> Label:
        row_label: Label = labels[label[row]]
        return row_label

    return GpuSlices(
        columns["id"].astype(np.int64),
        _known(_column(label_of, "correlation number", columns["correlation"], NO_NUMBER)),
        _column(label_of, "stream", columns["stream"], NO_STREAM),
        _devices(columns["device"]),
        label,
        labels,
    )


def _devices(values: np.ndarray) -> Array:
    """Return the number of the device of each slice, as the engine has it."""
    if values.dtype != np.int64:
        return _numbered([None if value == NO_NUMBER else repr(value) for value in values.tolist()])[0]
    distinct, which = np.unique(values, return_inverse=True)
    numbers: Array = which.reshape(-1) - int(NO_NUMBER in distinct)  # the least comes first, and is NONE then
    return numbers


def _known(numbers: Array) -> Array:
    """Return the correlation numbers; 0 means none (ROCm/roctracer#100)."""
    return np.where(numbers == 0, NO_NUMBER, numbers)


def _column(label_of: Callable[[int], Label], what: str, values: np.ndarray, absent: int) -> Array:
    """Return a column of the engine as integers."""
    if values.dtype == np.int64:
        return values
    return _whole(label_of, what, [None if value == absent else value for value in values.tolist()], absent)


def _integers(labels: Sequence[Label], what: str, values: Sequence[Any], absent: int) -> Array:
    return _whole(labels.__getitem__, what, values, absent)


def _whole(label_of: Callable[[int], Label], what: str, values: Sequence[Any], absent: int) -> Array:
    """Return values as integers; `absent` for missing values and for fractions, which equal no other number."""
    numbers = np.full(len(values), absent)
    for row, value in enumerate(values):
        if isinstance(value, str) or (isinstance(value, int) and value not in _NUMBERS):
            category, name = label_of(row)
            raise QueryError(f"{category} {name or '(no name)'} has {what} {str(value)!r}, where a number must stand")
        if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
            numbers[row] = int(value)
    return numbers


def _numbered(values: Sequence[Hashable]) -> tuple[Array, tuple[Any, ...]]:
    """Return the index of each value among the distinct values, and these; NONE for None."""
    numbers: dict[Any, int] = {}
    which = [NONE if value is None else numbers.setdefault(value, len(numbers)) for value in values]
    return np.array(which, dtype=np.int64), tuple(numbers)
