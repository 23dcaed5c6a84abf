"""What coordinates need, whole, cut short or followed by junk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import ids, tokenizer

from molprof.profiler.molecules.placeholders import needed_text, needs
from molprof.profiler.molecules.smiles import block


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("1.0,2.0,3.0", "1.0,2.0,3.0"),
        ("5.799,-0.2748,-0.9587abra", "5.799,-0.2748,-0.9587"),
        ("3.601,0.363,0.3325 （C", "3.601,0.363,0.3325"),
        ("1.50000,2.123456,3.0000", "1.5,2.1234,3.0"),
        ("007.5,-0.0000,-0.00001", "7.5,0.0,0.0"),
        ("1.0,2.0,3.0,4.0", "1.0,2.0,3.0"),
        ("1.0,2.0", "1.0,2.0,0.0"),
        ("1.0,2.0,", "1.0,2.0,0.0"),
        ("1.0,2.0,-", "1.0,2.0,0.0"),
        ("1.0,2.0,-3", "1.0,2.0,-3.0"),
        ("1.0,2.", "1.0,2.0,0.0"),
        ("-12", "-12.0,0.0,0.0"),
        ("", "0.0,0.0,0.0"),
        ("9" * 400 + ".5,0.0,0.0", "9" * 400 + ".5,0.0,0.0"),
        ("1,2,3", None),
        ("+1.0,2.0,3.0", None),
        ("1.0,2.0 ,3.0", None),
        (".5,1.0,2.0", None),
        ("abra", None),
    ],
)
def test_needed_text(text: str, needed: str | None) -> None:
    assert needed_text(text) == needed


@given(st.tuples(*[st.floats(-1e4, 1e4)] * 3))
def test_the_format_needs_its_own_text(position: tuple[float, float, float]) -> None:
    assert needed_text(block(position)) == block(position)


def test_tokens_by_block() -> None:
    blocks = ["-1.0,0.5,0.2500", None, "abra", "1.0,2"]
    for name in ("qwen", "llama"):
        texts = ["-1.0,0.5,0.25", "1.0,2.0,0.0"]
        first, second = (len(ids(name, text)) for text in texts)
        assert needs(tokenizer(name), blocks) == [first, None, None, second]
    assert needs(tokenizer("qwen"), ["-1.0,0.5,0.2500"], decimals=1) == [12]
