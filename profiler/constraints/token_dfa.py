"""Automata over token ids (next states by state and class), and the processor of a batch with one per row.

Tokens that lead to the same states have one class. A step gathers from the table of next states, and knows nothing of
the constraint that it was made of. Where one token may follow, it is forced.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.profiler.constraints.base import Laps, RowPositions
from molprof.profiler.models.device import on_gpu
from molprof.profiler.models.target import ProcessorTarget

# Masks of at most so many ids are lists of them: on a CPU faster than adding a whole row.
_FEW_ALLOWED, _FEW_FORBIDDEN = 4096, 8192
_ALLOWED, _FORBIDDEN = np.float32(0), np.float32(-math.inf)
_Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class MaskForm:
    """A mask on a CPU in one of three forms: its allowed ids, its forbidden ids, or values to add to all scores.

    Arrays of numpy: torch would wake its threads for each row.
    """

    only: _Array | None = None
    without: _Array | None = None
    bias: _Array | None = None

    def apply(self, scores: _Array) -> None:
        """Mask a row of scores, float32 (logits_width,), in place."""
        if self.only is not None:
            kept = scores[self.only]
            scores.fill(_FORBIDDEN)
            scores[self.only] = kept
        elif self.without is not None:
            scores[self.without] = _FORBIDDEN
        elif self.bias is not None:
            np.add(scores, self.bias, out=scores)


@dataclass(frozen=True, eq=False)
class TokenDfa:
    """An automaton over token ids: S states, C classes of tokens, M masks.

    State 0 allows the end token alone. An end token leads there, and so does a token that may not follow.
    """

    classes: _Array  # of each id, int32 (logits_width,)
    moves: _Array  # next state, -1: the class may not follow, int32 (S, C)
    masks: _Array  # the mask of each state, int64 (S,)
    allowed: _Array  # whether a mask allows a class, bool (M, C)
    counts: _Array  # ids that a mask allows, int64 (M,)
    first: int = 1  # the state in which a row begins that has none of its own

    @functools.cached_property
    def _members(self) -> list[_Array]:
        """The ids of each class, ascending; none of class 0 where no mask allows it."""
        ids = np.flatnonzero(self.classes)  # where few may ever follow, most are of class 0: to sort them takes longer
        order = ids[np.argsort(self.classes[ids], kind="stable")]
        others = np.split(order, np.searchsorted(self.classes[order], np.arange(2, self.allowed.shape[1])))
        return [np.flatnonzero(self.classes == 0) if self.allowed[:, 0].any() else ids[:0], *others]

    @functools.cached_property
    def forms(self) -> list[MaskForm]:
        """The form in which a CPU applies each mask."""
        forms = []
        for allowed, count in zip(self.allowed, self.counts.tolist(), strict=True):
            if count <= _FEW_ALLOWED:
                forms.append(
                    MaskForm(only=np.sort(np.concatenate([self._members[kind] for kind in np.flatnonzero(allowed)])))
                )
            elif len(self.classes) - count <= _FEW_FORBIDDEN:
                forms.append(MaskForm(without=np.flatnonzero(~allowed[self.classes])))
            else:
                forms.append(MaskForm(bias=np.where(allowed, _ALLOWED, _FORBIDDEN)[self.classes]))
        return forms

    @functools.cached_property
    def forced(self) -> _Array:
        """The single token that each state allows, -1 for several, int64 (S,)."""
        tokens = np.full(len(self.counts), -1)
        for mask in np.flatnonzero(self.counts == 1):
            (tokens[mask],) = self._members[int(np.argmax(self.allowed[mask]))]
        return tokens[self.masks]

    @functools.cached_property
    def hidden(self) -> _Array:
        """The number of ids that each state forbids, int64 (S,)."""
        return (len(self.classes) - self.counts)[self.masks]

    def after(self, state: int, token: int) -> int:
        """Return the state that a token leads to."""
        following: int = self.moves.item(state, self.classes.item(token))
        return following if following > 0 else 0

    def form(self, state: int) -> MaskForm:
        """Return the form in which a CPU applies the mask of a state."""
        mask: int = self.masks.item(state)
        return self.forms[mask]

    @property
    def size_bytes(self) -> int:
        """Bytes of the table, and of the masks' forms on a CPU."""
        width = len(self.classes)
        lists = np.where(width - self.counts <= _FEW_FORBIDDEN, 8 * (width - self.counts), 4 * width)
        forms = np.where(self.counts <= _FEW_ALLOWED, 8 * self.counts, lists)
        return self.classes.nbytes + self.moves.nbytes + self.masks.nbytes + self.allowed.nbytes + int(forms.sum())


