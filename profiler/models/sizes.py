"""Sizes that a preset can be given: the real ones by name, any other by numbers. Imports no torch."""

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
# What a million layers need is told; more of them could not even be listed.
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
            those left out are the preset's own. `tied=no` gives the output layer weights of its own.
        weights: `trained` where the result has to hold the trained model.

    Raises:
        UsageError: no such preset or size, or one that cannot be.
    """
    if preset not in ARCHITECTURES:
        raise UsageError(
            f"size {size!r}: the model {preset!r} has the size that it has",
            hint=f"sizes are for the presets: {', '.join(ARCHITECTURES)}",
        )
    own = ARCHITECTURES[preset]
    named = NAMED[preset].get(size.lower())
    wide = dataclasses.replace(own, shape=named) if named else _numbers(preset, own, size)
    for problem, advice in _problems(own, wide, weights):
        raise UsageError(f"size {size!r}: {problem}", hint=advice)
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
    """Key-value heads that `wide` needs to serve every query head of `narrow`.

    A wide key-value head serves `wide.heads / wide.kv_heads` query heads; a narrow one that serves more than that is
    repeated until all its query heads have a place.
    """
    served, places = narrow.heads // narrow.kv_heads, wide.heads // wide.kv_heads
    return narrow.kv_heads * -(-served // places)


def _problems(own: Architecture, size: Architecture, weights: str) -> list[tuple[str, str]]:
    """Why that size cannot be, and what could."""
    narrow, wide = own.shape, size.shape
    found = []
    if wide.heads % wide.kv_heads:
        found.append(
            (f"{wide.heads} heads cannot share {wide.kv_heads} key-value heads evenly", "heads: a multiple of kv_heads")
        )
    if wide.head_dim % 2:
        found.append((f"rotary embedding turns pairs, and head_dim is {wide.head_dim}", "an even head_dim"))
    if own.family == "llama" and wide.hidden % wide.heads:
        found.append(
            (
                f"transformers' LLaMA wants hidden {wide.hidden} to be a multiple of heads {wide.heads}",
                f"e.g. hidden={-(-wide.hidden // wide.heads) * wide.heads}",
            )
        )
    if found or weights == RANDOM:
        return found
    advice = f"--weights {RANDOM} takes any size"
    for name in ("layers", "hidden", "mlp"):
        least, value = getattr(narrow, name), getattr(wide, name)
        if value < least:
            found.append((f"the trained model has {name} {least}, which {value} cannot hold", advice))
    if wide.head_dim % narrow.head_dim:
        found.append(
            (
                f"the rotary frequencies of the trained heads of {narrow.head_dim} are among those of "
                f"{2 * narrow.head_dim}, {3 * narrow.head_dim}, ..., not of {wide.head_dim}",
                advice,
            )
        )
    if (needed := key_value_heads(narrow, wide)) > wide.kv_heads:
        found.append(
            (
                f"the {narrow.heads} trained heads, in {narrow.kv_heads} groups, need {needed} key-value heads where "
                f"each serves {wide.heads // wide.kv_heads}, not {wide.kv_heads}",
                advice,
            )
        )
    return found
