"""The untimed pass that records what the model would have chosen at every position, without the processor's mask.

The processor gets the model's scores; the token that was written is known one call later, from `input_ids`, or after
the last step from the rows. So the scores of a step are kept for one call. The figures come to the host once per batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.common.manifest import Disagreement
from molprof.profiler.constraints.base import BatchProcessor

_DIGITS = 6


class Watched(LogitsProcessor):
    """A batch's processor, and the probability that the model gave to each written token.

    Shapes: B rows, V logits, S steps.
    """

    def __init__(self, studied: BatchProcessor) -> None:
        self._studied = studied
        self._scores: Tensor | None = None  # of the running step, (B, V), as the model gave them
        self._probabilities: list[Tensor] = []
        self._ranks: list[Tensor] = []
        self._allowed: list[Tensor] = []
        self._forbidden: list[Tensor] = []

    @property
    def masked_logits(self) -> list[int] | None:
        return self._studied.masked_logits

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._scores is not None:
            self._look_up(input_ids[:, -1])
        self._scores = scores.clone()  # processors may write into what they get
        masked = self._studied(input_ids, scores)
        possible = masked > -torch.inf
        first = self._scores.argmax(dim=-1, keepdim=True)
        self._allowed.append(possible.sum(dim=-1))
        self._forbidden.append(~possible.gather(-1, first).squeeze(-1))
        return masked

    def finish(self, rows: Sequence[Sequence[int]]) -> list[Disagreement]:
        """The figures by row; `rows` is what the batch wrote, with the end tokens, without padding."""
        if self._scores is None:
            return [Disagreement([], [], "", "") for _ in rows]
        step = len(self._allowed) - 1
        # Rows that ended earlier have no token here; their figures are cut off below.
        tokens = [row[step] if len(row) > step else 0 for row in rows]
        tokens += [0] * (len(self._scores) - len(rows))  # spare rows
        last = torch.tensor(tokens, device=self._scores.device)
        self._look_up(last)
        width = self._scores.shape[-1]
        self._scores = None
        columns = (self._probabilities, self._ranks, self._allowed, self._forbidden)
        probabilities, ranks, allowed, forbidden = (torch.stack(column, dim=1).tolist() for column in columns)  # (B, S)
        return [
            Disagreement(
                [float(f"{value:.{_DIGITS}g}") for value in probabilities[place][: len(row)]],
                ranks[place][: len(row)],
                "".join("c" if count == 1 else "o" if count == width else "f" for count in allowed[place][: len(row)]),
                "".join("01"[flag] for flag in forbidden[place][: len(row)]),
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
