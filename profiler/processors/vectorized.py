"""`vectorized` and `placeholder`: masks of `generic` or `qwen` for a whole batch, prepared before the first step.

A template fixes what happens at every position of every row, so `start` makes all index lists and a step only slices
them by its position: no Python per row, no host sync, and two kernels where FREE allows a few tokens (three where it
blocks a few). A mask of rows x length x vocabulary is never built: 32 x 2,000 x 152,000 takes 9.7 GB.

In molprof's own decoding loop rows stand at different positions. There three kernels look up each row's kind of action
by position and row, and a mask over the vocabulary by kind. A batch has one kind per different token of its skeletons
and two or three more: about ten megabytes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.profiler.models.target import Target
from molprof.profiler.molecules.conformers import reference_conformers
from molprof.profiler.molecules.placeholders import best_placeholder
from molprof.profiler.molecules.template import Template
from molprof.profiler.processors import default_processor
from molprof.profiler.processors.base import BatchProcessor, Places
from molprof.profiler.processors.rows import Action, Block, Force, Generic, Qwen

_MASKS: dict[str, type[Generic] | type[Qwen]] = {"generic": Generic, "qwen": Qwen}
# Of a copied entry (overwritten at each step), of a forced one, and of one that is no longer allowed.
_CONSTANTS = np.array([math.nan, 0.0, -math.inf], dtype=np.float32)


class Vectorized:
    """The scores that `generic` or `qwen` (`masks`; None: what suits the tokenizer) would return, bit by bit."""

    name = "vectorized"
    needs_templates = True

    def __init__(self, target: Target, masks: str | None = None) -> None:
        masks = masks or default_processor(target)
        self._target = target
        self._like = _MASKS[masks](target)
        self.placeholder = self._like.placeholder
        self.parameters: dict[str, Any] = {"masks": masks, **self._like.parameters}

    def start(self, templates: Sequence[Template], prompt_width: int) -> BatchProcessor:
        plan = _Plan([self._like.actions(template) for template in templates], self._target)
        kind = _AllowBatch if isinstance(self._like, Qwen) else _BlockBatch
        return kind(plan, prompt_width, self._target.device)


class Placeholder(Vectorized):
    """`vectorized` with the placeholder that fits the tokenizer: as few tokens as hold every packaged coordinate.

    Since real coordinates differ in length, junk gets rarer but does not end.
    """

    name = "placeholder"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        coordinates = [position for _, positions in reference_conformers() for position in positions]
        best = best_placeholder(target.tokenizer, coordinates)
        self.placeholder = best.text
        self.parameters |= {
            "placeholder_tokens": best.tokens,
            "fitted_to_coordinates": best.coordinates,
            "mean_drift_tokens": round(best.mean_drift_tokens, 3),
        }


class _Plan:
    """Every row's action at every position, as numbers."""

    def __init__(self, rows: Sequence[Sequence[Action]], target: Target) -> None:
        end = Force(target.eos)
        numbers: dict[Any, int] = {}
        self.tokens: list[np.ndarray] = []  # per kind of action, the ids it names, ascending, int64
        self.force: list[bool] = []  # per kind of action, whether it forces its one token
        self.block: list[bool] = []  # per kind of action, whether it blocks its tokens; else it allows them
        counts: list[int] = []

        def number(action: Action) -> int:
            key = action.token if isinstance(action, Force) else (id(action),)
            if key not in numbers:
                numbers[key] = len(numbers)
                ids = [action.token] if isinstance(action, Force) else sorted(action.ids.tolist())
                self.tokens.append(np.asarray(ids, dtype=np.int64))
                self.force.append(isinstance(action, Force))
                self.block.append(isinstance(action, Block))
                counts.append(len(ids) if self.block[-1] else target.logits_width - len(ids))
            return numbers[key]

        self.end = target.eos
        self.lengths = list(map(len, rows))  # answer positions before the end token
        length = max(self.lengths, default=0) + 2
        # By position and row. The last two positions force the end token; the very last stands for all later ones.
        self.kinds = np.full((length, len(rows)), number(end), dtype=np.int64)
        for row, actions in enumerate(rows):
            self.kinds[: len(actions), row] = [number(action) for action in actions]
        self.masked = np.asarray(counts, dtype=np.int64)[self.kinds]  # logits set to -inf by position and row
        self.width = target.logits_width

    def blocked(self) -> np.ndarray:
        """Tokens that cannot follow, by kind of action: bool (kinds, logits width)."""
        found = np.zeros((len(self.tokens), self.width), dtype=np.bool_)
        for kind, (tokens, block) in enumerate(zip(self.tokens, self.block, strict=True)):
            found[kind] = not block
            found[kind, tokens] = block
        return found


class _Slices:
    """Arrays of any length, one per position, as slices of one tensor on the device."""

    def __init__(self, arrays: Sequence[np.ndarray], device: torch.device) -> None:
        self._all = torch.from_numpy(np.concatenate(arrays)).to(device)
        self._ends = [0, *itertools.accumulate(map(len, arrays))]

    def __getitem__(self, position: int) -> Tensor:
        return self._all[self._ends[position] : self._ends[position + 1]]


