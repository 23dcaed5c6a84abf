"""A token automaton per molecule, run for a whole batch on the device: which tokens may follow, and what then.

A row's automaton is a chain: gap, coordinate, gap, ..., coordinate, gap, end. A *gap* is skeleton text that the
prompt fixes, as one or a few token paths; a *coordinate* is the same small automaton every time. States of all
rows are numbered together; one table holds, per state and class of token, the next state and the mask that holds
there. Nothing is read back from the device while text is made.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.errors import UsageError
from molprof.profiler.processors.base import Target

Path = tuple[int, ...]
_END = 0
_OTHER = 0  # the class of tokens that no branching state tells apart


@dataclass(frozen=True)
class Coordinate:
    """The automaton of one coordinate block's inside.

    Attributes:
        edges: per state, the next state by token; a coordinate begins in state 0.
        closing: states in which the text may leave the block.
        longest: most tokens that a coordinate can take.
    """

    edges: tuple[dict[int, int], ...]
    closing: frozenset[int]
    longest: int


@dataclass(frozen=True)
class Chain:
    """One row: its gaps, `len(gaps) - 1` coordinates between them.

    Attributes:
        gaps: per gap its token paths, all of which lead to the next coordinate, or to the end.
    """

    gaps: tuple[tuple[Path, ...], ...]

    def longest(self, coordinate: Coordinate) -> int:
        """Most tokens of an answer, end token included."""
        return sum(max(map(len, paths)) for paths in self.gaps) + (len(self.gaps) - 1) * coordinate.longest + 1


@dataclass(frozen=True)
class Node:
    """A place inside token paths that were merged where they begin alike: where each token leads, and whether a
    path ends here."""

    edges: dict[int, Node]
    ends: bool


def longest_path(states: Sequence[dict[int, int]]) -> int:
    """Most tokens from state 0 on, in an automaton without loops."""
    found: dict[int, int] = {}

    def length(state: int) -> int:
        if state not in found:
            found[state] = max((1 + length(onward) for onward in set(states[state].values())), default=0)
        return found[state]

    return length(0)


def check_vocabulary(name: str, target: Target) -> None:
    """Refuses a vocabulary in which a token joins a digit with a mark of a coordinate.

    Raises:
        UsageError: there is such a token; `name` is the processor that cannot work with it.
    """
    joined = re.compile(rb"[0-9][<>,.\-]|[<>,.\-][0-9]")
    for token, piece in enumerate(target.table.pieces):
        if token not in target.table.special and joined.search(piece):
            raise UsageError(
                f"the processor {name!r} needs a tokenizer that cuts numbers off marks; its token {piece!r} joins them",
                hint="--processor generic works with any tokenizer",
            )


@dataclass(frozen=True)
class Tables:
    """The automata of a batch; `states` of them, numbered over all rows, state 0 the end of every row.

    Attributes:
        classes: class of each token id, int64 (logits_width,).
        moves: next state, and that state's mask, by state and class, int64 (states, classes, 2).
        first: first state of each row and its mask, int64 (rows, 2).
        columns: ids that some mask allows, ascending, int64 (k,).
        bias: 0 where a mask allows a column, -inf elsewhere, float32 (masks, k).
        counts: ids that a mask allows, int64 (masks,).
    """

    classes: np.ndarray
    moves: np.ndarray
    first: np.ndarray
    columns: np.ndarray
    bias: np.ndarray
    counts: np.ndarray


def compile_tables(coordinate: Coordinate, chains: Sequence[Chain], target: Target) -> Tables:
    """The tables of a batch."""
    builder = _Builder(coordinate)
    first = [builder.row(chain) for chain in chains]
    classes, number = builder.classes(target.logits_width)
    following = builder.following(classes, number)
    columns, bias = builder.bias(target.eos)
    masks = np.asarray(builder.masks, dtype=np.int64)
    starts = np.asarray(first, dtype=np.int64)
    return Tables(
        classes=classes,
        moves=np.stack((following, masks[following]), axis=2),
        first=np.stack((starts, masks[starts]), axis=1),
        columns=columns,
        bias=bias,
        counts=np.isfinite(bias).sum(axis=1),
    )


class _Builder:
    """Numbers the states of a batch and collects their edges.

    Attributes:
        masks: mask of each state.
    """

    def __init__(self, coordinate: Coordinate) -> None:
        self._coordinate = coordinate
        self.masks: list[int] = []
        self._keys: dict[tuple[int, frozenset[int]], int] = {}  # (coordinate state or -1, tokens besides its own)
        self._blocks: list[int] = []  # first state of each coordinate
        self._edges: list[tuple[int, int, int]] = []  # state, token, next state
        self._sole: list[tuple[int, int]] = []  # state with one way out, next state
        self._inherits: list[tuple[int, int]] = []  # state that goes on like the coordinate beginning at, that state
        self._tries: dict[tuple[Path, ...], Node] = {}
        self._state(-1, ())  # the end: the end token, again and again

    def row(self, chain: Chain) -> int:
        """Adds a row; its first state."""
        tries = [self._trie(paths) for paths in chain.gaps]
        leave = {token: self._gap(child, None) for token, child in tries[-1].edges.items()}
        for trie in reversed(tries[:-1]):
            block = self._block(leave)
            leave = {token: self._gap(child, block) for token, child in trie.edges.items()}
        state = self._state(-1, leave)
        self._connect(state, leave)
        return state

    def _block(self, leave: dict[int, int]) -> int:
        """A coordinate, whose closing states lead on as `leave` says."""
        begin = len(self.masks)
        self._blocks.append(begin)
        for place in range(len(self._coordinate.edges)):
            closing = place in self._coordinate.closing
            self._state(place, leave if closing else ())
        for place in self._coordinate.closing:
            self._edges.extend((begin + place, token, state) for token, state in leave.items())
        return begin

    def _gap(self, node: Node, block: int | None) -> int:
        """The state of a place inside a gap before `block`, or before the end."""
        if not node.edges:
            return _END if block is None else block
        onward = {token: self._gap(child, block) for token, child in node.edges.items()}
        state = self._state(0 if node.ends else -1, onward)
        if node.ends and block is not None:
            self._inherits.append((state, block))
            self._edges.extend((state, token, following) for token, following in onward.items())
        else:
            self._connect(state, onward)
        return state

    def _connect(self, state: int, onward: dict[int, int]) -> None:
        if len(onward) == 1:
            (following,) = onward.values()
            self._sole.append((state, following))
        else:
            self._edges.extend((state, token, following) for token, following in onward.items())

    def _state(self, place: int, tokens: Sequence[int] | dict[int, int]) -> int:
        key = place, frozenset(tokens)
        self.masks.append(self._keys.setdefault(key, len(self._keys)))
        return len(self.masks) - 1

    def _trie(self, paths: tuple[Path, ...]) -> Node:
        if paths not in self._tries:
            self._tries[paths] = trie(paths)
        return self._tries[paths]

    def classes(self, width: int) -> tuple[np.ndarray, int]:
        """Class of each token, and how many classes: tokens that every state treats alike share one."""
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
        found = np.full((len(self.masks), number), _END, dtype=np.int64)
        size = len(self._coordinate.edges)
        shifts = np.full((size, number), -1, dtype=np.int64)
        for place, edges in enumerate(self._coordinate.edges):
            for token, following in edges.items():
                shifts[place, classes[token]] = following
        blocks = np.asarray(self._blocks, dtype=np.int64)
        inside = np.where(shifts[None] < 0, _END, shifts[None] + blocks[:, None, None])
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
            {eos}
            if mask == self.masks[_END]
            else tokens | (set(self._coordinate.edges[place]) if place >= 0 else set())
            for (place, tokens), mask in self._keys.items()
        ]
        columns = np.asarray(sorted(set().union(*allowed)), dtype=np.int64)
        bias = np.full((len(allowed), len(columns)), -math.inf, dtype=np.float32)
        for mask, tokens in enumerate(allowed):
            bias[mask, np.searchsorted(columns, sorted(tokens))] = 0.0
        return columns, bias


def trie(paths: Sequence[Path]) -> Node:
    """Token paths, merged where they begin alike."""
    ends = any(not path for path in paths)
    heads = dict.fromkeys(path[0] for path in paths if path)
    return Node({head: trie([path[1:] for path in paths if path and path[0] == head]) for head in heads}, ends)


def fused_step() -> Callable[..., None] | None:
    """The step as one Triton kernel; None where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module(f"{__package__}.fused").step  # type: ignore[no-any-return]


