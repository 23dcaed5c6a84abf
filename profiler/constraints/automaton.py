"""A token automaton per molecule, as tables for a whole batch; automaton_batch.py runs them.

A row's automaton is a chain: gap, coordinate, gap, ..., coordinate, gap, end. A *gap* is skeleton text as one or a few
token paths; a *coordinate* is always the same small automaton. States are numbered over all rows; one table holds, per
state and class of token, the next state and its mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from molprof.profiler.models.target import Target

Path = tuple[int, ...]
END = 0
_OTHER = 0  # the class of tokens that no branching state allows


@dataclass(frozen=True)
class Coordinate:
    """The automaton of the inside of a coordinate block, which begins in state 0."""

    edges: tuple[dict[int, int], ...]  # per state, the next state by token
    closing: frozenset[int]  # states in which the text may leave the block

    @cached_property
    def longest(self) -> int:
        """Most tokens of a coordinate; its automaton has no loops."""

        @cache
        def length(state: int) -> int:
            return max((1 + length(onward) for onward in set(self.edges[state].values())), default=0)

        return length(0)


@dataclass(frozen=True)
class Chain:
    """One row: per gap its token paths, all of which lead to the next coordinate or to the end."""

    gaps: tuple[tuple[Path, ...], ...]

    def longest(self, coordinate: Coordinate) -> int:
        """Most tokens of an answer, end token included."""
        return sum(max(map(len, paths)) for paths in self.gaps) + (len(self.gaps) - 1) * coordinate.longest + 1


@dataclass(frozen=True)
class Node:
    """A place inside token paths merged where they begin alike: where tokens lead, and whether a path ends here."""

    edges: dict[int, Node]
    ends: bool


@dataclass(frozen=True)
class Tables:
    """The automata of a batch, states numbered over all rows; state 0 is the end of every row."""

    classes: np.ndarray  # of each token id, int64 (logits_width,)
    moves: np.ndarray  # next state, and that state's mask, by state and class, int64 (states, classes, 2)
    first: np.ndarray  # first state of each row and its mask, int64 (rows, 2)
    columns: np.ndarray  # ids that some mask allows, ascending, int64 (k,)
    bias: np.ndarray  # 0 where a mask allows a column, -inf elsewhere, float32 (masks, k)
    counts: np.ndarray  # ids that a mask allows, int64 (masks,)


def compile_tables(coordinate: Coordinate, chains: Sequence[Chain], target: Target) -> Tables:
    """The tables of a batch."""
    builder = _Builder(coordinate)
    starts = np.asarray([builder.row(chain) for chain in chains], dtype=np.int64)
    classes, number = builder.classes(target.logits_width)
    following = builder.following(classes, number)
    columns, bias = builder.bias(target.eos)
    masks = np.asarray(builder.masks, dtype=np.int64)
    return Tables(
        classes=classes,
        moves=np.stack((following, masks[following]), axis=2),
        first=np.stack((starts, masks[starts]), axis=1),
        columns=columns,
        bias=bias,
        counts=np.isfinite(bias).sum(axis=1),
    )


class _Builder:
    """Numbers the states of a batch, with the mask of each in `masks`, and collects their edges."""

    def __init__(self, coordinate: Coordinate) -> None:
        self._coordinate = coordinate
        self.masks: list[int] = []
        self._keys: dict[tuple[int, frozenset[int]], int] = {}  # (coordinate state or -1, tokens besides its own)
        self._blocks: list[int] = []  # first state of each coordinate
        self._edges: list[tuple[int, int, int]] = []  # state, token, next state
        self._sole: list[tuple[int, int]] = []  # state with one way out, next state
        self._inherits: list[tuple[int, int]] = []  # state that goes on like the coordinate beginning at, that state
        self._trie = cache(trie)
        self._state(-1, ())  # the end: the end token, again and again

    def row(self, chain: Chain) -> int:
        """The first state of a new row."""
        tries = [self._trie(paths) for paths in chain.gaps]
        leave = {token: self._gap(child, None) for token, child in tries[-1].edges.items()}
        for trie in reversed(tries[:-1]):
            block = self._block(leave)
            leave = {token: self._gap(child, block) for token, child in trie.edges.items()}
        state = self._state(-1, leave)
        self._connect(state, leave)
        return state

    def _block(self, leave: dict[int, int]) -> int:
        """The first state of a new coordinate, whose closing states lead on as `leave` says."""
        begin = len(self.masks)
        self._blocks.append(begin)
        for place in range(len(self._coordinate.edges)):
            self._state(place, leave if place in self._coordinate.closing else ())
        for place in self._coordinate.closing:
            self._edges.extend((begin + place, token, state) for token, state in leave.items())
        return begin

    def _gap(self, node: Node, block: int | None) -> int:
        """The state of a place inside a gap before `block`, or before the end."""
        if not node.edges:
            return END if block is None else block
        onward = {token: self._gap(child, block) for token, child in node.edges.items()}
        state = self._state(0 if node.ends else -1, onward)
        if node.ends and block is not None:
            self._inherits.append((state, block))
        self._connect(state, onward, sole=not node.ends or block is None)
        return state

    def _connect(self, state: int, onward: dict[int, int], sole: bool = True) -> None:
        if sole and len(onward) == 1:
            self._sole.append((state, next(iter(onward.values()))))
        else:
            self._edges.extend((state, token, following) for token, following in onward.items())

    def _state(self, place: int, tokens: Sequence[int] | dict[int, int]) -> int:
        self.masks.append(self._keys.setdefault((place, frozenset(tokens)), len(self._keys)))
        return len(self.masks) - 1

    def classes(self, width: int) -> tuple[np.ndarray, int]:
        """Class of each token, and the number of classes; tokens that every state treats alike share one."""
        told_apart = {token for _, token, _ in self._edges}
        ways: dict[int, dict[int, int]] = {token: {} for token in told_apart}
        for place, edges in enumerate(self._coordinate.edges):
            for token, following in edges.items():
                ways.setdefault(token, {})[place] = following
        numbers: dict[tuple[int | None, tuple[tuple[int, int], ...]], int] = {}
        found = np.full(width, _OTHER, dtype=np.int64)
        for token, moves in sorted(ways.items()):
            key = token if token in told_apart else None, tuple(moves.items())
            found[token] = numbers.setdefault(key, len(numbers) + 1)
        return found, len(numbers) + 1

    def following(self, classes: np.ndarray, number: int) -> np.ndarray:
        """Next state by state and class, int64; a token that may not follow leads to the end."""
        found = np.full((len(self.masks), number), END, dtype=np.int64)
        size = len(self._coordinate.edges)
        shifts = np.full((size, number), -1, dtype=np.int64)
        for place, edges in enumerate(self._coordinate.edges):
            for token, following in edges.items():
                shifts[place, classes[token]] = following
        blocks = np.asarray(self._blocks, dtype=np.int64)
        inside = np.where(shifts[None] < 0, END, shifts[None] + blocks[:, None, None])
        found[blocks[:, None] + np.arange(size)] = inside
        for state, block in self._inherits:
            found[state] = found[block]
        for state, following in self._sole:
            found[state] = following
        if self._edges:
            states, tokens, followings = np.asarray(self._edges, dtype=np.int64).T
            found[states, classes[tokens]] = followings
        return found

    def bias(self, eos: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids that may be written at all, and the masks over them."""
        allowed = [
            {eos} if mask == self.masks[END] else tokens | (set(self._coordinate.edges[place]) if place >= 0 else set())
            for (place, tokens), mask in self._keys.items()
        ]
        columns = np.asarray(sorted(set().union(*allowed)), dtype=np.int64)
        bias = np.full((len(allowed), len(columns)), -math.inf, dtype=np.float32)
        for mask, tokens in enumerate(allowed):
            bias[mask, np.searchsorted(columns, sorted(tokens))] = 0.0
        return columns, bias


def trie(paths: Sequence[Path]) -> Node:
    """Token paths, merged where they begin alike."""
    tails: dict[int, list[Path]] = {}
    for path in paths:
        if path:
            tails.setdefault(path[0], []).append(path[1:])
    return Node({head: trie(rest) for head, rest in tails.items()}, ends=not all(paths))
