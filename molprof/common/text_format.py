"""The format of a model's prompts and answers: tags, and the texts that open, separate and close coordinates."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn

from molprof.common.errors import UsageError

PROMPT = "[SMILES]{smiles}[/SMILES]"
ANSWER = "[CONFORMER]{atom}<{x},{y},{z}>...[/CONFORMER]"
_MORE = "..."
_ANSWER_HINT = f"as in {ANSWER}: the texts before an atom, around its numbers, and after the last block"
_NUMBER = r"(-?[0-9]+\.[0-9]+)"
_OF_NUMBERS = frozenset("0123456789.-")
# Branch, ring, bonds, charge, chirality and two-letter elements: what blocks must be told apart from.
_SAMPLE = ("[C]", "([N+])", "(=[O])", "[C@@H]", "1[c]", "%10[Cl]", "/[C]", "\\[Se]", "#[N]", ".[nH]", "-[C]1")


@dataclass(frozen=True)
class TextFormat:
    """The texts of a model, as two patterns.

    Args:
        prompt: with `{smiles}` where the molecule stands.
        answer: opening tag, `{atom}` (in brackets, as `[C]`), a block with `{x}`, `{y}` and `{z}`, then `...` for the
            other atoms and the bonds between them, and the closing tag. A brace itself is doubled: `{{`.

    Raises:
        UsageError: a pattern lacks one of these, or its blocks cannot be told apart from numbers or from molecules.
    """

    prompt: str = PROMPT
    answer: str = ANSWER
    # What stands before the first atom, around the numbers of a block, between two of them, and after the last atom's
    # block and the ring digits behind it.
    opening: str = field(init=False, repr=False, compare=False)
    block_open: str = field(init=False, repr=False, compare=False)
    separator: str = field(init=False, repr=False, compare=False)
    block_close: str = field(init=False, repr=False, compare=False)
    closing: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [name for _, name in self._prompt_parts if name is not None]
        if set(names) != {"smiles"}:
            wrong = next((f"an unknown {{{name}}}" for name in names if name != "smiles"), "no {smiles}")
            _refuse("prompt", self.prompt, f"has {wrong}")
        opening, begin, first, second, end, closing = self._answer_texts()
        texts = {"opening": opening, "block_open": begin, "separator": first, "block_close": end, "closing": closing}
        for name, text in texts.items():
            object.__setattr__(self, name, text)
        for is_wrong, problem in (
            (first != second, f"has two separators, {first!r} and {second!r}; write one"),
            (not begin, "opens no block before {x}"),
            (not first, "has nothing between {x} and {y}"),
            (not end, "closes no block after {z}"),
            (not (begin + first + end).isascii(), "has other than ASCII characters around its numbers"),
        ):
            if is_wrong:
                _refuse("answer", self.answer, problem)
        for text in (first, self.marks):
            if shared := sorted(_OF_NUMBERS.intersection(text)):
                _refuse("answer", self.answer, f"has {shared[0]!r} beside a number, which may be a part of it")
        if shared := sorted(set(self.marks).intersection(first)):
            _refuse("answer", self.answer, f"has {shared[0]!r} both around a block and between its numbers")
        inside = self.numbers("1.0,-2.0,3.0")
        sample = "".join(f"{atom}{self.block_open}{inside}{self.block_close}" for atom in _SAMPLE) + ")"
        text = self.opening + sample + self.closing
        blocks = [text[start:stop] for start, stop in self.spans(text)]
        if blocks != [inside] * len(_SAMPLE) or self.without_blocks(sample) != "".join(_SAMPLE) + ")":
            _refuse("answer", self.answer, f"has blocks, {begin}1.0{first}..., that read like parts of a molecule")

    @cached_property
    def _prompt_parts(self) -> tuple[tuple[str, str | None], ...]:
        return tuple(_parts("prompt", self.prompt))

    def _answer_texts(self) -> tuple[str, str, str, str, str, str]:
        """Return the texts before {atom}, {x}, {y} and {z}, between {z} and `...`, and after it."""
        parts = list(_parts("answer", self.answer))
        fields = [field for _, field in parts if field is not None]
        if fields != ["atom", "x", "y", "z"]:
            shown = ", ".join(f"{{{field}}}" for field in fields) or "none"
            _refuse("answer", self.answer, f"needs {{atom}}, {{x}}, {{y}} and {{z}} once, in this order, not {shown}")
        texts = [text for text, _ in parts]
        end, more, closing = texts[4].partition(_MORE)
        if not more or _MORE in closing or any(_MORE in text for text in texts[:4]):
            _refuse("answer", self.answer, f"needs one {_MORE} after the block, for the other atoms")
        opening, begin, first, second = texts[:4]
        return opening, begin, first, second, end, closing

    @cached_property
    def marks(self) -> str:
        """Characters that end a block, since no coordinate contains them."""
        return "".join(dict.fromkeys((self.block_open[:1], self.block_open[-1:], self.block_close[:1])))

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """The texts before and after prompt and answer that may each be one token: those without white space."""
        texts = [*(text for text, _ in self._prompt_parts), self.opening, self.closing]
        return tuple(text.strip() for text in texts if len(text.split()) == 1)

    def prompt_of(self, smiles: str) -> str:
        """Return the prompt for a SMILES."""
        return "".join(text + (smiles if field else "") for text, field in self._prompt_parts)

    def answer_of(self, skeleton: str) -> str:
        """Return the answer with this skeleton, without the end token."""
        return f"{self.opening}{skeleton}{self.closing}"

    def numbers(self, text: str) -> str:
        """Return numbers that are written with commas in the form that separates them in this format."""
        return text.replace(",", self.separator)

    @cached_property
    def triple(self) -> re.Pattern[str]:
        """Three decimal numbers, each a group."""
        return re.compile(re.escape(self.separator).join([_NUMBER] * 3))

    @cached_property
    def open_block(self) -> re.Pattern[str]:
        """A block, closed or not; group 1 is what it holds."""
        return re.compile(rf"{re.escape(self.block_open)}([^{re.escape(self.marks)}]*)")

    @cached_property
    def block(self) -> re.Pattern[str]:
        """A closed block; group 1 is what it holds."""
        return re.compile(self.open_block.pattern + re.escape(self.block_close))

    @cached_property
    def atom_block(self) -> re.Pattern[str]:
        """Group 1: bonds and rings before an atom; 2: the atom in brackets; 3: the content of its block."""
        atom = rf"(\[[^\[\]{re.escape(self.marks)}]+\])"
        return re.compile(f"({self.between}){atom}{self.block.pattern}")

    @cached_property
    def between(self) -> str:
        """The pattern of the text that may be between a block and the next atom."""
        return rf"[^\[\]{re.escape(self.marks)}]*"

    @cached_property
    def structure(self) -> re.Pattern[str]:
        """A skeleton with one block after each atom."""
        return re.compile(f"(?:{self.atom_block.pattern})+{self.between}")

    @cached_property
    def _tags_with_marks(self) -> tuple[str, ...]:
        return tuple(tag for tag in (self.opening, self.closing) if set(tag).intersection(self.marks))

    def blanked(self, text: bytes) -> bytes:
        """Return the text, its tags as zeros where a block could be seen in them.

        A tag is `<answer>` where blocks open with `<`.

        `<answer>` where blocks open with `<`.
        """
        for tag in self._tags_with_marks:
            text = text.replace(tag.encode(), bytes(len(tag.encode())))
        return text

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return begin and end of the contents of the closed blocks of an answer, in characters."""
        for tag in self._tags_with_marks:
            text = text.replace(tag, "\0" * len(tag))
        return [match.span(1) for match in self.block.finditer(text)]

    def without_blocks(self, text: str) -> str:
        """Return an answer, or its skeleton, without its coordinate blocks."""
        pieces, end = [], 0
        for start, stop in self.spans(text):
            pieces.append(text[end : start - len(self.block_open)])
            end = stop + len(self.block_close)
        return "".join([*pieces, text[end:]])

    def gaps(self, text: str) -> list[str]:
        """Return the texts before, between and after the contents of the blocks of an answer."""
        edges = [0, *(edge for span in self.spans(text) for edge in span), len(text)]
        return [text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _parts(which: str, pattern: str) -> Iterator[tuple[str, str | None]]:
    """Yield each literal text with the field after it."""
    before = ""
    try:
        for text, field, spec, conversion in string.Formatter().parse(pattern):
            if spec or conversion:
                raise ValueError(f"more than a name in {{{field}}}")
            before += text
            if field is not None:  # None after a doubled brace too
                yield before, field
                before = ""
        yield before, None
    except ValueError as problem:
        _refuse(which, pattern, f"is no pattern: {problem}; double a brace that is text: {{{{")


def _refuse(which: str, pattern: str, problem: str) -> NoReturn:
    hint = _ANSWER_HINT if which == "answer" else f"as in {PROMPT}"
    raise UsageError(f"--{which}-format {pattern!r} {problem}", hint=hint)


DEFAULT = TextFormat()
