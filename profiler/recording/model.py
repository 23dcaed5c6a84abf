"""What a recording tells of a program's model, of whatever kind: its sizes, its device, its tokenizer."""

from __future__ import annotations

import gc
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from molprof.profiler.models.load import sizes


def device_of(model: Any) -> torch.device:
    """Return the device of a model, or of its parameters; the CPU where neither tells."""
    device = getattr(model, "device", None)
    if isinstance(device, torch.device):
        return device
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else iter(())
    return next((item.device for item in parameters), torch.device("cpu"))


def name_of(model: Any) -> str:
    """Return the name or path that a model was loaded by, or else its class."""
    name = getattr(model, "name_or_path", None)
    return name if isinstance(name, str) and name else type(model).__name__


def sizes_of(model: Any) -> dict[str, Any]:
    """What `Resolved` holds of a model, as far as its config tells."""
    names = ("family", "parameters", "layers", "hidden", "heads", "kv_heads", "logits_width", "dtype", "device")
    known: dict[str, Any] = dict.fromkeys(names)
    if model is None:
        return known
    try:
        return known | sizes(model)
    except (AttributeError, TypeError, ZeroDivisionError):  # of another kind than molprof's own
        family = getattr(getattr(model, "config", None), "model_type", None)
        if isinstance(model, torch.nn.Module):
            parameters = sum(item.numel() for item in model.parameters())
            known |= {"parameters": parameters, "device": str(device_of(model))}
        return known | {"family": family if isinstance(family, str) else None}


def _vocabulary(model: Any) -> int | None:
    try:
        size = model.config.get_text_config(decoder=True).vocab_size
    except (AttributeError, TypeError):
        return None
    return size if isinstance(size, int) else None


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
