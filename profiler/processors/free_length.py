"""What `grammar` and `truncate` share: coordinates as long as the model writes them, between fixed texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from molprof.profiler.models.target import Target
from molprof.profiler.molecules.smiles import COORDINATE_DECIMALS
from molprof.profiler.molecules.template import PLACEHOLDER, Template
from molprof.profiler.processors.automaton import Chain, Coordinate, check_vocabulary, compile_tables
from molprof.profiler.processors.automaton_batch import AutomatonBatch, kernels_per_step
from molprof.profiler.processors.base import BatchProcessor

WHOLE_DIGITS = 3


class FreeLength(ABC):
    """One automaton per molecule: a chain of fixed texts with a coordinate between each two.

    A coordinate is three numbers: an optional minus, one to three digits, a point, one to four digits.

    Raises:
        UsageError: the vocabulary joins a digit with a mark of a coordinate.
    """

    name: str
    placeholder = PLACEHOLDER
    needs_templates = True
    fixed_length = False

    def __init__(self, target: Target) -> None:
        check_vocabulary(self.name, target)
        self._target = target
        self._coordinate = self.coordinate()
        self.parameters: dict[str, Any] = {
            "whole_digits": WHOLE_DIGITS,
            "decimals": COORDINATE_DECIMALS,
            "coordinate_states": len(self._coordinate.edges),
            "kernels_per_step": kernels_per_step(target),
        }

    @abstractmethod
    def coordinate(self) -> Coordinate:
        """The automaton of one coordinate, for the target's vocabulary."""

    @abstractmethod
    def chain(self, template: Template) -> Chain:
        """The token paths before, between and after a molecule's coordinates."""

    def longest(self, template: Template) -> int:
        """Most tokens of an answer, end token included."""
        return self.chain(template).longest(self._coordinate)

    def start(self, templates: Sequence[Template], prompt_width: int) -> BatchProcessor:
        """See `Processor`."""
        chains = [self.chain(template) for template in templates]
        return AutomatonBatch(compile_tables(self._coordinate, chains, self._target), prompt_width, self._target)