def kernels_per_step(target: Target) -> int:
    """Kernels that `AutomatonBatch` starts in each step after the first."""
    return 1 if target.device.type == "cuda" and fused_step() is not None else 6


class AutomatonBatch(LogitsProcessor):
    """A batch's automata, its rows' states on the device.

    Allowed scores are copied into a tensor that is -inf everywhere else; it is kept and returned at every step,
    and valid until the next call. A step touches `rows x k` elements, whatever the vocabulary, and reads no value
    back: one kernel on a GPU with Triton, which torch brings along there, else six.

    Args:
        prompt_width: columns of the left-padded prompts.
    """

    reads_tokens = True  # what `forced` returns depends on what was chosen

    def __init__(self, tables: Tables, prompt_width: int, target: Target) -> None:
        device = target.device
        self._tables = tables
        self._width = target.logits_width
        self._prompt_width = self._read = prompt_width
        self._classes = torch.from_numpy(tables.classes).to(device)
        self._moves = torch.from_numpy(tables.moves).to(device)
        self._columns = torch.from_numpy(tables.columns).to(device)
        self._bias = torch.from_numpy(tables.bias).to(device)
        self._at = torch.from_numpy(tables.first.copy()).to(device)
        self._out = torch.full((len(tables.first), self._width), -math.inf, device=device)
        self._step = fused_step() if device.type == "cuda" else None
        self._called: list[int] = []
        self._ids: Tensor | None = None
        # For a decoding loop that appends forced runs at once: its states are on the host, see `forced`.
        self._host = tables.first.copy()
        self._masked = np.zeros(len(tables.first), dtype=np.int64)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        first, self._read = self._read, input_ids.shape[1]
        self._called.append(self._read - self._prompt_width)
        self._ids = input_ids
        if self._step is not None:
            tables = self._classes, self._moves, self._at
            self._step(input_ids, first, *tables, scores, self._columns, self._bias, self._out)
            return self._out
        for column in range(first, self._read):
            kinds = self._classes[input_ids[:, column]]
            self._at = self._moves[self._at[:, 0], kinds]
        kept = scores.index_select(1, self._columns)
        kept.add_(self._bias.index_select(0, self._at[:, 1]))
        self._out.index_copy_(1, self._columns, kept)
        return self._out

    @cached_property
    def _hidden(self) -> np.ndarray:
        """Ids that each mask does not allow, int64 (masks,)."""
        hidden: np.ndarray = self._width - self._tables.counts
        return hidden

    @property
    def masked_logits(self) -> list[int]:
        """Logits set to -inf so far, by row, idle row-steps included.

        Found by walking the tables along what was written, so that no step has to count.
        """
        if self._ids is None:
            return [int(count) for count in self._masked]
        written = self._ids[:, self._prompt_width :].cpu().numpy()
        at = self._tables.first
        total = np.zeros(len(at), dtype=np.int64)
        called = set(self._called)
        for position in range(written.shape[1] + 1):
            if position in called:
                total += self._hidden[at[:, 1]]
            if position < written.shape[1]:
                at = self._tables.moves[at[:, 0], self._tables.classes[written[:, position]]]
        return [int(count) for count in total]

    def forced(self, row: int, position: int, chosen: int | None) -> list[int]:
        """The tokens from here on for which no choice is left, the end token included.

        Called in order, once before a row's first choice and once after each; the row's state moves past `chosen`
        (None before the first choice) and past what is returned.
        """
        at = self._host[row]
        if chosen is not None:
            at = self._tables.moves[at[0], self._tables.classes[chosen]]
        run: list[int] = []
        while self._tables.counts[at[1]] == 1:
            token = int(self._tables.columns[np.isfinite(self._tables.bias[at[1]])][0])
            run.append(token)
            if at[0] == _END:
                break
            at = self._tables.moves[at[0], self._tables.classes[token]]
        self._host[row] = at
        return run

    def mask(self, scores: Tensor, places: Any) -> Tensor:
        """The masked scores of the rows `places.rows`, each in the state that `forced` left it in.

        Args:
            scores: float32 (rows, logits_width).
        """
        rows = list(places.rows)
        masks = self._host[rows, 1]
        self._masked[rows] += self._hidden[masks]
        kept = scores.index_select(1, self._columns)
        kept.add_(self._bias.index_select(0, torch.from_numpy(masks).to(scores.device)))
        return self._out[: len(rows)].index_copy_(1, self._columns, kept)
