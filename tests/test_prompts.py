"""Reading molecules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from molprof.common.errors import UsageError
from molprof.common.manifest import Skipped
from molprof.common.settings import CaptureSettings
from molprof.profiler.molecules.prompts import read_inputs, read_prompts, read_texts


def file(folder: Path, text: str) -> Path:
    path = folder / "in.smi"
    path.write_text(text)
    return path


def test_names_comments_and_unreadable_lines(tmp_path: Path) -> None:
    path = file(tmp_path, "# mine\nO=CC acet aldehyde\n\nC1CC\nC\tmethane\r\nN\n")
    found = read_prompts(path, 2)
    assert [(prompt.line, prompt.name, prompt.text) for prompt in found.prompts] == [
        (2, "acet aldehyde", "[SMILES]CC=O[/SMILES]"),
        (5, "methane", "[SMILES]C[/SMILES]"),
    ]
    assert found.skipped == (Skipped(4, "C1CC", "RDKit cannot read the SMILES 'C1CC'"),)
    assert (found.source, found.wanted) == (str(path), 2)


def test_strict_refuses_by_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"in\.smi, line 2: RDKit cannot read the SMILES 'xx'"):
        read_prompts(file(tmp_path, "C\nxx\n"), 5, strict=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "has no molecules"), ("xx\nyy\n", "has no molecule that RDKit can read; line 1: 'xx'")],
)
def test_nothing_to_read(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_prompts(file(tmp_path, text), 5)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*/none\.smi: No such file"):
        read_prompts(tmp_path / "none.smi", 1)
    path = tmp_path / "in.smi"
    path.write_bytes(b"C\n\xff\n")
    with pytest.raises(UsageError, match="is not UTF-8 text: invalid start byte at byte 2"):
        read_prompts(path, 1)


def test_built_in_molecules_are_enough_for_the_default() -> None:
    found = read_prompts(None, None)
    assert (len(found.prompts), found.skipped) == (64, ())
    assert max(len(prompt.molecule.atoms) for prompt in found.prompts if prompt.molecule) <= 13


def test_a_line_ends_where_an_editor_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "ask.txt"
    path.write_bytes("\ufeffone\x0cpage\r\n\r\ntwo\u2028lines\x85\x1cof\n three".encode())
    found = read_texts(path, 9)
    texts = [(1, "one\x0cpage"), (3, "two\u2028lines\x85\x1cof"), (4, " three")]
    assert [(prompt.line, prompt.text) for prompt in found.prompts] == texts
    path.write_bytes("\ufeffCCO ethanol\r\nC\n".encode())
    assert [(prompt.text, prompt.name) for prompt in read_prompts(path, 9).prompts] == [
        ("[SMILES]CCO[/SMILES]", "ethanol"),
        ("[SMILES]C[/SMILES]", ""),
    ]


@pytest.mark.parametrize(
    ("count", "notes"),
    [
        (1, ()),
        (2, ()),
        (None, ()),
        (3, ("ask.txt: 2 prompts, 3 were asked for",)),
    ],
)
def test_what_is_said_of_more_and_of_fewer_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int | None, notes: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ask.txt").write_text("one\n\ntwo\n")
    assert read_texts(Path("ask.txt"), count).notes() == notes


def test_a_file_means_all_of_it_unless_a_number_is_given(tmp_path: Path) -> None:
    path = file(tmp_path, "C\n" * 90)
    for option in ("smiles", "prompts"):
        asked = CaptureSettings("llama", max_new_tokens=9, **{option: str(path)})
        assert len(read_inputs(asked).prompts) == 90
        assert read_inputs(asked).notes() == ()
        assert len(read_inputs(replace(asked, count=5)).prompts) == 5
    assert len(read_inputs(CaptureSettings("llama", generations=2)).prompts) == 128


@pytest.mark.parametrize("name", ["count", "batch_size", "generations", "repeats", "max_new_tokens"])
def test_numbers_that_are_slips_are_refused(name: str) -> None:
    option = "-n" if name == "count" else f"--{name.replace('_', '-')}"
    with pytest.raises(UsageError, match=f"^{option} 999999999999 is above 1000000$"):
        CaptureSettings("llama", **{name: 999_999_999_999})
