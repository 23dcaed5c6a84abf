"""The source of a model or tokenizer that is no preset, found with one short request without retries."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

from molprof.common.errors import UsageError
from molprof.profiler.models.architecture import ACCEPTED, ARCHITECTURES, check_folder

_TIMEOUT_S = 5.0
# A tokenizer may also be described by the model's own configuration.
_FILES = {"model": ("config.json",), "tokenizer": ("tokenizer.json", "tokenizer_config.json", "config.json")}


def check_exists(what: str, name: str) -> None:
    """Raise UsageError, before any work, if a `model` or `tokenizer` cannot be found."""
    if name in ARCHITECTURES:
        return
    local = only_local(what, name)
    if local is None or Path(name).is_dir():
        return
    try:
        cached = any(isinstance(huggingface_hub.try_to_load_from_cache(name, file), str) for file in _FILES[what])
    except HFValidationError:
        cached = False
    if not cached:
        raise not_found(what, name, local)


def not_found(what: str, name: str, local: str) -> UsageError:
    """Return the error for a name that is neither local nor in the cache; `local`: why the hub is not asked."""
    return UsageError(
        f"no {what} {name!r}: no preset and no folder, not in the model hub's cache, and {local}",
        hint=f"check the name and the network; {ACCEPTED}",
    )


def only_local(what: str, name: str) -> str | None:
    """Return why `name` can be loaded from this machine only; None if the hub has it.

    The hub's client requests every file of a model several times, with growing pauses: a mistyped name takes most of a
    minute. So this makes one request, and if the hub cannot be reached, loading uses the cache. Raises UsageError where
    there is no such folder, nothing in it, or nothing of this name on the hub.
    """
    if Path(name).is_dir():
        needed = _FILES[what]
        if not any(Path(name, file).is_file() for file in needed):
            raise UsageError(
                f"the folder {name} holds no {what}: it has no {', no '.join(needed)}",
                hint="use a folder that save_pretrained wrote: config.json, tokenizer files, weights",
            )
        return "it is a folder"
    check_folder(what, name)
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE forbids asking the model hub"
    try:
        huggingface_hub.HfApi().model_info(name, timeout=_TIMEOUT_S)
    except GatedRepoError:
        return None  # loading has the token for it, or says what to do
    except RepositoryNotFoundError as problem:
        raise UsageError(
            f"no {what} {name!r}: no preset, no folder, and {constants.ENDPOINT} has none of this name",
            hint=f"{ACCEPTED}; for a private one: hf auth login",
        ) from problem
    except HFValidationError as problem:
        raise UsageError(
            f"no {what} {name!r}: no preset, no folder, and no name that a hub id can have", ACCEPTED
        ) from problem
    except Exception as problem:  # of the HTTP library, another one in each version of the client
        reason = " ".join(str(problem).split()) or type(problem).__name__
        return f"the model hub {constants.ENDPOINT} cannot be reached ({reason})"
    return None
