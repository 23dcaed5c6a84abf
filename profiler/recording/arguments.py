"""What a call of `generate` is asked to do to the tokens, beside the logits processors that it is given."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from molprof.common.generate_args import PASSED_ON, REFUSED, active
from molprof.profiler.recording.marks import Call
from molprof.profiler.recording.sequences import config_value

# Arguments, and parameters of generation configs, of which transformers makes processors, or that end answers.
_NAMES = (
    *PASSED_ON, "guidance_scale", "constraints", "force_words_ids", "watermarking_config", "num_beams", "penalty_alpha",
    "prefix_allowed_tokens_fn", "stop_strings", "max_time", "stopping_criteria",
)  # fmt: skip
# Characters of a value; of a longer one its size and a digest stand for it.
_LONGEST = 60


def constraints_of(call: Call) -> dict[str, str]:
    """What arguments of a call and its generation config ask of the tokens or of the end of answers, by name.

    Values as JSON, long ones as their number and a digest; functions and objects by their names.
    """
    samples = bool(config_value(call, "do_sample"))
    found = {name: value for name in _NAMES if not _is_off(name, value := config_value(call, name))}
    known = active(found, samples) | {name: value for name, value in found.items() if name not in PASSED_ON}
    return {name: _told(value) for name, value in sorted(known.items())}


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
