"""Molecules and prompts of files: the right column is read, bad files are explained, pickles hold plain data."""

from __future__ import annotations

import collections
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from molprof.common.errors import UsageError
from molprof.common.manifest import Skipped
from molprof.common.settings import CaptureSettings
from molprof.profiler.molecules.files import molecules_of
from molprof.profiler.molecules.prompts import read_inputs, read_prompts, read_texts


def write(folder: Path, name: str, content: Any) -> str:
    path = folder / name
    path.write_bytes(pickle.dumps(content) if name.endswith((".pkl", ".pickle")) else content.encode())
    return str(path)


def read(source: str) -> list[tuple[int, str, str]]:
    return [(entry.number, entry.text, entry.name) for entry in molecules_of(source).entries]


@pytest.mark.parametrize(
    ("name", "content", "column", "expected"),
    [
        ("a.csv", "id,SMILES\n7,CC=O\n8,C\n", "", [(2, "CC=O", "7"), (3, "C", "8")]),
        ("a.csv", "id;smiles\n7;CC=O\n", "", [(2, "CC=O", "7")]),
        ("a.csv", '# made\nname,canonical_smiles\n"a, b",CO\n', "", [(3, "CO", "a, b")]),
        ("a.csv", "CC=O,seven\nC,eight\n", "", [(1, "CC=O", "seven"), (2, "C", "eight")]),
        ("a.csv", "id,mol,smiles\n1,CO,C\n", ":mol", [(2, "CO", "1")]),
        ("a.csv", "7,CC=O\n8,C\n", ":2", [(1, "CC=O", ""), (2, "C", "")]),
        ("a.tsv", "title\tSmiles\nx y\tCC=O\n", "", [(2, "CC=O", "x y")]),
        ("a.txt", "CC=O x y\n[Na+].[Cl-]\n", "", [(1, "CC=O", "x y"), (2, "[Na+].[Cl-]", "")]),
        ("a.dat", "[Na+].[Cl-] salt\n", "", [(1, "[Na+].[Cl-]", "salt")]),
        ("a.json", '["CC=O", "C"]', "", [(1, "CC=O", ""), (2, "C", "")]),
        ("a.json", '[["CC=O", "x"], ["C"]]', "", [(1, "CC=O", "x"), (2, "C", "")]),
        ("a.json", '[{"n": 1, "smiles": "C", "id": 5}]', "", [(1, "C", "5")]),
        ("a.json", '[{"n": 1, "smiles": "C", "mol": "CO"}]', ":mol", [(1, "CO", "")]),
        ("a.json", '{"x": "C", "y": "CO"}', "", [(1, "C", "x"), (2, "CO", "y")]),
        ("a.json", '{"id": {"0": 3}, "smiles": {"0": "C"}}', "", [(1, "C", "3")]),
        ("a.jsonl", '{"smiles": "C"}\n\n{"smiles": "CO"}\n', "", [(1, "C", ""), (3, "CO", "")]),
        ("a.pkl", ["CC=O", "C"], "", [(1, "CC=O", ""), (2, "C", "")]),
        ("a.pickle", ({"smiles": "C", "energy": 0.5},), "", [(1, "C", "")]),
        ("a.pkl", {"name": ["x", "y"], "smiles": ("C", "CO")}, "", [(1, "C", "x"), (2, "CO", "y")]),
        ("a.pkl", {5: "C"}, "", [(1, "C", "5")]),
    ],
)
def test_every_form(tmp_path: Path, name: str, content: Any, column: str, expected: list[tuple[int, str, str]]) -> None:
    assert read(write(tmp_path, name, content) + column) == expected


def test_a_file_whose_name_has_a_colon(tmp_path: Path) -> None:
    assert read(write(tmp_path, "a:b.smi", "CO\n")) == [(1, "CO", "")]


