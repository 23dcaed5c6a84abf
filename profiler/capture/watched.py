"""What untimed passes find out about a processor: the logits that it masks, and what the model would have chosen.

Each stands in for the processor of its batch. Figures come to the host once per batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.common.manifest import Disagreement, MaskedLogits
from molprof.profiler.constraints.base import BatchProcessor, ForcedRuns, Places, StateTable
from molprof.profiler.engines import BatchPlan, BatchResult
from molprof.profiler.engines.runner import PassResult, Runner
from molprof.profiler.models.device import settled_ns

Masked = tuple[MaskedLogits, str]  # of a prompt; the second as in `SequenceRun.forced`
_DIGITS = 6
# exp of less than minus this is 0 in float32: half of the least number, 2**-150, rounds to 0.
_NO_PROBABILITY = 150 * math.log(2)


def impossible(scores: Tensor) -> Tensor:
    """Which tokens cannot be chosen, bool in the shape of `scores` (rows, V): their softmax is 0 in float32.

    That is so of scores of -inf, and of finite ones far below the largest of their row, such as -1e6 or the least
    number of the dtype, with which some processors mask.
    """
    return scores.isneginf() | (scores < scores.amax(-1, keepdim=True) - _NO_PROBABILITY)


def masked_rows(seen: Iterable[Sequence[int]], result: BatchResult, eos: frozenset[int]) -> list[Masked]:
    """What was masked for each prompt, and of each of its tokens whether it was the only one left.

    seen: row, answer position, tokens made impossible, tokens left. Tokens that were never chosen had no other.
    """
    own = result.masked_logits
    found = [dict.fromkeys(("free", "copy", "end", "idle", "free_choices"), 0) for _ in result.rows]
    forced = [["1"] * len(row) for row in result.rows]
    for row, position, count, left in seen:
        if row < len(result.rows):
            kind = _kind(result.rows[row], position, left, eos)
            found[row][kind] += count
            if kind == "free":
                found[row]["free_choices"] += 1
                forced[row][position] = "0"
    return [
        (MaskedLogits(**counts, own=None if own is None else own[row]), "".join(forced[row]))
        for row, counts in enumerate(found)
    ]


def replayed(runner: Runner, plans: Sequence[BatchPlan], result: PassResult) -> list[list[Masked]] | None:
    """What an engine's own masks forbade, found by replaying them; None of engines and runs without."""
    replay = getattr(runner.engine, "masks_of", None)
    if replay is None or runner.settings.processor is None:
        return None
    pairs = zip(plans, result.batches, strict=True)
    return [masked_rows(replay(plan, batch), batch, runner.loaded.eos) for plan, batch in pairs]


class Counted(LogitsProcessor):
    """A batch's processor, and for every row and step which tokens it made impossible.

    The result alone is looked at: a choice with one token left is COPY, one with more is FREE. The processor's own
    count is kept beside it. The time of looking is measured, for the pass is a warm-up too.
    """

    def __init__(self, studied: BatchProcessor) -> None:
        self._studied: Any = studied
        self._steps = 0
        self._looked_ns = 0
        # (row, answer position, tokens made impossible, tokens left), one tensor (rows, 4) per step, on the device
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
        # Now, for processors may write into what they get.
        before, unlikely = scores.isneginf(), impossible(scores)
        self._looked_ns += settled_ns(scores.device) - began
        out = masked()
        began = settled_ns(scores.device)
        # What the model itself gave no probability is not the processor's doing, unless it says so by -inf.
        after = out.isneginf() | (impossible(out) & ~unlikely)
        counts = (after & ~before).sum(-1), (~after).sum(-1)
        self._seen.append(torch.stack((rows, positions, *counts), dim=1))
        self._looked_ns += settled_ns(scores.device) - began
        return out

    def of_rows(self, result: BatchResult, eos: frozenset[int]) -> list[Masked]:
        """What was masked for each prompt of the batch that `result` is of; rows that only fill it up are left out."""
        seen = torch.cat(self._seen).tolist() if self._seen else ()
        return masked_rows(seen, result, eos)


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


