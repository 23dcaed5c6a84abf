"""The bytes of each token, so that offsets survive partial UTF-8."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class TokenBytes:
    """A tokenizer's vocabulary as bytes.

    Attributes:
        pieces: bytes of each token id, empty where there is no such token; length = highest id + 1.
        special: ids of special tokens, tags included; their `<` and `>` open and close no coordinate block.
        size: number of tokens.
    """

    pieces: tuple[bytes, ...]
    special: frozenset[int]
    size: int

    def of(self, token: int) -> bytes:
        """Bytes of one token; empty for an id beyond the vocabulary (padded logits)."""
        return self.pieces[token] if 0 <= token < len(self.pieces) else b""

    def join(self, tokens: Sequence[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.of, tokens)).decode("utf-8", errors="replace")

    def containing(self, characters: bytes) -> list[int]:
        """Ids of the tokens that contain any of these ASCII characters, ascending."""
        wanted = set(characters)
        return [index for index, piece in enumerate(self.pieces) if wanted.intersection(piece)]

    def made_of(self, characters: bytes) -> list[int]:
        """Ids of the non-empty tokens made of these ASCII characters only, ascending."""
        allowed = set(characters)
        return [index for index, piece in enumerate(self.pieces) if piece and allowed.issuperset(piece)]


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> TokenBytes:
    """The byte table of a fast tokenizer: byte-level BPE (GPT-2's alphabet), or SentencePiece."""
    vocabulary = tokenizer.get_vocab()
    added = tokenizer.added_tokens_decoder
    read = _byte_level if "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder) else _sentencepiece
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for text, index in vocabulary.items():
        pieces[index] = text.encode() if index in added else read(text)
    special = frozenset(index for index, token in added.items() if token.special)
    return TokenBytes(tuple(pieces), special, len(vocabulary))


def _alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte (openai/gpt-2, src/encoder.py, `bytes_to_unicode`)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    table.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return table


_BYTES = _alphabet()


def _byte_level(text: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in text)
    except KeyError:  # a token that stands in the vocabulary as plain text
        return text.encode()


def _sentencepiece(text: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(text):
        return bytes([int(match.group(1), 16)])
    return text.replace("\u2581", " ").encode()
