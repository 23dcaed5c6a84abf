"""Token tracks written by hand: sequences of (text, kind, block), with the arrays that a capture may add."""

from __future__ import annotations

from typing import Any

from tiny_trace import TOKENS, slice_

Token = tuple[str, str, int]


def sequence(number: int, tokens: list[Token], **arrays: list[Any]) -> dict[str, Any]:
    """The slice of one sequence."""
    texts, kinds, blocks = zip(*tokens, strict=True)
    return slice_(
        "molprof.sequence", f"sequence {number}", 0, 100, TOKENS, number + 1,
        sequence=number, batch=0, row=number, smiles="C", tokens=len(tokens), token_id=[1] * len(tokens),
        text=list(texts), kind=list(kinds), block=list(blocks), **arrays,
    )  # fmt: skip
