"""Repeated blocks in a sequence."""

from __future__ import annotations

import random

import pytest

from molprof.analysis.figures.sequence import Block, blocks


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("", []),
        ("abc", [Block(0, 3, 1)]),
        ("aa", [Block(0, 2, 1)]),
        ("aaaa", [Block(0, 1, 4)]),
        ("xyabcabcabcz", [Block(0, 2, 1), Block(2, 3, 3), Block(11, 1, 1)]),
        # The shorter block goes first where both fold as much, and an unfinished stretch stays outside.
        ("ababababa", [Block(0, 2, 4), Block(8, 1, 1)]),
        # Two stacks of layers, such as an encoder and a decoder.
        ("abcabcabc-defgdefgdefg", [Block(0, 3, 3), Block(9, 1, 1), Block(10, 4, 3)]),
        # Every other layer differs: the block is two layers.
        ("abacabacabac", [Block(0, 4, 3)]),
    ],
)
def test_blocks(keys: str, expected: list[Block]) -> None:
    assert blocks(keys) == expected


def test_blocks_hold_every_place_once_and_their_stretches_are_equal() -> None:
    chance = random.Random(7)
    for _ in range(50):
        keys = [chance.choice("ab") for _ in range(chance.randrange(60))]
        found = blocks(keys)
        assert [place for block in found for place in range(block.start, block.stop)] == list(range(len(keys)))
        for start, length, times in found:
            first = keys[start : start + length]
            assert all(keys[start + number * length :][:length] == first for number in range(times))
