"""Training data: molecules by BRICS recombination and random edits, ETKDG conformers, and examples of their tokens."""

from __future__ import annotations

import json
import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import BRICS, rdDistGeom, rdMolTransforms

from molprof.common.errors import UsageError
from molprof.common.files import replacing
from molprof.common.text_format import DEFAULT
from molprof.profiler.molecules.conformers import atoms_in_order
from molprof.profiler.molecules.smiles import Molecule, Position, block, molecule, split_atoms
from molprof.profiler.molecules.template import free_flags

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Elements that a mutation may write, about as frequent as in drug-like molecules.
_ELEMENTS = (6, 6, 6, 6, 7, 7, 8, 8, 16, 9, 17, 35)
# Refused: peroxides, halogens on heteroatoms, cumulenes, sulfur with more than two bonds but no oxygen, three
# heteroatoms in a row, and the like.
_IMPLAUSIBLE = tuple(
    Chem.MolFromSmarts(text)
    for text in (
        "[O;X2,X1;!$(O~[N+,n+,S,P])]-[O,F,Cl,Br,I]",
        "[O,N;!$(N-S(=O)=O);!$(O-S(=O)=O)]-[S;X2,X3,X4;!$(S(=O)=O)]",
        "[N,S;!$(S(=O)=O)]-[F,Cl,Br,I]",
        "[S;X2]-[S,P,F,Cl,Br,I]",
        "*=[C,N,S;!+;X2]=*",
        "[SX3,SX4,SX5,SX6;!$(S=O)]",
        "[S;!X1]=[C,N]",
        "[SH1,SH2;X3,X4]",
        "[N,O;!+]-[N,O;!+;!R]-[N,O;!+]",
        "[PX5]=[C,N]",
        "[Si][!#6]",
        "[OX2H]-[CX4]-[OX2H,OX2,NX3,SX2]",
        "[NX3;H1,H2]-[CX4;!R]-[NX3,SX2,OX2]",
        "[OX2H,SX2H,NX3H2]-[CX3]=[CX3]",
        "[CX4;!$(C(F)F)]([F,Cl,Br,I])-[N,O,S]",
        "[CX3](=[O,N,S])-[F,Cl,Br,I]",
        "[CX3]=[NX2;H1]",
        "[CX3]=[SX1]",
        "C1=CC1",
        "[r3]=[*;r3]",
        "[r4]=[*;r4]",
        "[r5,r6,r7]#[*]",
    )
)
# The skeleton must be copied exactly, coordinates may be off by a few tenths of an Angstrom, and the prompt need not be
# predicted.
COPY_WEIGHT, FREE_WEIGHT, PROMPT_WEIGHT = 4.0, 1.0, 0.2
_BONDS = (Chem.BondType.SINGLE, Chem.BondType.SINGLE, Chem.BondType.SINGLE, Chem.BondType.DOUBLE)


@dataclass(frozen=True)
class Sample:
    """A molecule with one conformer."""

    molecule: Molecule
    # (x, y, z) in Angstrom per atom, in the order of `molecule.atoms`; centred, along the principal axes.
    positions: tuple[Position, ...]

    def conformer(self, decimals: int = 4) -> str:
        """Return the enriched text that a model has to write."""
        return self.molecule.skeleton([block(position, decimals) for position in self.positions])


def molecules(count: int, max_atoms: int, seed: int) -> Iterator[str]:
    """`count` different canonical SMILES of up to `max_atoms` heavy atoms."""
    rng = random.Random(seed)
    seeds = resources.files(__package__).joinpath("seeds.smi").read_text().splitlines()
    pool = [Chem.MolFromSmiles(line.split()[0]) for line in seeds if line.strip()]
    fragments = sorted({piece for mol in pool for piece in BRICS.BRICSDecompose(mol)})
    pieces = [Chem.MolFromSmiles(text) for text in fragments]
    small = [piece for piece in pieces if piece.GetNumHeavyAtoms() <= max_atoms]
    grown = [mol for mol in pool if mol.GetNumHeavyAtoms() <= max_atoms]
    done: set[str] = set()
    while count > 0:
        candidate = _recombine(rng, small) if rng.random() < 0.25 else grown[rng.randrange(len(grown))]
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            candidate = _mutate(rng, candidate) if candidate is not None else None
        if candidate is None or not 1 <= candidate.GetNumHeavyAtoms() <= max_atoms:
            continue
        text = Chem.MolToSmiles(candidate)
        again = Chem.MolFromSmiles(text)
        if again is None or "." in text or "*" in text or text in done:
            continue
        grown.append(again)
        text = Chem.MolToSmiles(again)
        if text in done:
            continue
        done.add(text)
        count -= 1
        yield text


def conformer(smiles: str, seed: int) -> Sample | None:
    """One ETKDGv3 conformer along its principal axes; None where embedding fails or the SMILES keeps hydrogens."""
    try:
        prompt = molecule(smiles)
    except UsageError:
        return None
    mol = Chem.MolFromSmiles(prompt.smiles)
    if mol is None:
        return None
    with_h = Chem.AddHs(mol)
    settings: Any = rdDistGeom.ETKDGv3()  # its type stub leaves the fields out
    settings.randomSeed = seed & 0x7FFFFFFF
    settings.maxIterations = 20
    if rdDistGeom.EmbedMolecule(with_h, settings) != 0:
        return None
    bare = Chem.RemoveHs(with_h)
    rdMolTransforms.CanonicalizeConformer(bare.GetConformer())
    found = atoms_in_order(bare)
    return Sample(*found) if found is not None and found[0].smiles == prompt.smiles else None


