"""What a model that a program made says of itself, and its tokenizer."""

from __future__ import annotations

import gc
from typing import Any

from transformers import PreTrainedTokenizerFast

from molprof.profiler.models.load import sizes


def sizes_of(model: Any) -> dict[str, Any]:
    """What `Resolved` holds of a model, as far as its config tells."""
    names = ("family", "parameters", "layers", "hidden", "heads", "kv_heads", "logits_width", "dtype", "device")
    known: dict[str, Any] = dict.fromkeys(names)
    if model is None:
        return known
    try:
        return known | sizes(model)
    except (AttributeError, TypeError):  # of another kind than molprof's own
        parameters = sum(item.numel() for item in model.parameters())
        config = getattr(model, "config", None)
        return known | {"family": getattr(config, "model_type", None), "parameters": parameters}


def _vocabulary(model: Any) -> int | None:
    try:
        size: int = model.config.get_text_config(decoder=True).vocab_size
    except AttributeError:
        return None
    return size


def tokenizer_of(model: Any) -> Any:
    """The loaded tokenizer of the model's name, or the only one whose tokens are the model's; None if unclear."""
    gc.collect()  # what the program no longer has is not its tokenizer
    found = [item for item in gc.get_objects() if issubclass(type(item), PreTrainedTokenizerFast)]
    named = [item for item in found if item.name_or_path and item.name_or_path == getattr(model, "name_or_path", None)]
    if named:
        return named[0]
    width = _vocabulary(model) or 0  # often padded
    fitting = [item for item in found if width // 2 < len(item) <= width]
    return fitting[0] if len(fitting) == 1 else None
