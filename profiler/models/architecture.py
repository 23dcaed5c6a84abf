"""The presets' architectures: Qwen3 and LLaMA classes of transformers, tiny or at any other size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from molprof.common.errors import RunError, UsageError
from molprof.common.memory import available_bytes

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder; `heads * head_dim` need not equal `hidden`."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int


@dataclass(frozen=True)
class Architecture:
    """A model family at one size."""

    family: str  # `qwen` or `llama`
    shape: Shape
    logits_width: int  # columns of the logits, padding to a multiple of 128 included, as published
    rope_theta: float = 10_000.0
    context: int = 2048  # tokens
    tied: bool = True  # the output layer is the embedding


_TINY = Shape(layers=4, hidden=192, heads=6, kv_heads=6, head_dim=32, mlp=512)
ARCHITECTURES = {
    # Logits widths: Qwen/Qwen3-0.6B and meta-llama/Meta-Llama-3-8B, config.json `vocab_size`.
    "qwen": Architecture("qwen", replace(_TINY, kv_heads=3), logits_width=151_936),
    "llama": Architecture("llama", _TINY, logits_width=128_256),
}

ACCEPTED = f"use a preset ({', '.join(ARCHITECTURES)}), a folder, or a model hub id"


def check_folder(what: str, name: str | None) -> None:
    """Check, before a job waits in a queue for it, that the name of a `model` or `tokenizer` is a folder if it must."""
    if name is not None and name.startswith(("/", ".", "~")) and not Path(name).is_dir():
        raise UsageError(f"no folder {name} to load the {what} from", hint=ACCEPTED)


def config(architecture: Architecture, vocabulary: int, eos: int, pad: int) -> PretrainedConfig:
    """The transformers configuration with `vocabulary` rows of embeddings."""
    from transformers import LlamaConfig, Qwen3Config

    shape = architecture.shape
    settings: PretrainedConfig = {"qwen": Qwen3Config, "llama": LlamaConfig}[architecture.family](
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=architecture.context,
        rope_parameters={"rope_type": "default", "rope_theta": architecture.rope_theta},
        tie_word_embeddings=architecture.tied,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    return settings


def build(settings: PretrainedConfig) -> PreTrainedModel:
    """A model with fresh weights."""
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_config(settings)
    return model


def build_empty(settings: PretrainedConfig, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """A model in evaluation mode whose weights are allocated and not set. Raises RunError where memory is too small."""
    import torch
    from transformers import AutoModelForCausalLM

    # Even empty, a million layers take long to make: so check first.
    _check_memory(_matrix_elements(settings), dtype, device)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(settings, dtype=dtype)
    _check_memory(model.num_parameters(), dtype, device)
    model.to_empty(device=device)
    model.tie_weights()
    # No checkpoint holds the rotary frequencies. They stay float32: in bfloat16 their angles are off by radians at the
    # end of a long answer.
    with device:
        model.model.rotary_emb = type(model.model.rotary_emb)(settings)
    model.eval()
    return model


def _matrix_elements(settings: PretrainedConfig) -> int:
    """Parameters without norms and biases, tied ones once."""
    heads = settings.num_attention_heads + settings.num_key_value_heads
    layer = settings.hidden_size * (2 * heads * settings.head_dim + 3 * settings.intermediate_size)
    embeddings = settings.vocab_size * settings.hidden_size * (1 if settings.tie_word_embeddings else 2)
    return int(settings.num_hidden_layers * layer + embeddings)


def _check_memory(parameters: int, dtype: torch.dtype, device: torch.device) -> None:
    import torch

    needed = parameters * dtype.itemsize
    available = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    if available is not None and needed > available:
        raise RunError(
            f"the model's {parameters / 1e6:,.0f} M parameters need {needed / 1e9:,.1f} GB as {dtype}; "
            f"{device} has {available / 1e9:,.1f} GB free",
            hint="use a smaller --size, or --dtype bfloat16",
        )
