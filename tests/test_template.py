"""Position templates: what is COPY, what is FREE, and to which block it belongs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rdkit import Chem
from tiny import table, tokenizer

from molprof.common.text_format import DEFAULT
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.molecules.template import PLACEHOLDER, build_template

SMILES = (
    "CC=O",
    "C",
    "O=C(Nc1ccccc1)C1CC1",
    "C[C@@H](N)C(=O)O",
    "[Na+].[Cl-]",
    "c1cc2ccc3cccc4ccc(c1)c2c34",
    "F/C=C\\Cl",
    "[13CH4]",
    "C[N+](C)(C)CC(=O)[O-]",
    "O=S(=O)(Br)c1ccc[nH]1",
)


@pytest.mark.parametrize(
    ("name", "placeholder", "free"),
    [("llama", PLACEHOLDER, 14), ("qwen", PLACEHOLDER, 20), ("qwen", "0.000,0.000,0.000", 17)],
)
def test_free_positions_per_block(name: str, placeholder: str, free: int) -> None:
    template = build_template(molecule("O=C(Nc1ccccc1)C1CC1"), tokenizer(name), placeholder)
    assert template.free_per_block.tolist() == [free] * 12


@pytest.mark.parametrize(("name", "tokens", "free"), [("qwen", 47, 40), ("llama", 35, 28)])
def test_skeleton_of_two_atoms(name: str, tokens: int, free: int) -> None:
    template = build_template(molecule("C=O"), tokenizer(name))
    assert template.text == "[CONFORMER][C]<0.0000,0.0000,0.0000>=[O]<0.0000,0.0000,0.0000>[/CONFORMER]"
    assert (len(template.ids), int(template.free.sum())) == (tokens + 2, free)  # and the two tags


def test_merged_tokens_are_copy_where_they_reach_out_of_the_block() -> None:
    template = build_template(molecule("CO"), tokenizer("qwen"), "-0.5,1.0,2.0")
    texts = " ".join(table("qwen").join([index]) for index in template.ids.tolist())
    assert texts == "[CONFORMER] [C ]< - 0 . 5 , 1 . 0 , 2 . 0 >[ O ]< - 0 . 5 , 1 . 0 , 2 . 0 > [/CONFORMER]"
    free = "".join("F" if flag else "C" for flag in template.free)
    assert free == "CCC" + "F" * 12 + "CCC" + "F" * 12 + "CC"
    assert template.blocks.tolist() == [-1] * 3 + [0] * 12 + [-1] * 3 + [1] * 12 + [-1] * 2


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SMILES), st.integers(0, 10**6), st.sampled_from(["qwen", "llama"]))
def test_template_is_the_skeleton_whatever_the_atom_order(smiles: str, seed: int, name: str) -> None:
    mol = Chem.MolFromSmiles(smiles)
    order = list(range(mol.GetNumAtoms()))
    random.Random(seed).shuffle(order)
    read = molecule(Chem.MolToSmiles(Chem.RenumberAtoms(mol, order), canonical=False))
    template = build_template(read, tokenizer(name))
    ids = template.ids.tolist()
    assert table(name).join(ids) == template.text == DEFAULT.answer_of(read.skeleton(PLACEHOLDER))
    free = [index for index, flag in zip(ids, template.free, strict=True) if flag]
    assert table(name).join(free) == PLACEHOLDER * len(read.atoms)
    assert sorted(set(template.blocks[template.free].tolist())) == list(range(len(read.atoms)))
    assert (template.blocks[~template.free] == -1).all()
