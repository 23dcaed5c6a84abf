"""Position templates: the tokens of an answer that the prompt fixes (COPY), and the FREE ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from molprof.common.text_format import DEFAULT, TextFormat
from molprof.profiler.molecules.smiles import Molecule

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PLACEHOLDER = "0.0000,0.0000,0.0000"
MOST_THREADS = 8


@dataclass(frozen=True)
class Template:
    """The skeleton of one molecule, tokenized into L tokens."""

    text: str  # opening tag, the skeleton with a placeholder per coordinate, closing tag
    ids: np.ndarray  # int64 (L,)
    free: np.ndarray  # True where a position is FREE, bool (L,)
    blocks: np.ndarray  # coordinate block of each FREE position from 0, -1 at COPY positions, int64 (L,)

    @property
    def free_per_block(self) -> np.ndarray:
        """FREE positions of each block, int64 of length `blocks.max() + 1`."""
        return np.bincount(self.blocks[self.free])


def build_template(
    molecule: Molecule,
    tokenizer: PreTrainedTokenizerFast,
    placeholder: str = PLACEHOLDER,
    form: TextFormat = DEFAULT,
) -> Template:
    """Return the template of a molecule; the placeholder is written as `form` separates numbers."""
    text = form.answer_of(molecule.skeleton(placeholder, form))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    free = free_flags(text, offsets, form)
    starts = np.asarray([start for start, _ in form.spans(text)])
    begins = np.asarray([begin for begin, _ in offsets])
    blocks = np.where(free, np.searchsorted(starts, begins, side="right") - 1, -1)
    return Template(text, np.asarray(encoded["input_ids"], dtype=np.int64), free, blocks)


def free_flags(text: str, offsets: Sequence[tuple[int, int]], form: TextFormat = DEFAULT) -> np.ndarray:
    """Return True for each token inside a coordinate block, bool of length `len(offsets)`."""
    inside = np.zeros(len(text) + 1, dtype=np.int64)
    for start, end in form.spans(text):
        inside[start:end] = 1
    before = np.concatenate(([0], np.cumsum(inside)))
    begins, ends = np.asarray(offsets).reshape(-1, 2).T
    free: np.ndarray = (before[ends] - before[begins] == ends - begins) & (ends > begins)
    return free


def default_threads() -> int:
    """Return `SLURM_CPUS_PER_TASK`, else half the cores plus one; at most 8."""
    cpus = os.environ.get("SLURM_CPUS_PER_TASK", "")
    wanted = int(cpus) if cpus.isdigit() and int(cpus) > 0 else (os.cpu_count() or 1) // 2 + 1
    return min(wanted, MOST_THREADS)


@dataclass
class Templates:
    """Builds the templates of batches."""

    tokenizer: PreTrainedTokenizerFast
    placeholder: str
    threads: int = 1
    cache: bool = False  # keep templates until `clear`, so that each molecule is built once
    form: TextFormat = DEFAULT
    _kept: dict[str, Template] = field(default_factory=dict)

    def build(self, molecules: Sequence[Molecule]) -> list[Template]:
        """Return one template per molecule, in their order."""
        if not self.cache:
            return self._build(molecules)
        new = {molecule.smiles: molecule for molecule in molecules if molecule.smiles not in self._kept}
        self._kept.update(zip(new, self._build(list(new.values())), strict=True))
        return [self._kept[molecule.smiles] for molecule in molecules]

    def clear(self) -> None:
        """Drop the kept templates, so that a timed pass builds its own."""
        self._kept.clear()

    def _build(self, molecules: Sequence[Molecule]) -> list[Template]:
        one = partial(build_template, tokenizer=self.tokenizer, placeholder=self.placeholder, form=self.form)
        if self.threads == 1 or len(molecules) < 2:
            return list(map(one, molecules))
        # The first call may change the tokenizer's padding, which fails while other threads use the tokenizer.
        self.tokenizer("", add_special_tokens=False)
        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(one, molecules))
