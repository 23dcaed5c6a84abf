"""How well a tiny model has learned: greedy generation for held-out molecules, without any constraint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from molprof.profiler.molecules.conformers import Sample
from molprof.profiler.molecules.kinds import check
from molprof.profiler.molecules.quality import bond_errors
from molprof.profiler.molecules.smiles import Molecule, parse_positions
from molprof.profiler.molecules.template import prompt_text
from training.encode import CompactVocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

# A generated bond counts as plausible when it is this close (Angstrom) to the length in the ETKDG conformer.
BOND_TOLERANCE = 0.3


@dataclass(frozen=True)
class Score:
    """Figures over the held-out molecules.

    Attributes:
        molecules: how many were generated.
        valid: whose generated graph is the prompt's, with three numbers per atom.
        valid_first_64: the same over the first 64, which `profiler/molecules/molecules.smi` lists.
        bonds: bonds of the valid molecules.
        plausible_bonds: those within `BOND_TOLERANCE` of the reference length.
        median_bond_error: median absolute difference to the reference length, in Angstrom.
    """

    molecules: int
    valid: int
    valid_first_64: int
    bonds: int
    plausible_bonds: int
    median_bond_error: float


def evaluate(
    model: PreTrainedModel,
    vocabulary: CompactVocabulary,
    tokenizer: PreTrainedTokenizerFast,
    held: Sequence[Sample],
) -> Score:
    """Greedy generation of every held-out molecule by the compact model."""
    texts = generate_texts(model, vocabulary, tokenizer, [sample.molecule for sample in held])
    correct = [check(text, sample.molecule) is None for text, sample in zip(texts, held, strict=True)]
    errors = sorted(
        error
        for text, sample, good in zip(texts, held, correct, strict=True)
        if good
        for error in _bond_errors(text, sample)
    )
    return Score(
        molecules=len(held),
        valid=sum(correct),
        valid_first_64=sum(correct[:64]),
        bonds=len(errors),
        plausible_bonds=sum(error <= BOND_TOLERANCE for error in errors),
        median_bond_error=round(errors[len(errors) // 2], 4) if errors else math.nan,
    )


def count_valid(
    model: PreTrainedModel,
    vocabulary: CompactVocabulary,
    tokenizer: PreTrainedTokenizerFast,
    molecules: Sequence[Molecule],
) -> int:
    """How many molecules the compact model writes validly, greedily and without constraint."""
    texts = generate_texts(model, vocabulary, tokenizer, molecules)
    return sum(check(text, molecule) is None for text, molecule in zip(texts, molecules, strict=True))


def generate_texts(
    model: PreTrainedModel,
    vocabulary: CompactVocabulary,
    tokenizer: PreTrainedTokenizerFast,
    molecules: Sequence[Molecule],
    batch: int = 32,
) -> list[str]:
    """What the compact model writes for each molecule, greedily.

    The shared row is left as it is: it stands for one unused token, and greedy search would need that one to win.
    """
    texts: list[str] = []
    for start in range(0, len(molecules), batch):
        texts.extend(_generate_batch(model, vocabulary, tokenizer, molecules[start : start + batch]))
    return texts


def _generate_batch(
    model: PreTrainedModel,
    vocabulary: CompactVocabulary,
    tokenizer: PreTrainedTokenizerFast,
    molecules: Sequence[Molecule],
) -> list[str]:
    table = vocabulary.table()
    eos, pad = int(table[tokenizer.eos_token_id]), int(table[tokenizer.pad_token_id])
    prompts = [tokenizer(prompt_text(molecule.smiles))["input_ids"] for molecule in molecules]
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(row)) + [int(table[index]) for index in row] for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    with torch.inference_mode():
        generate: Any = model.generate
        out = generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=450,
            do_sample=False,
            eos_token_id=eos,
            pad_token_id=pad,
        )
    full = [*vocabulary.ids, tokenizer.pad_token_id]
    texts = []
    for row in out[:, width:].tolist():
        text = str(tokenizer.decode([full[index] for index in row]))
        texts.append(text.split(str(tokenizer.eos_token))[0])
    return texts


def _bond_errors(text: str, sample: Sample) -> list[float]:
    """Absolute bond-length differences in Angstrom; the generated skeleton keeps the prompt's atom order."""
    errors = bond_errors(sample.molecule.smiles, parse_positions(text) or [], sample.positions)
    return [error for error in errors if error is not None]
