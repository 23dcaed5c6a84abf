"""Conformers: packaged ones by ETKDG, those of a file (SDF, XYZ, enriched text), and their bond errors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from molprof.common.errors import RunError, UsageError
from molprof.common.files import read_text
from molprof.common.manifest import Skipped
from molprof.common.text_format import DEFAULT, TextFormat
from molprof.profiler.molecules.smiles import Molecule, Position, position_of, require_rdkit, split_atoms

if TYPE_CHECKING:
    from rdkit import Chem

_SHOWN_CHARACTERS = 60
_FORMATS = "SDF (.sdf, .mol), XYZ (.xyz), or one text per line: [C]<1.0,2.0,3.0>=[O]<...>"

# Line, text of the line, and the conformer that begins there or why there is none.
Found = tuple[int, str, "Conformer | str"]


@dataclass(frozen=True)
class Conformer:
    """A molecule with its coordinates."""

    line: int  # where it begins in its file, from 1
    molecule: Molecule | None  # None where the file holds no bonds (XYZ), so that its text is unknown
    positions: tuple[Position, ...]  # (x, y, z) in Angstrom per heavy atom, in the order of the text


@dataclass(frozen=True)
class Conformers:
    """At least one conformer, and the skipped lines."""

    source: str
    conformers: tuple[Conformer, ...]
    skipped: tuple[Skipped, ...]


@cache
def reference_conformers() -> tuple[tuple[str, tuple[Position, ...]], ...]:
    """Return canonical SMILES and positions (Angstrom, centred, along the principal axes) of packaged molecules.

    RDKit's ETKDGv3 made them with seed 0. They are stored with twelve decimals, since another release of RDKit may make
    others, which would change what is fitted to them. Raises RunError where the list is missing from the installation.
    """
    try:
        lines = resources.files(__package__).joinpath("conformers.txt").read_text().splitlines()
    except OSError as problem:
        raise RunError("the built-in conformers are missing from this installation", "reinstall molprof") from problem
    pairs = (line.split("\t") for line in lines)
    return tuple((smiles, tuple(map(position_of, DEFAULT.triple.finditer(text)))) for smiles, text in pairs)


def built_in_conformers(count: int | None = None) -> Conformers:
    """Return packaged conformers of the first `count` built-in molecules (None: all)."""
    pairs = enumerate(reference_conformers()[:count], start=1)
    conformers = tuple(Conformer(line, split_atoms(smiles), positions) for line, (smiles, positions) in pairs)
    return Conformers("ETKDG conformers of the built-in molecules", conformers, ())


def holds_texts(path: Path) -> bool:
    """Return True if the file has one text per line, by its ending."""
    return path.suffix.lower() not in _READERS


def read_conformers(path: Path, count: int | None = None, form: TextFormat = DEFAULT) -> Conformers:
    """Return the first `count` conformers of a file (None: all), coordinates unchanged, without hydrogens.

    The suffix decides: SDF, XYZ, or lines of enriched text. Raises UsageError where the file cannot be read, holds no
    conformer, or is SDF or XYZ and RDKit is missing.
    """
    if path.suffix.lower() in _READERS:
        require_rdkit(f"reading {path}")
    lines = read_text(path, _FORMATS).splitlines()
    conformers: list[Conformer] = []
    skipped: list[Skipped] = []
    for line, text, item in _READERS.get(path.suffix.lower(), partial(_texts, form))(lines):
        if isinstance(item, Conformer):
            conformers.append(item)
        else:
            skipped.append(Skipped(line, text[:_SHOWN_CHARACTERS], item))
        if len(conformers) == count:
            break
    if not conformers:
        why = f"; line {skipped[0].line}: {skipped[0].problem}" if skipped else ""
        raise UsageError(f"{path}: no conformer{why}", hint=_FORMATS)
    return Conformers(str(path), tuple(conformers), tuple(skipped))


def atoms_in_order(mol: Chem.Mol) -> tuple[Molecule, tuple[Position, ...]] | None:
    """Return a molecule's text and its positions in the text's order; None if the SMILES lacks atoms."""
    from rdkit import Chem

    prompt = split_atoms(Chem.MolToSmiles(mol))
    order = list(mol.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"])
    return (prompt, _positions(mol, order)) if len(order) == len(prompt.atoms) else None


def bond_errors(smiles: str, positions: Sequence[Position | None], reference: Sequence[Position]) -> list[float | None]:
    """Return absolute differences of bond lengths in Angstrom, one per bond between heavy atoms.

    Both lists follow the atoms of `smiles`. None where an atom has no generated position; all None where `positions`
    has another number of atoms than the molecule.
    """
    from rdkit import Chem

    mol = Chem.MolFromSmiles(smiles)
    bonds = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in mol.GetBonds()]
    if not len(positions) == len(reference) == mol.GetNumAtoms():
        return [None] * len(bonds)
    return [
        None
        if (first := positions[a]) is None or (second := positions[b]) is None
        else abs(math.dist(first, second) - math.dist(reference[a], reference[b]))
        for a, b in bonds
    ]


def _positions(mol: Chem.Mol, atoms: list[int]) -> tuple[Position, ...]:
    rows = mol.GetConformer().GetPositions()[atoms]
    return tuple((float(x), float(y), float(z)) for x, y, z in rows)


def _texts(form: TextFormat, lines: list[str]) -> Iterator[Found]:
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            yield number, text, _of_text(form, number, text)


def _of_text(form: TextFormat, line: int, text: str) -> Conformer | str:
    # Training data has the prompt and the tags around the text.
    before = ".*?".join(map(re.escape, form.prompt_of("\0").strip().split("\0"))) + r"\s*"
    opening, closing = (re.escape(tag.strip()) for tag in (form.opening, form.closing))
    heads = (before + opening, before + r"(?=\[)", opening, "")
    matches = (re.fullmatch(f"{head}(.*?)(?:{closing})?", text) for head in heads)
    framed = next(filter(None, matches), None)
    assert framed is not None  # the last one takes any text
    body = framed.group(1)
    pieces: list[str] = []
    atoms: list[str] = []
    positions: list[Position] = []
    end = 0
    while match := form.atom_block.match(body, end):
        piece, atom, inside = match.groups()
        numbers = form.triple.fullmatch(inside)
        if numbers is None:
            shown = f"{form.block_open}{inside[:_SHOWN_CHARACTERS]}{form.block_close}"
            return f"block {len(atoms) + 1} is not three decimal numbers: {shown}"
        pieces.append(piece)
        atoms.append(atom)
        positions.append(position_of(numbers))
        end = match.end()
    rest = body[end:]
    if not atoms or re.fullmatch(form.between, rest) is None:
        return f"character {framed.start(1) + end + 1}: expected an atom in brackets with a coordinate block after it"
    bare = "".join(piece + atom for piece, atom in zip(pieces, atoms, strict=True)) + rest
    return Conformer(line, Molecule(bare, tuple(atoms), (*pieces, rest)), tuple(positions))


def _sdf(lines: list[str]) -> Iterator[Found]:
    start = 0
    while any(line.strip() for line in lines[start:]):
        ends = (index for index in range(start, len(lines)) if lines[index].startswith("$$$$"))
        end = next(ends, len(lines))
        yield start + 1, lines[start].strip(), _of_molecule(start + 1, "\n".join(lines[start:end]) + "\n")
        start = end + 1


def _of_molecule(line: int, block: str) -> Conformer | str:
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        mol = Chem.MolFromMolBlock(block, removeHs=True)
    if mol is None:
        return "RDKit cannot read the record"
    if mol.GetNumAtoms() == 0:
        return "the record has no atoms"
    if not mol.GetNumConformers() or not mol.GetConformer().Is3D():
        return "the record has no 3D coordinates"
    atoms = atoms_in_order(mol)
    return "its SMILES does not name every atom of the record" if atoms is None else Conformer(line, *atoms)


def _xyz(lines: list[str]) -> Iterator[Found]:
    start = 0
    while start < len(lines):
        head = lines[start].strip()
        if not head:
            start += 1
            continue
        if not head.isdigit():
            yield start + 1, head, "expected the number of atoms that begins a frame; nothing after it was read"
            return
        end = start + 2 + int(head)
        yield start + 1, head, _of_frame(start + 1, lines[start:end], int(head))
        start = end


def _of_frame(line: int, frame: list[str], atoms: int) -> Conformer | str:
    if len(frame) < atoms + 2:
        return f"the frame ends after {max(0, len(frame) - 2)} of {atoms} atoms"
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        mol = Chem.MolFromXYZBlock("\n".join(frame) + "\n")
    if mol is None:
        return "RDKit cannot read the frame"
    heavy = [atom.GetIdx() for atom in mol.GetAtoms() if atom.GetAtomicNum() != 1]
    return Conformer(line, None, _positions(mol, heavy)) if heavy else "the frame has no heavy atoms"


_READERS = {".sdf": _sdf, ".sd": _sdf, ".mol": _sdf, ".xyz": _xyz}
