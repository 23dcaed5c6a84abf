"""Other sizes of a preset: real ones by name, any other by numbers. Imports no torch."""

from __future__ import annotations

import dataclasses

from molprof.common.errors import UsageError
from molprof.common.settings import RANDOM, TRAINED, CaptureSettings
from molprof.profiler.models.architecture import ARCHITECTURES, Architecture, Shape

NAMED = {
    # Qwen/Qwen3-0.6B, config.json.
    "qwen": {"0.6b": Shape(layers=28, hidden=1024, heads=16, kv_heads=8, head_dim=128, mlp=3072)},
    # Half the width of meta-llama/Llama-3.2-1B: 383 M parameters in its 16 layers.
    "llama": {"380m": Shape(layers=16, hidden=1024, heads=16, kv_heads=8, head_dim=64, mlp=4096)},
}
_NUMBERS = tuple(field.name for field in dataclasses.fields(Shape))
# A million layers are refused for their memory; more could not even be listed.
_DIGITS = 7
_TIED = {"yes": True, "no": False}


def check_preset(settings: CaptureSettings) -> None:
    """Raises UsageError where the model takes no such size or weights: both are for presets."""
    if settings.size is not None:
        sized(settings.model, settings.size, settings.weights)
    elif settings.weights != TRAINED and settings.model not in ARCHITECTURES:
        raise UsageError(
            f"weights {settings.weights!r}: the model {settings.model!r} has weights of its own",
            hint=f"random weights are for the presets: {', '.join(ARCHITECTURES)}",
        )


def sized(preset: str, size: str, weights: str = TRAINED) -> Architecture:
    """The preset's architecture at another size.

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
    own = ARCHITECTURES[preset]
    named = NAMED[preset].get(size.lower())
    wide = dataclasses.replace(own, shape=named) if named else _numbers(preset, own, size)
    if found := _problem(own, wide, weights):
        raise UsageError(f"size {size!r}: {found[0]}", hint=found[1])
    return wide


def _numbers(preset: str, own: Architecture, size: str) -> Architecture:
    accepted = f"use {', '.join(NAMED[preset])} or numbers, such as layers=8,hidden=512: {', '.join(_NUMBERS)}, tied"
    given = {}
    for part in size.split(","):
        key, sign, value = (text.strip() for text in part.partition("="))
        if not sign:
            raise UsageError(f"no size {size!r} of {preset!r}", hint=accepted)
        if key in given:
            raise UsageError(f"size {size!r} gives {key} twice", hint=accepted)
        if key == "tied" and value in _TIED:
            given[key] = int(_TIED[value])
        elif key in _NUMBERS and value.isascii() and value.isdigit() and len(value) <= _DIGITS and int(value) > 0:
            given[key] = int(value)
        else:
            raise UsageError(f"size {size!r}: cannot use {part.strip()!r}", hint=accepted)
    tied = bool(given.pop("tied", True))
    return dataclasses.replace(own, shape=dataclasses.replace(own.shape, **given), tied=tied)


def key_value_heads(narrow: Shape, wide: Shape) -> int:
    """Key-value heads that `wide` requires to serve every query head of `narrow`.

    A narrow key-value head that serves more query heads than a wide one is repeated.
    """
    served, places = narrow.heads // narrow.kv_heads, wide.heads // wide.kv_heads
    return narrow.kv_heads * -(-served // places)


def _problem(own: Architecture, size: Architecture, weights: str) -> tuple[str, str] | None:
    """What is wrong with a size, and what to do."""
    narrow, wide = own.shape, size.shape
    if wide.heads % wide.kv_heads:
        problem = f"{wide.heads} heads cannot share {wide.kv_heads} key-value heads evenly"
        return problem, "make heads a multiple of kv_heads"
    if wide.head_dim % 2:
        return f"rotary embedding requires pairs, but head_dim is {wide.head_dim}", "use an even head_dim"
    if own.family == "llama" and wide.hidden % wide.heads:
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
