"""Consecutive tokens of a sequence: the text of each coordinate block, and runs of junk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

_SURPLUS = ("junk", "filler")


class TokenText(NamedTuple):
    """A generated token."""

    position: int
    block: int  # coordinate block; -1 outside
    kind: str
    text: str


class BlockText(NamedTuple):
    """The text of a block."""

    text: str
    marked: str  # the same with every run of junk and filler tokens between bars
    surplus: str  # of the junk and filler tokens alone


_NOTHING = TokenText(-1, -1, "", "")


def block_texts(tokens: Sequence[TokenText], opens: str, closes: str) -> dict[int, BlockText]:
    """Return the text of each block that has tokens, without its opening and closing texts.

    It may begin in the token before the block's first one, behind the last character that opens a block, and end in the
    token behind its last one, before the first character that closes it, unless what opens a block comes before that,
    as in </s>. A junk token may close its block.

    tokens: of one sequence, in order.
    """
    first, last, end = opens[:1], opens[-1:], closes[:1]
    parts: dict[int, list[tuple[str, str, str]]] = defaultdict(list)
    padded = [_NOTHING, *tokens, _NOTHING]
    for before, token, after in zip(padded, padded[1:], padded[2:], strict=False):
        if token.block < 0:
            continue
        begins, is_last = before.block != token.block, after.block != token.block
        head = before.text[before.text.rfind(last) + 1 :] if begins else ""
        tail = after.text[: max(after.text.find(end), 0)] if is_last else ""
        tail = "" if first in tail else tail
        text = token.text[: token.text.find(end)] if end in token.text else token.text
        if token.kind not in _SURPLUS:
            parts[token.block].append((head + text + tail, head + text + tail, ""))
            continue
        opening = "|" if begins or before.kind not in _SURPLUS else ""
        closing = "|" if is_last or after.kind not in _SURPLUS else ""
        parts[token.block].append((head + text + tail, head + opening + text + closing + tail, text))
    return {block: BlockText(*map("".join, zip(*some, strict=True))) for block, some in parts.items()}


def junk_runs(tokens: Sequence[TokenText]) -> list[list[TokenText]]:
    """Return the runs of consecutive junk tokens outside blocks. tokens: of one sequence, in order."""
    runs: list[list[TokenText]] = []
    for token in tokens:
        if token.kind != "junk" or token.block != -1:
            continue
        if not runs or runs[-1][-1].position + 1 < token.position:
            runs.append([])
        runs[-1].append(token)
    return runs
