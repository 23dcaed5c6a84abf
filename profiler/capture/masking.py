"""Logits that a processor sets to -inf, counted by molprof in an untimed pass, for any processor.

The result alone is looked at: a choice with one token left is COPY, one with more is FREE. What the processor counts
itself, where it does, is kept beside it. The time of looking is measured, so that the pass still tells its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.common.manifest import MaskedLogits
from molprof.profiler.constraints.base import BatchProcessor, ForcedRuns, Places
from molprof.profiler.engines.batches import BatchResult
from molprof.profiler.models.device import settled_ns


class Counted(LogitsProcessor):
    """A batch's processor, and for every row and step what it masked."""

    def __init__(self, studied: BatchProcessor) -> None:
        self._studied: Any = studied
        self._steps = 0
        self._looked_ns = 0
        # (row, answer position, logits set to -inf, logits left), one tensor (rows, 4) per step, on the device
        self._seen: list[Tensor] = []

    @property
    def masked_logits(self) -> list[int] | None:
        """The processor's own count."""
        counted: list[int] | None = self._studied.masked_logits
        return counted

    @property
    def looked_ns(self) -> int:
        """The time of looking here, and of the checks of a user's processor."""
        return self._looked_ns + int(getattr(self._studied, "looked_ns", 0))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows = torch.arange(len(scores), device=scores.device)
        positions = torch.full_like(rows, self._steps)
        self._steps += 1
        return self._look(lambda: self._studied(input_ids, scores), scores, rows, positions)

    def _look(self, masked: Callable[[], Tensor], scores: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        began = settled_ns(scores.device)
        before = scores.isneginf()  # now, for processors may write into what they get
        self._looked_ns += settled_ns(scores.device) - began
        out = masked()
        began = settled_ns(scores.device)
        after = out.isneginf()
        counts = (after & ~before).sum(-1), (~after).sum(-1)
        self._seen.append(torch.stack((rows, positions, *counts), dim=1))
        self._looked_ns += settled_ns(scores.device) - began
        return out

    def of_rows(self, result: BatchResult, eos: frozenset[int]) -> list[MaskedLogits]:
        """What was masked for each prompt of the batch that `result` is of; rows that only fill it up are left out."""
        logits = [dict.fromkeys(("free", "copy", "end", "idle"), 0) for _ in result.rows]
        choices = [dict.fromkeys(("free", "copy", "end", "idle"), 0) for _ in result.rows]
        for row, position, count, left in torch.cat(self._seen).tolist() if self._seen else ():
            if row < len(result.rows):
                kind = _kind(result.rows[row], position, left, eos)
                logits[row][kind] += count
                choices[row][kind] += 1
        own = result.masked_logits
        return [
            MaskedLogits(**logits[row], free_choices=choices[row]["free"], own=None if own is None else own[row])
            for row in range(len(result.rows))
        ]


class CountedRuns(Counted):
    """The same of a processor with `ForcedRuns`."""

    @property
    def reads_tokens(self) -> bool:
        return bool(self._studied.reads_tokens)

    def forced(self, row: int, position: int, chosen: int | None) -> Sequence[int]:
        tokens: Sequence[int] = self._studied.forced(row, position, chosen)
        return tokens

    def mask(self, scores: Tensor, places: Places) -> Tensor:
        return self._look(lambda: self._studied.mask(scores, places), scores, places.row_ids, places.position_ids)


def counted(studied: BatchProcessor) -> Counted:
    """The processor, with what it masks counted."""
    return CountedRuns(studied) if isinstance(studied, ForcedRuns) else Counted(studied)


def _kind(tokens: Sequence[int], position: int, left: int, eos: frozenset[int]) -> str:
    """Where a row stood when its token at `position` was chosen, of an answer of these tokens."""
    if position >= len(tokens):
        return "idle"
    if left > 1:
        return "free"
    return "end" if tokens[position] in eos else "copy"
