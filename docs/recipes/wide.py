"""`wide`: `vectorized` with a placeholder that has room for a minus and two digits in every number."""

from __future__ import annotations

from molprof.profiler.constraints.vectorized import Vectorized
from molprof.profiler.models.target import ProcessorTarget


class Wide(Vectorized):
    """`vectorized` with a wide placeholder, which cuts no number and leaves most positions to filler."""

    name = "wide"

    def __init__(self, target: ProcessorTarget) -> None:
        super().__init__(target)
        self.placeholder = "-00.0000,-00.0000,-00.0000"
