"""Coordinates from files: what is read, in which order, and what is refused by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from rdkit import Chem
from rdkit.Chem import rdDistGeom

from molprof.common.errors import UsageError
from molprof.common.manifest import Skipped
from molprof.profiler.molecules.conformers import Conformer, built_in_conformers, read_conformers
from molprof.profiler.molecules.prompts import read_prompts
from molprof.profiler.molecules.smiles import Molecule, block

TEXTS = """\
# a remark

[CONFORMER][C]<1.0,2.0,3.0>=[O]<-0.5,0.25,12.1234>[/CONFORMER]
[C]<1.0,2.0>
[C@@H]<0.1,0.2,0.3>1([nH]<0.0,0.0,0.0>)1
[C]<1.0,2.0,3.0>[O]
CCO
[C]<1.0,2.0,nan>
[SMILES]C[/SMILES][CONFORMER][C]<1.0,2.0,3.0>[/CONFORMER]
[CONFORMER][C]<1.0,2.0,3.0>[N][/CONFORMER]
"""
WATER = "3\nwater\nO 0.0 0.0 0.1\nH 0.0 0.8 -0.5\nH 0.0 -0.8 -0.5\n"


def embedded(smiles: str) -> Chem.Mol:
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    assert rdDistGeom.EmbedMolecule(mol, randomSeed=1) == 0
    return mol


def test_lines_of_text(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text(TEXTS)
    found = read_conformers(path)
    assert found.source == str(path)
    assert found.conformers == (
        Conformer(
            3,
            Molecule("[C]=[O]", ("[C]", "[O]"), ("", "=", "")),
            ((1.0, 2.0, 3.0), (-0.5, 0.25, 12.1234)),
        ),
        Conformer(
            5,
            Molecule("[C@@H]1([nH])1", ("[C@@H]", "[nH]"), ("", "1(", ")1")),
            ((0.1, 0.2, 0.3), (0.0, 0.0, 0.0)),
        ),
        Conformer(9, Molecule("[C]", ("[C]",), ("", "")), ((1.0, 2.0, 3.0),)),
    )
    assert found.skipped == (
        Skipped(4, "[C]<1.0,2.0>", "block 1 is not three decimal numbers: <1.0,2.0>"),
        Skipped(
            6, "[C]<1.0,2.0,3.0>[O]", "character 17: expected an atom in brackets with a coordinate block after it"
        ),
        Skipped(7, "CCO", "character 1: expected an atom in brackets with a coordinate block after it"),
        Skipped(8, "[C]<1.0,2.0,nan>", "block 1 is not three decimal numbers: <1.0,2.0,nan>"),
        Skipped(
            10,
            "[CONFORMER][C]<1.0,2.0,3.0>[N][/CONFORMER]",
            "character 28: expected an atom in brackets with a coordinate block after it",
        ),
    )
    assert len(read_conformers(path, 1).conformers) == 1


def test_sdf_in_the_order_of_its_smiles(tmp_path: Path) -> None:
    first, second = embedded("OCC#N"), embedded("C")
    flat = Chem.MolFromSmiles("CC")
    records = [Chem.MolToMolBlock(mol) for mol in (first, flat, second)]
    records.insert(1, "\n\n\n  bad\nM  END\n")
    path = tmp_path / "mols.sdf"
    path.write_text("$$$$\n".join(records) + "> <name>\nx\n\n$$$$\n\n")
    found = read_conformers(path)
    assert [item.molecule.smiles for item in found.conformers if item.molecule] == ["N#CCO", "C"]
    nitrogen = tuple(round(value, 4) for value in first.GetConformer().GetAtomPosition(3))
    assert found.conformers[0].positions[0] == pytest.approx(nitrogen, abs=1e-4)
    assert len(found.conformers[0].positions) == 4
    start = 1 + records[0].count("\n") + 1
    assert [(item.line, item.problem) for item in found.skipped] == [
        (start, "RDKit cannot read the record"),
        (start + 6, "the record has no 3D coordinates"),
    ]


def test_xyz_frames_without_hydrogens(tmp_path: Path) -> None:
    path = tmp_path / "frames.xyz"
    path.write_text(WATER + "\n1\n\nC 0 x 0\n1\n\nZz 0 0 0\n" + "2\n\nC 1 2 3.5\nN 0 0 0\n1\n\nH 0 0 0\nbad\n")
    found = read_conformers(path)
    assert found.conformers == (
        Conformer(1, None, ((0.0, 0.0, 0.1),)),
        Conformer(13, None, ((1.0, 2.0, 3.5), (0.0, 0.0, 0.0))),
    )
    assert [(item.line, item.problem) for item in found.skipped] == [
        (7, "RDKit cannot read the frame"),
        (10, "RDKit cannot read the frame"),
        (17, "the frame has no heavy atoms"),
        (20, "expected the number of atoms that begins a frame; nothing after it was read"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"CCO\n", "a.txt: no conformer; line 1: character 1: expected an atom in brackets"),
        ("a.txt", b"", "a.txt: no conformer"),
        ("a.txt", b"[C]\xff\n", "a.txt is not UTF-8 text: invalid start byte at byte 3"),
        ("a.xyz", b"3\n\nC 0 0 0\n", "line 1: the frame ends after 1 of 3 atoms"),
        ("a.sdf", b"\n\n\n", "a.sdf: no conformer"),
        ("no.sdf", None, "cannot read .*no.sdf: No such file"),
    ],
)
def test_a_file_without_coordinates(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        read_conformers(path)
    assert caught.value.hint


def test_the_built_in_molecules_have_a_conformer_each() -> None:
    found = built_in_conformers()
    molecules = [prompt.molecule for prompt in read_prompts(None, 64).prompts]
    assert (len(found.conformers), found.skipped) == (64, ())
    assert built_in_conformers(3).conformers == found.conformers[:3]
    assert [item.molecule for item in found.conformers] == molecules
    for item in found.conformers:
        assert item.molecule is not None
        assert len(item.positions) == len(item.molecule.atoms)
        assert sum(map(sum, item.positions)) == pytest.approx(0, abs=1e-6)  # centred
        assert all(block(position).count(",") == 2 for position in item.positions)
