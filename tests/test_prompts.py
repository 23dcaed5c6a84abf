"""Reading molecules."""

from __future__ import annotations

from pathlib import Path

import pytest

from molprof.errors import UsageError
from molprof.profiler.manifest import Skipped
from molprof.profiler.prompts import read_prompts


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
    found = read_prompts(None, 64)
    assert (len(found.prompts), found.skipped) == (64, ())
    assert max(len(prompt.molecule.atoms) for prompt in found.prompts if prompt.molecule) <= 13
