"""`grammar`: the text is the molecule's skeleton with three decimal numbers per block, in the model's own tokens.

A coordinate is `NUMBER,NUMBER,NUMBER`; a number is an optional minus, one to three digits, a point, and one to four
digits. Every text of that form can be written, in exactly one way: as the tokenizer itself would cut it. So the
only mass removed is that of ungrammatical text, and of spellings that no training text has; what is allowed keeps
the model's probabilities, renormalized. Merged tokens come with the tokenizer's own cut: `,-`, `>[`, `]<`, and
`<-` where a vocabulary prefers it. `-.` never occurs, since a digit stands before every point.

How the tokens are found: a text is cut between a digit and a mark whatever else it holds, if no token joins the
two; that is checked once per vocabulary. So what lies between two digits of a text is cut the same way whatever
the numbers are: gaps, separators and runs of digits are each tokenized by themselves, by the tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from molprof.common.errors import UsageError
from molprof.profiler.models.target import Target
from molprof.profiler.molecules.smiles import COORDINATE_DECIMALS
from molprof.profiler.molecules.template import Template
from molprof.profiler.processors.automaton import Chain, Coordinate, Node, Path, longest_path, trie
from molprof.profiler.processors.free_length import WHOLE_DIGITS, FreeLength

_INSIDE = re.compile(r"(?<=<)[^<>]*(?=>)")
# Token that stands for leaving the block while a coordinate's states are numbered.
_LEAVE = -1


class Grammar(FreeLength):
    """One automaton per molecule over the canonical tokens of every conformer text of it."""

    name = "grammar"

    def __init__(self, target: Target) -> None:
        self._gaps: dict[tuple[str, str, str], tuple[Path, ...]] = {}
        super().__init__(target)

    def chain(self, template: Template) -> Chain:
        """The molecule's gaps as token paths; before a coordinate, one without and one with its first minus."""
        first, *between, last = _INSIDE.split(template.text)
        return Chain(
            (
                self._signed("", first),
                *(self._signed("0", text) for text in between),
                self._paths("0", last, ("",)),
            )
        )

    def _signed(self, before: str, text: str) -> tuple[Path, ...]:
        return self._paths(before, text, ("", "-"))

    def _paths(self, before: str, text: str, signs: tuple[str, ...]) -> tuple[Path, ...]:
        after = "0" if len(signs) > 1 else ""
        key = before, text, after
        if key not in self._gaps:
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
        """Number, comma, number, comma, number, its states numbered from its end to its beginning."""
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
        return Coordinate(tuple(states), closing, longest_path(states))

    def _digit_paths(self, most: int) -> tuple[Path, ...]:
        """Every run of one to `most` digits, as it is cut after a mark."""
        runs = [f"{value:0{size}}" for size in range(1, most + 1) for value in range(10**size)]
        return tuple(self._cut([(".", run, ".") for run in runs]))


def _link(node: Node, after: dict[int, int], states: list[dict[int, int]]) -> dict[int, int]:
    """The edges of a trie's root, its other places added to `states`; where the trie ends, `after` goes on.

    Places with the same future are one state: of 1,000 three-digit tokens, all lead to the same.
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
