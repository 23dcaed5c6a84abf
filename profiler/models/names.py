"""Names of models and tokenizers: what is accepted."""

from __future__ import annotations

from pathlib import Path

from molprof.common.errors import UsageError
from molprof.profiler.models.architecture import ARCHITECTURES

ACCEPTED = f"use a preset ({', '.join(ARCHITECTURES)}), a folder, or a model hub id"


def check_folder(what: str, name: str | None) -> None:
    """Check, before a job waits in a queue for it, that a name that can only be a folder is one.

    Args:
        what: `model` or `tokenizer`.
        name: preset, folder or hub id.
    """
    if name is not None and name.startswith(("/", ".", "~")) and not Path(name).is_dir():
        raise UsageError(f"no folder {name} to load the {what} from", hint=ACCEPTED)
