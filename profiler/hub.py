"""Where a model or tokenizer that is no preset is loaded from, found out with one short request and no retries."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

from molprof.errors import UsageError
from molprof.profiler.architecture import ARCHITECTURES

ACCEPTED = f"use a preset ({', '.join(ARCHITECTURES)}), a folder, or a model hub id"
_TIMEOUT_S = 5.0
_MODEL_FILES = ("config.json",)
# A tokenizer may also be described by the model's own configuration.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json")


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
        needed = _MODEL_FILES if what == "model" else _TOKENIZER_FILES
        if not any(Path(name, file).is_file() for file in needed):
            raise UsageError(
                f"the folder {name} holds no {what}: it has no {', no '.join(needed)}",
                hint="give a folder as save_pretrained writes it: config.json, tokenizer files, weights",
            )
        return "it is a folder"
    if name.startswith(("/", ".", "~")):
        raise UsageError(f"no folder {name} to load the {what} from", hint=ACCEPTED)
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
