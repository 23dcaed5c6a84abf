"""Observers of a processor in untimed passes: the logits that it masks, and the model's own choices.

Each is an observer of the processor of its batch (`Observed`). Figures come to the host once per batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from molprof.common.manifest import Disagreement, MaskedLogits
from molprof.profiler.constraints.own import MaskCall
from molprof.profiler.constraints.tags import format_of, token_letters
from molprof.profiler.engines import BatchPlan, BatchResult
from molprof.profiler.engines.runner import PassResult, Runner
from molprof.profiler.models.device import settled_ns
from molprof.profiler.molecules.bodies import enforced

_DIGITS = 6
# exp of less than minus this is 0 in float32: half of the least number, 2**-150, rounds to 0.
_NO_PROBABILITY = 150 * math.log(2)


class Masked(NamedTuple):
    """The masks of a prompt's answer; `forced` and `stood` as in `SequenceRun`."""

    counts: MaskedLogits
    forced: str
    stood: str | None = None


def impossible(scores: Tensor) -> Tensor:
    """Return the tokens that cannot be chosen, bool like `scores` (rows, V): their softmax is 0 in float32.

    That is so of scores of -inf, and of finite ones far below the largest of their row, such as -1e6 or the least
    number of the dtype, with which some processors mask.
    """
    return scores.isneginf() | (scores < scores.amax(-1, keepdim=True) - _NO_PROBABILITY)


def masked_rows(seen: Iterable[Sequence[int]], result: BatchResult, eos: frozenset[int]) -> list[Masked]:
    """Return the masked logits of each prompt, and for each of its tokens whether it was the only one left.

    seen: row, answer position, tokens made impossible, tokens left. Tokens that were never chosen had no other.
    """
    counted = result.masked_logits
    counts_of = [dict.fromkeys(("free", "copy", "end", "idle", "free_choices"), 0) for _ in result.rows]
    forced = [["1"] * len(row) for row in result.rows]
    for row, position, count, left in seen:
        if row < len(result.rows):
            kind = _kind(result.rows[row], position, left, eos)
            counts_of[row][kind] += count
            if kind == "free":
                counts_of[row]["free_choices"] += 1
                forced[row][position] = "0"
    return [
        Masked(MaskedLogits(**counts, own=None if counted is None else counted[row]), "".join(forced[row]))
        for row, counts in enumerate(counts_of)
    ]


def replayed(runner: Runner, plans: Sequence[BatchPlan], result: PassResult) -> list[list[Masked]] | None:
    """Return what an engine's own masks forbade, by replaying them; None without such masks."""
    replay = getattr(runner.engine, "masks_of", None)
    if replay is None or runner.settings.processor is None:
        return None
    return [
        _with_letters(list(replay(plan, batch)), plan, batch, runner)
        for plan, batch in zip(plans, result.batches, strict=True)
    ]


def _with_letters(
    masks: Sequence[tuple[int, int, int, int]], plan: BatchPlan, result: BatchResult, runner: Runner
) -> list[Masked]:
    """Return the masked logits of each prompt, and where its tokens stood."""
    target = runner.loaded.target
    left: list[list[int]] = [[] for _ in result.rows]
    for row, _, _, count in masks:
        left[row].append(count)
    rows = []
    for row, masked in enumerate(masked_rows(masks, result, runner.loaded.eos)):
        body = plan.prompts[row].body
        constraint = None if body is None else enforced(body)
        form = format_of(constraint[2]) if constraint and constraint[1] == "structural_tag" else None
        stood = token_letters(result.rows[row], left[row], target.logits_width, target.table, form)
        rows.append(masked._replace(stood=stood))
    return rows


