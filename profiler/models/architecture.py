"""The presets' architectures: Qwen3 and LLaMA classes of transformers, tiny, at a real size, or at any other."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from molprof.common.errors import RunError, UsageError
from molprof.common.settings import RANDOM, TRAINED, CaptureSettings

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
NAMED = {
    # Qwen/Qwen3-0.6B, config.json.
    "qwen": {"0.6b": Shape(layers=28, hidden=1024, heads=16, kv_heads=8, head_dim=128, mlp=3072)},
    # Half the width of meta-llama/Llama-3.2-1B: 383 M parameters in its 16 layers.
    "llama": {"380m": Shape(layers=16, hidden=1024, heads=16, kv_heads=8, head_dim=64, mlp=4096)},
}
_NUMBERS = tuple(field.name for field in fields(Shape))
# A million layers are refused for their memory; more could not even be listed.
_DIGITS = 7
_TIED = {"yes": 1, "no": 0}


def check_folder(what: str, name: str | None) -> None:
    """Check that a `model` or `tokenizer` that must be a folder is one, before a job waits in a queue for it."""
    if name is not None and name.startswith(("/", ".", "~")) and not Path(name).is_dir():
        raise UsageError(f"no folder {name} to load the {what} from", hint=ACCEPTED)


def check_preset(settings: CaptureSettings) -> None:
    """Raise UsageError for a size or weights of a model that is not a preset: only those have them."""
    if settings.size is not None:
        sized(settings.model, settings.size, settings.weights)
    elif settings.weights != TRAINED and settings.model not in ARCHITECTURES:
        raise UsageError(
            f"weights {settings.weights!r}: the model {settings.model!r} has weights of its own",
            hint=f"random weights are for the presets: {', '.join(ARCHITECTURES)}",
        )


def sized(preset: str, size: str, weights: str = TRAINED) -> Architecture:
    """Return the preset's architecture at another size.

    Args:
        size: a name of `NAMED`, or numbers such as `layers=28,hidden=1024,heads=16,kv_heads=8,head_dim=128,mlp=3072`;
            others stay the preset's own. `tied=no` gives the output layer its own weights.
        weights: `trained` if the result must hold the trained model.
    """
    if preset not in ARCHITECTURES:
        raise UsageError(
            f"size {size!r}: the model {preset!r} cannot be resized",
            hint=f"sizes are for the presets: {', '.join(ARCHITECTURES)}",
        )
    architecture = ARCHITECTURES[preset]
    named = NAMED[preset].get(size.lower())
    wide = replace(architecture, shape=named) if named else _numbers(preset, architecture, size)
    if problem := _problem(architecture, wide, weights):
        raise UsageError(f"size {size!r}: {problem[0]}", hint=problem[1])
    return wide


def _numbers(preset: str, architecture: Architecture, size: str) -> Architecture:
    accepted = f"use {', '.join(NAMED[preset])} or numbers, such as layers=8,hidden=512: {', '.join(_NUMBERS)}, tied"
    numbers = {}
    for part in size.split(","):
        key, sign, value = (text.strip() for text in part.partition("="))
        if not sign:
            raise UsageError(f"no size {size!r} of {preset!r}", hint=accepted)
        if key in numbers:
            raise UsageError(f"size {size!r} gives {key} twice", hint=accepted)
        if key == "tied" and value in _TIED:
            numbers[key] = _TIED[value]
        elif key in _NUMBERS and value.isascii() and value.isdigit() and len(value) <= _DIGITS and int(value) > 0:
            numbers[key] = int(value)
        else:
            raise UsageError(f"size {size!r}: cannot use {part.strip()!r}", hint=accepted)
    tied = bool(numbers.pop("tied", True))
    return replace(architecture, shape=replace(architecture.shape, **numbers), tied=tied)


def key_value_heads(narrow: Shape, wide: Shape) -> int:
    """Key-value heads that `wide` requires to serve every query head of `narrow`.

    A narrow key-value head that serves more query heads than a wide one is repeated.
    """
    served, wide_served = narrow.heads // narrow.kv_heads, wide.heads // wide.kv_heads
    return narrow.kv_heads * -(-served // wide_served)


def _problem(architecture: Architecture, size: Architecture, weights: str) -> tuple[str, str] | None:
    """Return the mistake in a size, and the advice."""
    narrow, wide = architecture.shape, size.shape
    if wide.heads % wide.kv_heads:
        problem = f"{wide.heads} heads cannot share {wide.kv_heads} key-value heads evenly"
        return problem, "make heads a multiple of kv_heads"
    if wide.head_dim % 2:
        return f"rotary embedding requires pairs, but head_dim is {wide.head_dim}", "use an even head_dim"
    if architecture.family == "llama" and wide.hidden % wide.heads:
        problem = f"transformers' LLaMA requires hidden {wide.hidden} to be a multiple of heads {wide.heads}"
        return problem, f"use for example hidden={-(-wide.hidden // wide.heads) * wide.heads}"
    if weights == RANDOM:
        return None
    advice = f"use a larger size, or --weights {RANDOM} for any size"
    for name in ("layers", "hidden", "mlp"):
        least, value = getattr(narrow, name), getattr(wide, name)
        if value < least:
            return f"the trained model has {name} {least}, more than {value}", advice
    if wide.head_dim % narrow.head_dim:
        problem = f"head_dim {wide.head_dim} is not a multiple of the trained {narrow.head_dim}"
        return f"{problem}, so that the rotary frequencies differ", advice
    if (needed := key_value_heads(narrow, wide)) > wide.kv_heads:
        problem = (
            f"the {narrow.heads} trained heads in {narrow.kv_heads} groups require {needed} key-value heads that "
            f"serve {wide.heads // wide.kv_heads} each, not {wide.kv_heads}"
        )
        return problem, advice
    return None


def config(architecture: Architecture, vocabulary: int, eos: int, pad: int) -> PretrainedConfig:
    """Return the transformers configuration with `vocabulary` rows of embeddings."""
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
    """Return a model with fresh weights."""
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_config(settings)
    return model


def build_empty(settings: PretrainedConfig, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return a model in evaluation mode whose weights are allocated and not set.

    Raises RunError where memory is too small.
    """
    import torch
    from transformers import AutoModelForCausalLM

    # Even empty, a million layers take long to make: so check first.
    _check_memory(_matrix_elements(settings), dtype, device)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(settings, dtype=dtype)
    _check_memory(model.num_parameters(), dtype, device)
    model.to_empty(device=device)
    model.tie_weights()
    if device.type == "cpu":
        # MKL multiplies a few rows by so wide a matrix up to three times as fast if its columns are contiguous.
        head = model.get_output_embeddings().weight
        head.data = head.new_empty(head.shape[::-1]).t()
    # No checkpoint holds the rotary frequencies. They stay float32: in bfloat16 their angles are off by radians at the
    # end of a long answer.
    with device:
        model.model.rotary_emb = type(model.model.rotary_emb)(settings)
    model.eval()
    return model


def _matrix_elements(settings: PretrainedConfig) -> int:
    """Return the number of parameters without norms and biases, tied ones once."""
    heads = settings.num_attention_heads + settings.num_key_value_heads
    layer = settings.hidden_size * (2 * heads * settings.head_dim + 3 * settings.intermediate_size)
    embeddings = settings.vocab_size * settings.hidden_size * (1 if settings.tie_word_embeddings else 2)
    return int(settings.num_hidden_layers * layer + embeddings)


def _check_memory(parameters: int, dtype: torch.dtype, device: torch.device) -> None:
    from molprof.profiler.models.device import free_bytes

    needed = parameters * dtype.itemsize
    available = free_bytes(device)
    if available is not None and needed > available:
        raise RunError(
            f"the model's {parameters / 1e6:,.0f} M parameters need {needed / 1e9:,.1f} GB as {dtype}; "
            f"{device} has {available / 1e9:,.1f} GB free",
            hint="use a smaller --size, or --dtype bfloat16",
        )