def _recombine(rng: random.Random, pieces: list[Chem.Mol]) -> Chem.Mol | None:
    """One random BRICS molecule from two or three fragments."""
    chosen = rng.sample(pieces, k=rng.choice((2, 2, 3)))
    built = BRICS.BRICSBuild(chosen, scrambleReagents=True, maxDepth=2)
    mol = next(iter(built), None)
    return None if mol is None else _sane(mol)


def _mutate(rng: random.Random, mol: Chem.Mol) -> Chem.Mol | None:
    """One random edit: swap an element, append an atom, drop a terminal atom, close a ring, or change a bond."""
    edit = Chem.RWMol(mol)
    Chem.Kekulize(edit, clearAromaticFlags=True)
    atoms = edit.GetNumAtoms()
    kind = rng.random()
    where = rng.randrange(atoms)
    if kind < 0.35:
        edit.GetAtomWithIdx(where).SetAtomicNum(rng.choice(_ELEMENTS))
    elif kind < 0.65:
        new = edit.AddAtom(Chem.Atom(rng.choice(_ELEMENTS)))
        edit.AddBond(where, new, rng.choice(_BONDS))
    elif kind < 0.8:
        ends = [atom.GetIdx() for atom in edit.GetAtoms() if atom.GetDegree() == 1]
        if not ends or atoms < 3:
            return None
        edit.RemoveAtom(rng.choice(ends))
    elif kind < 0.9 and atoms > 4:
        other = rng.randrange(atoms)
        path = Chem.GetShortestPath(edit, where, other) if where != other else ()
        if not 4 <= len(path) <= 7:
            return None
        edit.AddBond(where, other, Chem.BondType.SINGLE)
    elif edit.GetNumBonds():
        edit.GetBondWithIdx(rng.randrange(edit.GetNumBonds())).SetBondType(rng.choice(_BONDS))
    return _sane(edit)


def _sane(mol: Chem.Mol) -> Chem.Mol | None:
    """Return the molecule read again from its SMILES; None where the edit broke its chemistry."""
    for atom in mol.GetAtoms():
        if atom.GetNumRadicalElectrons():
            return None
    try:
        Chem.SanitizeMol(mol)
        read = Chem.MolFromSmiles(Chem.MolToSmiles(mol))
    except (Chem.MolSanitizeException, RuntimeError):
        return None
    if read is None or any(atom.GetNumRadicalElectrons() for atom in read.GetAtoms()):
        return None
    if any(read.HasSubstructMatch(pattern) for pattern in _IMPLAUSIBLE):
        return None
    return read


def build(path: Path, count: int, max_atoms: int, seed: int, workers: int) -> None:
    """Write about `count` different molecules with conformers; each worker has its own seed."""
    share = -(-count // workers)
    jobs = [(share, max_atoms, seed * 1000 + worker) for worker in range(workers)]
    seen: set[str] = set()
    pool = multiprocessing.get_context("spawn").Pool(workers)
    with replacing(path) as part, part.open("w") as out, pool:
        for rows in pool.imap_unordered(_shard, jobs):
            for smiles, positions in rows:
                if smiles not in seen:
                    seen.add(smiles)
                    out.write(json.dumps([smiles, positions]) + "\n")


def load(path: Path) -> list[Sample]:
    """Return the samples of a file that `build` wrote."""
    with path.open() as lines:
        rows = [json.loads(line) for line in lines]
    return [Sample(molecule(smiles), tuple(tuple(row) for row in positions)) for smiles, positions in rows]


def _shard(job: tuple[int, int, int]) -> list[tuple[str, list[list[float]]]]:
    count, max_atoms, seed = job
    rdBase.DisableLog("rdApp.*")  # ETKDG's notes on molecules that it cannot embed
    rows = []
    for smiles in molecules(count, max_atoms, seed):
        sample = conformer(smiles, seed)
        if sample is not None:
            rows.append((sample.molecule.smiles, [[round(x, 6) for x in row] for row in sample.positions]))
    return rows


@dataclass(frozen=True)
class Example:
    """Compact token ids (int64, length T), and the loss weight of each as a target (float32, T)."""

    ids: np.ndarray
    weights: np.ndarray


def example(
    sample: Sample, tokenizer: PreTrainedTokenizerFast, table: np.ndarray, decimals: int, rng: random.Random
) -> Example:
    """One training sequence. Half of them reorder the atoms, so that the model learns to copy."""
    if rng.random() < 0.5:
        sample = _reordered(sample, rng)
    prompt = DEFAULT.prompt_of(sample.molecule.smiles)
    text = prompt + DEFAULT.answer_of(sample.conformer(decimals)) + str(tokenizer.eos_token)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    weights = np.where(free_flags(text, offsets), FREE_WEIGHT, COPY_WEIGHT).astype(np.float32)
    weights[[end <= len(prompt) for _, end in offsets]] = PROMPT_WEIGHT
    return Example(table[np.asarray(encoded["input_ids"])], weights)


def _reordered(sample: Sample, rng: random.Random) -> Sample:
    """Return the same molecule, its SMILES and positions in a random order of atoms."""
    mol = Chem.MolFromSmiles(sample.molecule.smiles)
    if mol.GetNumAtoms() != len(sample.positions):
        return sample  # RDKit dropped a bracketed hydrogen, so the rows no longer match
    shuffled = rng.sample(range(mol.GetNumAtoms()), mol.GetNumAtoms())
    mol = Chem.RenumberAtoms(mol, shuffled)
    text = Chem.MolToSmiles(mol, canonical=False)
    order = mol.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"]
    return Sample(split_atoms(text), tuple(sample.positions[shuffled[index]] for index in order))
