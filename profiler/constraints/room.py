"""Freedom under a constraint, without a model: endless loops, and text that is forced.

A model may stay in a loop until the token limit. Forced text is the only one that may follow; where it is cut into
tokens by itself, as jumping ahead does, it may have others than the tokenizer writes.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from molprof.common.document import Document, Section, Table, pairs, table_of
from molprof.common.text import shortened
from molprof.profiler.constraints.automaton import Automaton
from molprof.profiler.constraints.json_space import MOST, Space, spaces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MOST_LOOPS, _MOST_TEXT = 20, 60
_BLANK, _DIGITS = frozenset(b"\t\n\v\f\r\x1c\x1d\x1e\x1f "), frozenset(b"0123456789")
_ASCII = frozenset(range(128))
# Of bytes that lead to the same states, the first here stands for all.
_READABLE = [*dict.fromkeys([*f"{string.ascii_lowercase}{string.digits}{string.printable}".encode(), *range(256)])]
_SPACE = "the engine's default form of the schema; where it has no end, a model may write it until the token limit"
_Ways = dict[int, tuple[int, int] | None]


class EndlessLoop(Struct, frozen=True):
    """States of a loop that a text may never leave."""

    cause: str  # white space, digits, or text: other characters too; of ASCII characters, if it has any
    after: str  # the shortest text that leads there
    around: str  # a short way around


class Spelling(Struct, frozen=True):
    """The shortest text of a constraint in a tokenizer's tokens."""

    tokenizer: str
    tokens: int
    apart_tokens: int  # where each span of forced text, and of other text, is cut by itself


class Room(Struct, frozen=True):
    """The texts that a constraint allows: their number, loops and forced parts."""

    kind: str  # of the constraint
    constraint: str
    states: int
    loops: tuple[EndlessLoop, ...]  # at most 20, those first that fewer bytes lead to
    shortest: str
    bytes: int  # of the shortest text
    forced_bytes: int  # of these, those beside which none could follow
    spellings: tuple[Spelling, ...]
    spaces: tuple[Space, ...] = ()  # of a JSON schema, what each engine allows


def room_of(kind: str, constraint: str, automaton: Automaton, tokenizers: Sequence[tuple[str, Tokenizer]]) -> Room:
    """Return the texts that a constraint allows; automaton: of the constraint."""
    shown = [
        next(byte for byte in _READABLE if automaton.kinds[byte] == one) for one in range(automaton.moves.shape[1])
    ]
    ways = _predecessors(automaton, shown)
    end = next(state for state in ways if automaton.ends[state])
    states, path = _path(ways, end)
    sizes = np.bincount(automaton.kinds)
    forced = [not automaton.ends[state] and int(sizes[automaton.moves[state] >= 0].sum()) == 1 for state in states[:-1]]
    runs = [bytes(byte for _, byte in run) for _, run in groupby(zip(forced, path, strict=True), lambda one: one[0])]

    def tokens(tokenizer: Tokenizer, text: bytes) -> int:
        return len(tokenizer.encode(text.decode(errors="replace"), add_special_tokens=False).ids)

    return Room(
        kind, constraint, len(automaton.moves), tuple(_loops(automaton, shown, ways)), _text(path), len(path),
        sum(forced),
        tuple(
            Spelling(name, tokens(tokenizer, bytes(path)), sum(tokens(tokenizer, run) for run in runs))
            for name, tokenizer in tokenizers
        ),
        tuple(spaces(constraint, _text(path))) if kind == "schema" else (),
    )  # fmt: skip


def _loops(automaton: Automaton, shown: Sequence[int], ways: _Ways) -> list[EndlessLoop]:
    order = {state: index for index, state in enumerate(ways)}
    candidates = []
    for cause, only in (("white space", _BLANK), ("digits", _DIGITS), ("text", frozenset(range(256)))):
        kept = [kind for kind, byte in enumerate(shown) if not only.isdisjoint(np.flatnonzero(automaton.kinds == kind))]
        following = [sorted({*row} - {-1}) for row in automaton.moves[:, kept].tolist()]
        for component in _components(following):
            inside: Any = np.isin(automaton.moves[component], component).any(axis=0)
            used = {byte for byte in range(256) if inside[automaton.kinds[byte]]}
            used = used & _ASCII or used
            if used and used <= only and (len(only) < 256 or not (used <= _BLANK or used <= _DIGITS)):
                candidates.append((min(map(order.__getitem__, component)), cause, following))
    loops = []
    for index, cause, following in sorted(candidates, key=lambda one: one[:2])[:_MOST_LOOPS]:
        entry = list(ways)[index]
        from_here = _predecessors(automaton, shown, entry)
        last = next(state for state in from_here if entry in following[state])
        closing = next(byte for byte in shown if automaton.moves[last, automaton.kinds[byte]] == entry)
        loops.append(EndlessLoop(cause, _text(_path(ways, entry)[1]), _text([*_path(from_here, last)[1], closing])))
    return loops


