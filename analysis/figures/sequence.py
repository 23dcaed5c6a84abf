"""Sequences of kernels or operators: two of them aligned in order, and blocks that repeat in one.

An alignment is a longest common subsequence of keys. Its length is counted with the bits of whole numbers, one bit for
each place of the first sequence and one pass over them for each place of the other (H. Hyyrö, "Bit-parallel LCS-length
computation revisited", 2004), and the pairs are found by halving (D. S. Hirschberg, "A linear space algorithm for
computing maximal common subsequences", 1975). So memory grows with the sum of the lengths, not with their product.
Sequences too long even for that are aligned window by window.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

# Keys of one level: of each place of the first and of the other sequence. None belongs to nothing.
Level = tuple[Sequence[Hashable | None], Sequence[Hashable | None]]
_Pair = tuple[int, int]

# Product of lengths up to which all bits of a table are kept, 8 MB; beyond it the longer way by halving.
_TABLE = 1 << 26
# Product of lengths that is aligned as a whole, some seconds. Beyond it windows of WINDOW places follow each other.
_WHOLE = 2 * 10**10
WINDOW = 1 << 16
# A level that matches at least one of so many places is never passed over.
_FEW = 4
# Bits of a key are kept where it occurs so often; those of rarer ones are made when needed, or memory would grow with
# the number of keys times the length.
_OFTEN = 64
# Longest block that is looked for: each length takes one pass over the sequence.
MOST_PLACES = 4096
# Fewer places that are folded away are no structure.
LEAST_FOLDED = 3
# Classes of which two kernels between the same neighbours do the same, whatever operator or library they are of.
SPECIFIC = frozenset({
    "attention", "matmul", "norm", "softmax", "sort/top-k", "cat", "embedding/rotary", "cache-write", "collective"
})  # fmt: skip
_FUNCTION = re.compile(r"\w+(?:Functor|Ops|_cuda)\w*")


class Match(NamedTuple):
    """An index of each sequence that match, and the number of the level whose keys are equal."""

    first: int
    other: int
    level: int


def functions_in(name: str) -> tuple[str, ...]:
    """Return the functions in the name of a torch kernel, whatever loop encloses them."""
    return tuple(_FUNCTION.findall(name))


def align(first: Sequence[Hashable | None], other: Sequence[Hashable | None]) -> list[_Pair]:
    """Return pairs of indices with equal keys: a longest common subsequence; of very long sequences, a long one."""
    # What the other one lacks cannot belong to anything.
    common = (set(first) & set(other)) - {None}
    numbers = {key: number for number, key in enumerate(common)}
    here = [(index, numbers[key]) for index, key in enumerate(first) if key in numbers]
    there = [(index, numbers[key]) for index, key in enumerate(other) if key in numbers]
    pairs = _windows([number for _, number in here], [number for _, number in there])
    return [(here[one][0], there[two][0]) for one, two in pairs]


def align_by(levels: Sequence[Level]) -> list[Match]:
    """Return matched indices in order: by the keys of the first level, then in each gap by those of the next.

    All levels are of the same two sequences; a level should tell less apart than the one before it. A match of a later
    level is worth less, down to half of one of the first. A level whose few matches cost more than they are worth,
    since less can belong together around them, is passed over.
    """
    if not levels:
        return []
    return list(_best(levels, 0, range(len(levels[0][0])), range(len(levels[0][1]))))


def _best(levels: Sequence[Level], number: int, here: range, there: range) -> list[Match]:
    """Return the matches of two spans by a level and those after it."""
    if number == len(levels) or not here or not there:
        return []
    first, other = levels[number]
    pairs = align(first[here.start : here.stop], other[there.start : there.stop])
    matches = [Match(here.start + one, there.start + two, number) for one, two in pairs]
    if not matches:
        return _best(levels, number + 1, here, there)
    between = []
    for one, two in gaps([Match(*pair, number) for pair in pairs], len(here), len(there)):
        between += _best(levels, number + 1, here[one.start : one.stop], there[two.start : two.stop])
    with_it = sorted(matches + between)
    if len(matches) * _FEW >= min(len(here), len(there)):
        return with_it
    without = _best(levels, number + 1, here, there)
    return without if _worth(without, len(levels)) > _worth(with_it, len(levels)) else with_it


def _worth(matches: Sequence[Match], levels: int) -> float:
    return sum(1 - match.level / (2 * levels) for match in matches)


def gaps(matches: Sequence[Match], first: int, other: int) -> Iterator[tuple[range, range]]:
    """Yield the ranges of two sequences of these lengths before each match and after the last; they may be empty."""
    one = two = 0
    for match in matches:
        yield range(one, match.first), range(two, match.other)
        one, two = match.first + 1, match.other + 1
    yield range(one, first), range(two, other)


def _windows(first: list[int], other: list[int]) -> Iterator[_Pair]:
    """Yield matched indices. Long sequences go by windows: half of each counts, and the next begins after it."""
    one = two = 0
    while (len(first) - one) * (len(other) - two) > _WHOLE:
        ends = one + WINDOW, two + WINDOW
        half = one + WINDOW // 2, two + WINDOW // 2
        for pair in _pairs(first[one : ends[0]], other[two : ends[1]], one, two):
            if pair[0] >= half[0] or pair[1] >= half[1]:
                break
            yield pair
            one, two = pair[0] + 1, pair[1] + 1
        if one < half[0] and two < half[1]:
            # Nothing belongs together in the rest of the half.
            one, two = half
    yield from _pairs(first[one:], other[two:], one, two)


def _pairs(first: Sequence[int], other: Sequence[int], one: int, two: int) -> Iterator[_Pair]:
    """Yield pairs of a longest common subsequence; their indices begin at `one` and `two`."""
    begin, end = 0, 0
    shorter = min(len(first), len(other))
    while begin < shorter and first[begin] == other[begin]:
        yield one + begin, two + begin
        begin += 1
    while end < shorter - begin and first[-1 - end] == other[-1 - end]:
        end += 1
    here, there = first[begin : len(first) - end], other[begin : len(other) - end]
    if here and there:
        if len(here) * len(there) <= _TABLE:
            yield from _by_table(here, there, one + begin, two + begin)
        else:
            yield from _by_halves(here, there, one + begin, two + begin)
    for index in range(end, 0, -1):
        yield one + len(first) - index, two + len(other) - index


def _by_halves(first: Sequence[int], other: Sequence[int], one: int, two: int) -> Iterator[_Pair]:
    """Yield the index that splits the first sequence so that both parts have most in common with the other's halves."""
    if len(first) > len(other):
        # The longer one is halved.
        for there, here in _by_halves(other, first, two, one):
            yield here, there
        return
    middle = len(other) // 2
    before = _lengths(first, other[:middle])
    after = _lengths(first[::-1], other[middle:][::-1])
    cut = int(np.argmax(before + after[::-1]))
    yield from _pairs(first[:cut], other[:middle], one, two)
    yield from _pairs(first[cut:], other[middle:], one + cut, two + middle)


