"""Token tables: the allowed tokens by state, and one automaton for the rows of a batch.

A compiler makes `TokenTable`s of whatever constrains a text, such as `molecules.py`. Nothing here knows of what.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from molprof.profiler.constraints.automaton import group_equal_rows
from molprof.profiler.constraints.base import BatchProcessor, Rows
from molprof.profiler.constraints.token_dfa import TokenDfa, TokenDfaBatch, fused_steps
from molprof.profiler.models.device import on_gpu
from molprof.profiler.models.target import ProcessorTarget

Path = Sequence[int]  # token ids, or bytes
_END = -1  # stands for the end of a text while its states are numbered


@dataclass(frozen=True, eq=False)
class TokenTable:
    """An automaton over token ids, which begins in state 0.

    Args:
        edges: by state, the tokens that may follow, and the state that each leads to.
        ends: states in which the text may end. Then the next table of the row follows, after the last one the end
            token. None of what may follow may be in `edges` of that state too.
    """

    edges: Sequence[Mapping[int, int]]
    ends: Collection[int]

    def __post_init__(self) -> None:
        """Raise ValueError if no text is allowed, not even an empty one."""
        if not (self.edges and self.edges[0]) and 0 not in self.ends:
            raise ValueError("the table allows no text: nothing leads on from state 0, and it is no end")

    @cached_property
    def longest(self) -> int | None:
        """The most tokens of a text; None if it has no bound."""
        onward = [set(edges.values()) for edges in self.edges]
        lengths = [0] * len(onward)
        for _ in range(len(onward) + 1):
            longer = [max((1 + lengths[state] for state in states), default=0) for states in onward]
            if longer == lengths:
                return lengths[0]
            lengths = longer
        return None

    @cached_property
    def kinds(self) -> dict[int, int]:
        """Numbers of tokens, the same for tokens with the same transitions."""
        return _numbered((token, (state, to)) for state, edges in enumerate(self.edges) for token, to in edges.items())


def _numbered(marks: Iterable[tuple[int, tuple[int, int]]]) -> dict[int, int]:
    """Give tokens numbers from 0 on, the same for those with the same transitions."""
    of_token: dict[int, list[tuple[int, int]]] = {}
    for token, mark in marks:
        of_token.setdefault(token, []).append(mark)
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    return {token: numbers.setdefault(tuple(token_marks), len(numbers)) for token, token_marks in of_token.items()}


def spelled(*parts: Iterable[Path]) -> TokenTable:
    """Return the table of texts that are one path of each part, in their order. An empty path skips a part.

    States with the same future are one: of 1,000 tokens of three digits all lead to the same one.
    """
    states: list[dict[int, int]] = [{}]  # state 0 is filled in at last
    numbers: dict[tuple[tuple[int, int], ...], int] = {}

    def edges(paths: Iterable[Path], after: dict[int, int]) -> dict[int, int]:
        tails: dict[int, list[Path]] = {}
        ways: dict[int, int] = {}
        for path in paths:
            if path:
                tails.setdefault(path[0], []).append(path[1:])
            else:
                ways = after
        return {token: state(edges(rest, after)) for token, rest in tails.items()} | ways

    def state(ways: dict[int, int]) -> int:
        number = numbers.setdefault(tuple(sorted(ways.items())), len(states))
        if number == len(states):
            states.append(ways)
        return number

    first = {_END: _END}
    for part in reversed(parts):
        first = edges(part, first)
    states[0] = first
    ends = [number for number, ways in enumerate(states) if ways.pop(_END, None) is not None]
    return TokenTable(states, ends)


def any_cut(table: TokenTable, pieces: Mapping[int, bytes]) -> TokenTable:
    """Return the table of all tokenizations into `pieces` of the texts of `table`, which is of bytes."""

    def edges(state: int) -> Iterator[tuple[int, int]]:
        for token, piece in pieces.items():
            to: int | None = state
            for byte in piece:
                to = None if to is None else table.edges[to].get(byte)
            if to is not None and piece:
                yield token, to

    return TokenTable([dict(edges(state)) for state in range(len(table.edges))], table.ends)


Row = Sequence[TokenTable]  # what a row may write: the texts of these tables, one after the other


def compile_rows(rows: Sequence[Row], eos: int, width: int) -> tuple[TokenDfa, list[int]]:
    """Return one automaton for the rows of a batch, and the first state of each.

    Past its last table a row has the end token, again and again.
    """
    end = TokenTable(({eos: 0},), ())
    chains = [[end], *([*row, end] for row in rows)]
    tables = dict.fromkeys(table for chain in chains for table in chain)
    classes, sizes = _classes(tables, width)
    count = len(sizes)
    alone = {table: _moves(table, classes, count) for table in tables}
    first: list[int] = []  # state of each chain
    placed: dict[Row, list[int]] = {}  # first states of a table, by the table and what may follow it at once
    states = 0
    for chain in chains:
        first.append(states)
        for index, table in enumerate(chain):
            stop = index + 1
            while table.ends and 0 in chain[stop].ends:
                stop += 1
            placed.setdefault(tuple(chain[index : stop + bool(table.ends)]), []).append(states)
            states += len(table.edges)
    blocks = [_followed([alone[table] for table in tables], tables[0].ends) for tables in placed]
    every = np.concatenate(blocks)
    at, sets = group_equal_rows(every >= 0)
    moves, masks = np.empty((states, count), dtype=np.int32), np.empty(states, dtype=np.int64)
    begun = 0
    for block, starts in zip(blocks, placed.values(), strict=True):
        begin = np.asarray(starts, dtype=np.int32)[:, None]
        states_of_block = begin + np.arange(len(block))
        moves[states_of_block] = np.where(block < 0, -1, block + begin[:, :, None])
        masks[states_of_block] = sets[begun : begun + len(block)]
        begun += len(block)
    allowed = every[at] >= 0
    return TokenDfa(classes, moves, masks, allowed, allowed @ sizes, first=0), first[1:]


def _classes(tables: Iterable[TokenTable], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the class of each token id, int32 (width,), and how many ids each class has, int64 (classes,).

    Ids that lead to the same states of all tables are of one class. Those in no table are of class 0, and not counted.
    """
    kinds = _numbered(
        (token, (number, kind)) for number, table in enumerate(tables) for token, kind in table.kinds.items()
    )
    numbers = np.array([*kinds.values()], dtype=np.int32) + 1
    classes = np.zeros(width, dtype=np.int32)
    classes[[*kinds]] = numbers
    return classes, np.bincount(numbers)


