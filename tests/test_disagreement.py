"""The pass for disagreement is right on literal scores; `test_capture.py` compares it with a full forward."""

from __future__ import annotations

import math

import torch

from molprof.common.manifest import Disagreement
from molprof.profiler.capture.watched import WatchedProcessor
from molprof.profiler.constraints.own import Observed


class Masks:
    """Forbids at each call what a test says, in place, as the studied processors do."""

    def __init__(self, *forbidden: list[list[int]]) -> None:
        self._forbidden = list(forbidden)
        self.masked_logits = [7, 8]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for row, columns in enumerate(self._forbidden.pop(0)):
            scores[row, columns] = -math.inf
        return scores


def logits(*shares: float) -> list[float]:
    return [math.log(share) for share in shares]


def test_literal_scores() -> None:
    watched = WatchedProcessor()
    studied = Observed(Masks([[1, 2, 3], []], [[0], []], [[], [1, 2, 3]]), watched)
    steps = [
        [logits(1, 2, 3, 4), logits(4, 1, 2, 1)],
        [logits(7, 1, 1, 1), logits(1, 1, 1, 1)],
        [logits(1, 1e-30, 1, 2), logits(1, 1, 1, 1)],
    ]
    tokens = [[0, 2], [3, 1], [1, 0]]  # by step and row; the second row ends with its second token
    ids = torch.tensor([[9], [9]])
    for scores, written in zip(steps, tokens, strict=True):
        given = torch.tensor(scores)
        assert studied(ids, given) is given
        ids = torch.cat([ids, torch.tensor(written).unsqueeze(1)], dim=1)
    assert studied.masked_logits == [7, 8]
    assert watched.finish([[0, 3, 1], [2, 1]]) == [
        Disagreement([0.1, 0.1, 2.5e-31], [3, 1, 3], "cfo", "110", [0.9, 0.7, 0.0]),
        Disagreement([0.25, 0.25], [1, 0], "oo", "00", [0.0, 0.0]),
    ]
    assert WatchedProcessor().finish([[]]) == [Disagreement([], [], "", "", [])]
