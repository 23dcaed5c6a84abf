"""Building the templates of a batch: by several threads, and each molecule only once if it is asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from molprof.profiler.molecules.smiles import Molecule
from molprof.profiler.molecules.template import Template, build_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MOST_THREADS = 8


def default_threads() -> int:
    """`SLURM_CPUS_PER_TASK`, else half the cores and one more; at most 8."""
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    wanted = int(given) if given.isdigit() and int(given) > 0 else (os.cpu_count() or 1) // 2 + 1
    return min(wanted, MOST_THREADS)


@dataclass
class Templates:
    """Builds templates.

    Attributes:
        threads: how many build at once.
        cache: keep what was built until `clear`, so that a molecule that comes again costs nothing.
    """

    tokenizer: PreTrainedTokenizerFast
    placeholder: str
    threads: int = 1
    cache: bool = False
    _kept: dict[str, Template] = field(default_factory=dict)

    def build(self, molecules: Sequence[Molecule]) -> list[Template]:
        """One template per molecule, in their order."""
        if not self.cache:
            return self._build(molecules)
        new = {molecule.smiles: molecule for molecule in molecules if molecule.smiles not in self._kept}
        self._kept.update(zip(new, self._build(list(new.values())), strict=True))
        return [self._kept[molecule.smiles] for molecule in molecules]

    def clear(self) -> None:
        """Forgets what was built: a pass that is timed pays for its own templates."""
        self._kept.clear()

    def _build(self, molecules: Sequence[Molecule]) -> list[Template]:
        if self.threads == 1 or len(molecules) < 2:
            return [self._one(molecule) for molecule in molecules]
        # A tokenizer's padding is a setting of its own, changed by the first call that wants another: while other
        # threads use the tokenizer, that call would fail.
        self.tokenizer("", add_special_tokens=False)
        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(self._one, molecules))

    def _one(self, molecule: Molecule) -> Template:
        return build_template(molecule, self.tokenizer, self.placeholder)