class CountedStates(CountedRuns):
    """The same of a `StateTable`."""

    def __init__(self, studied: BatchProcessor) -> None:
        super().__init__(studied)
        self._asked: list[tuple[int, int]] = []  # row and position of each state that `allow` gets next

    def state(self, row: int, position: int, chosen: int | None) -> int:
        self._asked.append((row, position))
        return int(self._studied.state(row, position, chosen))

    def allow(self, scores: Tensor, states: Tensor) -> Tensor:
        rows, positions = torch.tensor(self._asked, device=scores.device).T
        self._asked.clear()
        return self._look(lambda: self._studied.allow(scores, states), scores, rows, positions)


def counted(studied: BatchProcessor) -> Counted:
    """The processor, with what it masks counted."""
    if isinstance(studied, StateTable):
        return CountedStates(studied)
    return CountedRuns(studied) if isinstance(studied, ForcedRuns) else Counted(studied)


def _kind(tokens: Sequence[int], position: int, left: int, eos: frozenset[int]) -> str:
    """Where a row stood when its token at `position` was chosen, of an answer of these tokens."""
    if position >= len(tokens):
        return "idle"
    if left > 1:
        return "free"
    return "end" if tokens[position] in eos else "copy"


class Watched(LogitsProcessor):
    """A batch's processor, and the probability that the model gave to each written token.

    The processor gets the model's scores. The token that was written is known one call later, from `input_ids`, or
    after the last step, from the rows. So the scores of a step are kept for one call.

    Shapes: B rows, V logits, S steps.
    """

    def __init__(self, studied: BatchProcessor) -> None:
        self._studied = studied
        self._scores: Tensor | None = None  # of the running step, (B, V), as the model gave them
        self._probabilities: list[Tensor] = []
        self._ranks: list[Tensor] = []
        self._allowed: list[Tensor] = []
        self._forbidden: list[Tensor] = []
        self._removed: list[Tensor] = []

    @property
    def masked_logits(self) -> list[int] | None:
        return self._studied.masked_logits

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._scores is not None:
            self._look_up(input_ids[:, -1])
        self._scores = scores.clone()  # processors may write into what they get
        masked = self._studied(input_ids, scores)
        possible = ~(masked.isneginf() | (impossible(masked) & ~impossible(self._scores)))
        first = self._scores.argmax(dim=-1, keepdim=True)
        self._allowed.append(possible.sum(dim=-1))
        self._forbidden.append(~possible.gather(-1, first).squeeze(-1))
        exact = self._scores.double()
        kept = exact.masked_fill(~possible, -torch.inf).logsumexp(dim=-1)
        self._removed.append((1 - (kept - exact.logsumexp(dim=-1)).exp()).clamp(min=0.0))
        return masked

    def finish(self, rows: Sequence[Sequence[int]]) -> list[Disagreement]:
        """The figures by row; `rows` is what the batch wrote, with the end tokens, without padding."""
        if self._scores is None:
            return [Disagreement([], [], "", "", []) for _ in rows]
        step = len(self._allowed) - 1
        # Rows that ended earlier have no token here; their figures are cut off below.
        tokens = [row[step] if len(row) > step else 0 for row in rows]
        tokens += [0] * (len(self._scores) - len(rows))  # spare rows
        last = torch.tensor(tokens, device=self._scores.device)
        self._look_up(last)
        width = self._scores.shape[-1]
        self._scores = None
        columns = (self._probabilities, self._ranks, self._allowed, self._forbidden, self._removed)
        probabilities, ranks, allowed, forbidden, removed = (
            torch.stack(column, dim=1).tolist()
            for column in columns  # (B, S)
        )
        return [
            Disagreement(
                _rounded(probabilities[place][: len(row)]),
                ranks[place][: len(row)],
                "".join("c" if count == 1 else "o" if count == width else "f" for count in allowed[place][: len(row)]),
                "".join("01"[flag] for flag in forbidden[place][: len(row)]),
                _rounded(removed[place][: len(row)]),
            )
            for place, row in enumerate(rows)
        ]

    def _look_up(self, tokens: Tensor) -> None:
        """Probability and rank of the tokens, int64 (B,), in the kept scores."""
        assert self._scores is not None
        given = self._scores.gather(-1, tokens.unsqueeze(-1))
        # float64: probabilities down to 1e-308 are not 0.
        logarithm = given.squeeze(-1).double() - self._scores.logsumexp(dim=-1).double()
        self._probabilities.append(logarithm.exp())
        self._ranks.append((self._scores > given).sum(dim=-1))


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]
