"""Real coordinates: the packaged ETKDG conformers, and those of a file (SDF, XYZ, enriched text)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from rdkit import Chem

from molprof.common.errors import RunError, UsageError
from molprof.common.manifest import Skipped
from molprof.profiler.molecules.smiles import Molecule, block, parse_positions, quiet, split_atoms

# The prompt and the tags may stand around the text, as in training data.
_LINE = re.compile(r"(?:\[SMILES\].*?\[/SMILES\])?(?:\[CONFORMER\])?(.*?)(?:\[/CONFORMER\])?")
_ATOM_BLOCK = re.compile(r"([^\[\]<>]*)(\[[^\[\]<>]+\])<([^<>]*)>")
_DECIMAL = re.compile(r"-?[0-9]+\.[0-9]+")
_SHOWN_CHARACTERS = 60
_FORMATS = "SDF (.sdf, .mol), XYZ (.xyz), or one text per line: [C]<1.0,2.0,3.0>=[O]<...>"

Position = tuple[float, float, float]
Found = tuple[int, str, "Conformer | str"]


@dataclass(frozen=True)
class Sample:
    """A molecule with one conformer.

    Attributes:
        molecule: the prompt molecule.
        positions: (x, y, z) in Angstrom per atom, in the order of `molecule.atoms`; centred, principal axes
            along x, y, z.
    """

    molecule: Molecule
    positions: tuple[tuple[float, float, float], ...]

    def conformer(self, decimals: int = 4) -> str:
        """The enriched text that a model has to write."""
        return self.molecule.skeleton([block(position, decimals) for position in self.positions])


@dataclass(frozen=True)
class Conformer:
    """One molecule's coordinates.

    Attributes:
        line: where it begins in its file, from 1.
        molecule: None where the file holds no bonds (XYZ), so that its text is not known.
        positions: (x, y, z) in Angstrom per heavy atom, in the order of the text.
    """

    line: int
    molecule: Molecule | None
    positions: tuple[Position, ...]


@dataclass(frozen=True)
class Conformers:
    """What was read: at least one conformer, and what gave none."""

    source: str
    conformers: tuple[Conformer, ...]
    skipped: tuple[Skipped, ...]


def sample_of(mol: Chem.Mol) -> Sample | None:
    """A molecule's text and positions, both in the order of its SMILES; None where that leaves atoms out."""
    text = Chem.MolToSmiles(mol)
    order = list(mol.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"])
    prompt = split_atoms(text)
    if len(order) != len(prompt.atoms):
        return None
    rows = mol.GetConformer().GetPositions()[order]
    return Sample(prompt, tuple((float(x), float(y), float(z)) for x, y, z in rows))


@cache
def reference_conformers() -> tuple[tuple[str, tuple[Position, ...]], ...]:
    """Canonical SMILES, and (x, y, z) per atom in Angstrom, in its order: centred, along the principal axes.

    They are kept as RDKit's ETKDGv3 made them with seed 0, with twelve decimals: another release may make others, and
    what is fitted to them must not change with it.

    Raises:
        RunError: the list is missing from the installation.
    """
    try:
        lines = resources.files(__package__).joinpath("conformers.txt").read_text().splitlines()
    except OSError as problem:
        raise RunError("the built-in conformers are missing from this installation", "reinstall molprof") from problem
    found = []
    for line in lines:
        smiles, text = line.split("\t")
        positions = parse_positions(text)
        assert positions is not None
        found.append((smiles, tuple(positions)))
    return tuple(found)


def built_in_conformers(count: int | None = None) -> Conformers:
    """The packaged ETKDG conformers of the first `count` built-in molecules (None: all)."""
    packaged = reference_conformers()[:count]
    found = (
        Conformer(line, split_atoms(smiles), positions) for line, (smiles, positions) in enumerate(packaged, start=1)
    )
    return Conformers("ETKDG conformers of the built-in molecules", tuple(found), ())


def read_conformers(path: Path, count: int | None = None) -> Conformers:
    """The first `count` conformers of a file (None: all); by its suffix SDF, XYZ, or lines of enriched text.

    Coordinates are taken as they stand, neither centred nor turned. Hydrogens are left out, as the format does.

    Raises:
        UsageError: the file cannot be read, or holds no conformer.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror or problem}", hint=_FORMATS) from problem
    except UnicodeDecodeError as problem:
        raise UsageError(f"{path} is not UTF-8 text: {problem.reason} at byte {problem.start}", _FORMATS) from problem
    readers = {".sdf": _sdf, ".sd": _sdf, ".mol": _sdf, ".xyz": _xyz}
    return _collected(str(path), readers.get(path.suffix.lower(), _texts)(lines), count)


def _collected(source: str, found: Iterable[Found], count: int | None) -> Conformers:
    conformers: list[Conformer] = []
    skipped: list[Skipped] = []
    for line, text, item in found:
        if isinstance(item, Conformer):
            conformers.append(item)
        else:
            skipped.append(Skipped(line, text[:_SHOWN_CHARACTERS], item))
        if len(conformers) == count:
            break
    if not conformers:
        why = f"; line {skipped[0].line}: {skipped[0].problem}" if skipped else ""
        raise UsageError(f"{source}: no conformer{why}", hint=_FORMATS)
    return Conformers(source, tuple(conformers), tuple(skipped))


def _texts(lines: list[str]) -> Iterator[Found]:
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            yield number, text, _of_text(number, text)


def _of_text(line: int, text: str) -> Conformer | str:
    framed = _LINE.fullmatch(text)
    assert framed is not None  # every part may be absent
    body = framed.group(1)
    pieces: list[str] = []
    atoms: list[str] = []
    positions: list[Position] = []
    end = 0
    while match := _ATOM_BLOCK.match(body, end):
        numbers = match.group(3).split(",")
        if len(numbers) != 3 or not all(map(_DECIMAL.fullmatch, numbers)):
            return f"block {len(atoms) + 1} is not three decimal numbers: <{match.group(3)[:_SHOWN_CHARACTERS]}>"
        pieces.append(match.group(1))
        atoms.append(match.group(2))
        x, y, z = map(float, numbers)
        positions.append((x, y, z))
        end = match.end()
    rest = body[end:]
    if not atoms or re.search(r"[\[\]<>]", rest):
        return f"character {framed.start(1) + end + 1}: not an atom in brackets with a coordinate block behind it"
    bare = "".join(piece + atom for piece, atom in zip(pieces, atoms, strict=True)) + rest
    return Conformer(line, Molecule(bare, tuple(atoms), (*pieces, rest)), tuple(positions))


def _sdf(lines: list[str]) -> Iterator[Found]:
    start = 0
    while any(line.strip() for line in lines[start:]):
        ends = (place for place in range(start, len(lines)) if lines[place].startswith("$$$$"))
        end = next(ends, len(lines))
        yield start + 1, lines[start].strip(), _of_molecule(start + 1, "\n".join(lines[start:end]) + "\n")
        start = end + 1


def _of_molecule(line: int, block: str) -> Conformer | str:
    with quiet():
        mol = Chem.MolFromMolBlock(block, removeHs=True)
    if mol is None:
        return "RDKit cannot read the record"
    if mol.GetNumAtoms() == 0:
        return "the record has no atoms"
    if not mol.GetNumConformers() or not mol.GetConformer().Is3D():
        return "the record has no 3D coordinates"
    sample = sample_of(mol)
    if sample is None:
        return "its SMILES does not name every atom of the record"
    return Conformer(line, sample.molecule, sample.positions)


def _xyz(lines: list[str]) -> Iterator[Found]:
    start = 0
    while start < len(lines):
        head = lines[start].strip()
        if not head:
            start += 1
            continue
        if not head.isdigit():
            yield start + 1, head, "expected a number of atoms, which begins a frame; nothing behind it was read"
            return
        end = start + 2 + int(head)
        yield start + 1, head, _of_frame(start + 1, lines[start:end], int(head))
        start = end


def _of_frame(line: int, frame: list[str], atoms: int) -> Conformer | str:
    if len(frame) < atoms + 2:
        return f"the frame ends after {max(0, len(frame) - 2)} of {atoms} atoms"
    with quiet():
        mol = Chem.MolFromXYZBlock("\n".join(frame) + "\n")
    if mol is None:
        return "RDKit cannot read the frame"
    heavy = [atom.GetIdx() for atom in mol.GetAtoms() if atom.GetAtomicNum() != 1]
    if not heavy:
        return "the frame has no heavy atoms"
    rows = mol.GetConformer().GetPositions()[heavy]
    return Conformer(line, None, tuple((float(x), float(y), float(z)) for x, y, z in rows))