def _moves(table: TokenTable, classes: np.ndarray, count: int) -> np.ndarray:
    """Return the next state by state and class, -1 for forbidden classes, int32 (states, classes)."""
    moves = np.full((len(table.edges), count), -1, dtype=np.int32)
    for state, edges in enumerate(table.edges):
        moves[state, classes[list(edges)]] = list(edges.values())
    return moves


def _followed(tables: Sequence[np.ndarray], ends: Collection[int]) -> np.ndarray:
    """Return the next states of the first table, whose ends lead to the first tokens of the others.

    They are counted from the beginning of the first table, where the tables stand one after the other.
    """
    moves: np.ndarray = tables[0].copy()
    shift = len(tables[0])
    for table in tables[1:]:
        begins = np.flatnonzero(table[0] >= 0)
        at = np.ix_(np.array(sorted(set(ends)), dtype=np.int64), begins)
        if (moves[at] >= 0).any():
            raise ValueError("where a text may end, a token both goes on with it and begins what follows")
        moves[at] = table[0, begins] + shift
        shift += len(table)
    return moves


class TableProcessor:
    """A `Processor` of tables.

    Args:
        rows: of a batch, what each row may write.
    """

    def __init__(self, name: str, target: ProcessorTarget, rows: Callable[[Rows], Sequence[Row]]) -> None:
        self.name, self._target, self._rows = name, target, rows
        self.parameters: dict[str, Any] = {}
        if on_gpu(target.device):
            self.parameters["kernels_per_step"] = 6 if fused_steps(target.device) is None else 1

    def start(self, rows: Rows) -> BatchProcessor:
        """Start a batch with the tables of its rows."""
        each = self._rows(rows)
        dfa, first = compile_rows(each, self._target.eos, self._target.logits_width)
        return TokenDfaBatch([dfa] * len(each), self._target, rows.prompt_width, first)