def anything(width: int) -> TokenDfa:
    """Return the automaton that allows any tokens, in a single state."""
    classes, moves = np.zeros(width, dtype=np.int32), np.zeros((1, 1), dtype=np.int32)
    return TokenDfa(classes, moves, np.zeros(1, dtype=np.int64), moves == 0, np.array([width]), first=0)


def fused_steps(device: torch.device) -> Any:
    """Return the module `fused`, whose steps are one Triton kernel each.

    None on a CPU, and where Triton is not installed.
    """
    if not on_gpu(device) or importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module("molprof.profiler.constraints.fused")


class TokenDfaBatch(LogitsProcessor):
    """The states of a batch's rows, each of its own automaton or of a shared one.

    By row, each is masked in the way that touches least of it, which is best on a CPU. Else states stay on the device,
    and no step reads anything back: one kernel with Triton, else six operators, in place.

    Args:
        rows: the automaton of each.
        first: the state in which each row begins; default: that of its automaton.
        by_row: default: on a CPU.
        fused: the module of the kernel; default: on a GPU with Triton.
    """

    reads_tokens = True  # what is forced depends on the chosen tokens

    def __init__(
        self,
        rows: Sequence[TokenDfa],
        target: ProcessorTarget,
        prompt_width: int,
        first: Sequence[int] | None = None,
        by_row: bool | None = None,
        fused: Any = None,
    ) -> None:
        self._rows, self._eos, self._width = rows, target.eos, target.logits_width
        first = [dfa.first for dfa in rows] if first is None else first
        self._paths = [[state] for state in first]  # of each row, its state at each answer position, on the host
        self._prompt_width = self._read = prompt_width
        self._by_row = not on_gpu(target.device) if by_row is None else by_row
        self._masked = [0] * len(rows)
        self._called: list[int] = []
        self._ids: Tensor | None = None
        self.tables = distinct = list(dict.fromkeys(rows))
        # One list of next states, with those of a state at the place that is its number here.
        starts_at = self._places = [0, *itertools.accumulate(dfa.moves.size for dfa in distinct)]
        self._start = starts = dict(zip(distinct, starts_at, strict=False))
        if self._by_row:
            for dfa in distinct:
                _ = dfa.forms
            self._out = torch.empty((0, self._width))
            self._had: list[_Array | None] = []  # the ids that are written in each row of `_out`
            self.laps = Laps("read", "accept", "fill", "apply")
            return
        self.laps = Laps("apply")  # one kernel does all of it
        flat = [(np.maximum(dfa.moves, 0) * dfa.moves.shape[1] + start).reshape(-1) for dfa, start in starts.items()]
        self._moves = torch.from_numpy(np.concatenate(flat).astype(np.int32)).to(target.device)
        forbidden = np.concatenate([(dfa.moves < 0).reshape(-1) for dfa in distinct])
        self._forbidden = torch.from_numpy(forbidden).to(target.device)
        kinds = self._by_table = torch.from_numpy(np.stack([dfa.classes for dfa in distinct])).to(target.device)
        self._starts = torch.tensor(starts_at[:-1], dtype=torch.int32, device=target.device)
        which = torch.tensor([distinct.index(dfa) for dfa in rows], device=target.device)
        begun = [self.place(dfa, state) for dfa, state in zip(rows, first, strict=True)]
        self._at = torch.tensor(begun, dtype=torch.int32, device=target.device)
        self._fused = fused or fused_steps(target.device)
        if self._fused is not None:
            self._tables_there = (kinds, which, self._moves, self._forbidden)
            self._at = self._at[:, None].repeat(1, -(-self._width // self._fused.BLOCK))
        self._kinds = kinds.expand(len(rows), -1) if len(distinct) == 1 else kinds.index_select(0, which)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Advance by the tokens since the last call, and mask."""
        self._called.append(input_ids.shape[1] - self._prompt_width)
        self._ids = input_ids
        clock = time.perf_counter_ns
        began = clock()
        tokens, self._read = input_ids[:, self._read :], input_ids.shape[1]
        if not self._by_row:
            self.step(tokens, scores)
            self.laps.add(began, clock())
            return scores
        columns = tokens.T.tolist()
        read = clock()
        for column in columns:
            for dfa, path, token in zip(self._rows, self._paths, column, strict=True):
                path.append(dfa.after(path[-1], token))
        accepted = clock()
        forms = [dfa.form(path[-1]) for dfa, path in zip(self._rows, self._paths, strict=True)]
        filled = clock()
        out = self._masked_by_row(scores, forms)
        self.laps.add(began, read, accepted, filled, clock())
        return out

    def seek(self, row: int, tokens: Sequence[int]) -> None:
        """Set the positions of the rows, as `BatchProcessor` says."""
        dfa = self._rows[row]
        self._paths[row] = [*itertools.accumulate(tokens, dfa.after, initial=self._paths[row][0])]
        if not self._by_row:
            self._at[row] = self.place(dfa, self._paths[row][-1])

    def step(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Move each row past its tokens, int64 (rows, n), and mask its scores in place, all on the device.

        Nothing is read back and no shape depends on a value, so that a CUDA graph can hold it.
        """
        if self._fused is not None:
            self._fused.step(tokens, self._tables_there, self._at, scores)
            return scores
        for index in range(tokens.shape[1]):
            kinds = self._kinds.gather(1, tokens[:, index : index + 1])[:, 0]
            torch.index_select(self._moves, 0, kinds.add_(self._at), out=self._at)
        return scores.masked_fill_(self._forbidden[self._at[:, None] + self._kinds], -math.inf)

    def mask(self, scores: Tensor, at: RowPositions) -> Tensor:
        """Mask the scores at the positions of rows."""
        pairs = [self._counted(row, position) for row, position in zip(at.rows, at.positions, strict=True)]
        if self._by_row:
            return self._masked_by_row(scores, [dfa.form(state) for dfa, state in pairs])
        states = torch.tensor([self.place(dfa, state) for dfa, state in pairs], dtype=torch.int32)
        return self.allow(scores, states.to(scores.device))

    def forced(self, row: int, position: int, chosen: int | None) -> list[int]:
        """Return the tokens that are forced after a token."""
        self._follow(row, position, chosen)
        dfa, path = self._rows[row], self._paths[row]
        run: list[int] = []
        while (token := dfa.forced.item(path[-1])) >= 0 and self._eos not in run[-1:]:
            run.append(token)
            path.append(dfa.after(path[-1], token))
        return run

    def state(self, row: int, position: int, chosen: int | None) -> int:
        """Return the state as in `BatchProcessor`: its index among the next states of all automata."""
        self._follow(row, position, chosen)
        return self.place(*self._counted(row, position))

    def place(self, dfa: TokenDfa, state: int) -> int:
        """Return the index of a state of one of `tables`, for `allow`."""
        return self._start[dfa] + state * int(dfa.moves.shape[1])

    def _follow(self, row: int, position: int, chosen: int | None) -> None:
        if chosen is not None:
            path = self._paths[row]
            del path[position:]
            path.append(self._rows[row].after(path[-1], chosen))

    def _counted(self, row: int, position: int) -> tuple[TokenDfa, int]:
        """Return a row's state at a position, whose masked logits are counted. A row that ended keeps its state."""
        dfa, path = self._rows[row], self._paths[row]
        state = path[min(position, len(path) - 1)]
        self._masked[row] += dfa.hidden.item(state)
        return dfa, state

    def allow(self, scores: Tensor, states: Tensor) -> Tensor:
        """Mask the scores by the states of the rows."""
        if self._by_row:
            return self._masked_by_row(scores, [*map(self._form_at, states.tolist())])
        kinds = self._by_table[torch.bucketize(states, self._starts, right=True) - 1]
        return scores.masked_fill_(self._forbidden[states[:, None] + kinds], -math.inf)

    @property
    def masked_logits(self) -> list[int]:
        """Masked logits as in `BatchProcessor`, found by walking the automata afterwards, so that no step counts."""
        total, called = np.array(self._masked), set(self._called)
        written = [] if self._ids is None else [*self._ids[:, self._prompt_width :].cpu().numpy().T]
        for dfa in self.tables:
            rows = [row for row, row_dfa in enumerate(self._rows) if row_dfa is dfa]
            states = np.asarray([self._paths[row][0] for row in rows])
            for position, tokens in enumerate([*written, None]):
                if position in called:
                    total[rows] += dfa.hidden[states]
                if tokens is not None:
                    states = np.maximum(dfa.moves[states, dfa.classes[tokens[rows]]], 0)
        return [int(count) for count in total]

    def _form_at(self, index: int) -> MaskForm:
        number = bisect_right(self._places, index) - 1
        dfa = self.tables[number]
        return dfa.form((index - self._places[number]) // dfa.moves.shape[1])

    def _masked_by_row(self, scores: Tensor, forms: list[MaskForm]) -> Tensor:
        lists, rows = [form.only for form in forms if form.only is not None], scores.numpy()
        if len(lists) < len(forms):
            for form, row in zip(forms, rows, strict=True):
                form.apply(row)
            return scores
        # Of a tensor that is -inf everywhere else, only what a row had and what it gets is written.
        if len(self._out) < len(lists):
            self._out, self._had = torch.full((len(lists), self._width), -math.inf), [None] * len(lists)
        for number, (ids, row, out) in enumerate(zip(lists, rows, self._out.numpy(), strict=False)):
            if (had := self._had[number]) is not None:
                out[had] = _FORBIDDEN
            out[ids] = row[ids]
            self._had[number] = ids
        return self._out[: len(lists)]
