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
# As lenient as programs that read coordinates with float(): `0.`, and `-1`, where a number was cut short.
_CUT_NUMBER = r"(-?[0-9]+\.?[0-9]*)"
_CUT_TRIPLE = re.compile(",".join([_CUT_NUMBER] * 3))


def read_positions(text: str, cut: bool = False) -> list[Position | None]:
    """The positions of an enriched text in Angstrom, one per block, junk after them left out; None for a block that
    does not begin with three decimals.

    Args:
        cut: a number that ends at its point, or before, is read as far as it goes.
    """
    triple = _CUT_TRIPLE if cut else _TRIPLE
    positions: list[Position | None] = []
    for block in _BLOCK.finditer(text):
        found = triple.match(block.group(1))
        if found is None:
            positions.append(None)
        else:
            x, y, z = map(float, found.groups())
            positions.append((x, y, z))
    return positions


def bond_errors(smiles: str, positions: Sequence[Position | None], reference: Sequence[Position]) -> list[float | None]:
    """Absolute differences of bond lengths in Angstrom, one per bond between heavy atoms; None where one of its atoms
    has no position.

    Args:
        smiles: the molecule, whose atoms both lists follow.
        positions: as generated; of another number of atoms they belong to no molecule, and all are None.
    """
    mol = Chem.MolFromSmiles(smiles)
    bonds = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in mol.GetBonds()]
    if not len(positions) == len(reference) == mol.GetNumAtoms():
        return [None] * len(bonds)
    errors: list[float | None] = []
    for a, b in bonds:
        first, second = positions[a], positions[b]
        if first is None or second is None:
            errors.append(None)
        else:
            errors.append(abs(math.dist(first, second) - math.dist(reference[a], reference[b])))
    return errors
