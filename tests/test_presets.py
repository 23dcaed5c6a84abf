"""The packaged checkpoints have learned their task, and `molprof presets` lists them."""

from __future__ import annotations

import pytest

from molprof.analysis.render import render
from molprof.profiler.models.architecture import ARCHITECTURES
from molprof.profiler.models.checkpoint import checkpoint_path
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
    prompts = read_prompts(None, 8).prompts
    molecules = [prompt.molecule for prompt in prompts if prompt.molecule is not None]
    assert len(molecules) == 8
    texts = generate_texts(model, vocabulary, tokenizer, molecules, batch=8)
    assert sum(check(text, own) is None for text, own in zip(texts, molecules, strict=True)) >= 6  # nearly 80 %


@BOTH
def test_the_record_tells_the_training_and_the_score(preset: str) -> None:
    _, header = load_compact(checkpoint_path(preset))
    score = header.record["held_out"]
    assert header.record["settings"]["preset"] == preset
    assert 0.8 * score["molecules"] <= score["valid"] <= score["molecules"]
    assert f"{score['valid']} of {score['molecules']} held-out molecules valid" in render(presets_document(Project()))
