"""The alignment of two sequences: against the textbook's table, and with long sequences in little memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from molprof.analysis.figures import sequence as module
from molprof.analysis.figures.sequence import Match, align, align_by, gaps


def common_length(first: Sequence[Any], other: Sequence[Any]) -> int:
    """Length of a longest common subsequence, by the whole table."""
    row = [0] * (len(other) + 1)
    for one in first:
        above = row
        row = [0]
        for place, two in enumerate(other):
            row.append(above[place] + 1 if one == two else max(above[place + 1], row[place]))
    return row[-1]


def check(first: Sequence[Any], other: Sequence[Any], pairs: Sequence[tuple[int, int]]) -> None:
    """Places have equal keys and go up in both sequences."""
    assert all(first[one] == other[two] for one, two in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))


@pytest.mark.parametrize("table", [1 << 26, 12])
def test_as_long_as_the_textbook_says(table: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TABLE", table)  # of 12 bits: by halving
    chance = random.Random(17)
    for _ in range(300):
        letters = chance.choice((1, 2, 5, 30))
        first, other = ([chance.randrange(letters) for _ in range(chance.randrange(25))] for _ in range(2))
        pairs = align(first, other)
        check(first, other, pairs)
        assert len(pairs) == common_length(first, other)


def test_what_was_put_in_or_left_out_is_found() -> None:
    layer = list("nqkvrao")
    first = layer * 30
    other = [*layer * 10, "x", "y", *layer * 10, *"nqk", *"rao", *layer * 9]
    pairs = align(first, other)
    assert set(range(len(other))) - {two for _, two in pairs} == {70, 71}
    assert set(range(len(first))) - {one for one, _ in pairs} == {143}


def test_nothing_belongs_to_none() -> None:
    assert align([None, 1], [None, 1]) == [(1, 1)]
    assert align([], [1]) == []


def test_a_weaker_level_fills_gaps_alone() -> None:
    first = ["mm 1", "add 1", "mm 2"]
    other = ["mm 1", "mm 3", "add 2", "mm 2"]
    weak = ([key[:-2] for key in first], [key[:-2] for key in other])
    found = align_by([(first, other), weak])
    assert found == [Match(0, 0, 0), Match(1, 2, 1), Match(2, 3, 0)]
    assert [(list(one), list(two)) for one, two in gaps(found, 3, 4)] == [([], []), ([], [1]), ([], []), ([], [])]


def test_a_stray_match_does_not_keep_all_others_apart() -> None:
    first = ["copy 9", *(f"{key} 1" for key in "abcdefgh")]
    other = [*(f"{key} 2" for key in "abcdefgh"), "copy 9"]
    weak = ([key[0] for key in first], [key[0] for key in other])
    assert align_by([(first, other), weak]) == [Match(place + 1, place, 1) for place in range(8)]


def test_windows_follow_what_was_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WHOLE", 100)
    monkeypatch.setattr(module, "WINDOW", 64)
    chance = random.Random(5)
    first = [chance.randrange(50) for _ in range(1000)]
    other = [key for number, key in enumerate(first) for key in ([99, key] if number % 7 == 0 else [key])]
    pairs = align(first, other)
    check(first, other, pairs)
    assert len(pairs) == 1000
    assert align([1] * 500, [2] * 500) == []


def test_memory_grows_with_the_length_not_with_its_square() -> None:
    chance = random.Random(3)
    first = [chance.randrange(12) for _ in range(20_000)]
    other = [key for key in first if chance.random() > 0.1]
    align(first[:10], other[:10])
    tracemalloc.start()
    pairs = align(first, other)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    check(first, other, pairs)
    assert len(pairs) == len(other)
    assert most < 30e6  # all bits of the table would be 45 MB, and a table of numbers 1 GB and more
