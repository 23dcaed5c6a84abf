"""How good generated coordinates are: bond lengths against those of a reference conformer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rdkit import Chem

from molprof.profiler.molecules.smiles import Position


def bond_errors(smiles: str, positions: Sequence[Position | None], reference: Sequence[Position]) -> list[float | None]:
    """Absolute differences of bond lengths in Angstrom, one per bond between heavy atoms.

    None where an atom has no position; all None where `positions` has another number of atoms than the molecule.

    Args:
        smiles: the molecule, whose atoms both lists follow.
        positions: as generated.
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
