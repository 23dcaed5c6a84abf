"""How well a tiny model has learned: greedy generation of held-out molecules without constraint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from molprof.profiler.molecules.conformers import bond_errors
from molprof.profiler.molecules.kinds import check
from molprof.profiler.molecules.smiles import Molecule, read_positions
from molprof.profiler.molecules.template import prompt_text
from training.corpus import Sample
from training.encode import CompactVocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

# A plausible bond differs from its length in the ETKDG conformer by at most this (Angstrom).
BOND_TOLERANCE = 0.3


@dataclass(frozen=True)
class Score:
    """Figures over the held-out molecules.

    Attributes:
        valid: molecules whose generated graph is the prompt's, with three numbers per atom.
        valid_first_64: of the first 64, which `profiler/molecules/molecules.smi` lists.
        bonds: bonds of the valid molecules.
        plausible_bonds: bonds within `BOND_TOLERANCE` of the reference length.
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
        for error in bond_errors(sample.molecule.smiles, read_positions(text), sample.positions)
        if error is not None
    )
    return Score(
        molecules=len(held),
        valid=sum(correct),
        valid_first_64=sum(correct[:64]),
        bonds=len(errors),
        plausible_bonds=sum(error <= BOND_TOLERANCE for error in errors),
        median_bond_error=round(errors[len(errors) // 2], 4) if errors else math.nan,
    )


def generate_texts(
    model: PreTrainedModel,
    vocabulary: CompactVocabulary,
    tokenizer: PreTrainedTokenizerFast,
    molecules: Sequence[Molecule],
    batch: int = 32,
) -> list[str]:
    """What the compact model writes for each molecule, greedily, the end token left out.

    The shared row's logit is not raised: the row then stands for one unused token.
    """
    generate: Any = model.generate
    table = vocabulary.table()
    eos, pad = int(table[tokenizer.eos_token_id]), int(table[tokenizer.pad_token_id])
    full = [*vocabulary.ids, tokenizer.pad_token_id]
    texts: list[str] = []
    for start in range(0, len(molecules), batch):
        smiles = [molecule.smiles for molecule in molecules[start : start + batch]]
        prompts = [tokenizer(prompt_text(text))["input_ids"] for text in smiles]
        width = max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(row)) + [int(table[index]) for index in row] for row in prompts])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
        with torch.inference_mode():
            out = generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=450,
                do_sample=False,
                eos_token_id=eos,
                pad_token_id=pad,
            )
        for row in out[:, width:].tolist():
            text = str(tokenizer.decode([full[index] for index in row]))
            texts.append(text.split(str(tokenizer.eos_token))[0])
    return texts
