"""Blocks that repeat in a sequence without a break, such as the layers of a model in the kernels of a step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

# Longest block that is looked for: each length takes one pass over the sequence.
MOST_PLACES = 4096
# Fewer places that are folded away are no structure.
LEAST_FOLDED = 3


class Block(NamedTuple):
    """`times` equal stretches of `length` places, one after the other, the first at `start`."""

    start: int
    length: int
    times: int

    @property
    def stop(self) -> int:
        """The place behind the last stretch."""
        return self.start + self.length * self.times


def blocks(keys: Sequence[Hashable]) -> list[Block]:
    """The sequence as blocks, in order, which hold every place once; what does not repeat has `times` 1.

    Of all blocks the one goes first that folds the most places into one stretch, of equal ones the shortest, then the
    earliest. What is left on both sides of it is split in the same way.
    """
    numbers: dict[Hashable, int] = {}
    sequence = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    found: list[Block] = []
    rest = [(0, len(sequence))]
    while rest:
        begin, end = rest.pop()
        block = _longest(sequence[begin:end])
        if block is None:
            if end > begin:
                found.append(Block(begin, end - begin, 1))
            continue
        block = block._replace(start=begin + block.start)
        found.append(block)
        rest += [(begin, block.start), (block.stop, end)]
    return sorted(found)


def _longest(sequence: np.ndarray) -> Block | None:
    """The block that folds most places."""
    best: tuple[int, Block] | None = None
    for length in range(1, min(len(sequence) // 2, MOST_PLACES) + 1):
        if best is not None and len(sequence) - length <= best[0]:
            break  # even if all of it repeated, it would fold no more
        equal = np.zeros(len(sequence) - length + 2, dtype=np.int8)
        equal[1:-1] = sequence[:-length] == sequence[length:]
        edges = np.flatnonzero(np.diff(equal))
        runs = edges[1::2] - edges[::2]
        if not len(runs):
            continue
        # A run of `length` equal pairs is one more stretch.
        longest = int(np.argmax(runs // length))
        more = int(runs[longest]) // length
        if more * length >= LEAST_FOLDED and (best is None or more * length > best[0]):
            best = more * length, Block(int(edges[2 * longest]), length, more + 1)
    return None if best is None else best[1]
