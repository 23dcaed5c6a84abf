"""`placeholder`: `vectorized` with the placeholder that fits the tokenizer, chosen from real coordinates.

The placeholder has as few tokens as hold every coordinate of the packaged conformers. Since real coordinates differ in
length, junk gets rarer but does not end.
"""

from __future__ import annotations

from molprof.profiler.models.target import Target
from molprof.profiler.molecules.conformers import reference_conformers
from molprof.profiler.molecules.placeholders import best_placeholder
from molprof.profiler.processors.vectorized import Vectorized


class Placeholder(Vectorized):
    """`vectorized` with a fitted placeholder."""

    name = "placeholder"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        coordinates = [position for _, positions in reference_conformers() for position in positions]
        best = best_placeholder(target.tokenizer, coordinates)
        self.placeholder = best.text
        self.parameters |= {
            "placeholder_tokens": best.tokens,
            "fitted_to_coordinates": best.coordinates,
            "mean_drift_tokens": round(best.mean_drift_tokens, 3),
        }