class CountedMasks:
    """Observes a batch's processor: counts for every row and step the tokens that it makes impossible.

    The result alone is looked at: a choice with one token left is COPY, one with more is FREE. The time of looking is
    measured, for the pass is a warm-up too.
    """

    def __init__(self) -> None:
        self.looked_ns = 0
        # Row and answer position; tokens made impossible, and tokens left: one tensor (rows, 2) per step, on the device
        self._where: list[tuple[int, int]] = []
        self._counts: list[Tensor] = []

    def masks(self, call: Callable[[], Tensor], scores: Tensor, at: MaskCall) -> Tensor:
        """Call the processor, and count in its scores."""
        began = settled_ns(scores.device)
        # Now, for processors may write into what they get.
        before, unlikely = scores.isneginf(), impossible(scores)
        self.looked_ns += settled_ns(scores.device) - began
        out = call()
        began = settled_ns(scores.device)
        # What the model itself gave no probability is not the processor's doing, unless it says so by -inf.
        after = out.isneginf() | (impossible(out) & ~unlikely)
        self._counts.append(torch.stack(((after & ~before).sum(-1), (~after).sum(-1)), dim=1))
        self._where += zip(at.rows, at.positions, strict=True)
        self.looked_ns += settled_ns(scores.device) - began
        return out

    def of_rows(self, result: BatchResult, eos: frozenset[int]) -> list[Masked]:
        """Return the masked logits of each prompt of the batch that `result` is of.

        Rows that only fill it up are left out.
        """
        counts = torch.cat(self._counts).tolist() if self._counts else []
        return masked_rows(((*at, *seen) for at, seen in zip(self._where, counts, strict=True)), result, eos)


def _kind(tokens: Sequence[int], position: int, left: int, eos: frozenset[int]) -> str:
    """Return the kind of the position at which a row's token was chosen, in an answer of these tokens."""
    if position >= len(tokens):
        return "idle"
    if left > 1:
        return "free"
    return "end" if tokens[position] in eos else "copy"


class WatchedProcessor:
    """Observes a batch's processor in `generate`: the probability that the model gave to each written token.

    The token that was written is known one call later, from `input_ids`, or after the last step, from the rows. So the
    scores of a step are kept for one call.

    Shapes: B rows, V logits, S steps.
    """

    def __init__(self) -> None:
        self._scores: Tensor | None = None  # of the running step, (B, V), as the model gave them
        self._probabilities: list[Tensor] = []
        self._ranks: list[Tensor] = []
        self._allowed: list[Tensor] = []
        self._forbidden: list[Tensor] = []
        self._removed: list[Tensor] = []

    def masks(self, call: Callable[[], Tensor], scores: Tensor, at: MaskCall) -> Tensor:
        """Call the processor, and keep its input scores."""
        if self._scores is not None and at.input_ids is not None:
            self._look_up(at.input_ids[:, -1])
        self._scores = scores.clone()  # processors may write into what they get
        masked = call()
        possible = ~(masked.isneginf() | (impossible(masked) & ~impossible(self._scores)))
        first = self._scores.argmax(dim=-1, keepdim=True)
        self._allowed.append(possible.sum(dim=-1))
        self._forbidden.append(~possible.gather(-1, first).squeeze(-1))
        exact = self._scores.double()
        kept = exact.masked_fill(~possible, -torch.inf).logsumexp(dim=-1)
        self._removed.append((1 - (kept - exact.logsumexp(dim=-1)).exp()).clamp(min=0.0))
        return masked

    def finish(self, rows: Sequence[Sequence[int]]) -> list[Disagreement]:
        """Return the figures by row; `rows`: the tokens of the batch, with the end tokens, without padding."""
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
                _rounded(probabilities[index][: len(row)]),
                ranks[index][: len(row)],
                "".join("c" if count == 1 else "o" if count == width else "f" for count in allowed[index][: len(row)]),
                "".join("01"[flag] for flag in forbidden[index][: len(row)]),
                _rounded(removed[index][: len(row)]),
            )
            for index, row in enumerate(rows)
        ]

    def _look_up(self, tokens: Tensor) -> None:
        """Look up probability and rank of the tokens, int64 (B,), in the kept scores."""
        assert self._scores is not None
        chosen = self._scores.gather(-1, tokens.unsqueeze(-1))
        # float64: probabilities down to 1e-308 are not 0.
        logarithm = chosen.squeeze(-1).double() - self._scores.logsumexp(dim=-1).double()
        self._probabilities.append(logarithm.exp())
        self._ranks.append((self._scores > chosen).sum(dim=-1))


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]
