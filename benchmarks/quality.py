"""What logits processors do to the coordinates: bond lengths of texts against those of an ETKDG conformer.

Intervals are of 95 %, molecules drawn 2,000 times with replacement.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence

from molprof.common.errors import TraceError
from molprof.profiler.molecules.conformers import bond_errors, reference_conformers
from molprof.profiler.molecules.smiles import read_positions

# The others write what one of these writes.
PROCESSORS = ("none", "generic", "qwen", "placeholder", "truncate", "grammar")
DRAWS = 2000
# A bond that is off by more than this is another bond, or none.
BROKEN_ANGSTROM = 0.3
HEADINGS = (
    "processor", "bonds that can be measured", "median error, Å (95 %)", "off by more than 0.3 Å",
    "error minus that of no processor, Å (95 %)", "the same, cut numbers read as they are", "off by more than 0.3 Å",
)  # fmt: skip

# Errors of one molecule's bonds; None where a position is missing.
Errors = list[float | None]


def rows(smiles: Sequence[str], texts: Mapping[str, list[str]]) -> list[tuple[str, ...]]:
    """A row per processor; `texts`: one per molecule, by processor."""
    references = dict(reference_conformers())
    if unknown := [item for item in smiles if item not in references]:
        raise TraceError(f"no reference conformer of {unknown[0]!r}: it is no built-in molecule")

    def errors(name: str, cut: bool) -> list[Errors]:
        pairs = zip(smiles, texts[name], strict=True)
        return [bond_errors(own, read_positions(text, cut), references[own]) for own, text in pairs]

    base = errors("none", False)
    made = []
    for name in texts:
        if name not in PROCESSORS:
            continue
        strict, lenient = errors(name, False), errors(name, True)
        made.append(
            (
                name,
                f"{len(measured(strict)) / sum(map(len, strict)):.1%}",
                interval(strict, statistics.median),
                broken(strict),
                "-" if name == "none" else paired(strict, base),
                interval(lenient, statistics.median),
                broken(lenient),
            )
        )
    return made


def measured(sample: Sequence[Errors]) -> list[float]:
    return [error for item in sample for error in item if error is not None]


def broken(sample: Sequence[Errors]) -> str:
    found = measured(sample)
    return f"{sum(error > BROKEN_ANGSTROM for error in found) / len(found):.1%}" if found else "-"


def paired(own: Sequence[Errors], base: Sequence[Errors]) -> str:
    """Mean difference over the bonds that both have, so that a processor which loses the hard ones gains nothing."""
    both: list[Errors] = [
        [mine - other for mine, other in zip(one, two, strict=True) if mine is not None and other is not None]
        for one, two in zip(own, base, strict=True)
    ]
    return interval(both, statistics.fmean)


def interval(sample: Sequence[Errors], figure: Callable[[list[float]], float]) -> str:
    """The figure, and the middle 95 % of it over molecules drawn with replacement."""
    found = measured(sample)
    if not found:
        return "-"
    rng = random.Random(0)
    drawn = (measured(rng.choices(sample, k=len(sample))) for _ in range(DRAWS))
    draws = sorted(figure(item) for item in drawn if item)
    return f"{figure(found):.3f} ({draws[len(draws) // 40]:.3f} to {draws[-1 - len(draws) // 40]:.3f})"
