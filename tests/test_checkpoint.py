"""Compact checkpoints: the expanded model is exactly the trained one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tiny import SHAPE
from transformers import PreTrainedModel

from molprof.common.errors import RunError
from molprof.common.settings import CaptureSettings
from molprof.profiler.models import checkpoint
from molprof.profiler.models.architecture import Architecture, build, config
from molprof.profiler.models.checkpoint import load_preset, read_header
from training.checkpoint import CompactVocabulary, save

IDS = (2, 3, 5, 7, 11, 13, 900)
FULL_SIZE = 1024


@pytest.fixture(params=["qwen", "llama"])
def family(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A family whose full vocabulary is small."""
    name = str(request.param)
    monkeypatch.setitem(checkpoint.ARCHITECTURES, name, Architecture(name, SHAPE, FULL_SIZE))
    return name


def compact(family: str) -> tuple[PreTrainedModel, CompactVocabulary]:
    torch.manual_seed(3)
    vocabulary = CompactVocabulary(IDS, FULL_SIZE)
    model = build(config(checkpoint.ARCHITECTURES[family], vocabulary.rows, eos=5, pad=6)).eval()
    # float16, as the file holds them, so that both sides compute with the same weights.
    return model.half().float(), vocabulary


def test_expanded_distribution_is_the_compact_one_with_the_raised_row(family: str, tmp_path: Path) -> None:
    model, vocabulary = compact(family)
    path = tmp_path / "model.safetensors"
    save(path, model, vocabulary, family, {"steps": 7})
    full = load_preset(CaptureSettings(family), torch.float32, torch.device("cpu"), path=path)
    tokens = torch.tensor([[0, 3, 2, 6, 1, 4]])
    with torch.no_grad():
        small = model(input_ids=tokens).logits
        wide = full(input_ids=torch.tensor(IDS)[tokens]).logits
    assert wide.shape == (1, 6, FULL_SIZE)
    small[..., -1] += math.log(FULL_SIZE - len(IDS))
    expected = small.log_softmax(-1)
    got = wide.log_softmax(-1)
    torch.testing.assert_close(got[..., list(IDS)], expected[..., :-1])
    # Every unused token has its equal share of the last row's probability.
    unused = sorted(set(range(FULL_SIZE)) - set(IDS))
    torch.testing.assert_close(
        got[..., unused], (expected[..., -1:] - math.log(FULL_SIZE - len(IDS))).expand(1, 6, len(unused))
    )


def test_full_model_ends_and_pads_by_full_ids(family: str, tmp_path: Path) -> None:
    model, vocabulary = compact(family)
    path = tmp_path / "model.safetensors"
    save(path, model, vocabulary, family, {"steps": 7})
    full = load_preset(CaptureSettings(family, attention="eager"), torch.bfloat16, torch.device("cpu"), path=path)
    assert (full.config.eos_token_id, full.config.pad_token_id, full.config.vocab_size) == (13, 900, FULL_SIZE)
    assert full.get_output_embeddings().weight.data_ptr() == full.get_input_embeddings().weight.data_ptr()
    assert (full.dtype, full.config._attn_implementation, full.training) == (torch.bfloat16, "eager", False)
    header = read_header(path)
    assert (header.preset, header.ids, header.eos, header.pad) == (family, IDS, 13, 900)
    assert header.record == {"steps": 7}


def test_saving_the_wrong_vocabulary_is_refused(family: str, tmp_path: Path) -> None:
    model, _ = compact(family)
    with pytest.raises(ValueError, match="8 embedding rows for 5 compact ids"):
        save(tmp_path / "x", model, CompactVocabulary((2, 3, 5, 900), FULL_SIZE), family, {})
    with pytest.raises(ValueError, match="77 columns"):
        save(tmp_path / "x", model, CompactVocabulary(IDS, 77), family, {})
    assert list(tmp_path.iterdir()) == []


def test_missing_damaged_and_foreign_files(tmp_path: Path, family: str) -> None:
    cpu = torch.device("cpu")
    path = tmp_path / "model.safetensors"
    with pytest.raises(RunError, match="is missing"):
        load_preset(CaptureSettings(family), torch.float32, cpu, path=path)
    path.write_bytes(b"\x00" * 40)
    with pytest.raises(RunError, match="is not a molprof checkpoint"):
        load_preset(CaptureSettings(family), torch.float32, cpu, path=path)
    model, vocabulary = compact(family)
    save(path, model, vocabulary, family, {})
    other = {"qwen": "llama", "llama": "qwen"}[family]
    with pytest.raises(RunError, match=f"holds the preset '{family}', not '{other}'"):
        load_preset(CaptureSettings(other), torch.float32, cpu, path=path)
