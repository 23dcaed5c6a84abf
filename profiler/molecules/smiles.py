"""SMILES to the enriched skeleton and back: every atom in brackets, each followed by a coordinate block."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from molprof.common.errors import MissingExtraError, UsageError
from molprof.common.text import shortened
from molprof.common.text_format import DEFAULT, TextFormat

if TYPE_CHECKING:
    from rdkit import Chem

# Bracket atoms first, then two-letter organic atoms, so that 'Cl' is never read as 'C' + 'l'.
_ATOM = re.compile(r"\[[^\[\]]+\]|Br|Cl|[BCNOPSFIbcnops*]")
# An element that SMILES allows without brackets; '[C]' in a conformer stands for such a bare atom.
_BARE = re.compile(r"\[(Br|Cl|[BCNOPSFIbcnops])\]")

COORDINATE_DECIMALS = 4
Position = tuple[float, float, float]


@dataclass(frozen=True)
class Molecule:
    """One molecule, cut into its atoms and the texts between them."""

    smiles: str  # canonical, without hydrogens
    atoms: tuple[str, ...]  # in brackets, in the order of `smiles`: heavy ones, and hydrogens that RDKit keeps
    pieces: tuple[str, ...]  # bonds, ring digits, parentheses and dots before each atom, and after the last one

    def skeleton(self, blocks: str | Sequence[str], form: TextFormat = DEFAULT) -> str:
        """Return the enriched text with a coordinate block after every atom: one text for all, or one per atom."""
        texts = [blocks] * len(self.atoms) if isinstance(blocks, str) else list(blocks)
        if len(texts) != len(self.atoms):
            raise ValueError(f"{len(texts)} coordinate blocks for {len(self.atoms)} atoms")
        begin, end = form.block_open, form.block_close
        atoms = zip(self.pieces, self.atoms, texts, strict=False)  # one more piece, after the last atom
        parts = (f"{piece}{atom}{begin}{text}{end}" for piece, atom, text in atoms)
        return "".join(parts) + self.pieces[-1]


def require_rdkit(purpose: str) -> None:
    """Import RDKit, which recording the built-in molecules does without.

    Raises MissingExtraError where it is not installed.
    """
    try:
        import rdkit.Chem  # noqa: F401
    except ImportError as problem:
        raise MissingExtraError("rdkit", "rdkit", purpose) from problem


def canonical(smiles: str) -> str:
    """Return canonical SMILES with hydrogens removed.

    Raises UsageError where RDKit cannot read `smiles`, or it has no atoms.
    """
    from rdkit import Chem

    mol = _read(smiles)
    if mol is None:
        raise UsageError(f"RDKit cannot read the SMILES {shortened(smiles)!r}")
    if mol.GetNumAtoms() == 0:
        raise UsageError(f"the SMILES {shortened(smiles)!r} has no atoms")
    return str(Chem.MolToSmiles(Chem.RemoveHs(mol)))


def molecule(smiles: str) -> Molecule:
    """Return the molecule of a SMILES in canonical form; errors as for `canonical`."""
    return split_atoms(canonical(smiles))


def split_atoms(text: str) -> Molecule:
    """Return the molecule of a valid SMILES, its text unchanged."""
    atoms, pieces, end = [], [], 0
    for match in _ATOM.finditer(text):
        pieces.append(text[end : match.start()])
        atom, end = match.group(), match.end()
        if not atom.startswith("["):
            atom = f"[{atom}]"
        elif _BARE.fullmatch(atom):
            # A carbene carbon gets a charge of zero, which RDKit reads as the same atom: '[C]' means a bare one.
            atom = f"[{atom[1:-1]}+0]"
        atoms.append(atom)
    pieces.append(text[end:])
    return Molecule(text, tuple(atoms), tuple(pieces))


def smiles_of_conformer(text: str, form: TextFormat = DEFAULT) -> str | None:
    """Return the canonical SMILES of an enriched text, coordinates dropped; None if it is not a molecule."""
    from rdkit import Chem

    mol = _read(_BARE.sub(r"\1", form.without_blocks(text)))
    if mol is None or mol.GetNumAtoms() == 0:
        return None
    return str(Chem.MolToSmiles(mol))


def _read(smiles: str) -> Chem.Mol | None:
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():  # molprof reports unreadable molecules itself
        return Chem.MolFromSmiles(smiles)


def read_positions(text: str) -> list[Position | None]:
    """Return positions in an enriched text in Angstrom, one per block, junk after them dropped.

    None for a block that does not begin with three decimal numbers.
    """
    matches = (DEFAULT.triple.match(text[start:end]) for start, end in DEFAULT.spans(text))
    return [None if match is None else position_of(match) for match in matches]


def position_of(triple: re.Match[str]) -> Position:
    """Return the three numbers that `TextFormat.triple` matched."""
    return float(triple[1]), float(triple[2]), float(triple[3])


def coordinate(value: float, decimals: int = COORDINATE_DECIMALS) -> str:
    """Return one coordinate in Angstrom as text: cut to `decimals`, without trailing zeros but one decimal.

    >>> coordinate(-1.23456), coordinate(0.5), coordinate(2.0), coordinate(-0.00001)
    ('-1.2345', '0.5', '2.0', '0.0')
    """
    return truncated(f"{Decimal(repr(float(value))):f}", decimals)  # str() would write a small one as 1.2E-7


def truncated(number: str, decimals: int) -> str:
    """Return a decimal number, of any length, in the format of `coordinate`."""
    whole, _, fraction = number.lstrip("-").partition(".")
    value = f"{whole.lstrip('0') or '0'}.{fraction[:decimals].rstrip('0') or '0'}"
    return f"-{value}" if number.startswith("-") and value != "0.0" else value


def block(position: Iterable[float], decimals: int = COORDINATE_DECIMALS, form: TextFormat = DEFAULT) -> str:
    """Return the text inside a coordinate block for one atom's position (x, y, z in Angstrom)."""
    return form.separator.join(coordinate(value, decimals) for value in position)
