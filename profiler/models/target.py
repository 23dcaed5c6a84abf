"""A logits processor's target: the width of a model's logits, and the bytes of each token."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from molprof.common.text_format import DEFAULT, TextFormat

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class TokenBytes:
    """A tokenizer's vocabulary as bytes, which keeps offsets right in partial UTF-8."""

    pieces: tuple[bytes, ...]  # by token id, empty where there is no such token; length = highest id + 1
    special: frozenset[int]  # ids of special tokens, tags included; their `<` and `>` are part of no coordinate block
    size: int  # number of tokens

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """The hash, computed once: each batch looks up caches by vocabulary, and 150,000 hashes take milliseconds."""
        return hash((self.pieces, self.special, self.size))

    def of(self, token: int) -> bytes:
        """Return the bytes of one token; empty for an id beyond the vocabulary (padded logits)."""
        return self.pieces[token] if 0 <= token < len(self.pieces) else b""

    def join(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.of, tokens)).decode("utf-8", errors="replace")

    @cached_property
    def flat(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """All bytes, and the length of each piece."""
        lengths = np.fromiter(map(len, self.pieces), np.int64, len(self.pieces))
        return np.frombuffer(b"".join(self.pieces), np.uint8), lengths

    def _counts(self, characters: bytes) -> np.ndarray[Any, Any]:
        """Return how many of these ASCII characters each token has."""
        text, lengths = self.flat
        wanted = np.zeros(256, bool)
        wanted[list(characters)] = True
        before = np.concatenate(([0], np.cumsum(wanted[text])))
        ends = np.cumsum(lengths)
        counts: np.ndarray[Any, Any] = before[ends] - before[ends - lengths]
        return counts

    def containing(self, characters: bytes) -> list[int]:
        """Return ids of the tokens that contain any of these ASCII characters, ascending."""
        ids: list[int] = np.flatnonzero(self._counts(characters)).tolist()
        return ids

    def made_of(self, characters: bytes) -> list[int]:
        """Return ids of the non-empty tokens made of these ASCII characters only, ascending."""
        _, lengths = self.flat
        ids: list[int] = np.flatnonzero((lengths > 0) & (self._counts(characters) == lengths)).tolist()
        return ids


@dataclass(frozen=True)
class ProcessorTarget:
    """The model and tokenizer that a processor is made for."""

    tokenizer: PreTrainedTokenizerFast
    table: TokenBytes
    logits_width: int  # columns of the logits, padding included
    eos: int  # the id that ends a sequence
    pad: int  # the id that fills finished rows
    device: torch.device  # of the logits
    form: TextFormat = DEFAULT  # how prompts and answers are written

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Ids by the tokenizer's own text of each token, which takes 0.1 s to ask for."""
        ids: dict[str, int] = self.tokenizer.get_vocab()
        return ids

    def padding_columns(self) -> list[int]:
        """Return columns of the logits without a token: between the vocabulary and the padded width."""
        ids = np.fromiter(self.vocabulary.values(), np.int64, len(self.vocabulary))
        columns: list[int] = np.setdiff1d(np.arange(self.logits_width), ids, assume_unique=True).tolist()
        return columns


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> TokenBytes:
    """Return the byte table of a fast tokenizer: byte-level BPE (GPT-2's alphabet), or SentencePiece."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = tokenizer.get_vocab()
    added = tokenizer.added_tokens_decoder
    read: Callable[[str], bytes] = _sentencepiece
    if "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder):
        read = partial(_byte_level, _Alphabet({ord(character): byte for byte, character in bytes_to_unicode().items()}))
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for text, index in vocabulary.items():
        pieces[index] = text.encode() if index in added else read(text)
    special = frozenset(index for index, token in added.items() if token.special)
    return TokenBytes(tuple(pieces), special, len(vocabulary))


class _Alphabet(dict[int, int]):
    """A mapping from characters to the bytes that they stand for, by default those of Latin-1."""

    def __missing__(self, character: int) -> int:
        return 0xFFFF


def _byte_level(alphabet: Mapping[int, int], text: str) -> bytes:
    try:
        # A third of the time of a look-up for each character: a vocabulary has a million.
        return text.translate(alphabet).encode("latin-1")
    except UnicodeEncodeError:  # a token that stands in the vocabulary as plain text
        return text.encode()


def _sentencepiece(text: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(text):
        return bytes([int(match.group(1), 16)])
    return text.replace("\u2581", " ").encode()
