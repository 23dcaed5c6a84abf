"""Sizes of the presets: the named ones are the real models', any other that cannot be is refused with its reason."""

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

NUMBERS = "use 0.6b or numbers, such as layers=8,hidden=512: layers, hidden, heads, kv_heads, head_dim, mlp, tied"
ANY = "use a larger size, or --weights random for any size"
REFUSED = [
    ("gpt", "0.6b", "size '0.6b': the model 'gpt' cannot be resized", "sizes are for the presets: qwen, llama"),
    ("qwen", "7b", "no size '7b' of 'qwen'", NUMBERS),
    ("qwen", "", "no size '' of 'qwen'", NUMBERS),
    ("qwen", "layers=5,layers=6", "size 'layers=5,layers=6' gives layers twice", NUMBERS),
    ("qwen", "layers=-5", "size 'layers=-5': cannot use 'layers=-5'", NUMBERS),
    ("qwen", "layers=0", "size 'layers=0': cannot use 'layers=0'", NUMBERS),
    ("qwen", "layers=10000000000", "size 'layers=10000000000': cannot use 'layers=10000000000'", NUMBERS),
    ("qwen", "layers=\u0665", "size 'layers=\u0665': cannot use 'layers=\u0665'", NUMBERS),
    ("qwen", "depth=5", "size 'depth=5': cannot use 'depth=5'", NUMBERS),
    ("qwen", "tied=1", "size 'tied=1': cannot use 'tied=1'", NUMBERS),
    ("qwen", "layers=3", "size 'layers=3': the trained model has layers 4, more than 3", ANY),
    ("qwen", "hidden=191", "size 'hidden=191': the trained model has hidden 192, more than 191", ANY),
    ("qwen", "mlp=511", "size 'mlp=511': the trained model has mlp 512, more than 511", ANY),
    (
        "qwen",
        "head_dim=80",
        "size 'head_dim=80': head_dim 80 is not a multiple of the trained 32, so that the rotary frequencies differ",
        ANY,
    ),
    (
        "qwen",
        "heads=4,kv_heads=4",
        "size 'heads=4,kv_heads=4': the 6 trained heads in 3 groups require 6 key-value heads that serve 1 each, not 4",
        ANY,
    ),
    (
        "qwen",
        "heads=5",
        "size 'heads=5': 5 heads cannot share 3 key-value heads evenly",
        "make heads a multiple of kv_heads",
    ),
    (
        "qwen",
        "head_dim=33",
        "size 'head_dim=33': rotary embedding requires pairs, but head_dim is 33",
        "use an even head_dim",
    ),
    (
        "llama",
        "hidden=200",
        "size 'hidden=200': transformers' LLaMA requires hidden 200 to be a multiple of heads 6",
        "use for example hidden=204",
    ),
]


@pytest.mark.parametrize(
    ("preset", "size", "message", "hint"), REFUSED, ids=[f"{item[0]}-{item[1]}" for item in REFUSED]
)
def test_refused(preset: str, size: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        sized(preset, size)
    assert (str(caught.value), caught.value.hint) == (message, hint)


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
