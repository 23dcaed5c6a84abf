"""A molecule with the coordinates of one conformer."""

from __future__ import annotations

from dataclasses import dataclass

from rdkit import Chem

from molprof.profiler.molecules.smiles import Molecule, block, split_atoms


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


def sample_of(mol: Chem.Mol) -> Sample | None:
    """A molecule's text and positions, both in the order of its SMILES; None where that leaves atoms out."""
    text = Chem.MolToSmiles(mol)
    order = list(mol.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"])
    prompt = split_atoms(text)
    if len(order) != len(prompt.atoms):
        return None
    rows = mol.GetConformer().GetPositions()[order]
    return Sample(prompt, tuple((float(x), float(y), float(z)) for x, y, z in rows))
