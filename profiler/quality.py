"""How good generated coordinates are: bond lengths against those of a reference conformer."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rdkit import Chem

Position = tuple[float, float, float]

_BLOCK = re.compile(r"<([^<>]*)>")
_NUMBER = r"(-?[0-9]+\.[0-9]+)"
_TRIPLE = re.compile(",".join([_NUMBER] * 3))


def read_positions(text: str) -> list[Position] | None:
    """The positions of an enriched text in Angstrom, one per block, junk after them left out; None where a block
    does not begin with three decimals."""
    positions = []
    for match in _BLOCK.finditer(text):
        triple = _TRIPLE.match(match.group(1))
        if triple is None:
            return None
        x, y, z = map(float, triple.groups())
        positions.append((x, y, z))
    return positions


def bond_errors(smiles: str, positions: Sequence[Position] | None, reference: Sequence[Position]) -> list[float]:
    """Absolute differences of bond lengths in Angstrom, one per bond between heavy atoms.

    Args:
        smiles: the molecule, whose atoms both lists follow.
        positions: as generated; None or another number of them gives no errors.
    """
    mol = Chem.MolFromSmiles(smiles)
    if positions is None or not len(positions) == len(reference) == mol.GetNumAtoms():
        return []
    errors = []
    for bond in mol.GetBonds():
        a, b = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        errors.append(abs(math.dist(positions[a], positions[b]) - math.dist(reference[a], reference[b])))
    return errors
