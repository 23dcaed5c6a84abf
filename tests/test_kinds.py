"""Kinds of generated tokens and validity of the text: by the text, whatever produced it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import ids, table, tokenizer

from molprof.common.text_format import DEFAULT
from molprof.profiler.molecules.kinds import check, classify
from molprof.profiler.molecules.smiles import block, molecule
from molprof.profiler.molecules.template import build_template


def kinds(name: str, text: str, end: bool = False) -> list[tuple[str, str, int]]:
    """(token text, kind, block) of a text as the tokenizer splits it."""
    eos = int(tokenizer(name).eos_token_id)
    tokens = [*ids(name, text), *([eos] if end else [])]
    found = classify(tokens, table(name), frozenset({eos}))
    assert found.text == text
    assert len(found.kinds) == len(found.blocks) == len(tokens)
    return [
        (table(name).join([token]), kind, place)
        for token, kind, place in zip(tokens, found.kinds, found.blocks, strict=True)
    ]


def letters(name: str, text: str) -> str:
    return "".join(kind for _, kind, _ in kinds(name, text))


def test_a_clean_answer() -> None:
    assert kinds("llama", "[CONFORMER][C]<-1.25,0.5,0.0>=[O]<12.0,0.1,0.2>[/CONFORMER]", end=True) == [
        ("[CONFORMER]", "c", -1),
        ("[C", "c", -1),
        ("]<", "c", -1),
        ("-", "f", 0),
        *[(text, "f", 0) for text in ("1", ".", "25", ",", "0", ".", "5", ",", "0", ".", "0")],
        (">", "c", -1),
        ("=[", "c", -1),
        ("O", "c", -1),
        ("]<", "c", -1),
        *[(text, "f", 1) for text in ("12", ".", "0", ",", "0", ".", "1", ",", "0", ".", "2")],
        (">", "c", -1),
        ("[/CONFORMER]", "c", -1),
        ("<|end_of_text|>", "e", -1),
    ]


@pytest.mark.parametrize(
    ("text", "junk"),
    [
        ("[C]<5.799,-0.2748,-0.9587abra>", ["abra"]),
        ("[C]<3.669,-3.1469,0.1561chedulers>", ["chedulers"]),
        ("[C]<3.601,0.363,0.3325 （C>", [" （", "C"]),
        ("[C]<1.0,2.0,3.0.5,1>", [".", "5", ",", "1"]),
        ("[C]<1.0,2.0,3.0,>", [","]),
    ],
)
def test_junk_begins_after_three_numbers(text: str, junk: list[str]) -> None:
    found = kinds("qwen", text)
    assert [word for word, kind, _ in found if kind == "j"] == junk
    assert all(place == 0 for _, kind, place in found if kind in "jf")


def test_junk_that_closes_the_block_is_junk() -> None:
    assert kinds("qwen", "<1.0,2.0,3.0)>")[-1] == (")>", "j", 0)


def test_a_token_of_half_a_character_has_its_own_bytes() -> None:
    tokens = ids("qwen", "<1.0,2.0,3.0")
    head = ids("qwen", "\U00013000")[0]  # the first two of the four bytes of a hieroglyph
    assert table("qwen").join([head]) == "\ufffd"
    found = classify([*tokens, head, *ids("qwen", ">")], table("qwen"), frozenset())
    assert found.kinds == "c" + "f" * 11 + "jc"
    assert found.text == "<1.0,2.0,3.0\ufffd>"


def test_filler_is_digits_beyond_four_decimals() -> None:
    assert letters("qwen", "<1.000000,0.5,2.12345>") == "c" + 6 * "f" + "ll" + 11 * "f" + "lc"
    # Three digits a token: the second begins at the fourth decimal, which still counts.
    assert kinds("llama", "<1.000000,0.5,2.1234567>")[1:6] == [
        ("1", "f", 0),
        (".", "f", 0),
        ("000", "f", 0),
        ("000", "f", 0),
        (",", "f", 0),
    ]
    assert [word for word, kind, _ in kinds("llama", "<1.0,0.5,2.1234567>") if kind == "l"] == ["7"]


@pytest.mark.parametrize(
    ("text", "malformed"),
    [
        ("[C]<1.0,2.0,3.0>", 0),
        ("[C]<1.0,2.0>", 1),
        ("[C]<1,2,3>", 1),
        ("[C]<>[C]<,,>", 2),
        ("[C]<+1.0,2.0,3.0>", 1),
        ("[C]<1.0,2.0,3.0", 0),
        ("[C]<1.0,2.0,3.0<1.0", 1),
        ("<|im_start|>[C]<1.0,2.0,3.0>", 0),
    ],
)
def test_malformed_blocks(text: str, malformed: int) -> None:
    found = classify(ids("qwen", text), table("qwen"), frozenset())
    assert found.malformed_blocks == malformed
    assert "j" not in found.kinds


@pytest.mark.parametrize(
    ("text", "end", "malformed", "cut"),
    [
        ("[C]<1.0,2.", "", 1, 1),
        ("[C]<", "", 1, 1),
        ("[C]<1.0>[O]<1.0", "", 2, 1),
        ("[C]<1.0>[O]", "", 1, 0),
        ("[C]<1.0,2.", "<|im_end|>", 1, 0),  # the model's own end
        ("[C]<1.0,2.0,3.0", "", 0, 0),  # all three are there, whatever would have followed
    ],
)
def test_a_block_that_the_bound_cut_short_is_told_apart(text: str, end: str, malformed: int, cut: int) -> None:
    eos = frozenset(ids("qwen", "<|im_end|>"))
    found = classify(ids("qwen", text + end), table("qwen"), eos)
    assert (found.malformed_blocks, found.cut_blocks) == (malformed, cut)


def test_text_between_the_brackets() -> None:
    found = classify(ids("qwen", "[C]<1.0,2.0（>[C]<><|im_start|><-1.0"), table("qwen"), frozenset())
    assert found.insides == ("1.0,2.0（", "", None)


def test_no_tokens() -> None:
    assert classify([], table("qwen"), frozenset()).kinds == ""
    assert classify([5], table("qwen"), frozenset({5})).kinds == "e"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("[C]<1.0,2.0,3.0>[O]<0.0,0.0,0.0>", None),
        ("[O]<1.0,2.0,3.0>[C]<0.0,0.0,0.0>", None),
        ("[C]<1.0,2.0,3.0000000>[O]<0.0,0.0,0.0>", None),
        ("[C]<1.0,2.0,3.0>=[O]<0.0,0.0,0.0>", "another molecule: C=O"),
        ("[C]<1.0,2.0,3.0>[O]", "not a skeleton with one coordinate block after each atom"),
        (
            "[C]<1.0,2.0,3.0><1.0,2.0,3.0>[O]<0.0,0.0,0.0>",
            "not a skeleton with one coordinate block after each atom",
        ),
        ("C<1.0,2.0,3.0>[O]<0.0,0.0,0.0>", "not a skeleton with one coordinate block after each atom"),
        ("[C]<1.0,2.0>[O]<0.0,0.0,0.0>", "1 of 2 blocks malformed: <1.0,2.0>"),
        ("[C]<1.0,2.0,3.0>[O]<0.0,0.0,0.0abra>", "1 of 2 blocks end in junk: <0.0,0.0,0.0abra>"),
        ("[C]<1.0,2.0,3.0>([O]<0.0,0.0,0.0>", "RDKit cannot read the skeleton"),
    ],
)
def test_validity(body: str, problem: str | None) -> None:
    assert check(f"[CONFORMER]{body}[/CONFORMER]", molecule("CO")) == problem


def test_validity_needs_the_tags_around_everything() -> None:
    text = "[CONFORMER][C]<1.0,2.0,3.0>[O]<0.0,0.0,0.0>"
    assert check(text, molecule("CO")) == "no [CONFORMER]...[/CONFORMER] around the whole text"
    assert check(f"{text}[/CONFORMER]x", molecule("CO")) is not None


MOLECULES = (
    "CC=O",
    "c1cc[nH]c1",
    "[Na+].[Cl-]",
    "C[C@@H](N)C(=O)O",
    "F/C=C\\Cl",
    "O=C(Nc1ccccc1)C1CC1",
    "[C]",
    "[13CH4]",
)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(MOLECULES), st.integers(0, 10**6), st.sampled_from(["qwen", "llama"]))
def test_conformers_as_the_format_writes_them_are_valid_and_clean(smiles: str, seed: int, name: str) -> None:
    read, rng = molecule(smiles), random.Random(seed)
    blocks = [block([rng.gauss(0, 4) for _ in range(3)]) for _ in read.atoms]
    text = DEFAULT.answer_of(read.skeleton(blocks))
    assert check(text, read) is None
    found = classify(ids(name, text), table(name), frozenset())
    assert set(found.kinds) == {"c", "f"}
    assert found.malformed_blocks == 0
    inside = [""] * len(blocks)
    for token, place in zip(ids(name, text), found.blocks, strict=True):
        if place >= 0:
            inside[place] += table(name).join([token])
    # A token such as `<-` or `,-` never reaches over a bracket but at the block's first minus.
    assert [written.lstrip("-") for written in inside] == [written.lstrip("-") for written in blocks]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MOLECULES), st.sampled_from(["qwen", "llama"]))
def test_kinds_by_text_agree_with_the_template(smiles: str, name: str) -> None:
    template = build_template(molecule(smiles), tokenizer(name))
    found = classify(template.ids.tolist(), table(name), frozenset())
    assert found.kinds == "".join("f" if free else "c" for free in template.free)
    assert found.blocks == template.blocks.tolist()
