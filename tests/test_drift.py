"""`molprof drift` on files of coordinates gives known figures, without torch. Goldens hold its output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli, called
from rdkit import Chem
from rdkit.Chem import rdDistGeom
from test_tokenizers import COUNTS
from tiny import ids

from molprof.common.errors import UsageError
from molprof.common.manifest import Skipped
from molprof.common.text_format import DEFAULT
from molprof.profiler.drift import PLACEHOLDERS, Distribution, distribution, drift_document, survey
from molprof.profiler.models.tokenizers import load_backend
from molprof.profiler.molecules.conformers import Conformer, Conformers, built_in_conformers, read_conformers
from molprof.profiler.molecules.prompts import read_prompts
from molprof.profiler.molecules.smiles import Molecule

TEXTS = """\
# a remark

[CONFORMER][C]<1.0,2.0,3.0>=[O]<-0.5,0.25,12.1234>[/CONFORMER]
[C]<1.0,2.0>
[C@@H]<0.1,0.2,0.3>1([nH]<0.0,0.0,0.0>)1
[C]<1.0,2.0,3.0>[O]
CCO
[SMILES]C[/SMILES][CONFORMER][C]<1.0,2.0,3.0>[/CONFORMER]
"""
NO_ATOM = "expected an atom in brackets with a coordinate block after it"
WATER = "3\nwater\nO 0.0 0.0 0.1\nH 0.0 0.8 -0.5\nH 0.0 -0.8 -0.5\n"


def embedded(smiles: str) -> Chem.Mol:
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    assert rdDistGeom.EmbedMolecule(mol, randomSeed=1) == 0
    return mol


def test_lines_of_text(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text(TEXTS)
    found = read_conformers(path)
    molecules = [
        Molecule("[C]=[O]", ("[C]", "[O]"), ("", "=", "")),
        Molecule("[C@@H]1([nH])1", ("[C@@H]", "[nH]"), ("", "1(", ")1")),
        Molecule("[C]", ("[C]",), ("", "")),
    ]
    assert found.conformers == (
        Conformer(3, molecules[0], ((1.0, 2.0, 3.0), (-0.5, 0.25, 12.1234))),
        Conformer(5, molecules[1], ((0.1, 0.2, 0.3), (0.0, 0.0, 0.0))),
        Conformer(8, molecules[2], ((1.0, 2.0, 3.0),)),
    )
    assert found.skipped == (
        Skipped(4, "[C]<1.0,2.0>", "block 1 is not three decimal numbers: <1.0,2.0>"),
        Skipped(6, "[C]<1.0,2.0,3.0>[O]", f"character 17: {NO_ATOM}"),
        Skipped(7, "CCO", f"character 1: {NO_ATOM}"),
    )
    assert len(read_conformers(path, 1).conformers) == 1


def test_sdf_in_the_order_of_its_smiles(tmp_path: Path) -> None:
    first, second = embedded("OCC#N"), embedded("C")
    records = [Chem.MolToMolBlock(mol) for mol in (first, Chem.MolFromSmiles("CC"), second)]
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


def test_xyz_frames_without_hydrogens_and_so_without_texts(tmp_path: Path) -> None:
    path = tmp_path / "frames.xyz"
    path.write_text(WATER + "\n1\n\nC 0 x 0\n" + "2\n\nC 1 2 3.5\nN 0 0 0\n1\n\nH 0 0 0\nbad\n")
    found = read_conformers(path)
    assert found.conformers == (
        Conformer(1, None, ((0.0, 0.0, 0.1),)),
        Conformer(10, None, ((1.0, 2.0, 3.5), (0.0, 0.0, 0.0))),
    )
    assert [(item.line, item.problem) for item in found.skipped] == [
        (7, "RDKit cannot read the frame"),
        (14, "the frame has no heavy atoms"),
        (17, "expected the number of atoms that begins a frame; nothing after it was read"),
    ]
    (qwen,) = figures(found, "qwen")["tokenizers"]
    assert (qwen["answers"], qwen["placeholders"][0]["tokens_per_molecule"]) == (None, None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"CCO\n", f"a.txt: no conformer; line 1: character 1: {NO_ATOM}"),
        ("a.txt", b"[C]\xff\n", "a.txt is not UTF-8 text: invalid start byte at byte 3"),
        ("a.xyz", b"3\n\nC 0 0 0\n", "line 1: the frame ends after 1 of 3 atoms"),
        ("a.sdf", b"\n\n\n", "a.sdf: no conformer"),
    ],
)
def test_a_file_without_coordinates(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        read_conformers(tmp_path / name)
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


def figures(found: Conformers, *names: str) -> dict[str, Any]:
    tokenizers = [(name, load_backend(name), DEFAULT) for name in names]
    made: dict[str, Any] = drift_document(survey(tokenizers, found, PLACEHOLDERS)).json()
    return made


def test_distribution() -> None:
    assert distribution([3]) == Distribution(1, 3, 3, 3, 3, 3, 3.0, {3: 1})
    assert distribution([4, 1, 2, 2]) == Distribution(4, 1, 1, 2, 2, 4, 2.25, {1: 1, 2: 2, 4: 1})


def test_the_published_counts_and_sums(tmp_path: Path) -> None:
    padding = load_backend("llama")
    padding.enable_padding(length=99)  # what a folder's file says of padding does not count
    padding.save(str(tmp_path / "tokenizer.json"))
    found = figures(built_in_conformers(5), "qwen", "llama", str(tmp_path))
    qwen, llama, folder = found["tokenizers"]
    assert {**folder, "name": "llama"} == llama
    examples = zip(qwen["examples"], llama["examples"], strict=True)
    assert {one["text"]: (one["tokens"], other["tokens"]) for one, other in examples} == COUNTS
    assert [(item["vocabulary"], item["digits_per_token"]) for item in (qwen, llama)] == [(151_643, 1), (128_000, 3)]
    for item, free, tokens in ((qwen, 40, 20), (llama, 28, 14)):
        assert (item["examples"][-1]["free"], item["placeholders"][0]["tokens"]) == (free, tokens)
        assert item["best"]["too_short"] == 0
        for placeholder in item["placeholders"]:
            shares = [placeholder[f"{name}_ratio"] for name in ("too_short", "exact", "too_long")]
            drift, mean = placeholder["drift_tokens"], placeholder["tokens"] - item["needed_tokens"]["mean"]
            assert (sum(shares), drift["mean"]) == (pytest.approx(1), pytest.approx(mean))
            assert sum(drift["histogram"].values()) == found["blocks"]


def test_an_unreachable_hub_is_one_message_without_retries(molprof: Cli, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    result = molprof("drift", "--tokenizer", "nope", env=environment)
    error, hint = result.stderr.splitlines()
    assert error.startswith(
        "molprof: error: no tokenizer 'nope': no preset and no folder, not in the model hub's cache"
    )
    assert "http://127.0.0.1:9 cannot be reached" in error
    assert hint == "  use a preset (qwen, llama), a folder with a tokenizer.json, or a hub id"


def test_no_torch_is_needed_and_skipped_lines_are_told(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("CCO\n[C]<-1.2345,0.5,2.0>\n")
    code = (
        "import sys; sys.modules['torch'] = None; from molprof.cli import main\n"
        "main(['drift', '--conformers', 'texts.txt', '--format', 'json'])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, json.loads(result.stdout)["blocks"]) == (0, 1)
    assert result.stderr == f"line 1: character 1: {NO_ATOM}; skipped\n"


def test_what_a_constraint_leaves_room_for(tmp_path: Path) -> None:
    """Loops of white space, digits and text, and forced text that is cut by itself."""
    form = r"\[(a*|\d+)\]\s*end"
    code, out, _ = called(["drift", "--tokenizer", "qwen", "--regex", form, "--format", "json"], tmp_path)
    assert code == 0
    shown = json.loads(out)
    assert (shown["kind"], shown["shortest"], shown["bytes"], shown["forced_bytes"]) == ("regex", "[]end", 5, 3)
    assert [(loop["cause"], loop["after"], loop["around"]) for loop in shown["loops"]] == [
        ("digits", "[0", "0"), ("white space", "[]", " "), ("text", "[a", "a"),
    ]  # fmt: skip
    # `[` and `nd` are forced.
    apart = [len(ids("qwen", text)) for text in ("[", "]e", "nd")]
    assert shown["spellings"] == [
        {"tokenizer": "qwen", "tokens": len(ids("qwen", "[]end")), "apart_tokens": sum(apart)}
    ]
    (tmp_path / "s.json").write_text('{"type": "array", "items": {"type": "integer"}, "maxItems": 2}')
    _, out, _ = called(["drift", "--tokenizer", "qwen", "--schema", "s.json"], tmp_path)
    assert re.findall(r"^  (digits|text|white space) .*$", out, re.MULTILINE) == ["digits", "digits"]
    code, out, _ = called(["drift", "--choices", "yes,no"], tmp_path)
    assert "none: every text has an end" in out
