"""What operators were called with, kept apart from what the engine gets, which would take it ten times as long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from isal import isal_zlib

from molprof.analysis.facts.arguments import Arguments, times_checksum
from molprof.analysis.facts.gaps import NONE
from molprof.analysis.reader.categories import OPERATORS
from molprof.analysis.reader.events import ABSENT, ARGUMENT_FIELDS, NO_ARGS, SIZED_OPERATORS, NeededArgs
from molprof.analysis.reader.text import exact_float, plain_text


class SizeArgs(msgspec.Struct, rename=ARGUMENT_FIELDS, omit_defaults=True, gc=False):
    """What SQL reads of an operator's args, as text."""

    input_dims: msgspec.Raw = ABSENT


class OperatorArgs(SizeArgs, rename=ARGUMENT_FIELDS, omit_defaults=True, gc=False):
    """What an operator was called with, as text."""

    input_strides: msgspec.Raw = ABSENT
    input_type: msgspec.Raw = ABSENT
    concrete_inputs: msgspec.Raw = ABSENT


# Rows of a part, int32, and their arguments: a packed JSON array.
Taken = tuple[np.ndarray, bytes]
NOTHING: Taken = np.empty(0, dtype=np.int32), b""
# Packed to a tenth, at 2 GB/s.
_LEVEL = 1
_decode = msgspec.json.Decoder(OperatorArgs | None).decode
_encode = msgspec.json.Encoder().encode


def take_arguments(args: list[Any], names: Sequence[str | None], kind: type[SizeArgs]) -> Taken:
    """Return the arguments among args of events, which become what SQL reads of them, as text.

    names: of the events. kind: of the args of operators; nothing is returned of SizeArgs.
    """
    rows = [row for row, value in enumerate(args) if value.__class__ is kind]
    operators = [args[row] for row in rows]
    for row, value in zip(rows, operators, strict=True):
        is_read = names[row] in SIZED_OPERATORS and value.input_dims
        args[row] = _encode(SizeArgs(value.input_dims)).replace(b"\n", b" ") if is_read else NO_ARGS
    return _packed(rows, operators) if kind is OperatorArgs else NOTHING


def arguments_in(events: Sequence[Any]) -> Taken:
    """Return the arguments of operators among events that are decoded whole or in brief."""
    rows: list[int] = []
    found: list[Any] = []
    for row, event in enumerate(events):
        if event.cat in OPERATORS:
            args = event.args
            if isinstance(args, msgspec.Raw):
                with suppress(msgspec.ValidationError):  # no object
                    args = _decode(args or b"null")
            elif isinstance(args, NeededArgs):
                args = NeededArgs(**{field: getattr(args, field) for field in ARGUMENT_FIELDS})
            rows.append(row)
            found.append(args if isinstance(args, NeededArgs | OperatorArgs) else OperatorArgs())
    return _packed(rows, found)


def _packed(rows: list[int], found: list[Any]) -> Taken:
    text = _encode(found)
    if len(text) <= len(found) * len(b"{},") + 1 or not found:  # all are empty
        return NOTHING
    return np.array(rows, dtype=np.int32), isal_zlib.compress(text, _LEVEL)


def arguments_by_slice(
    argument_of: np.ndarray, packed: Sequence[tuple[int, bytes]], starts: np.ndarray, ends: np.ndarray
) -> Arguments:
    """Return the arguments of operators in order of slice, with their starts and ends, ns.

    argument_of: of each operator its place among the arguments of all events; NONE without. packed: count and text of
    the arguments of each block.
    """
    counts = np.array([count for count, _ in packed], dtype=np.int64)
    first = np.cumsum(counts) - counts
    texts = [text for _, text in packed]
    return Arguments(argument_of.tobytes(), first.tobytes(), texts, times_checksum(starts, ends))


def joined(taken: Sequence[tuple[int, Taken]]) -> tuple[np.ndarray, list[tuple[int, bytes]]]:
    """Return the place of the arguments of each row of all parts, int32, and the packed arguments with their counts.

    taken: of each part the number of its rows and what was taken; the array is empty where nothing was.
    """
    packed = [(len(rows), text) for _, (rows, text) in taken if text]
    if not packed:
        return NOTHING[0], []
    argument_of = np.full(sum(count for count, _ in taken), NONE, dtype=np.int32)
    row = place = 0
    for count, (rows, _) in taken:
        argument_of[row + rows] = np.arange(place, place + len(rows))
        row, place = row + count, place + len(rows)
    return argument_of, packed


class RecordedArguments(msgspec.Struct, rename=ARGUMENT_FIELDS):
    """What an operator was called with: a value for each argument, or a list of some."""

    input_dims: Any = ()
    input_strides: Any = ()
    input_type: Any = ()
    concrete_inputs: Any = ()

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not isinstance(getattr(self, name), list):
                setattr(self, name, [])


decode_arguments = msgspec.json.Decoder(RecordedArguments, float_hook=exact_float).decode


def values_in(item: Any) -> Iterator[int | float | str]:
    """Yield the numbers and texts of a list and of those in it."""
    if isinstance(item, list):
        for inner in item:
            yield from values_in(inner)
    elif isinstance(item, str):
        yield plain_text(item)
    elif isinstance(item, int | float):
        yield int(item) if isinstance(item, bool) else item
