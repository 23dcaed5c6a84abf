"""`grammar` and `truncate`: coordinates as long as the model writes them, between a molecule's fixed texts.

Allowed tokens keep the model's probabilities, renormalized.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache, lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from molprof.common.errors import UsageError
from molprof.profiler.constraints.automaton import Chain, Coordinate, Node, Path, compile_tables, trie
from molprof.profiler.constraints.automaton_batch import AutomatonBatch, fused_step
from molprof.profiler.constraints.base import BatchProcessor
from molprof.profiler.models.target import Target
from molprof.profiler.molecules.smiles import COORDINATE_DECIMALS
from molprof.profiler.molecules.template import PLACEHOLDER, Template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WHOLE_DIGITS = 3
# Stands for leaving the block while a coordinate's states are numbered.
_LEAVE = -1
_DIGITS = b"0123456789"
# Which number, its part (begin, minus, whole, point, fraction, separator), and bytes of that part so far.
_Place = tuple[int, str, int]
_BEGIN: _Place = (0, "begin", 0)


class FreeLength(ABC):
    """One automaton per molecule: a chain of fixed texts with a coordinate between each two.

    A coordinate is three numbers: an optional minus, one to three digits, a point, one to four digits.
    """

    name: str
    placeholder: str
    needs_templates = True
    fixed_length = False

    def __init__(self, target: Target) -> None:
        form = target.form
        # What a digit may stand beside. A token that joins them would be cut differently by each number.
        marks = form.block_open[-1] + form.block_close[0] + form.separator + ".-"
        beside = f"[{re.escape(marks)}]".encode()
        joined = re.compile(b"[0-9]" + beside + b"|" + beside + b"[0-9]")
        for token in target.table.containing(_DIGITS):
            piece = target.table.of(token)
            if token not in target.table.special and joined.search(piece):
                raise UsageError(
                    f"the processor {self.name!r} needs a tokenizer that cuts numbers off marks; its token {piece!r} "
                    "joins them",
                    hint="--processor generic works with any tokenizer",
                )
        self._target = target
        self.placeholder = form.numbers(PLACEHOLDER)
        self._coordinate = self.coordinate()
        self.parameters: dict[str, Any] = {
            "whole_digits": WHOLE_DIGITS,
            "decimals": COORDINATE_DECIMALS,
            "coordinate_states": len(self._coordinate.edges),
            "kernels_per_step": 6 if fused_step(target.device) is None else 1,
        }

    @abstractmethod
    def coordinate(self) -> Coordinate:
        """The automaton of one coordinate, for the target's vocabulary."""

    @abstractmethod
    def chain(self, template: Template) -> Chain:
        """The token paths before, between and after a molecule's coordinates."""

    def longest(self, template: Template) -> int:
        return self.chain(template).longest(self._coordinate)

    def start(self, templates: Sequence[Template], prompt_width: int) -> BatchProcessor:
        chains = [self.chain(template) for template in templates]
        return AutomatonBatch(compile_tables(self._coordinate, chains, self._target), prompt_width, self._target)


class Grammar(FreeLength):
    """Accepts every conformer text of a molecule, cut as the tokenizer cuts it: merged tokens such as `,-` and `>[`.

    No token joins a digit with a mark (checked once per vocabulary), so every text is cut between them. What lies
    between two digits is then cut the same way whatever the numbers are: the tokenizer cuts gaps, separators and runs
    of digits each by themselves.
    """

    name = "grammar"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._gap = cache(self._paths)

    def chain(self, template: Template) -> Chain:
        """The molecule's gaps; before a coordinate, one path without and one with its first minus."""
        first, *between, last = self._target.form.gaps(template.text)
        gaps = [self._gap("", first, "0"), *(self._gap("0", text, "0") for text in between)]
        return Chain((*gaps, self._gap("0", last, "")))

    def _paths(self, before: str, text: str, after: str) -> tuple[Path, ...]:
        signs = ("", "-") if after else ("",)
        return _cut(self._target.tokenizer, [(before, text + sign, after) for sign in signs])

    def coordinate(self) -> Coordinate:
        """Number, comma, number, comma, number; states are numbered from the end to the beginning."""
        tokenizer, separator = self._target.tokenizer, self._target.form.separator
        whole = trie(_digit_paths(tokenizer, WHOLE_DIGITS))
        fraction = trie(_digit_paths(tokenizer, COORDINATE_DECIMALS))
        point = trie(_cut(tokenizer, [("0", ".", "0")]))
        comma = trie(_cut(tokenizer, [("0", separator, "0"), ("0", f"{separator}-", "0")]))
        states: list[dict[int, int]] = [{}]  # state 0 is filled in at last
        edges = {_LEAVE: _LEAVE}
        for number in range(3):
            for part in (*((comma,) if number else ()), fraction, point, whole):
                edges = _link(part, edges, states)
        states[0] = edges
        closing = frozenset(place for place, ways in enumerate(states) if ways.pop(_LEAVE, None) is not None)
        return Coordinate(tuple(states), closing)


