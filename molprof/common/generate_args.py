"""Parameters of transformers' `generate`: those that a capture passes on, and those that it refuses by name.

A capture decides everything else of a generation config itself, by an option or because it measures that way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from molprof.common.errors import UsageError
from molprof.common.setting import key_values

# What transformers' own processors do to the logits, by name, with the value that switches it off.
PASSED_ON: dict[str, Any] = {
    "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0, "bad_words_ids": None,
    "sequence_bias": None, "suppress_tokens": None, "begin_suppress_tokens": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "remove_invalid_values": False,
    "renormalize_logits": False, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None,
}  # fmt: skip
_OF_SAMPLING = ("typical_p", "epsilon_cutoff", "eta_cutoff", "top_h")
# By name, the option that decides it.
OPTIONS = {
    "do_sample": "--sampling", "temperature": "--temperature", "top_k": "--top-k", "top_p": "--top-p",
    "min_p": "--min-p", "max_new_tokens": "--max-new-tokens", "max_length": "--max-new-tokens",
    "cache_implementation": "--kv-cache", "max_cache_len": "--max-cache-length", "num_return_sequences":
    "--generations", "compile_config": "--compile", "logits_processor": "--processor",
}  # fmt: skip
# What does not append one token to each row in each step, or ends rows by other means: by name, the value without it.
REFUSED: dict[str, Any] = {
    "num_beams": 1, "num_beam_groups": 1, "penalty_alpha": 0.0, "dola_layers": None, "guidance_scale": 1.0,
    "prompt_lookup_num_tokens": None, "assistant_model": None, "assistant_early_exit": None, "use_mtp": False,
    "streamer": None, "custom_generate": None, "constraints": None, "force_words_ids": None, "stop_strings": None,
    "max_time": None, "watermarking_config": None, "token_healing": False,
}  # fmt: skip
_FLAG, _EXAMPLE = "--generate-arg", "repetition_penalty=1.2"


def read_arguments(texts: Iterable[str]) -> dict[str, Any]:
    """Return the values of `KEY=VALUE` texts. Raises UsageError for the first that a capture does not accept."""
    arguments: dict[str, Any] = {}
    for key, value in key_values(_FLAG, texts, _EXAMPLE).items():
        if key in OPTIONS:
            raise UsageError(f"{_FLAG} {key}: an option of its own decides that", f"{OPTIONS[key]}, or leave it out")
        try:
            arguments[key] = json.loads(value)
        except (ValueError, RecursionError):
            if key in REFUSED:
                raise UsageError(*refused(key, value)) from None
            raise UsageError(f"{_FLAG} {key}: {value!r} is not JSON", f"e.g. {_FLAG} {_EXAMPLE}") from None
        if key in REFUSED:
            if arguments[key] not in (None, REFUSED[key]):
                raise UsageError(*refused(key, arguments[key]))
        elif key not in PASSED_ON:
            raise UsageError(f"{_FLAG} {key}: a capture passes no such parameter on", f"one of {', '.join(PASSED_ON)}")
    return arguments


def refused(name: str, value: Any, whose: str = "") -> tuple[str, str]:
    """Return the message and the hint for a parameter that a capture cannot follow."""
    why = "a capture generates one token for each row in each step, and ends a row at its end token or at the limit"
    off = f"--generate-arg {name}={json.dumps(REFUSED[name])}" if whose else f"leave {name} out"
    return (
        f"{whose}{name} {json.dumps(value)} is not supported: {why}",
        f"{off}; record() of docs/recording.md takes any generate",
    )


def active(arguments: Mapping[str, Any], samples: bool) -> dict[str, Any]:
    """Return the arguments that have an effect: without sampling, none of its own."""
    return {
        name: value
        for name, value in arguments.items()
        if name in PASSED_ON and value not in (None, PASSED_ON[name]) and (samples or name not in _OF_SAMPLING)
    }


def written(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments as `KEY=VALUE` texts, by name."""
    return tuple(f"{name}={json.dumps(arguments[name])}" for name in sorted(arguments))
