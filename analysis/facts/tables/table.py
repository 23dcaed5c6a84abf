"""Declaration of a table of facts, and columns with NULL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.gaps import NONE, Array

Column = Sequence[Any] | np.ndarray


class FactTable(Struct, frozen=True):
    """A table of facts."""

    columns: tuple[str, ...]  # name and type of each, as SQL declares them
    make: Callable[[Facts], Sequence[Column]]  # the values of each; NONE of an id is NULL


def names(texts: Sequence[str | None], numbers: Array) -> list[str | None]:
    """Return the text of each number; None for NONE."""
    return [None if number == NONE else texts[number] for number in numbers.tolist()]


def ids(all_ids: Array, index: Array) -> list[int | None]:
    """Return the id of each index; None for NONE."""
    return [None if number == NONE else int(all_ids[number]) for number in index.tolist()]


def known(numbers: Array, absent: int) -> list[int | None]:
    """Return the numbers, with None for those that are absent."""
    return [None if number == absent else number for number in numbers.tolist()]


def transposed(rows: Sequence[tuple[Any, ...]], columns: int) -> Sequence[Column]:
    """Return rows as columns; without rows, `columns` empty ones."""
    return list(zip(*rows, strict=True)) or [()] * columns
