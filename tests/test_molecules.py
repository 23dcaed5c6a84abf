"""Molecules as tokens: templates, placeholders, tokens that coordinates need, kinds of tokens, validity."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from captures import captured
from captures import settings as capture_settings
from hypothesis import given, settings
from hypothesis import strategies as st
from rdkit import Chem
from tiny import ids, table, tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from molprof.common.errors import UsageError
from molprof.common.text_format import DEFAULT
from molprof.profiler.molecules.conformers import reference_conformers
from molprof.profiler.molecules.kinds import check, classify
from molprof.profiler.molecules.placeholders import (
    Placeholder,
    best_placeholder,
    candidates,
    closest,
    fit,
    fits,
    free_positions,
    needed_text,
    needed_tokens,
    needs,
)
from molprof.profiler.molecules.prompts import read_prompts, repeated
from molprof.profiler.molecules.smiles import Molecule, block, molecule
from molprof.profiler.molecules.template import PLACEHOLDER, Templates, build_template, default_threads
from training.corpus import conformer

NAMES = ("qwen", "llama")
SMILES = (
    "CC=O", "C", "O=C(Nc1ccccc1)C1CC1", "C[C@@H](N)C(=O)O", "[Na+].[Cl-]", "c1cc2ccc3cccc4ccc(c1)c2c34", "F/C=C\\Cl",
    "[13CH4]", "C[N+](C)(C)CC(=O)[O-]", "O=S(=O)(Br)c1ccc[nH]1",
)  # fmt: skip
POSITIONS = [(-1.23456, 0.5, 2.0), (10.5, -0.25, 3.1), (0.1, 0.2, 0.3)]


def packaged(count: int) -> list[Molecule]:
    return [prompt.molecule for prompt in read_prompts(None, count).prompts if prompt.molecule is not None]


# Templates


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SMILES), st.integers(0, 10**6), st.sampled_from(NAMES))
def test_a_template_is_the_skeleton_whatever_the_atom_order(smiles: str, seed: int, name: str) -> None:
    mol = Chem.MolFromSmiles(smiles)
    order = list(range(mol.GetNumAtoms()))
    random.Random(seed).shuffle(order)
    read = molecule(Chem.MolToSmiles(Chem.RenumberAtoms(mol, order), canonical=False))
    template = build_template(read, tokenizer(name))
    tokens = template.ids.tolist()
    assert table(name).join(tokens) == template.text == DEFAULT.answer_of(read.skeleton(PLACEHOLDER))
    free = [index for index, flag in zip(tokens, template.free, strict=True) if flag]
    assert table(name).join(free) == PLACEHOLDER * len(read.atoms)
    assert template.free_per_block.tolist() == [{"qwen": 20, "llama": 14}[name]] * len(read.atoms)
    assert (template.blocks[~template.free] == -1).all()
    found = classify(tokens, table(name), frozenset())
    assert found.kinds == "".join("f" if flag else "c" for flag in template.free)
    assert found.blocks == template.blocks.tolist()


def test_merged_tokens_are_copy_where_they_reach_out_of_the_block() -> None:
    template = build_template(molecule("CO"), tokenizer("qwen"), "-0.5,1.0,2.0")
    texts = " ".join(table("qwen").join([index]) for index in template.ids.tolist())
    assert texts == "[CONFORMER] [C ]< - 0 . 5 , 1 . 0 , 2 . 0 >[ O ]< - 0 . 5 , 1 . 0 , 2 . 0 > [/CONFORMER]"
    assert template.blocks.tolist() == [-1] * 3 + [0] * 12 + [-1] * 3 + [1] * 12 + [-1] * 2
    assert (template.free == (template.blocks >= 0)).all()


@pytest.mark.parametrize(("threads", "cache"), [(1, False), (4, False), (1, True), (4, True)])
def test_templates_do_not_depend_on_how_they_are_built(threads: int, cache: bool) -> None:
    molecules = packaged(6)
    maker = Templates(tokenizer("qwen"), PLACEHOLDER, threads, cache)
    tokenizer("qwen")(["a", "a b"], padding="max_length", max_length=9)  # as prompts leave the tokenizer
    first = maker.build([*molecules, molecules[0]])
    for found, read in zip(first, molecules, strict=False):
        expected = build_template(read, tokenizer("qwen"))
        assert found.text == expected.text
        assert all(np.array_equal(getattr(found, name), getattr(expected, name)) for name in ("ids", "free", "blocks"))
    # With a cache each molecule is built once, until it is cleared.
    assert (first[0] is first[-1]) is cache
    assert (maker.build(molecules[:1])[0] is first[0]) is cache
    maker.clear()
    assert maker.build(molecules[:1])[0] is not first[0]


@pytest.mark.parametrize(("slurm", "cores", "threads"), [("", 6, 4), ("", 64, 8), ("3", 64, 3), ("no", 64, 8)])
def test_threads_by_default(slurm: str, cores: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", slurm)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert default_threads() == threads


def test_generations_are_recorded(tmp_path: Path) -> None:
    asked = capture_settings(
        processor="vectorized", count=2, generations=3, batch_size=4, repeats=1, warmup=0, template_threads=2,
        template_cache=True, max_new_tokens=4,
    )  # fmt: skip
    result = captured(tmp_path / "o.json", asked, repeated(read_prompts(None, 2), 3))
    smiles = [run.smiles for run in result.manifest.molecules]
    assert smiles == [smiles[0]] * 3 + [smiles[3]] * 3
    assert smiles[0] != smiles[3]
    assert (result.manifest.settings, result.manifest.resolved.template_threads, result.notes) == (
        replace(asked, sampling="greedy"), 2, (),
    )  # fmt: skip


# Placeholders, and what coordinates need


@pytest.mark.parametrize(
    ("text", "qwen", "llama"),
    [
        ("0.0000,0.0000,0.0000", 20, 14),
        ("0.0000,-0.0000,-0.0000", 20, 14),  # `,-` is one token
        ("-1.2345,0.9876,-5.4321", 21, 15),
        ("12.345,-23.456,34.567", 20, 11),
    ],
)
def test_tokens_of_a_block(text: str, qwen: int, llama: int) -> None:
    for name, count in (("qwen", qwen), ("llama", llama)):
        assert free_positions(tokenizer(name), [text]) == [count] == [len(ids(name, text))]
        assert free_positions(tokenizer(name).backend_tokenizer, [text]) == [count]
        assert needed_tokens(tokenizer(name), [text]) == [count]


def test_what_merges_with_a_bracket_is_no_placeholder_and_needs_its_own_token() -> None:
    """A tokenizer of one word per character, except that `<-` is one word."""
    words = ["<-", *"<>-.,0123456789[C]"]
    vocabulary = {word: place for place, word in enumerate(words)}
    merging = Tokenizer(models.BPE(vocab=vocabulary, merges=[("<", "-")]))
    assert free_positions(merging, ["-0.0", "0.0", ""]) == [None, 3, 0]
    assert needed_tokens(merging, ["-0.0", "0.0", ""]) == [4, 3, 0]
    assert best_placeholder(merging, [(-1.5, 2.0, 3.0)]).text[0] == "0"
    whole = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with pytest.raises(UsageError, match="every placeholder merges with its brackets"):
        best_placeholder(whole, POSITIONS)
    with pytest.raises(UsageError, match="no coordinates to fit"):
        best_placeholder(tokenizer("qwen"), [])


def test_the_family_and_a_fit() -> None:
    assert candidates(1, -2) == ["0.0,0.0,0.0", "-0.0,0.0,0.0", "0.0,-0.0,-0.0", "-0.0,-0.0,-0.0"]
    family = candidates(2, 1)  # eight shapes
    assert len(family) == len(set(family)) == 8 * 4 + 8 * 7 * 2 * 4
    assert family[:3] == ["0.0,0.0,0.0", "00.0,00.0,00.0", "-0.0,0.0,0.0"]
    assert fit("x", 11, [10, 11, 13]) == Placeholder("x", 11, 3, 1, -1 / 3, 1.0)


@pytest.mark.parametrize(
    ("name", "needed", "best", "near"),
    [
        # LLaMA's tokenizer has one token for up to three digits.
        ("qwen", [15, 13, 11], Placeholder("-0.00,0.00,0.00", 15, 3, 0, 2.0, 2.0),
         Placeholder("0.0,0.0,0.000", 13, 3, 1, 0.0, 4 / 3)),
        ("llama", [13, 11, 11], Placeholder("0.0,0.0000,0.0000", 13, 3, 0, 4 / 3, 4 / 3),
         Placeholder("0.0,0.0,0.0", 11, 3, 1, -2 / 3, 2 / 3)),
    ],
)  # fmt: skip
def test_best_and_closest(name: str, needed: list[int], best: Placeholder, near: Placeholder) -> None:
    assert needed_tokens(tokenizer(name), [block(position) for position in POSITIONS]) == needed
    assert best_placeholder(tokenizer(name), POSITIONS) == best
    assert closest(fits(tokenizer(name), POSITIONS, 4, DEFAULT)) == near


NEEDED: list[tuple[str, str | None]] = [
    ("1.0,2.0,3.0", "1.0,2.0,3.0"), ("5.799,-0.2748,-0.9587abra", "5.799,-0.2748,-0.9587"),
    ("3.601,0.363,0.3325 （C", "3.601,0.363,0.3325"), ("1.50000,2.123456,3.0000", "1.5,2.1234,3.0"),
    ("007.5,-0.0000,-0.00001", "7.5,0.0,0.0"), ("1.0,2.0,3.0,4.0", "1.0,2.0,3.0"), ("1.0,2.0", "1.0,2.0,0.0"),
    ("1.0,2.0,", "1.0,2.0,0.0"), ("1.0,2.0,-", "1.0,2.0,0.0"), ("1.0,2.0,-3", "1.0,2.0,-3.0"),
    ("1.0,2.", "1.0,2.0,0.0"), ("-12", "-12.0,0.0,0.0"), ("", "0.0,0.0,0.0"),
    ("9" * 400 + ".5,0.0,0.0", "9" * 400 + ".5,0.0,0.0"), ("1,2,3", None), ("+1.0,2.0,3.0", None),
    ("1.0,2.0 ,3.0", None), (".5,1.0,2.0", None), ("abra", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "needed"), NEEDED)
def test_what_a_block_needs(text: str, needed: str | None) -> None:
    assert needed_text(text) == needed
    expected = None if needed is None or len(text) > 99 else [len(ids("llama", needed))]
    assert expected is None or needs(tokenizer("llama"), [text, "abra"]) == [*expected, None]


def test_the_packaged_conformers_are_those_of_the_packaged_molecules() -> None:
    """Bond by bond as RDKit makes them now: another release may choose another conformer, not other bonds."""
    stored = reference_conformers()
    assert [smiles for smiles, _ in stored] == [molecule.smiles for molecule in packaged(64)]
    for smiles, positions in stored[:4]:
        made = conformer(smiles, 0)
        assert made is not None
        for bond in Chem.MolFromSmiles(smiles).GetBonds():
            a, b = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
            difference = math.dist(positions[a], positions[b]) - math.dist(made.positions[a], made.positions[b])
            assert abs(difference) < 0.15


# Kinds of tokens, and validity


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("llama", "[CONFORMER][C]<-1.25,0.5,0.0>=[O]<12.0,0.1,0.2>[/CONFORMER]",
         "[CONFORMER]c [Cc ]<c -f 1f .f 25f ,f 0f .f 5f ,f 0f .f 0f >c =[c Oc ]<c 12f .f 0f ,f 0f .f 1f ,f 0f .f 2f >c "
         "[/CONFORMER]c <|end_of_text|>e"),
        ("qwen", "<5.799,-0.2748,-0.9587abra>", "<c 5f .f 7f 9f 9f ,-f 0f .f 2f 7f 4f 8f ,-f 0f .f 9f 5f 8f 7f "
         "abraj >c"),
        ("qwen", "<1.0,2.0,3.0.5,1>", "<c 1f .f 0f ,f 2f .f 0f ,f 3f .f 0f .j 5j ,j 1j >c"),
        # A token that closes the block and has junk is junk; digits beyond four decimals are filler.
        ("qwen", "<1.0,2.0,3.0)>", "<c 1f .f 0f ,f 2f .f 0f ,f 3f .f 0f )>j"),
        ("qwen", "<1.000000,0.5,2.12345>", "<c 1f .f 0f 0f 0f 0f 0l 0l ,f 0f .f 5f ,f 2f .f 1f 2f 3f 4f 5l >c"),
        # Three digits a token: the second begins at the fourth decimal, which still counts.
        ("llama", "<1.000000,0.5,2.1234567>", "<c 1f .f 000f 000f ,f 0f .f 5f ,f 2f .f 123f 456f 7l >c"),
    ],
)  # fmt: skip
def test_kinds_of_tokens(name: str, text: str, words: str) -> None:
    end = [int(tokenizer(name).eos_token_id)] if "<|end" in words else []
    tokens = [*ids(name, text), *end]
    found = classify(tokens, table(name), frozenset(end))
    assert found.text == text
    assert " ".join(table(name).join([t]) + kind for t, kind in zip(tokens, found.kinds, strict=True)) == words
    assert all((place >= 0) == (kind in "flj") for place, kind in zip(found.blocks, found.kinds, strict=True))


def test_a_token_of_half_a_character_has_its_own_bytes() -> None:
    head = ids("qwen", "\U00013000")[0]  # the first two of the four bytes of a hieroglyph
    found = classify([*ids("qwen", "<1.0,2.0,3.0"), head, *ids("qwen", ">")], table("qwen"), frozenset())
    assert (found.kinds, found.text) == ("c" + "f" * 11 + "jc", "<1.0,2.0,3.0\ufffd>")
    assert classify([], table("qwen"), frozenset()).kinds == ""


@pytest.mark.parametrize(
    ("text", "malformed", "cut"),
    [
        ("[C]<1.0,2.0,3.0>", 0, 0), ("[C]<1.0,2.0>", 1, 0), ("[C]<1,2,3>", 1, 0), ("[C]<>[C]<,,>", 2, 0),
        ("[C]<+1.0,2.0,3.0>", 1, 0), ("[C]<1.0,2.0,3.0<1.0", 1, 1), ("<|im_start|>[C]<1.0,2.0,3.0>", 0, 0),
        # Cut short by the bound, or by the model's own end; whole whatever would have followed.
        ("[C]<1.0,2.", 1, 1), ("[C]<", 1, 1), ("[C]<1.0>[O]<1.0", 2, 1), ("[C]<1.0>[O]", 1, 0),
        ("[C]<1.0,2.<|im_end|>", 1, 0), ("[C]<1.0,2.0,3.0", 0, 0),
    ],
)  # fmt: skip
def test_malformed_blocks(text: str, malformed: int, cut: int) -> None:
    found = classify(ids("qwen", text), table("qwen"), frozenset(ids("qwen", "<|im_end|>")))
    assert (found.malformed_blocks, found.cut_blocks) == (malformed, cut)
    assert "j" not in found.kinds


def test_text_between_the_brackets() -> None:
    found = classify(ids("qwen", "[C]<1.0,2.0（>[C]<><|im_start|><-1.0"), table("qwen"), frozenset())
    assert found.insides == ("1.0,2.0（", "", None)


NO_BLOCKS = "not a skeleton with one coordinate block after each atom"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("[C]<1.0,2.0,3.0>[O]<0.0,0.0,0.0>", None),
        ("[O]<1.0,2.0,3.0000000>[C]<0.0,0.0,0.0>", None),
        ("[C]<1.0,2.0,3.0>=[O]<0.0,0.0,0.0>", "another molecule: C=O"),
        ("[C]<1.0,2.0,3.0>[O]", NO_BLOCKS),
        ("[C]<1.0,2.0,3.0><1.0,2.0,3.0>[O]<0.0,0.0,0.0>", NO_BLOCKS),
        ("C<1.0,2.0,3.0>[O]<0.0,0.0,0.0>", NO_BLOCKS),
        ("[C]<1.0,2.0>[O]<0.0,0.0,0.0>", "1 of 2 blocks malformed: <1.0,2.0>"),
        ("[C]<1.0,2.0,3.0>[O]<0.0,0.0,0.0abra>", "1 of 2 blocks end in junk: <0.0,0.0,0.0abra>"),
        ("[C]<1.0,2.0,3.0>([O]<0.0,0.0,0.0>", "RDKit cannot read the skeleton"),
    ],
)
def test_validity(body: str, problem: str | None) -> None:
    assert check(f"[CONFORMER]{body}[/CONFORMER]", molecule("CO")) == problem
    assert check(f"[CONFORMER]{body}", molecule("CO")) == "no [CONFORMER]...[/CONFORMER] around the whole text"
    assert check(f"[CONFORMER]{body}[/CONFORMER]x", molecule("CO")) is not None


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SMILES), st.integers(0, 10**6), st.sampled_from(NAMES))
def test_conformers_as_the_format_writes_them_are_valid_and_clean(smiles: str, seed: int, name: str) -> None:
    read, rng = molecule(smiles), random.Random(seed)
    blocks = [block([rng.gauss(0, 4) for _ in range(3)]) for _ in read.atoms]
    text = DEFAULT.answer_of(read.skeleton(blocks))
    assert check(text, read) is None
    assert list(map(needed_text, blocks)) == blocks
    found = classify(ids(name, text), table(name), frozenset())
    assert (set(found.kinds), found.malformed_blocks) == ({"c", "f"}, 0)
    inside = [""] * len(blocks)
    for token, place in zip(ids(name, text), found.blocks, strict=True):
        if place >= 0:
            inside[place] += table(name).join([token])
    # A token such as `<-` or `,-` never reaches over a bracket but at the block's first minus.
    assert [written.lstrip("-") for written in inside] == [written.lstrip("-") for written in blocks]
