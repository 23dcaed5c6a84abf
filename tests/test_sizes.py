"""Named sizes of the presets are the real models' sizes; impossible ones are refused with the reason."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from molprof.common.errors import UsageError
from molprof.common.settings import RANDOM, TRAINED, CaptureSettings
from molprof.profiler.models.architecture import (
    ARCHITECTURES,
    NAMED,
    Shape,
    build,
    check_preset,
    config,
    key_value_heads,
    sized,
)


def test_random_weights_need_not_hold_the_trained_ones() -> None:
    wide = sized("qwen", "layers=1,hidden=64,heads=2,kv_heads=1,head_dim=20,mlp=8", RANDOM)
    assert wide.shape == Shape(layers=1, hidden=64, heads=2, kv_heads=1, head_dim=20, mlp=8)
    with pytest.raises(UsageError, match="5 heads cannot share 3"):
        sized("qwen", "heads=5", RANDOM)


@pytest.mark.parametrize(
    ("preset", "size", "parameters"), [("qwen", "0.6b", 596_049_920), ("llama", "380m", 383_026_176)]
)
def test_named_sizes(preset: str, size: str, parameters: int) -> None:
    """Qwen3-0.6B's published number of parameters, tied embeddings once."""
    wide = sized(preset, size.upper())
    with torch.device("meta"):
        model = build(config(wide, wide.logits_width, 1, 0))
    assert model.num_parameters() == parameters
    assert list(NAMED[preset]) == [size]


def test_numbers_left_out_are_the_presets_own() -> None:
    own = ARCHITECTURES["llama"]
    assert sized("llama", " layers = 8 , tied=no") == dataclasses.replace(
        own, shape=dataclasses.replace(own.shape, layers=8), tied=False
    )
    assert sized("llama", "tied=yes") == own


def test_key_value_heads() -> None:
    narrow = Shape(layers=1, hidden=8, heads=6, kv_heads=2, head_dim=2, mlp=8)
    wide = {served: dataclasses.replace(narrow, heads=12 * served, kv_heads=12) for served in (1, 2, 3, 4)}
    assert {served: key_value_heads(narrow, shape) for served, shape in wide.items()} == {1: 6, 2: 4, 3: 2, 4: 2}


def test_settings_check_sizes_before_any_work() -> None:
    assert CaptureSettings("qwen").weights == TRAINED
    with pytest.raises(UsageError, match="no size '7b' of 'qwen'"):
        check_preset(CaptureSettings("qwen", size="7b"))
    with pytest.raises(UsageError, match="no weights 'good'"):
        CaptureSettings("qwen", weights="good")
    with pytest.raises(UsageError, match=r"the model './m' has weights of its own"):
        check_preset(CaptureSettings("./m", weights=RANDOM))
    check_preset(CaptureSettings("qwen", size="layers=1", weights=RANDOM))
