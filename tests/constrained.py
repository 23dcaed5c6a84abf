"""Processors over the presets' vocabularies, without a model, and the tokens that they allow."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import table, tokenizer

from molprof.profiler.constraints import make_processor
from molprof.profiler.constraints.base import BatchProcessor, RowPositions, Rows
from molprof.profiler.constraints.engines import LLGuidance, XGrammar
from molprof.profiler.models.target import ProcessorTarget
from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.molecules.template import build_template

WIDTHS = {"qwen": 151_936, "llama": 128_256}
ENGINES = {"xgrammar": XGrammar, "llguidance": LLGuidance}


@functools.cache
def target(name: str) -> ProcessorTarget:
    text = tokenizer(name)
    return ProcessorTarget(text, table(name), WIDTHS[name], text.eos_token_id, text.pad_token_id, torch.device("cpu"))


@functools.cache
def made(name: str, processor: str) -> Any:
    if processor in ENGINES:
        pytest.importorskip(processor)
    return make_processor(processor, target(name))


def rows_of(this: Any, name: str, *smiles: str) -> Rows:
    templates = [build_template(molecule(text), tokenizer(name), this.placeholder) for text in smiles]
    return Rows([Prompt(1, "", text, molecule(text)) for text in smiles], 3, templates)


def answers(*rows: list[int]) -> torch.Tensor:
    return torch.tensor([[0, 0, 0, *row] for row in rows])


def allowed(batch: BatchProcessor, answer: torch.Tensor, width: int) -> list[set[int]]:
    out = batch(answer, torch.zeros(len(answer), width))
    return [set(row.isfinite().nonzero().flatten().tolist()) for row in out]


def places(rows: list[int], positions: list[int]) -> RowPositions:
    return RowPositions(tuple(rows), tuple(positions), torch.tensor(rows), torch.tensor(positions))


@functools.cache
def choices() -> Any:
    """The compiler of docs/recipes/choices.py."""
    scope: dict[str, Any] = {}
    exec((Path(__file__).parent.parent / "docs/recipes/choices.py").read_text(), scope)
    return scope["choices"]
