"""Token tables: which tokens may follow in which state, on the device, with a table for each row of a batch.

A compiler makes `TokenTable`s of whatever constrains a text, such as `molecules.py`. Nothing here knows of what. The
states of all rows are numbered together; one tensor holds, per state and class of token, the next state and its mask.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.profiler.constraints.base import BatchProcessor, Places, Rows
from molprof.profiler.models.device import on_gpu
from molprof.profiler.models.target import Target

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
        """Raises ValueError where no text is allowed, not even an empty one."""
        if not (self.edges and self.edges[0]) and 0 not in self.ends:
            raise ValueError("the table allows no text: nothing leads on from state 0, and it is no end")

    @cached_property
    def longest(self) -> int | None:
        """Most tokens of a text; None if it has no bound."""
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
        """Numbers of tokens, the same for tokens that lead to the same states.

        Tokens that are the only one in each of their states are left out: there the next state is known without them.
        """
        ways: dict[int, list[tuple[int, int]]] = {}
        for state, edges in enumerate(self.edges):
            if len(edges) > 1 or state == 0 or state in self.ends:
                for token, following in edges.items():
                    ways.setdefault(token, []).append((state, following))
        numbers: dict[tuple[tuple[int, int], ...], int] = {}
        return {token: numbers.setdefault(tuple(way), len(numbers)) for token, way in ways.items()}

    @cached_property
    def allowed(self) -> tuple[frozenset[int], ...]:
        """The tokens of each state's edges."""
        return tuple(map(frozenset, self.edges))


