"""The model's own generation config: parameters that a run follows, refuses by name, or ignores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from molprof.common.errors import UsageError
from molprof.common.generate_args import PASSED_ON, REFUSED, active, refused, written
from molprof.common.settings import CaptureSettings

_S = TypeVar("_S", bound=CaptureSettings)
_WHOSE = "the model's generation_config: "
# transformers draws from so many where a config that samples does not say.
_TOP_K = 50
_OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": None}


def followed(settings: _S, declared: Mapping[str, Any]) -> _S:
    """Return the settings, with open ones set as the model's generation config declares.

    Raises UsageError where it declares what no capture can follow and `--generate-arg` does not replace it.
    """
    arguments = settings.generate_arguments
    for name, value in declared.items():
        if name in REFUSED and name not in arguments and value not in (None, REFUSED[name]):
            raise UsageError(*refused(name, value, _WHOSE))
    changes: dict[str, Any] = {}
    if settings.sampling is None:
        changes = {"sampling": "sample" if declared.get("do_sample") else "greedy"}
        if declared.get("do_sample"):
            drawn = {"top_k": _TOP_K, **{name: declared[name] for name in _OFF if name in declared}}
            changes |= {name: value for name, value in drawn.items() if value != _OFF[name]}
    samples = changes.get("sampling", settings.sampling) != "greedy"
    passed_on = {name: value for name, value in declared.items() if name in PASSED_ON}
    return replace(settings, **changes, generate_args=written(active({**passed_on, **arguments}, samples)))


def otherwise(settings: CaptureSettings, declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the model's generation config that a run of these settings ignores, by name."""
    idle = PASSED_ON.keys() - active(declared, settings.samples)
    done: dict[str, Any] = {**REFUSED, **PASSED_ON, **settings.generate_arguments, "do_sample": settings.samples}
    done |= {"use_cache": True, "num_return_sequences": 1, "cache_implementation": settings.kv_cache}
    if settings.samples:
        done |= {**_OFF, **settings.sampling_parameters}
    return {
        name: value
        for name, value in sorted(declared.items())
        if value not in (None, done.get(name, value)) and name not in idle
    }


def note(settings: CaptureSettings, declared: Mapping[str, Any]) -> str:
    """Return a line on the parameters that a run takes from the model's generation config.

    Empty where it declares nothing.
    """
    done = {**settings.sampling_parameters, **settings.generate_arguments}
    sampling = settings.samples and declared.get("do_sample")
    said = {**({"top_k": _TOP_K} if sampling else {}), **declared}
    parts = [
        *(["sampling"] if sampling else []),
        *(f"{name} {done[name]}" for name in done if done[name] == said.get(name)),
    ]
    remedy = "--sampling and --generate-arg replace it"
    return f"as the model's generation_config says: {', '.join(parts)} ({remedy})" if parts else ""
