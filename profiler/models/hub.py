"""Where a model or tokenizer that is no preset is loaded from, found out with one short request and no retries."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

from molprof.common.errors import UsageError
from molprof.profiler.models.architecture import ARCHITECTURES
from molprof.profiler.models.names import ACCEPTED, check_folder

_TIMEOUT_S = 5.0
# A tokenizer may also be described by the model's own configuration.
_FILES = {"model": ("config.json",), "tokenizer": ("tokenizer.json", "tokenizer_config.json", "config.json")}


def check_exists(what: str, name: str) -> None:
    """Refuses, before any work, a model or tokenizer that loading would not find.

    Args:
        what: `model` or `tokenizer`.
        name: a preset, a folder or a hub id.

    Raises:
        UsageError: there is none of this name, as far as can be told from here.
    """
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
    """That a name is neither here nor in the cache, and why the hub cannot be asked."""
    return UsageError(
        f"no {what} {name!r}: no preset and no folder, not in the model hub's cache, and {local}",
        hint=f"check the name and the network; {ACCEPTED}",
    )


def only_local(what: str, name: str) -> str | None:
    """Why `name` can be had from this machine alone; None where the hub has it.

    The hub's client asks for every file of a model, each several times with growing pauses: most of a minute until
    a mistyped name is refused. So it is asked once here, and where it cannot be reached, loading goes to its cache.

    Args:
        what: `model` or `tokenizer`.
        name: a folder or a hub id.

    Raises:
        UsageError: no such folder, a folder without a model or tokenizer, or the hub has none of this name.
    """
    if Path(name).is_dir():
        needed = _FILES[what]
        if not any(Path(name, file).is_file() for file in needed):
            raise UsageError(
                f"the folder {name} holds no {what}: it has no {', no '.join(needed)}",
                hint="give a folder as save_pretrained writes it: config.json, tokenizer files, weights",
            )
        return "it is a folder"
    check_folder(what, name)
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE forbids to ask the model hub"
    try:
        huggingface_hub.HfApi().model_info(name, timeout=_TIMEOUT_S)
    except GatedRepoError:
        return None  # loading says what to do about it, or has the token for it
    except RepositoryNotFoundError as problem:
        raise UsageError(
            f"no {what} {name!r}: no preset, no folder, and {huggingface_hub.constants.ENDPOINT} has none of this name",
            hint=f"{ACCEPTED}; for a private one: hf auth login",
        ) from problem
    except HFValidationError as problem:
        raise UsageError(
            f"no {what} {name!r}: no preset, no folder, and no name that a hub id can have", ACCEPTED
        ) from problem
    except Exception as problem:  # of the HTTP library, which differs between versions of the client
        reason = " ".join(str(problem).split()) or type(problem).__name__
        return f"the model hub {huggingface_hub.constants.ENDPOINT} cannot be reached ({reason})"
    return None
