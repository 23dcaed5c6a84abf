"""Placeholders: what they give, what coordinates need, and which one fits best."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import ids, tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from molprof.common.errors import UsageError
from molprof.profiler.molecules.placeholders import (
    Placeholder,
    best_placeholder,
    candidates,
    closest_placeholder,
    fit,
    free_positions,
    needed_tokens,
)
from molprof.profiler.molecules.smiles import block

NAMES = ("qwen", "llama")
numbers = st.floats(-999, 999).map(lambda value: round(value, 5))
POSITIONS = [(-1.23456, 0.5, 2.0), (10.5, -0.25, 3.1), (0.1, 0.2, 0.3)]


@pytest.mark.parametrize(
    ("text", "qwen", "llama"),
    [
        ("0.0000,0.0000,0.0000", 20, 14),
        ("0.000,0.000,0.000", 17, 11),
        ("0.0,0.0,0.0", 11, 11),
        ("0.0000,-0.0000,-0.0000", 20, 14),  # `,-` is one token
        ("-0.0000,0.0000,0.0000", 21, 15),
        ("-1.2345,0.9876,-5.4321", 21, 15),
        ("12.345,-23.456,34.567", 20, 11),
    ],
)
def test_tokens_of_a_block(text: str, qwen: int, llama: int) -> None:
    for name, count in (("qwen", qwen), ("llama", llama)):
        assert free_positions(tokenizer(name), [text]) == [count]
        assert free_positions(tokenizer(name).backend_tokenizer, [text]) == [count]
        assert needed_tokens(tokenizer(name), [text]) == [count]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(position=st.tuples(numbers, numbers, numbers))
def test_a_block_needs_what_its_text_takes_by_itself(name: str, position: tuple[float, float, float]) -> None:
    text = block(position)
    assert needed_tokens(tokenizer(name), [text]) == [len(ids(name, text))]


def test_what_merges_with_a_bracket_is_no_placeholder_and_needs_its_own_token() -> None:
    """A tokenizer of one word per character, except that `<-` is one word."""
    words = ["<-", *"<>-.,0123456789[C]"]
    vocabulary = {word: place for place, word in enumerate(words)}
    merging = Tokenizer(models.BPE(vocab=vocabulary, merges=[("<", "-")]))
    assert free_positions(merging, ["-0.0", "0.0", ""]) == [None, 3, 0]
    assert needed_tokens(merging, ["-0.0", "0.0", ""]) == [4, 3, 0]
    assert best_placeholder(merging, [(-1.5, 2.0, 3.0)]).text[0] == "0"


def test_whole_words_leave_no_placeholder() -> None:
    whole = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with pytest.raises(UsageError, match="every placeholder merges with its brackets"):
        best_placeholder(whole, POSITIONS)


def test_the_family() -> None:
    assert candidates(1, -2) == ["0.0,0.0,0.0", "-0.0,0.0,0.0", "0.0,-0.0,-0.0", "-0.0,-0.0,-0.0"]
    family = candidates(2, 1)  # eight shapes
    assert len(family) == len(set(family)) == 8 * 4 + 8 * 7 * 2 * 4
    assert family[:3] == ["0.0,0.0,0.0", "00.0,00.0,00.0", "-0.0,0.0,0.0"]
    assert "-00.0000,-0.0,-0.0" in family


def test_fit() -> None:
    assert fit("x", 11, [10, 11, 13]) == Placeholder("x", 11, 3, 1, -1 / 3, 1.0)


@pytest.mark.parametrize(
    ("name", "needed", "best", "closest"),
    [
        # LLaMA's tokenizer has one token for up to three digits.
        (
            "qwen",
            [15, 13, 11],
            Placeholder("-0.00,0.00,0.00", 15, 3, 0, 2.0, 2.0),
            Placeholder("0.0,0.0,0.000", 13, 3, 1, 0.0, 4 / 3),
        ),
        (
            "llama",
            [13, 11, 11],
            Placeholder("0.0,0.0000,0.0000", 13, 3, 0, 4 / 3, 4 / 3),
            Placeholder("0.0,0.0,0.0", 11, 3, 1, -2 / 3, 2 / 3),
        ),
    ],
)
def test_best_and_closest(name: str, needed: list[int], best: Placeholder, closest: Placeholder) -> None:
    assert needed_tokens(tokenizer(name), [block(position) for position in POSITIONS]) == needed
    assert best_placeholder(tokenizer(name), POSITIONS) == best
    assert closest_placeholder(tokenizer(name), POSITIONS) == closest


@functools.cache
def counts(name: str) -> set[int]:
    """Tokens that a placeholder can have."""
    return {count for count in free_positions(tokenizer(name), candidates(2, 4)) if count is not None}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(*[st.floats(-99, 99)] * 3), min_size=1, max_size=20))
def test_no_candidate_is_better(name: str, positions: list[tuple[float, float, float]]) -> None:
    """The best cuts nothing here, and one token less would cut something."""
    text = tokenizer(name)
    needed = needed_tokens(text, [block(position) for position in positions])
    best = best_placeholder(text, positions)
    assert (best.too_short, best.coordinates) == (0, len(positions))
    assert free_positions(text, [best.text]) == [best.tokens]
    assert best.tokens == min(count for count in counts(name) if count >= max(needed))
    closest = closest_placeholder(text, positions)
    assert closest.mean_absolute_drift_tokens == min(
        fit("", count, needed).mean_absolute_drift_tokens for count in counts(name)
    )


def test_no_coordinates() -> None:
    assert needed_tokens(tokenizer("qwen"), []) == needed_tokens(tokenizer("qwen").backend_tokenizer, []) == []
    with pytest.raises(UsageError, match="no coordinates to fit"):
        best_placeholder(tokenizer("qwen"), [])


def test_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from tokenizers import Tokenizer, models\n"
        "from molprof.profiler.molecules.placeholders import best_placeholder\n"
        "words = {word: place for place, word in enumerate('<>-.,0[C]')}\n"
        "print(best_placeholder(Tokenizer(models.BPE(vocab=words, merges=[])), [(0.0, 0.0, 0.0)]).text)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "0.0,0.0,0.0\n"
