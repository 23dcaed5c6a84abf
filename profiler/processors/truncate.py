"""`truncate`: the position template, except that a coordinate ends where the model closes it.

COPY runs are the template's own tokens. A block allows every token that keeps to `x,y,z`, and after three numbers the
template's closing token too. Unlike `grammar`, a text may be cut in ways that the tokenizer would not choose (`,` and
`-` for `,-`), and a COPY run is always the one before a number without a minus.
"""

from __future__ import annotations

from molprof.profiler.models.target import TokenBytes
from molprof.profiler.molecules.smiles import COORDINATE_DECIMALS
from molprof.profiler.molecules.template import Template
from molprof.profiler.processors.automaton import Chain, Coordinate
from molprof.profiler.processors.free_length import WHOLE_DIGITS, FreeLength

_DIGITS = b"0123456789"
# Which number, its part (begin, minus, whole, point, fraction), and digits of that part so far.
_Place = tuple[int, str, int]
_BEGIN: _Place = (0, "begin", 0)


class Truncate(FreeLength):
    """Forces the template's COPY runs; a coordinate ends where the model closes it."""

    name = "truncate"

    def coordinate(self) -> Coordinate:
        return number_automaton(self._target.table)

    def chain(self, template: Template) -> Chain:
        """The template's COPY runs."""
        runs: list[list[int]] = [[]]
        open_block = False
        for token, free in zip(template.ids.tolist(), template.free.tolist(), strict=True):
            if free:
                open_block = True
                continue
            if open_block:
                runs.append([])
                open_block = False
            runs[-1].append(token)
        return Chain(tuple((tuple(run),) for run in runs))


def number_automaton(table: TokenBytes) -> Coordinate:
    """Three decimal numbers, in any cut into the vocabulary's tokens."""
    tokens = [(token, table.of(token)) for token in table.made_of(_DIGITS + b".,-") if token not in table.special]
    numbers = {_BEGIN: 0}
    waiting = [_BEGIN]
    edges: list[dict[int, int]] = []
    while waiting:
        place = waiting.pop(0)
        ways: dict[int, int] = {}
        for token, piece in tokens:
            if (after := _read(place, piece)) is not None:
                if after not in numbers:
                    numbers[after] = len(numbers)
                    waiting.append(after)
                ways[token] = numbers[after]
        edges.append(ways)
    closing = frozenset(number for (which, part, _), number in numbers.items() if which == 2 and part == "fraction")
    return Coordinate(tuple(edges), closing)


def _read(place: _Place, piece: bytes) -> _Place | None:
    """Where `piece` leads; None where it may not stand."""
    for byte in piece:
        which, part, count = place
        if byte in _DIGITS:
            part = {"begin": "whole", "minus": "whole", "point": "fraction"}.get(part, part)
            place = which, part, count + 1
            if place[2] > (WHOLE_DIGITS if part == "whole" else COORDINATE_DECIMALS):
                return None
        elif byte == ord("-") and part == "begin":
            place = which, "minus", 0
        elif byte == ord(".") and part == "whole":
            place = which, "point", 0
        elif byte == ord(",") and part == "fraction" and which < 2:
            place = which + 1, "begin", 0
        else:
            return None
    return place