def _components(following: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield sets of states that lead to each other, each once (Kosaraju's algorithm)."""
    order: list[int] = []  # states, those last that were left last
    seen: set[int] = set()
    for root in range(len(following)):
        path = [] if root in seen else [(root, iter(following[root]))]
        seen.add(root)
        while path:
            state, rest = path[-1]
            if (to := next((to for to in rest if to not in seen), None)) is None:
                order.append(path.pop()[0])
            else:
                seen.add(to)
                path.append((to, iter(following[to])))
    before: list[list[int]] = [[] for _ in following]
    for state, tos in enumerate(following):
        for to in tos:
            before[to].append(state)
    for root in reversed(order):
        component = [root] if root in seen else []  # what is seen has no set yet
        seen.discard(root)
        for state in component:  # grows
            new = [one for one in before[state] if one in seen]
            seen.difference_update(new)
            component += new
        if component:
            yield component


def _predecessors(automaton: Automaton, shown: Sequence[int], first: int = 0) -> _Ways:
    """Return for each state, nearest first, its predecessor on a shortest path from `first`, and the byte between."""
    ways: _Ways = {first: None}
    waiting = [first]
    for state in waiting:  # grows
        for kind, to in enumerate(automaton.moves[state].tolist()):
            if to >= 0 and to not in ways:
                ways[to] = state, shown[kind]
                waiting.append(to)
    return ways


def _path(ways: _Ways, state: int) -> tuple[list[int], list[int]]:
    """Return the states of the path to a state, both ends included, and the bytes between them."""
    states, path = [state], []
    while (way := ways[states[-1]]) is not None:
        states.append(way[0])
        path.append(way[1])
    return states[::-1], path[::-1]


def _text(path: Sequence[int]) -> str:
    return bytes(path).decode(errors="replace")


def room_document(room: Room) -> Document:
    """Return the document of the number of texts."""
    rows: list[tuple[str, Any]] = [
        (room.kind, shortened(room.constraint, _MOST_TEXT)), ("states", f"{room.states:,}"),
        ("shortest text", shortened(room.shortest, _MOST_TEXT)),
        ("forced", f"{room.forced_bytes:,} of its {room.bytes:,} bytes"),
    ]  # fmt: skip
    loops = table_of(
        room.loops, ("cause", "text"), ("after", "text", lambda loop: shortened(loop.after, _MOST_TEXT)),
        ("one round", "text", lambda loop: repr(shortened(loop.around, _MOST_TEXT))),
    )  # fmt: skip
    note = "a model may write round after round until the token limit; after: the shortest text that leads to the loop"
    bounded = (note if room.loops else "none: every text has an end",)
    spelled = table_of(
        room.spellings, ("tokenizer", "text"), ("tokens", "count"), ("cut apart", "count", "apart_tokens"),
        ("drift", "count", lambda one: one.apart_tokens - one.tokens),
    )  # fmt: skip
    apart = ("cut apart: each span of forced text, and of other text, by itself; drift: tokens more than whole",)
    form: tuple[str, ...] = ()
    if room.spaces:
        form = ("of JSON as table writes it, without white space between its tokens; other engines: below",)
    return Document(
        "molprof drift",
        (
            Section("Constraint", table=pairs(rows)),
            Section("Loops that the constraint allows", (*form, *bounded), loops),
            *(
                [Section("White space between tokens of JSON, by engine", (_SPACE,), _space_table(room))]
                if form
                else []
            ),
            Section("Tokens of the shortest text", apart, spelled),
        ),
        lambda: room,
    )


def _space_table(room: Room) -> Table:
    def said(space: Space) -> str:
        if not space.installed:
            return "not installed"
        if space.problem is not None:
            return f"not known: {shortened(space.problem, _MOST_TEXT)}"
        if space.most is None:
            return "not known: it does not take the shortest text"
        return "without end" if space.most >= MOST else f"up to {space.most:,} in a row" if space.most else "none"

    return table_of(room.spaces, ("engine", "text"), ("spaces", "text", said))
