"""Alignment of two sequences equals the textbook's, in little memory; repeated blocks are found."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molprof.analysis.figures.sequence import Match, RepeatedBlock, align, align_by, blocks, gaps

KEYS = st.lists(st.sampled_from("abc"), max_size=25)


def common_length(first: Sequence[Any], other: Sequence[Any]) -> int:
    """Length of a longest common subsequence, by the whole table."""
    row = [0] * (len(other) + 1)
    for one in first:
        above, row = row, [0]
        for place, two in enumerate(other):
            row.append(above[place] + 1 if one == two else max(above[place + 1], row[place]))
    return row[-1]


def aligned(first: Sequence[Any], other: Sequence[Any]) -> list[tuple[int, int]]:
    """Pairs of places, which have equal keys and go up in both sequences."""
    pairs = align(first, other)
    assert all(first[one] == other[two] for one, two in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))
    return pairs


@given(KEYS, KEYS)
def test_as_long_as_the_textbook_says(first: list[str], other: list[str]) -> None:
    assert len(aligned(first, other)) == common_length(first, other)


@pytest.mark.parametrize("letters", [2, 40])
def test_long_sequences_are_as_long_as_the_textbook_says(letters: int) -> None:
    """So long that the table is halved."""
    chance = random.Random(17)
    first, other = ([chance.randrange(letters) for _ in range(count)] for count in (900, 1100))
    assert len(aligned(first, other)) == common_length(first, other)


def test_what_was_put_in_or_left_out_is_found() -> None:
    layer = list("nqkvrao")
    first = layer * 30
    other = [*layer * 10, "x", "y", *layer * 10, *"nqk", *"rao", *layer * 9]
    pairs = aligned(first, other)
    assert set(range(len(other))) - {two for _, two in pairs} == {70, 71}
    assert set(range(len(first))) - {one for one, _ in pairs} == {143}
    assert align([None, 1], [None, 1]) == [(1, 1)]  # nothing belongs to none


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        (["mm 1", "add 1", "mm 2"], ["mm 1", "mm 3", "add 2", "mm 2"], [(0, 0, 0), (1, 2, 1), (2, 3, 0)]),
        # A stray match does not keep all others apart.
        (["copy 9", *(f"{key} 1" for key in "abcdefgh")], [*(f"{key} 2" for key in "abcdefgh"), "copy 9"],
         [(place + 1, place, 1) for place in range(8)]),
    ],
)  # fmt: skip
def test_a_weaker_level_fills_gaps_alone(first: list[str], other: list[str], expected: list[Any]) -> None:
    found = align_by([(first, other), ([key[:-2] for key in first], [key[:-2] for key in other])])
    assert found == [Match(*row) for row in expected]
    between = [(list(one), list(two)) for one, two in gaps(found, len(first), len(other))]
    taken = [*(item.first for item in found), *(place for one, _ in between for place in one)]
    assert sorted(taken) == list(range(len(first)))


def test_memory_grows_with_the_length_not_with_its_square() -> None:
    chance = random.Random(3)
    first = [chance.randrange(12) for _ in range(20_000)]
    other = [key for key in first if chance.random() > 0.1]
    align(first[:10], other[:10])
    tracemalloc.start()
    pairs = aligned(first, other)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(pairs) == len(other)
    assert most < 30e6  # all bits of the table would be 45 MB, and a table of numbers 1 GB and more
    assert align([1] * 20_000, [2] * 20_000) == []


def test_windows_over_very_long_sequences_follow_what_was_left_out() -> None:
    other = [key for key in range(150_000) if key % 7]
    assert len(aligned(range(150_000), other)) == len(other)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("", []),
        ("abc", [(0, 3, 1)]),
        ("aa", [(0, 2, 1)]),
        ("aaaa", [(0, 1, 4)]),
        ("xyabcabcabcz", [(0, 2, 1), (2, 3, 3), (11, 1, 1)]),
        # The shorter block goes first where both fold as much, and an unfinished span stays outside.
        ("ababababa", [(0, 2, 4), (8, 1, 1)]),
        # Two stacks of layers, such as an encoder and a decoder.
        ("abcabcabc-defgdefgdefg", [(0, 3, 3), (9, 1, 1), (10, 4, 3)]),
        # Every other layer differs: the block is two layers.
        ("abacabacabac", [(0, 4, 3)]),
    ],
)
def test_blocks(keys: str, expected: list[tuple[int, int, int]]) -> None:
    assert blocks(keys) == [RepeatedBlock(*row) for row in expected]


@given(st.lists(st.sampled_from("ab"), max_size=60))
def test_blocks_hold_every_place_once_and_repeat(keys: list[str]) -> None:
    found = blocks(keys)
    assert [place for block in found for place in range(block.start, block.stop)] == list(range(len(keys)))
    for start, length, times in found:
        assert all(keys[start + number * length :][:length] == keys[start : start + length] for number in range(times))
