"""`grammar`: the molecule's skeleton with three decimal numbers per block, in the tokenizer's own tokens.

Every text of that form can be written in exactly one way: as the tokenizer cuts it, with merged tokens such as `,-`,
`>[` and `]<`. Allowed tokens keep the model's probabilities, renormalized.

No token joins a digit with a mark (checked once per vocabulary), so every text is cut between them. What lies between
two digits is then cut the same way whatever the numbers are: the tokenizer cuts gaps, separators and runs of digits
each by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from molprof.common.errors import UsageError
from molprof.profiler.models.target import Target
from molprof.profiler.molecules.smiles import COORDINATE_DECIMALS
from molprof.profiler.molecules.template import Template
from molprof.profiler.processors.automaton import Chain, Coordinate, Node, Path, trie
from molprof.profiler.processors.free_length import WHOLE_DIGITS, FreeLength

_INSIDE = re.compile(r"(?<=<)[^<>]*(?=>)")
# Stands for leaving the block while a coordinate's states are numbered.
_LEAVE = -1


class Grammar(FreeLength):
    """Accepts every conformer text of a molecule, in the tokenizer's own tokens."""

    name = "grammar"

    def __init__(self, target: Target) -> None:
        self._gaps: dict[tuple[str, str, str], tuple[Path, ...]] = {}
        super().__init__(target)

    def chain(self, template: Template) -> Chain:
        """The molecule's gaps; before a coordinate, one path without and one with its first minus."""
        first, *between, last = _INSIDE.split(template.text)
        gaps = [self._paths("", first, "0"), *(self._paths("0", text, "0") for text in between)]
        return Chain((*gaps, self._paths("0", last, "")))

    def _paths(self, before: str, text: str, after: str) -> tuple[Path, ...]:
        key = before, text, after
        if key not in self._gaps:
            signs = ("", "-") if after else ("",)
            self._gaps[key] = tuple(self._cut([(before, text + sign, after) for sign in signs]))
        return self._gaps[key]

    def _cut(self, texts: Sequence[tuple[str, str, str]]) -> Iterable[Path]:
        """The tokens of each middle text between digits: (digits or nothing, text, digits or nothing)."""
        encoded = self._target.tokenizer(
            ["".join(parts) for parts in texts], add_special_tokens=False, return_offsets_mapping=True
        )
        for (before, text, _), ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            begin, end = len(before), len(before) + len(text)
            kept = [(token, span) for token, span in zip(ids, offsets, strict=True) if begin <= span[0] < end]
            if not kept or kept[0][1][0] != begin or kept[-1][1][1] != end:
                raise UsageError(
                    f"the processor 'grammar' needs a tokenizer that cuts {text!r} off the digits around it",
                    hint="--processor generic works with any tokenizer",
                )
            yield tuple(token for token, _ in kept)

    def coordinate(self) -> Coordinate:
        """Number, comma, number, comma, number; states are numbered from the end to the beginning."""
        whole = trie(self._digit_paths(WHOLE_DIGITS))
        fraction = trie(self._digit_paths(COORDINATE_DECIMALS))
        point = trie(tuple(self._cut([("0", ".", "0")])))
        comma = trie(tuple(self._cut([("0", ",", "0"), ("0", ",-", "0")])))
        states: list[dict[int, int]] = [{}]  # state 0 is filled in at last
        edges = {_LEAVE: _LEAVE}
        for number in range(3):
            for part in (*((comma,) if number else ()), fraction, point, whole):
                edges = _link(part, edges, states)
        states[0] = edges
        closing = frozenset(place for place, ways in enumerate(states) if ways.pop(_LEAVE, None) is not None)
        return Coordinate(tuple(states), closing)

    def _digit_paths(self, most: int) -> tuple[Path, ...]:
        """Every run of one to `most` digits, as cut after a mark."""
        runs = [f"{value:0{size}}" for size in range(1, most + 1) for value in range(10**size)]
        return tuple(self._cut([(".", run, ".") for run in runs]))


def _link(node: Node, after: dict[int, int], states: list[dict[int, int]]) -> dict[int, int]:
    """The edges of a trie's root, its other places added to `states`; where the trie ends, `after` goes on.

    Places with the same future are one state: all 1,000 three-digit tokens lead to the same one.
    """
    known: dict[tuple[tuple[int, int], ...], int] = {}

    def edges(place: Node) -> dict[int, int]:
        own = {token: state(child) for token, child in place.edges.items()}
        return {**own, **after} if place.ends else own

    def state(place: Node) -> int:
        ways = edges(place)
        key = tuple(sorted(ways.items()))
        if key not in known:
            known[key] = len(states)
            states.append(ways)
        return known[key]

    return edges(node)
