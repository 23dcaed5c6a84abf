"""Constraints in arguments of `generate` other than logits processors; and calls without any constraint."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import GenerationMixin

from molprof.common.generate_args import PASSED_ON, REFUSED, active
from molprof.profiler.recording.marks import GenerateCall, config_value, replaced

# Arguments, and parameters of generation configs, of which transformers makes processors, or that end answers.
_NAMES = (
    *PASSED_ON, "guidance_scale", "constraints", "force_words_ids", "watermarking_config", "num_beams", "penalty_alpha",
    "prefix_allowed_tokens_fn", "stop_strings", "max_time", "stopping_criteria",
)  # fmt: skip
# Of these, what forbids or forces tokens, with the processors that a call is given. What bounds the length of answers
# stays, and what weighs tokens.
_CONSTRAINING = (
    "prefix_allowed_tokens_fn", "constraints", "force_words_ids", "bad_words_ids", "sequence_bias", "suppress_tokens",
    "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
)  # fmt: skip
# Characters of a value; of a longer one its size and a digest stand for it.
_LONGEST = 60


def constraints_of(call: GenerateCall) -> dict[str, str]:
    """Return arguments of a call, and of its generation config, that limit tokens or the end of answers, by name.

    Values as JSON, long ones as their number and a digest; functions and objects by their names.
    """
    samples = bool(config_value(call, "do_sample"))
    values = {name: value for name in _NAMES if not _is_off(name, value := config_value(call, name))}
    constraining = active(values, samples) | {name: value for name, value in values.items() if name not in PASSED_ON}
    return {name: _told(value) for name, value in sorted(constraining.items())}


@contextmanager
def without_processors(heard: Callable[[str], None]) -> Iterator[None]:
    """Run calls of `generate` in the block without their logits processors and `_CONSTRAINING`.

    Arguments are left out, and so are parameters of a generation config that a call is given; the model's own stays.
    heard: called with what is switched off.
    """
    original, running = GenerationMixin.generate, threading.local()
    signature = inspect.signature(original)

    @functools.wraps(original)
    def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(running, "inside", False):  # such as that of an assistant model
            return original(model, *args, **kwargs)
        bound = signature.bind(model, *args, **kwargs)
        for name in _switch_off(bound):
            heard(name)
        running.inside = True
        try:
            return original(*bound.args, **bound.kwargs)
        finally:
            running.inside = False

    with replaced(GenerationMixin, "generate", generate):
        yield


def _switch_off(bound: inspect.BoundArguments) -> Iterator[str]:
    """Remove the constraint from the arguments of a call, and yield the name of each part."""
    more = bound.arguments.get("kwargs", {})
    for item in bound.arguments.pop("logits_processor", None) or more.pop("logits_processor", None) or ():
        yield f"{type(item).__name__} (logits_processor)"
    for name in _CONSTRAINING:
        if not _is_off(name, bound.arguments.pop(name, more.pop(name, None))):
            yield name
    config = bound.arguments.get("generation_config")
    if config is None or isinstance(config, dict):
        return
    constraining = [name for name in _CONSTRAINING if not _is_off(name, getattr(config, name, None))]
    if constraining:
        config = bound.arguments["generation_config"] = copy.deepcopy(config)
        usual = type(config)()
        for name in constraining:
            setattr(config, name, getattr(usual, name, None))
            yield f"{name} (generation_config)"


def _told(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value and all(map(_is_object, value)):
        return ", ".join(map(_told, value))
    if _is_object(value):
        kind = value if callable(value) and hasattr(value, "__qualname__") else type(value)
        return f"{kind.__module__}.{kind.__qualname__}"
    text = json.dumps(value, default=str)
    if len(text) <= _LONGEST:
        return text
    size = f"{len(value)} values" if isinstance(value, (list, tuple, dict)) else f"{len(text)} characters"
    return f"{size}, SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _is_object(value: Any) -> bool:
    return value is not None and not isinstance(value, (bool, int, float, str, list, tuple, dict))


def _is_off(name: str, value: Any) -> bool:
    usual = {**PASSED_ON, **REFUSED}.get(name)
    return value is None or (not _is_object(value) and value in (usual, [], ()))
