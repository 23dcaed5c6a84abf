"""The packaged checkpoints: what the presets have learned, and what `molprof presets` says of them."""

from __future__ import annotations

import math

import pytest
import torch

from molprof.analysis.render import render
from molprof.common.settings import CaptureSettings
from molprof.profiler.models.architecture import ARCHITECTURES
from molprof.profiler.models.checkpoint import checkpoint_path, load_preset
from molprof.profiler.models.tokenizers import preset_tokenizer
from molprof.profiler.molecules.kinds import check
from molprof.profiler.molecules.prompts import read_prompts
from molprof.profiler.presets import presets_document
from molprof.profiler.project import Project
from training.checkpoint import CompactVocabulary, generate_texts, load_compact

BOTH = pytest.mark.parametrize("preset", ARCHITECTURES)


@BOTH
def test_held_out_molecules_are_written_without_constraint(preset: str) -> None:
    model, header = load_compact(checkpoint_path(preset))
    tokenizer = preset_tokenizer(preset)
    vocabulary = CompactVocabulary(header.ids, ARCHITECTURES[preset].logits_width)
    prompts = read_prompts(None, 16).prompts
    molecules = [prompt.molecule for prompt in prompts if prompt.molecule is not None]
    assert len(molecules) == 16
    texts = generate_texts(model, vocabulary, tokenizer, molecules, batch=16)
    assert sum(check(text, own) is None for text, own in zip(texts, molecules, strict=True)) >= 13  # 80 %


@BOTH
def test_the_full_model_is_the_compact_one(preset: str) -> None:
    """Log-probabilities of the occurring tokens: the full softmax against the compact one with its raised logit."""
    compact, header = load_compact(checkpoint_path(preset))
    full = load_preset(CaptureSettings(preset), torch.float32, torch.device("cpu"))
    width = ARCHITECTURES[preset].logits_width
    assert full.config.vocab_size == width
    ids = torch.tensor([[0, 5, 9, 11]])
    with torch.no_grad():
        small = compact(input_ids=ids).logits[0, -1]
        large = full(input_ids=torch.tensor(header.ids)[ids]).logits[0, -1]
    raised = torch.zeros_like(small)
    raised[-1] = math.log(width - len(header.ids))
    torch.testing.assert_close(
        large.log_softmax(-1)[torch.tensor(header.ids)], (small + raised).log_softmax(-1)[:-1], atol=1e-4, rtol=1e-4
    )


@BOTH
def test_the_record_tells_the_training_and_the_score(preset: str) -> None:
    _, header = load_compact(checkpoint_path(preset))
    score = header.record["held_out"]
    assert header.record["settings"]["preset"] == preset
    assert 0.8 * score["molecules"] <= score["valid"] <= score["molecules"]
    assert f"{score['valid']} of {score['molecules']} held-out molecules valid" in render(presets_document(Project()))
