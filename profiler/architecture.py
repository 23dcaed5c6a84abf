"""The presets' model architectures: real Qwen3 and LLaMA classes of transformers, at a tiny size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from molprof.errors import UsageError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder; `heads * head_dim` need not equal `hidden` (Qwen3 sets them apart)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int


@dataclass(frozen=True)
class Architecture:
    """A model family at one size.

    Attributes:
        family: `qwen` or `llama`; decides the transformers classes.
        shape: the sizes.
        logits_width: columns of the logits, padding to a multiple of 128 included, as published.
        rope_theta: base of the rotary frequencies.
        context: longest sequence in tokens.
    """

    family: str
    shape: Shape
    logits_width: int
    rope_theta: float = 10_000.0
    context: int = 2048


TINY_GROUPED = Shape(layers=4, hidden=192, heads=6, kv_heads=3, head_dim=32, mlp=512)
TINY = Shape(layers=4, hidden=192, heads=6, kv_heads=6, head_dim=32, mlp=512)

ARCHITECTURES = {
    # Logits widths: Qwen/Qwen3-0.6B and meta-llama/Meta-Llama-3-8B, config.json `vocab_size`.
    "qwen": Architecture("qwen", TINY_GROUPED, logits_width=151_936),
    "llama": Architecture("llama", TINY, logits_width=128_256),
}


def config(architecture: Architecture, vocabulary: int, eos: int, pad: int) -> PretrainedConfig:
    """The transformers configuration with `vocabulary` rows of tied embeddings."""
    from transformers import LlamaConfig, Qwen3Config

    shape = architecture.shape
    classes = {"qwen": Qwen3Config, "llama": LlamaConfig}
    if architecture.family not in classes:
        raise UsageError(f"no model family {architecture.family!r}", hint=f"use one of: {', '.join(classes)}")
    settings: PretrainedConfig = classes[architecture.family](
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=architecture.context,
        rope_parameters={"rope_type": "default", "rope_theta": architecture.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    return settings


def build(settings: PretrainedConfig) -> PreTrainedModel:
    """A model of that configuration with fresh weights."""
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_config(settings)
    return model