def _lengths(first: Sequence[int], other: Sequence[int]) -> np.ndarray:
    """Return the length of the common subsequence of each prefix of the first sequence (also empty) and the other."""
    (bits,) = deque(_rows(first, other), maxlen=1)
    data = np.frombuffer(bits.to_bytes(len(first) // 8 + 1, "little"), dtype=np.uint8)
    ones = np.unpackbits(data, bitorder="little", count=len(first))
    return np.concatenate(([0], np.cumsum(1 - ones.astype(np.int64))))


def _by_table(first: Sequence[int], other: Sequence[int], one: int, two: int) -> Iterator[_Pair]:
    """Yield the pairs, by walking back through the bits of all rows."""
    rows = list(_rows(first, other))
    here, there = len(first), len(other)
    pairs = []
    while here and there:
        if rows[there - 1] >> (here - 1) & 1:
            here -= 1
        elif there > 1 and not rows[there - 2] >> (here - 1) & 1:
            there -= 1
        else:
            here, there = here - 1, there - 1
            pairs.append((one + here, two + there))
    yield from reversed(pairs)


def _rows(first: Sequence[int], other: Sequence[int]) -> Iterator[int]:
    """Yield, per element of the other sequence, a bit per element of the first: 0 where the common prefix grows."""
    positions: defaultdict[int, list[int]] = defaultdict(list)
    for index, key in enumerate(first):
        positions[key].append(index)
    size = len(first) // 8 + 1
    kept = {key: _bits(positions[key], size) for key, count in Counter(first).items() if count >= _OFTEN}
    bits = full = (1 << len(first)) - 1
    for key in other:
        if key in positions:
            used = bits & (kept[key] if key in kept else _bits(positions[key], size))
            bits = (bits + used | bits - used) & full
        yield bits


def _bits(positions: Sequence[int], size: int) -> int:
    """Return a number with the bits at these positions set."""
    data = bytearray(size)
    for position in positions:
        data[position >> 3] |= 1 << (position & 7)
    return int.from_bytes(data, "little")


class RepeatedBlock(NamedTuple):
    """`times` adjacent equal spans of `length` elements, the first at index `start`."""

    start: int
    length: int
    times: int

    @property
    def stop(self) -> int:
        """The index after the last span."""
        return self.start + self.length * self.times


def blocks(keys: Sequence[Hashable]) -> list[RepeatedBlock]:
    """Return the sequence as blocks in order, which contain every element once; without a repeat `times` is 1.

    Of all blocks the one goes first that folds the most places into one span, of equal ones the shortest, then the
    earliest. What is left on both sides of it is split in the same way.
    """
    numbers: dict[Hashable, int] = {}
    sequence = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    repeated_blocks: list[RepeatedBlock] = []
    rest = [(0, len(sequence))]
    while rest:
        begin, end = rest.pop()
        block = _longest(sequence[begin:end])
        if block is None:
            if end > begin:
                repeated_blocks.append(RepeatedBlock(begin, end - begin, 1))
            continue
        block = block._replace(start=begin + block.start)
        repeated_blocks.append(block)
        rest += [(begin, block.start), (block.stop, end)]
    return sorted(repeated_blocks)


def _longest(sequence: np.ndarray) -> RepeatedBlock | None:
    """Return the block that folds most elements."""
    best: tuple[int, RepeatedBlock] | None = None
    for length in range(1, min(len(sequence) // 2, MOST_PLACES) + 1):
        if best is not None and len(sequence) - length <= best[0]:
            break  # even if all of it repeated, it would fold no more
        equal = np.zeros(len(sequence) - length + 2, dtype=np.int8)
        equal[1:-1] = sequence[:-length] == sequence[length:]
        edges = np.flatnonzero(np.diff(equal))
        runs = edges[1::2] - edges[::2]
        if not len(runs):
            continue
        # A run of `length` equal pairs is one more span.
        longest = int(np.argmax(runs // length))
        more = int(runs[longest]) // length
        if more * length >= LEAST_FOLDED and (best is None or more * length > best[0]):
            best = more * length, RepeatedBlock(int(edges[2 * longest]), length, more + 1)
    return None if best is None else best[1]
