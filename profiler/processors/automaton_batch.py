"""A batch's token automata, run on the device: nothing is read back from there while text is made."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.profiler.models.target import Target
from molprof.profiler.processors.automaton import END, Tables


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
            if at[0] == END:
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