def spelled(*parts: Iterable[Path]) -> TokenTable:
    """The table of texts that are one path of each part, in their order. An empty path leaves a part out.

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
    """The table of the texts of `table`, which is of bytes, in every cut into tokens of these `pieces`."""

    def edges(state: int) -> Iterator[tuple[int, int]]:
        for token, piece in pieces.items():
            to: int | None = state
            for byte in piece:
                to = None if to is None else table.edges[to].get(byte)
            if to is not None and piece:
                yield token, to

    return TokenTable([dict(edges(state)) for state in range(len(table.edges))], table.ends)


Row = Sequence[TokenTable]  # what a row may write: the texts of these tables, one after the other


@dataclass(frozen=True)
class Compiled:
    """The tables of a batch with its states numbered over all rows: S states, C classes, M masks, k columns.

    State 0 allows the end token alone. It is where a token leads that may not follow.
    """

    classes: np.ndarray  # of each token id, int64 (logits_width,)
    moves: np.ndarray  # next state, and that state's mask, by state and class, int64 (S, C, 2)
    first: np.ndarray  # first state of each row and its mask, int64 (rows, 2)
    columns: np.ndarray  # ids that some mask allows, ascending, int64 (k,)
    bias: np.ndarray  # 0 where a mask allows a column, -inf elsewhere, float32 (M, k)
    counts: np.ndarray  # ids that a mask allows, int64 (M,)


def compile_rows(rows: Sequence[Row], eos: int, width: int) -> Compiled:
    """The tables of a batch. Past its last table a row has the end token, again and again."""
    end = TokenTable(({eos: 0},), ())
    chains = [[end], *([*row, end] for row in rows)]
    builder = _Builder(dict.fromkeys(table for chain in chains for table in chain), width)
    bases: list[int] = []  # first state of each chain
    placed: dict[Row, list[int]] = {}  # first states of a table, by the table and what may follow it at once
    states = 0
    for chain in chains:
        bases.append(states)
        for place, table in enumerate(chain):
            stop = place + 1
            while table.ends and 0 in chain[stop].ends:
                stop += 1
            placed.setdefault(tuple(chain[place : stop + bool(table.ends)]), []).append(states)
            states += len(table.edges)
    following = np.empty((states, builder.number), dtype=np.int64)
    masks = np.empty(states, dtype=np.int64)
    for tables, starts in placed.items():
        moves, own = builder.block(tables)
        begin = np.asarray(starts, dtype=np.int64)
        at = begin[:, None] + np.arange(len(own))
        following[at] = np.where(moves < 0, 0, moves + begin[:, None, None])
        masks[at] = own
    columns, allowed = builder.masks()
    first = np.asarray(bases[1:], dtype=np.int64)
    return Compiled(
        classes=builder.classes,
        moves=np.stack((following, masks[following]), axis=2),
        first=np.stack((first, masks[first]), axis=1),
        columns=columns,
        bias=np.where(allowed, np.float32(0.0), np.float32(-math.inf)),
        counts=allowed.sum(axis=1),
    )


class _Builder:
    """Classes of tokens and numbers of masks, over all tables of a batch."""

    def __init__(self, tables: Iterable[TokenTable], width: int) -> None:
        ways: dict[int, list[tuple[int, int]]] = {}
        for number, table in enumerate(tables):
            for token, kind in table.kinds.items():
                ways.setdefault(token, []).append((number, kind))
        numbers: dict[tuple[tuple[int, int], ...], int] = {}
        self.classes = np.zeros(width, dtype=np.int64)  # 0: tokens that are allowed only where nothing else is
        for token, way in ways.items():
            self.classes[token] = numbers.setdefault(tuple(way), len(numbers) + 1)
        self.number = len(numbers) + 1
        self._alone: dict[TokenTable, tuple[np.ndarray, list[int]]] = {}
        self._firsts: dict[TokenTable, np.ndarray] = {}
        self._sets: dict[frozenset[int], int] = {}
        self._masks: dict[tuple[int, ...], int] = {}  # by the numbers of the sets that it allows together

    def block(self, tables: Row) -> tuple[np.ndarray, list[int]]:
        """Next state by state of the first table and class, int64, -1 where it may not follow; the mask of each state.

        The other tables are those whose first tokens may follow where the first one ends. Next states are counted from
        the beginning of the first table, where the tables stand one after the other.
        """
        table, *after = tables
        alone, known = self._of(table)
        moves, masks = alone.copy(), known.copy()
        for state in table.ends:
            sets, shift = [table.allowed[state]], len(table.edges)
            for other in after:
                first = other.allowed[0]
                if not all(map(first.isdisjoint, sets)):
                    raise ValueError("where a text may end, a token both goes on with it and begins what follows")
                sets.append(first)
                later = self._first(other)
                moves[state] = np.where(later < 0, moves[state], later + shift)
                shift += len(other.edges)
            masks[state], count = self._mask(sets)
            if count == 1:
                moves[state] = moves[state].max()
        return moves, masks

    def masks(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids that some mask allows, ascending; whether a mask allows each, bool (masks, ids)."""
        columns = np.asarray(sorted(set().union(*self._sets)), dtype=np.int64)
        sets = np.zeros((len(self._sets), len(columns)), dtype=bool)
        for number, tokens in enumerate(self._sets):
            sets[number, np.searchsorted(columns, list(tokens))] = True
        return columns, np.stack([sets[list(numbers)].any(axis=0) for numbers in self._masks])

    def _of(self, table: TokenTable) -> tuple[np.ndarray, list[int]]:
        """What `block` gives for a table that nothing follows; where the text may end, only next states."""
        if table not in self._alone:
            moves = np.full((len(table.edges), self.number), -1, dtype=np.int64)
            masks = [0] * len(moves)
            for state, edges in enumerate(table.edges):
                moves[state, self.classes[list(edges)]] = list(edges.values())
                if state not in table.ends:
                    masks[state], count = self._mask([table.allowed[state]])
                    if count == 1:  # goes on whatever is written
                        moves[state] = moves[state].max()
            self._alone[table] = moves, masks
        return self._alone[table]

    def _first(self, table: TokenTable) -> np.ndarray:
        """Next state by class in state 0, -1 where a token may not follow."""
        if table not in self._firsts:
            found = self._firsts[table] = np.full(self.number, -1, dtype=np.int64)
            found[self.classes[list(table.edges[0])]] = list(table.edges[0].values())
        return self._firsts[table]

    def _mask(self, sets: Sequence[frozenset[int]]) -> tuple[int, int]:
        """The number of the mask that allows these tokens, and how many they are."""
        numbers = tuple(sorted(self._sets.setdefault(tokens, len(self._sets)) for tokens in sets if tokens))
        return self._masks.setdefault(numbers, len(self._masks)), sum(map(len, sets))


def fused_steps(device: torch.device) -> Any:
    """The module `fused`, whose steps are one Triton kernel each; None on a CPU, and where Triton is not installed."""
    if not on_gpu(device) or importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module("molprof.profiler.constraints.fused")


