"""SMILES become the enriched skeleton, and the skeleton becomes SMILES again."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdkit import Chem

from molprof.common.errors import UsageError
from molprof.profiler.molecules.smiles import block, canonical, coordinate, molecule, smiles_of_conformer


@pytest.mark.parametrize(
    ("smiles", "skeleton"),
    [
        ("CC=O", "[C]<>[C]<>=[O]<>"),
        ("C(=O)([H])C", "[C]<>[C]<>=[O]<>"),
        ("ClCBr", "[Cl]<>[C]<>[Br]<>"),
        ("N[C@@H](C)C(=O)[O-]", "[C]<>[C@H]<>([N]<>)[C]<>(=[O]<>)[O-]<>"),
        ("c1cc[nH]c1", "[c]<>1[c]<>[c]<>[nH]<>[c]<>1"),
        ("[Na+].[Cl-]", "[Cl-]<>.[Na+]<>"),
        ("[13CH4]", "[13CH4]<>"),
        ("F/C=C\\F", "[F]<>/[C]<>=[C]<>\\[F]<>"),
        ("[C]", "[C+0]<>"),
        ("[CH3]", "[CH3]<>"),
    ],
)
def test_skeleton(smiles: str, skeleton: str) -> None:
    assert molecule(smiles).skeleton("") == skeleton


def test_ring_numbers_above_nine_stay_outside_the_atoms() -> None:
    cage = "C12C3C4C1C5C2C3C45"
    assert canonical(cage) == smiles_of_conformer(molecule(cage).skeleton("0.0,0.0,0.0"))
    text = "C%10CCCC%10"
    assert molecule(text).skeleton("x") == "[C]<x>1[C]<x>[C]<x>[C]<x>[C]<x>1"


def test_a_block_per_atom() -> None:
    assert molecule("CO").skeleton(["1.0,2.0,3.0", "-0.5,0.0,0.0"]) == "[C]<1.0,2.0,3.0>[O]<-0.5,0.0,0.0>"
    with pytest.raises(ValueError, match="1 coordinate blocks for 2 atoms"):
        molecule("CO").skeleton(["1.0,2.0,3.0"])


@pytest.mark.parametrize(
    ("value", "text"),
    [(-1.23456, "-1.2345"), (0.5, "0.5"), (2.0, "2.0"), (-0.00001, "0.0"), (12.30004, "12.3"), (1e-7, "0.0")],
)
def test_coordinates_are_truncated(value: float, text: str) -> None:
    assert coordinate(value) == text


def test_a_small_coordinate_of_many_decimals_has_no_exponent() -> None:
    assert coordinate(-0.0000001234567, 12) == "-0.000000123456"
    assert coordinate(-1e-13, 12) == "0.0"


def test_block() -> None:
    assert block((1.0, -2.34567, 0.1)) == "1.0,-2.3456,0.1"


@pytest.mark.parametrize(
    ("smiles", "message"),
    [("xx", "RDKit cannot read the SMILES 'xx'"), ("c1cc", "cannot read the SMILES"), ("", "has no atoms")],
)
def test_unreadable(smiles: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        molecule(smiles)


def test_text_that_is_no_molecule() -> None:
    assert smiles_of_conformer("[C]<1.0,2.0,3.0>(") is None
    assert smiles_of_conformer("") is None


@given(
    st.sampled_from(
        ["CC(C)Cc1ccc(cc1)C(C)C(=O)O", "CN1CC[C@]23c4c5ccc(O)c4O[C@H]2C(=O)CC[C@H]3[C@H]1C5", "O=C1CSC(=N1)[NH3+]"]
    ),
    st.integers(0, 10**6),
)
def test_round_trip_from_any_atom_order(smiles: str, seed: int) -> None:
    mol = Chem.MolFromSmiles(smiles)
    order = random.Random(seed).sample(range(mol.GetNumAtoms()), mol.GetNumAtoms())
    read = molecule(Chem.MolToSmiles(Chem.RenumberAtoms(mol, order), canonical=False))
    assert read.smiles == canonical(smiles)
    assert smiles_of_conformer(read.skeleton("0.0,0.0,0.0")) == read.smiles
    assert len(read.atoms) == mol.GetNumAtoms()