def _cut(tokenizer: PreTrainedTokenizerFast, texts: Sequence[tuple[str, str, str]]) -> tuple[Path, ...]:
    """The tokens of each middle text between digits: (digits or nothing, text, digits or nothing)."""
    encoded = tokenizer(["".join(parts) for parts in texts], add_special_tokens=False, return_offsets_mapping=True)
    paths = []
    for (before, text, _), ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        begin, end = len(before), len(before) + len(text)
        kept = [(token, span) for token, span in zip(ids, offsets, strict=True) if begin <= span[0] < end]
        if not kept or kept[0][1][0] != begin or kept[-1][1][1] != end:
            raise UsageError(
                f"the processor 'grammar' needs a tokenizer that cuts {text!r} off the digits around it",
                hint="--processor generic works with any tokenizer",
            )
        paths.append(tuple(token for token, _ in kept))
    return tuple(paths)


@lru_cache(maxsize=4)
def _digit_paths(tokenizer: PreTrainedTokenizerFast, most: int) -> tuple[Path, ...]:
    """Every run of one to `most` digits, as cut after a mark."""
    runs = [f"{value:0{size}}" for size in range(1, most + 1) for value in range(10**size)]
    return _cut(tokenizer, [(".", run, ".") for run in runs])


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


class Truncate(FreeLength):
    """Forces the template's COPY runs, always those before numbers without a minus.

    Unlike with `Grammar`, a text may be cut in ways that the tokenizer would not choose (`,` and `-` for `,-`).
    """

    name = "truncate"

    def coordinate(self) -> Coordinate:
        """Three decimal numbers, in any cut into the vocabulary's tokens."""
        table, separator = self._target.table, self._target.form.separator.encode()
        made_of = table.made_of(_DIGITS + b".-" + separator)
        tokens = [(token, table.of(token)) for token in made_of if token not in table.special]
        numbers = {_BEGIN: 0}
        waiting = [_BEGIN]
        edges: list[dict[int, int]] = []
        while waiting:
            place = waiting.pop(0)
            ways: dict[int, int] = {}
            for token, piece in tokens:
                if (after := _read(place, piece, separator)) is not None:
                    if after not in numbers:
                        numbers[after] = len(numbers)
                        waiting.append(after)
                    ways[token] = numbers[after]
            edges.append(ways)
        closing = frozenset(number for (which, part, _), number in numbers.items() if which == 2 and part == "fraction")
        return Coordinate(tuple(edges), closing)

    def chain(self, template: Template) -> Chain:
        """The template's COPY runs."""
        pairs = zip(template.ids.tolist(), template.free.tolist(), strict=True)
        runs = [[token for token, _ in run] for free, run in itertools.groupby(pairs, key=itemgetter(1)) if not free]
        return Chain(tuple((tuple(run),) for run in runs))


def _read(place: _Place, piece: bytes, separator: bytes) -> _Place | None:
    """Where `piece` leads; None where it may not stand."""
    for byte in piece:
        which, part, count = place
        if byte in _DIGITS and part != "separator":
            part = {"begin": "whole", "minus": "whole", "point": "fraction"}.get(part, part)
            place = which, part, count + 1
            if place[2] > (WHOLE_DIGITS if part == "whole" else COORDINATE_DECIMALS):
                return None
        elif byte == ord("-") and part == "begin":
            place = which, "minus", 0
        elif byte == ord(".") and part == "whole":
            place = which, "point", 0
        elif (
            part in ("fraction", "separator")
            and which < 2
            and byte == separator[begun := count if part == "separator" else 0]
        ):
            place = (which, "separator", begun + 1) if begun + 1 < len(separator) else (which + 1, "begin", 0)
        else:
            return None
    return place