class TableBatch(LogitsProcessor):
    """The states of a batch's rows on the device. No step reads anything back.

    Allowed scores are copied into a tensor that is -inf everywhere else and is returned at every step. A step touches
    `rows x k` elements, whatever the vocabulary: one kernel on a GPU with Triton, else six.
    """

    reads_tokens = True  # what is forced depends on the chosen tokens

    def __init__(self, rows: Sequence[Row], target: Target, prompt_width: int) -> None:
        tables = self._tables = compile_rows(rows, target.eos, target.logits_width)
        self._eos = target.eos
        self._hidden: np.ndarray = target.logits_width - tables.counts  # by mask
        self._prompt_width = self._read = prompt_width
        copied = (tables.classes, tables.moves, tables.columns, tables.bias)
        self._device = tuple(torch.from_numpy(array).to(target.device) for array in copied)
        self._at = torch.from_numpy(tables.first.copy()).to(target.device)  # state of each row and its mask, (rows, 2)
        self._out = torch.empty((0, target.logits_width), device=target.device)
        self._fused = fused_steps(target.device)
        self._called: list[int] = []
        self._ids: Tensor | None = None
        # States on the host, for a decoding loop that appends forced runs; see `forced`.
        self._host = tables.first.copy()
        self._paths = [[first] for first in tables.first]  # of `state`: by row and answer position, state and mask
        self._masked = np.zeros(len(rows), dtype=np.int64)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Advance by the tokens since the last call, and mask."""
        first, self._read = self._read, input_ids.shape[1]
        self._called.append(self._read - self._prompt_width)
        self._ids = input_ids
        if self._fused is not None:
            out = self._room(len(scores))
            self._fused.step(input_ids, first, self._device, self._at, scores, out)
            return out
        for column in range(first, self._read):
            self.advance(input_ids[:, column])
        return self.mask(scores)

    def advance(self, tokens: Tensor) -> None:
        """Move each row past its token, int64 (rows,)."""
        classes, moves, _, _ = self._device
        self._at = moves[self._at[:, 0], classes[tokens]]

    def mask(self, scores: Tensor, places: Places | None = None) -> Tensor:
        """The scores that each row's state allows, float32 (rows, logits_width), -inf elsewhere.

        Args:
            places: rows in the states that `forced` left them in.
        """
        if places is None:
            return self.allow(scores, self._at[:, 1])
        rows = list(places.rows)
        self._masked[rows] += self._hidden[self._host[rows, 1]]
        return self.allow(scores, torch.from_numpy(self._host[rows, 1]).to(scores.device))

    def allow(self, scores: Tensor, states: Tensor) -> Tensor:
        """See `StateTable`: a state is the number of its mask."""
        _, _, columns, bias = self._device
        kept = scores.index_select(1, columns)
        kept.add_(bias.index_select(0, states))
        return self._room(len(scores)).index_copy_(1, columns, kept)

    def state(self, row: int, position: int, chosen: int | None) -> int:
        tables, path = self._tables, self._paths[row]
        if chosen is not None:
            del path[position:]
            path.append(tables.moves[path[-1][0], tables.classes[chosen]])
        mask = int(path[position][1])
        self._masked[row] += self._hidden[mask]
        return mask

    def _room(self, rows: int) -> Tensor:
        """What is returned for so many rows, -inf wherever no mask allows a column."""
        if len(self._out) < rows:
            self._out = torch.full((rows, self._out.shape[1]), -math.inf, device=self._out.device)
        return self._out[:rows]

    @property
    def masked_logits(self) -> list[int]:
        """See `BatchProcessor`. Walks the tables along what was written, so that no step counts."""
        total, called, at = self._masked.copy(), set(self._called), self._tables.first
        written = [] if self._ids is None else [*self._ids[:, self._prompt_width :].cpu().numpy().T]
        for position, tokens in enumerate([*written, None]):
            if position in called:
                total += self._hidden[at[:, 1]]
            if tokens is not None:
                at = self._tables.moves[at[:, 0], self._tables.classes[tokens]]
        return [int(count) for count in total]

    def forced(self, row: int, position: int, chosen: int | None) -> list[int]:
        tables, at = self._tables, self._host[row]
        if chosen is not None:
            at = tables.moves[at[0], tables.classes[chosen]]
        run: list[int] = []
        while tables.counts[at[1]] == 1 and (not run or run[-1] != self._eos):
            run.append(int(tables.columns[np.isfinite(tables.bias[at[1]])][0]))
            at = tables.moves[at[0], tables.classes[run[-1]]]
        self._host[row] = at
        return run


class TableProcessor:
    """A `Processor` of tables.

    Args:
        rows: of a batch, what each row may write.
    """

    def __init__(self, name: str, target: Target, rows: Callable[[Rows], Sequence[Row]]) -> None:
        self.name, self._target, self._rows = name, target, rows
        self.parameters: dict[str, Any] = {"kernels_per_step": 6 if fused_steps(target.device) is None else 1}

    def start(self, rows: Rows) -> BatchProcessor:
        return TableBatch(self._rows(rows), self._target, rows.prompt_width)
