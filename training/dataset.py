"""The training set on disk: JSON lines of SMILES and positions."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

from rdkit import rdBase

from molprof.common.files import replacing
from molprof.profiler.molecules.smiles import molecule
from training.corpus import Sample, conformer, molecules


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
    """The samples of a file that `build` wrote."""
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
