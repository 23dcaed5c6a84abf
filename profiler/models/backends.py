"""A tokenizer by name, of the `tokenizers` library: for counting tokens without a model or torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from molprof.common.errors import MissingExtraError, UsageError
from molprof.common.files import cache_dir
from molprof.profiler.models.tokenizers import VOCABULARIES, preset_backend

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_FILE = "tokenizer.json"
_ACCEPTED = f"use a preset ({', '.join(VOCABULARIES)}), a folder with a {_FILE}, or a hub id"


def load_backend(name: str) -> Tokenizer:
    """The tokenizer of a preset, of a folder with a `tokenizer.json`, or of a hub id; it neither pads nor truncates.

    Raises:
        UsageError: no such tokenizer, or it requires the network.
        MissingExtraError: a library or a preset's vocabulary is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as problem:
        raise MissingExtraError("tokenizers", "presets", "counting tokens") from problem
    if name in VOCABULARIES:
        return preset_backend(name, cache_dir() / "tokenizers")
    path = _find(name)
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as problem:  # the tokenizers library raises bare Exception
        raise UsageError(f"{path} is not a tokenizer: {problem}", hint=_ACCEPTED) from problem
    backend.no_padding()
    backend.no_truncation()
    return backend


def _find(name: str) -> Path:
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        if not (folder / _FILE).is_file():
            raise UsageError(
                f"the folder {name} has no {_FILE}", hint="tokenizer.save_pretrained of transformers 5 writes one"
            )
        return folder / _FILE
    if not name or name.startswith(("/", ".", "~")) or folder.exists():
        raise UsageError(f"no tokenizer {name!r}", hint=_ACCEPTED)
    from huggingface_hub import hf_hub_download

    from molprof.profiler.models.hub import only_local

    local = only_local("tokenizer", name)
    try:
        return Path(hf_hub_download(name, _FILE, local_files_only=local is not None))
    except Exception as problem:  # its own kinds, the network library's, and OSError and ValueError
        if local is not None:
            message = f"no tokenizer {name!r}: no preset and no folder, not in the model hub's cache, and {local}"
            raise UsageError(message, hint=_ACCEPTED) from problem
        first = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise UsageError(f"cannot get the tokenizer {name!r} from the hub: {first}", hint=_ACCEPTED) from problem
