"""A trained compact model, packed into a preset's checkpoint, read back as it is, and scored."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from molprof.common.files import replacing
from molprof.common.text_format import DEFAULT
from molprof.profiler.models.architecture import ARCHITECTURES, build_empty, config
from molprof.profiler.models.checkpoint import METADATA, OUTPUT, Header, fill, read_header
from molprof.profiler.models.widening import EMBEDDING
from molprof.profiler.molecules.conformers import bond_errors
from molprof.profiler.molecules.kinds import check
from molprof.profiler.molecules.smiles import Molecule, read_positions
from training.corpus import Sample

# A plausible bond differs from its length in the ETKDG conformer by at most this (Angstrom).
BOND_TOLERANCE = 0.3


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


def save(
    path: Path, model: PreTrainedModel, vocabulary: CompactVocabulary, preset: str, record: dict[str, Any]
) -> None:
    """Write a trained compact model as float16, with what expanding it requires.

    The model has tied embeddings, and its config's eos and pad are compact ids; `record` is for JSON.
    """
    if vocabulary.full_size != ARCHITECTURES[preset].logits_width:
        raise ValueError(f"{vocabulary.full_size} columns; {preset} has {ARCHITECTURES[preset].logits_width}")
    tensors = {
        name: tensor.detach().to("cpu", torch.float16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != OUTPUT  # tied to the embedding
    }
    if tensors[EMBEDDING].shape[0] != vocabulary.rows:
        raise ValueError(f"{tensors[EMBEDDING].shape[0]} embedding rows for {vocabulary.rows} compact ids")
    eos, pad = vocabulary.ids[model.config.eos_token_id], vocabulary.ids[model.config.pad_token_id]
    header = Header(preset, vocabulary.ids, eos, pad, record)
    with replacing(path) as part:
        save_file(tensors, str(part), metadata={"format": "pt", METADATA: json.dumps(asdict(header))})


def load_compact(path: Path) -> tuple[PreTrainedModel, Header]:
    """Return the compact model, float32 on the CPU: compact id i is `header.ids[i]`, the last one all other tokens.

    It generates what the full model does with less work, but its probabilities lack the raised logit.
    """
    header = read_header(path)
    eos, pad = header.ids.index(header.eos), header.ids.index(header.pad)
    own = ARCHITECTURES[header.preset]
    model = build_empty(config(own, len(header.ids) + 1, eos, pad), torch.float32, torch.device("cpu"))
    fill(model, path, header, None, own.shape, lambda layer, layers: None)
    return model, header


@dataclass(frozen=True)
class Score:
    """Figures over the held-out molecules."""

    molecules: int
    valid: int  # molecules whose generated graph is the prompt's, with three numbers per atom
    valid_first_64: int  # of the first 64, which `profiler/molecules/molecules.smi` lists
    bonds: int  # of the valid molecules
    plausible_bonds: int  # within `BOND_TOLERANCE` of the reference length
    median_bond_error: float  # median absolute difference to the reference length, in Angstrom


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
    """Return what the compact model writes for each molecule, greedily, the end token left out.

    The shared row's logit is not raised: the row then stands for one unused token.
    """
    generate: Any = model.generate
    table = vocabulary.table()
    eos, pad = int(table[tokenizer.eos_token_id]), int(table[tokenizer.pad_token_id])
    full = [*vocabulary.ids, tokenizer.pad_token_id]
    texts: list[str] = []
    for start in range(0, len(molecules), batch):
        smiles = [molecule.smiles for molecule in molecules[start : start + batch]]
        prompts = [tokenizer(DEFAULT.prompt_of(text))["input_ids"] for text in smiles]
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
