"""A batch's token automata on the device: no step reads anything back."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.profiler.constraints.automaton import END, Tables
from molprof.profiler.models.device import on_gpu
from molprof.profiler.models.target import Target


class DeviceTables(NamedTuple):
    """Fields of `Tables` that a step reads, on the device."""

    classes: Tensor
    moves: Tensor
    columns: Tensor
    bias: Tensor


def fused_step(device: torch.device) -> Callable[..., None] | None:
    """The step as one Triton kernel; None on a CPU, and where Triton is not installed."""
    if not on_gpu(device) or importlib.util.find_spec("triton") is None:
        return None
    from molprof.profiler.constraints.fused import step

    return step


class AutomatonBatch(LogitsProcessor):
    """A batch's automata, its rows' states on the device.

    Allowed scores are copied into a tensor that is -inf everywhere else and is returned at every step. A step touches
    `rows x k` elements, whatever the vocabulary: one kernel on a GPU with Triton, else six.
    """

    reads_tokens = True  # what is forced depends on the chosen tokens

    def __init__(self, tables: Tables, prompt_width: int, target: Target) -> None:
        device = target.device
        self._tables = tables
        self._hidden: np.ndarray = target.logits_width - tables.counts  # by mask
        self._prompt_width = self._read = prompt_width
        copied = (tables.classes, tables.moves, tables.columns, tables.bias)
        self._device = DeviceTables(*(torch.from_numpy(array).to(device) for array in copied))
        self._at = torch.from_numpy(tables.first.copy()).to(device)
        self._out = torch.full((len(tables.first), target.logits_width), -math.inf, device=device)
        self._step = fused_step(device)
        self._called: list[int] = []
        self._ids: Tensor | None = None
        # States on the host, for a decoding loop that appends forced runs; see `forced`.
        self._host = tables.first.copy()
        self._masked = np.zeros(len(tables.first), dtype=np.int64)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        first, self._read = self._read, input_ids.shape[1]
        self._called.append(self._read - self._prompt_width)
        self._ids = input_ids
        if self._step is not None:
            self._step(input_ids, first, self._device, self._at, scores, self._out)
            return self._out
        for column in range(first, self._read):
            kinds = self._device.classes[input_ids[:, column]]
            self._at = self._device.moves[self._at[:, 0], kinds]
        return self._allowed(scores, self._at[:, 1], self._out)

    def _allowed(self, scores: Tensor, masks: Tensor, out: Tensor) -> Tensor:
        """Scores that each row's mask allows, written into `out`."""
        kept = scores.index_select(1, self._device.columns)
        kept.add_(self._device.bias.index_select(0, masks))
        return out.index_copy_(1, self._device.columns, kept)

    @property
    def masked_logits(self) -> list[int]:
        """Logits set to -inf so far, by row, steps on finished rows included.

        Walks the tables along what was written, so that no step counts.
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
        rows = list(places.rows)
        masks = self._host[rows, 1]
        self._masked[rows] += self._hidden[masks]
        return self._allowed(scores, torch.from_numpy(masks).to(scores.device), self._out[: len(rows)])
