"""Masked logits are counted for any processor, by its output."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import captured, settings
from torch import Tensor
from transformers import LogitsProcessor

from molprof import api
from molprof.analysis.documents.figures import figure_values
from molprof.common.manifest import MaskedLogits
from molprof.profiler.capture.watched import CountedMasks
from molprof.profiler.constraints.base import FORCED_RUNS, RowPositions, has
from molprof.profiler.constraints.own import Observed
from molprof.profiler.engines import BatchResult

EOS = 4


class Masks:
    """Leaves what each step says, by row; writes into its scores, and counts nothing."""

    masked_logits: list[int] | None = None

    def __init__(self, *steps: tuple[list[int], ...]) -> None:
        self._steps = iter(steps)

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        for row, left in zip(scores, next(self._steps), strict=True):
            row[[token for token in range(len(row)) if token not in left]] = -math.inf
        return scores


class Jumps(Masks):
    """The same in molprof's own loop."""

    reads_tokens = False

    def forced(self, row: int, position: int, chosen: int | None) -> list[int]:
        return [7 + row]

    def mask(self, scores: Tensor, places: RowPositions) -> Tensor:
        return self(None, scores)


def result(*rows: tuple[int, ...], own: tuple[int, ...] | None = None) -> BatchResult:
    return BatchResult(rows, (2, 2, 2), masked_logits=own)


def test_logits_by_where_the_row_stood() -> None:
    counts = CountedMasks()
    studied = Observed(Masks(([1, 2], [3]), ([3], [EOS]), ([EOS], [EOS, 0])), counts)
    assert not has(studied, FORCED_RUNS)
    scores = torch.zeros(2, 5)
    scores[0, 0] = -math.inf  # was so before: not the processor's doing
    for _ in range(3):
        studied(torch.zeros(2, 1, dtype=torch.int64), scores.clone())
    assert studied.masked_logits is None
    assert studied.looked_ns > 0
    # The second row ended after two tokens; a third row, which no prompt has, would be left out.
    assert [one[:2] for one in counts.of_rows(result((1, 3, EOS), (3, EOS)), frozenset({EOS}))] == [
        (MaskedLogits(free=2, copy=3, end=3, idle=0, free_choices=1, own=None), "011"),
        (MaskedLogits(free=0, copy=4, end=4, idle=3, free_choices=0, own=None), "11"),
    ]
    assert [item.total for item, *_ in counts.of_rows(result((1, 3, EOS)), frozenset({EOS}))] == [8]


def test_rows_of_molprofs_own_loop_stand_at_their_own_positions() -> None:
    counts = CountedMasks()
    studied = Observed(Jumps(([1, 2], [0, 1, 2, 3, 4]), ([EOS],)), counts)
    assert (studied.reads_tokens, studied.forced(1, 0, None)) == (False, [8])
    for rows, positions in (([0, 1], [2, 0]), ([0], [3])):
        at = RowPositions(tuple(rows), tuple(positions), torch.tensor(rows), torch.tensor(positions))
        studied.mask(torch.zeros(len(rows), 5), at)
    found = counts.of_rows(result((9, 9, 1, EOS), (1, EOS), own=(7, 0)), frozenset({EOS}))
    # What was forced was never chosen: there was no other token.
    expected = [(MaskedLogits(3, 0, 4, 0, 1, 7), "1101"), (MaskedLogits(0, 0, 0, 0, 1, 0), "01")]
    assert [one[:2] for one in found] == expected


def test_figures_of_masked_logits(tmp_path: Path) -> None:
    path = tmp_path / "generic.json"
    molecules = captured(path, settings(processor="generic", repeats=1, warmup=0)).manifest.molecules
    counts = [run.masked for run in molecules if run.masked is not None]
    # Every FREE position is a choice between several tokens, every COPY position is none.
    templates = [run.template for run in molecules if run.template]
    assert [item.free_choices for item in counts] == [template.free for template in templates]
    assert [item.copy for item in counts] == [(item.tokens - item.free) * (128_256 - 1) for item in templates]
    assert all(item.end == 128_255 and item.own == item.total for item in counts)
    report = api.report(path)
    figures = figure_values(report)
    parts = [figures[f"masked_{kind}_per_molecule"] for kind in ("free", "copy", "end", "idle")]
    assert sum(part for part in parts if isinstance(part, (int, float))) == figures["masked_logits_per_molecule"]
    free, positions = sum(item.free for item in counts), sum(item.free_choices for item in counts)
    assert figures["masked_logits_per_free_position"] == free / positions
    assert [check.holds for check in report.checks if check.id == "masked_logits"] == [True]


class Keeps(LogitsProcessor):
    """Keeps some tokens, and gives all others a value, as log probabilities or as raw scores."""

    masked_logits = None

    def __init__(self, value: float, normalizes: bool) -> None:
        self.value, self.normalizes = value, normalizes

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.log_softmax(-1) if self.normalizes else scores.clone()
        scores[:, 10:] = self.value if math.isinf(self.value) else scores[:, 10:] + self.value
        return scores


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("value", [-math.inf, -1e6, -1e9, -1000.0, torch.finfo(torch.float32).min / 2])
def test_finite_masks_count_as_those_of_infinity(value: float, normalizes: bool) -> None:
    scores = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0)) * 10
    counts = CountedMasks()
    studied = Observed(Keeps(value, normalizes), counts)
    studied(torch.zeros(2, 1, dtype=torch.long), scores)
    found = counts.of_rows(result((1, EOS), (1, EOS)), frozenset({EOS}))
    assert [(item.free, item.free_choices) for item, *_ in found] == [(990, 1)] * 2


def test_what_the_model_makes_impossible_is_not_the_processors_doing() -> None:
    """A processor that lowers one score by 1 masks nothing, however far the model's scores are apart."""
    scores = torch.arange(0.0, 2000.0, 2.0).reshape(1, -1)
    counts = CountedMasks()
    studied = Observed(Keeps(-1.0, normalizes=False), counts)
    studied(torch.zeros(1, 1, dtype=torch.long), scores)
    ((found, *_),) = counts.of_rows(result((1, EOS)), frozenset({EOS}))
    assert found.total == 0
