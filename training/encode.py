"""Training examples: prompt and enriched text as compact token ids, with a loss weight for each."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rdkit import Chem

from molprof.profiler.molecules.smiles import split_atoms
from molprof.profiler.molecules.template import conformer_text, free_flags, prompt_text
from training.corpus import Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# The skeleton must be copied exactly, coordinates may be off by a few tenths of an Angstrom, and the prompt need not be
# predicted.
COPY_WEIGHT, FREE_WEIGHT, PROMPT_WEIGHT = 4.0, 1.0, 0.2


@dataclass(frozen=True)
class Example:
    """Compact token ids (int64, length T), and the loss weight of each as a target (float32, T)."""

    ids: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class CompactVocabulary:
    """The tokens that occur, and one shared row for all others."""

    ids: tuple[int, ...]  # sorted full-vocabulary ids; compact id i is `ids[i]`, compact id len(ids) all others
    full_size: int  # columns of the full logits

    @property
    def rows(self) -> int:
        return len(self.ids) + 1

    def table(self) -> np.ndarray:
        """Full id -> compact id, int64 of length `full_size`."""
        table = np.full(self.full_size, len(self.ids), dtype=np.int64)
        table[list(self.ids)] = np.arange(len(self.ids))
        return table


def occurring(tokenizer: PreTrainedTokenizerFast, samples: Iterable[Sample], full_size: int) -> CompactVocabulary:
    """The tokens that the samples need, plus every number of up to three digits that is one token."""
    used: set[int] = set(tokenizer.get_added_vocab().values())
    vocabulary = tokenizer.get_vocab()
    used |= {index for text, index in vocabulary.items() if text.isascii() and text.isdigit()}
    for sample in samples:
        for decimals in (1, 4):
            text = prompt_text(sample.molecule.smiles) + conformer_text(sample.conformer(decimals))
            used.update(tokenizer(text, add_special_tokens=False)["input_ids"])
    return CompactVocabulary(tuple(sorted(used)), full_size)


def example(
    sample: Sample, tokenizer: PreTrainedTokenizerFast, table: np.ndarray, decimals: int, rng: random.Random
) -> Example:
    """One training sequence. Half of them reorder the atoms, so that the model learns to copy."""
    if rng.random() < 0.5:
        sample = _reordered(sample, rng)
    prompt = prompt_text(sample.molecule.smiles)
    text = prompt + conformer_text(sample.conformer(decimals)) + str(tokenizer.eos_token)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    weights = np.where(free_flags(text, offsets), FREE_WEIGHT, COPY_WEIGHT).astype(np.float32)
    weights[[end <= len(prompt) for _, end in offsets]] = PROMPT_WEIGHT
    return Example(table[np.asarray(encoded["input_ids"])], weights)


def _reordered(sample: Sample, rng: random.Random) -> Sample:
    """The same molecule, its SMILES and positions in a random order of atoms."""
    mol = Chem.MolFromSmiles(sample.molecule.smiles)
    if mol.GetNumAtoms() != len(sample.positions):
        return sample  # RDKit dropped a bracketed hydrogen, so the rows no longer match
    shuffled = rng.sample(range(mol.GetNumAtoms()), mol.GetNumAtoms())
    mol = Chem.RenumberAtoms(mol, shuffled)
    text = Chem.MolToSmiles(mol, canonical=False)
    order = mol.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"]
    return Sample(split_atoms(text), tuple(sample.positions[shuffled[index]] for index in order))