@pytest.mark.parametrize(
    ("name", "content", "column", "message", "hint"),
    [
        ("a.csv", "id,smiles\n1,C\n", ":mol", "a.csv has no column 'mol'", "columns: id, smiles"),
        ("a.csv", "my_smiles,smiles2\nC,C\n", "", "several columns of SMILES: my_smiles, smiles2", "a.csv:my_smiles"),
        ("a.csv", 'smiles\n"C\n', "", "a.csv, line 2: unexpected end of data", "quote texts"),
        ("a.csv", "smiles\nC\n", ":", "names no column", "a.csv:COLUMN"),
        ("a.smi", "C\n", ":x", "has one SMILES per line and no columns", "leave out :x"),
        ("a.json", '["C",\n  3x]', "", "a.json, line 2: not JSON: Expecting ',' delimiter", "a list of SMILES"),
        ("a.json", "3", "", "a.json holds int, not molecules", "a list of SMILES"),
        ("a.json", '["C", 3]', "", "a.json, entry 2: expected a SMILES, found int", "a list of SMILES"),
        ("a.json", '["C"]', ":x", "a.json has one SMILES per entry and no columns", "leave out :x"),
        ("a.json", "[" * 100_000, "", "a.json is nested too deeply", "a list of SMILES"),
        ("a.jsonl", '"C"\nC\n', "", "a.jsonl, line 2: not JSON: Expecting value", "a list of SMILES"),
        ("a.pkl", {"x": {"a", "b"}}, "", "a.pkl, entry 1: expected a SMILES, found set", "a list of SMILES"),
        ("a.pkl", [b"C"], "", "a.pkl, entry 1: expected a SMILES, found bytes", "a list of SMILES"),
        ("a.pkl", collections.Counter("CO"), "", "holds collections.Counter, which is not plain data", "CSV or JSON"),
    ],
)  # fmt: skip
def test_bad_files_are_told_in_one_line(
    tmp_path: Path, name: str, content: Any, column: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(write(tmp_path, name, content) + column)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert hint in (caught.value.hint or "")


class Runs:
    """A pickle that runs a function when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self._made = folder / "made"

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._made),)


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(["C", Runs(tmp_path)], protocol))
    with pytest.raises(UsageError, match="which is not plain data"):
        read(str(path))
    assert not (tmp_path / "made").exists()
    pickle.loads(path.read_bytes())  # elsewhere the same file does run it
    assert (tmp_path / "made").exists()


def test_damaged_pickles(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    whole = pickle.dumps(["C", "CO"])
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(UsageError, match="is no pickle that can be read"):
            read(str(path))
    path.write_bytes(whole + whole)
    with pytest.raises(UsageError, match="holds more than one object"):
        read(str(path))


def test_what_is_skipped_is_told_by_its_row_or_entry(tmp_path: Path) -> None:
    table = write(tmp_path, "a.csv", "id,smiles\n1,xx\n2,\n3,CO\n")
    found = read_prompts(Path(table), None)
    assert [(prompt.line, prompt.name, prompt.text) for prompt in found.prompts] == [(4, "3", "[SMILES]CO[/SMILES]")]
    assert found.notes() == (
        f"{table}, row 2: RDKit cannot read the SMILES 'xx'; skipped",
        f"{table}, row 3: no SMILES in column smiles; skipped",
    )
    with pytest.raises(UsageError, match=r"a\.csv, row 2: RDKit cannot read the SMILES 'xx'"):
        read_prompts(Path(table), None, strict=True)
    entries = write(tmp_path, "a.json", json.dumps([{"smiles": "C"}, {"id": 1}]))
    assert read_prompts(Path(entries), None).notes() == (f"{entries}, entry 2: no SMILES in column smiles; skipped",)


def test_without_a_readable_molecule_the_columns_are_the_next_step(tmp_path: Path) -> None:
    table = write(tmp_path, "a.csv", "id,mol\n1,CO\n")
    with pytest.raises(UsageError, match="no molecule that RDKit can read; row 1: 'id'") as caught:
        read_prompts(Path(table), None)
    assert caught.value.hint == f"name the column with SMILES: {table}:COLUMN"
    assert [prompt.text for prompt in read_prompts(Path(f"{table}:mol"), None).prompts] == ["[SMILES]CO[/SMILES]"]


def test_a_pipe_is_refused_since_it_would_be_read_twice(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        for reading in (lambda path: molecules_of(str(path)), lambda path: read_texts(path, 3)):
            with pytest.raises(UsageError, match="is not a regular file"):
                reading(path)


def test_names_comments_and_unreadable_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "in.smi", "# mine\nO=CC acet aldehyde\n\nC1CC\nC\tmethane\r\nN\n")
    found = read_prompts(Path(path), 2)
    assert [(prompt.line, prompt.name, prompt.text) for prompt in found.prompts] == [
        (2, "acet aldehyde", "[SMILES]CC=O[/SMILES]"),
        (5, "methane", "[SMILES]C[/SMILES]"),
    ]
    assert found.skipped == (Skipped(4, "C1CC", "RDKit cannot read the SMILES 'C1CC'"),)
    for text, message in (("", "has no molecules"), ("xx\n", "has no molecule that RDKit can read; line 1: 'xx'")):
        with pytest.raises(UsageError, match=message):
            read_prompts(Path(write(tmp_path, "in.smi", text)), 5)


def test_a_line_ends_where_an_editor_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "ask.txt"
    path.write_bytes("\ufeffone\x0cpage\r\n\r\ntwo\u2028lines\x85\x1cof\n three".encode())
    found = read_texts(path, 9)
    texts = [(1, "one\x0cpage"), (3, "two\u2028lines\x85\x1cof"), (4, " three")]
    assert [(prompt.line, prompt.text) for prompt in found.prompts] == texts
    assert found.notes() == (f"{path}: 3 prompts, 9 were asked for",)
    path.write_bytes("\ufeffCCO ethanol\r\nC\n".encode())
    assert [(prompt.name, prompt.molecule and prompt.molecule.smiles) for prompt in read_prompts(path, 9).prompts] == [
        ("ethanol", "CCO"), ("", "C"),
    ]  # fmt: skip


def test_a_file_means_all_of_it_unless_a_number_is_given(tmp_path: Path) -> None:
    path = write(tmp_path, "in.smi", "C\n" * 90)
    for option in ("smiles", "prompts"):
        asked = CaptureSettings("llama", max_new_tokens=9, **{option: path})
        assert (len(read_inputs(asked).prompts), read_inputs(asked).notes()) == (90, ())
        assert len(read_inputs(replace(asked, count=5)).prompts) == 5
    assert len(read_inputs(CaptureSettings("llama", generations=2)).prompts) == 128