class _PlannedBatch(LogitsProcessor):
    """Where a batch stands, what is forced there, and what it has masked so far."""

    reads_tokens = False  # positions alone decide what is forced

    def __init__(self, plan: _Plan, prompt_width: int, device: torch.device) -> None:
        self._prompt_width = prompt_width
        self._plan = plan
        self._kinds = torch.from_numpy(plan.kinds).to(device)
        self._blocked = torch.from_numpy(plan.blocked()).to(device)
        self._last = len(plan.kinds) - 1
        self._counts = plan.masked
        self._masked = np.zeros(plan.kinds.shape[1], dtype=np.int64)

    @property
    def masked_logits(self) -> list[int]:
        """Logits set to -inf so far, by row, steps on finished rows included."""
        return [int(count) for count in self._masked]

    def forced(self, row: int, position: int, chosen: int | None) -> list[int]:
        """See `ForcedRuns`."""
        plan = self._plan
        run: list[int] = []
        for kind in plan.kinds[position : plan.lengths[row] + 1, row].tolist():
            if not plan.force[kind]:
                return run
            run.append(int(plan.tokens[kind][0]))
        return run or [plan.end]

    def mask(self, scores: Tensor, places: Places) -> Tensor:
        """See `ForcedRuns`. A forced token keeps its score, which decides nothing."""
        rows = list(places.rows)
        self._masked[rows] += self._counts[list(places.positions), rows]
        kinds = self._kinds[places.position_ids, places.row_ids]
        return scores.masked_fill_(self._blocked[kinds], -math.inf)

    def _position(self, input_ids: Tensor) -> int:
        position = min(input_ids.shape[1] - self._prompt_width, self._last)
        self._masked += self._counts[position]
        return position


class _AllowBatch(_PlannedBatch):
    """Few tokens are allowed: they are copied into a tensor that is -inf everywhere else.

    That tensor is returned at every step. A step writes only the entries that change: what it allows, and -inf where
    the step before allowed something else.
    """

    def __init__(self, plan: _Plan, prompt_width: int, device: torch.device) -> None:
        super().__init__(plan, prompt_width, device)
        self._out = torch.full((plan.kinds.shape[1], plan.width), -math.inf, device=device)
        self._at = -1
        self._copied: list[int] = []  # by position: entries that are copied, which come first
        targets: list[np.ndarray] = []
        values: list[np.ndarray] = []
        none = np.full(plan.kinds.shape[1], -1)
        for before, kinds in zip([none, *plan.kinds[:-1]], plan.kinds, strict=True):
            copied: list[np.ndarray] = []
            forced: list[np.ndarray] = []
            reset: list[np.ndarray] = []
            for row, (had, kind) in enumerate(zip(before.tolist(), kinds.tolist(), strict=True)):
                (forced if plan.force[kind] else copied).append(row * plan.width + plan.tokens[kind])
                if had >= 0 and had != kind:
                    left = np.setdiff1d(plan.tokens[had], plan.tokens[kind], assume_unique=True)
                    reset.append(row * plan.width + left)
            sizes = [sum(map(len, part)) for part in (copied, forced, reset)]
            self._copied.append(sizes[0])
            targets.append(np.concatenate([*copied, *forced, *reset]))
            values.append(np.repeat(_CONSTANTS, sizes))
        self._targets, self._values = _Slices(targets, device), _Slices(values, device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        position = self._position(input_ids)
        if position not in (self._at, self._at + 1):  # steps were left out: what they would have reset is unknown
            self._out.fill_(-math.inf)
        self._at = position
        targets, values, copied = self._targets[position], self._values[position], self._copied[position]
        if copied:
            torch.index_select(scores.reshape(-1), 0, targets[:copied], out=values[:copied])
        self._out.view(-1).index_copy_(0, targets, values)
        return self._out


class _BlockBatch(_PlannedBatch):
    """Few tokens are blocked: whole columns, then whole forced rows, then single entries, in place."""

    def __init__(self, plan: _Plan, prompt_width: int, device: torch.device) -> None:
        super().__init__(plan, prompt_width, device)
        blocks = [tokens for tokens, force in zip(plan.tokens, plan.force, strict=True) if not force]
        shared = functools.reduce(np.intersect1d, blocks) if blocks else np.empty(0, np.int64)
        extra = [
            tokens if force else np.setdiff1d(tokens, shared, assume_unique=True)
            for tokens, force in zip(plan.tokens, plan.force, strict=True)
        ]
        rows: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        values: list[np.ndarray] = []
        for kinds, forced in zip(plan.kinds, np.asarray(plan.force)[plan.kinds], strict=True):
            rows.append(np.flatnonzero(forced))
            entries = [row * plan.width + extra[kind] for row, kind in enumerate(kinds.tolist())]
            targets.append(np.concatenate(entries))
            values.append(np.repeat(np.where(forced, np.float32(0.0), np.float32(-math.inf)), list(map(len, entries))))
        self._free = [len(forced) < plan.kinds.shape[1] for forced in rows]
        self._shared = torch.from_numpy(shared).to(device)
        self._rows = _Slices(rows, device)
        self._targets, self._values = _Slices(targets, device), _Slices(values, device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        position = self._position(input_ids)
        scores = scores.contiguous()
        rows, targets = self._rows[position], self._targets[position]
        if self._free[position]:
            scores.index_fill_(1, self._shared, -math.inf)
        if len(rows):
            scores.index_fill_(0, rows, -math.inf)
        if len(targets):
            scores.view(-1).index_copy_(0, targets, self._values[position])
        return scores
