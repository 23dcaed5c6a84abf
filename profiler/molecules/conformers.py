"""The coordinates that come with molprof: an ETKDG conformer of each packaged molecule."""

from __future__ import annotations

from functools import cache
from importlib import resources

from molprof.common.errors import RunError
from molprof.profiler.molecules.placeholders import Position
from molprof.profiler.molecules.smiles import parse_positions


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
