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

from molprof.profiler.constraints.base import BatchProcessor, RowPositions, Rows
from molprof.profiler.constraints.rows import Action, Forbid, Force, Generic, Qwen, RowProcessor, number_tokens
from molprof.profiler.models.target import ProcessorTarget
from molprof.profiler.molecules.conformers import reference_conformers
from molprof.profiler.molecules.placeholders import best_placeholder

_MASKS: dict[str, type[Generic] | type[Qwen]] = {"generic": Generic, "qwen": Qwen}
# Of a copied entry (overwritten at each step), of a forced one, and of one that is no longer allowed.
_CONSTANTS = np.array([math.nan, 0.0, -math.inf], dtype=np.float32)


class Vectorized:
    """The same scores as `generic` or `qwen` (`masks`; None: the one that suits the tokenizer), bit by bit."""

    name = "vectorized"
    needs_templates = True

    def __init__(self, target: ProcessorTarget, masks: str | None = None) -> None:
        masks = masks or suited_masks(target)
        self._target = target
        self._like = _MASKS[masks](target)
        self.placeholder = self._like.placeholder
        self.parameters: dict[str, Any] = {"masks": masks, **self._like.parameters}

    def start(self, rows: Rows) -> BatchProcessor:
        """Start a batch with the actions of its rows."""
        kind = _AllowBatch if isinstance(self._like, Qwen) else _BlockBatch
        return kind([self._like.actions(template) for template in rows.templates], self._target, rows.prompt_width)


class FittedPlaceholder(Vectorized):
    """`vectorized` with the shortest placeholder, in tokens, that has room for every packaged coordinate.

    Since real coordinates differ in length, junk gets rarer but does not end.
    """

    name = "placeholder"
    fits_placeholder = True

    def __init__(self, target: ProcessorTarget) -> None:
        super().__init__(target)
        coordinates = [position for _, positions in reference_conformers() for position in positions]
        best = best_placeholder(target.tokenizer, coordinates, form=target.form)
        self.placeholder = best.text
        self.parameters |= {
            "placeholder_tokens": best.tokens,
            "fitted_to_coordinates": best.coordinates,
            "mean_drift_tokens": round(best.mean_drift_tokens, 3),
        }


def suited_masks(target: ProcessorTarget) -> str:
    """Return the masks that suit a tokenizer: `qwen` if every digit is a token of its own, else `generic`."""
    single = len(target.tokenizer("123", add_special_tokens=False)["input_ids"]) == 3
    vocabulary = target.vocabulary
    return "qwen" if single and all(text in vocabulary for text in number_tokens(target.form)[0]) else "generic"


def _sliced(arrays: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, ...]:
    """Return arrays of any length, one per position, as slices of one tensor on the device."""
    tensors: tuple[Tensor, ...] = torch.from_numpy(np.concatenate(arrays)).to(device).split(list(map(len, arrays)))
    return tensors


class _PlannedBatch(RowProcessor):
    """Every row's action at every position as numbers, and the position of the batch."""

    def __init__(self, rows: Sequence[Sequence[Action]], target: ProcessorTarget, prompt_width: int) -> None:
        super().__init__(rows, prompt_width, target.eos)
        actions = dict.fromkeys([self._end, *itertools.chain(*rows)])
        numbers: dict[Action, int] = {action: number for number, action in enumerate(actions)}
        self._force = [isinstance(action, Force) for action in numbers]  # by kind of action
        # By kind, the ids that it names, ascending, int64; tokens that cannot follow, bool (logits width,).
        ids = ([action.token] if isinstance(action, Force) else sorted(action.ids.tolist()) for action in numbers)
        self._tokens = [np.asarray(each, dtype=np.int64) for each in ids]
        blocked = np.empty((len(numbers), target.logits_width), dtype=bool)
        for kind, (action, tokens) in enumerate(zip(numbers, self._tokens, strict=True)):
            blocked[kind] = not isinstance(action, Forbid)
            blocked[kind, tokens] = isinstance(action, Forbid)
        self._width, self._size = target.logits_width, len(rows)
        # By position and row. The last two positions force the end token; the very last stands for all later ones.
        length = max(map(len, rows), default=0) + 2
        self._kinds = np.full((length, len(rows)), numbers[self._end], dtype=np.int64)
        for row, row_actions in enumerate(rows):
            self._kinds[: len(row_actions), row] = [numbers[action] for action in row_actions]
        self._device_kinds = torch.from_numpy(self._kinds).to(target.device)
        self._blocked = torch.from_numpy(blocked).to(target.device)
        self._counts = blocked.sum(axis=1)[self._kinds]  # logits set to -inf by position and row

    def mask(self, scores: Tensor, at: RowPositions) -> Tensor:
        # A forced token keeps its score, which decides nothing.
        rows = list(at.rows)
        self._masked[rows] += self._counts[list(at.positions), rows]
        return self.allow(scores, self._device_kinds[at.position_ids, at.row_ids])

    def state(self, row: int, position: int, chosen: int | None) -> int:
        """Return the state as in `BatchProcessor`: a state is a kind of action."""
        index = min(position, len(self._kinds) - 1), row
        self._masked[row] += self._counts[index]
        return int(self._kinds[index])

    def allow(self, scores: Tensor, states: Tensor) -> Tensor:
        return scores.masked_fill_(self._blocked[states], -math.inf)

    def _position(self, input_ids: Tensor) -> int:
        position = min(input_ids.shape[1] - self._prompt_width, len(self._kinds) - 1)
        self._masked += self._counts[position]
        return position


class _AllowBatch(_PlannedBatch):
    """A batch with few allowed tokens, which are copied into a tensor that is -inf everywhere else.

    That tensor is returned at every step. A step writes only the entries that change: what it allows, and -inf where
    the step before allowed something else.
    """

    def __init__(self, rows: Sequence[Sequence[Action]], target: ProcessorTarget, prompt_width: int) -> None:
        super().__init__(rows, target, prompt_width)
        self._out = torch.full((self._size, self._width), -math.inf, device=target.device)
        self._at = -1
        self._copied: list[int] = []  # by position: entries that are copied, which come first
        targets: list[np.ndarray] = []
        values: list[np.ndarray] = []
        none = np.full(self._size, -1)
        for before, kinds in zip([none, *self._kinds[:-1]], self._kinds, strict=True):
            parts: tuple[list[np.ndarray], ...] = ([], [], [])  # copied, forced, reset
            for row, (had, kind) in enumerate(zip(before.tolist(), kinds.tolist(), strict=True)):
                parts[self._force[kind]].append(row * self._width + self._tokens[kind])
                if had >= 0 and had != kind:
                    left = np.setdiff1d(self._tokens[had], self._tokens[kind], assume_unique=True)
                    parts[2].append(row * self._width + left)
            sizes = [sum(map(len, part)) for part in parts]
            self._copied.append(sizes[0])
            targets.append(np.concatenate([*itertools.chain(*parts)]))
            values.append(np.repeat(_CONSTANTS, sizes))
        self._targets, self._values = _sliced(targets, target.device), _sliced(values, target.device)

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
    """A batch with few blocked tokens, masked in place: whole columns, whole forced rows, single entries."""

    def __init__(self, rows: Sequence[Sequence[Action]], target: ProcessorTarget, prompt_width: int) -> None:
        super().__init__(rows, target, prompt_width)
        blocks = [tokens for tokens, force in zip(self._tokens, self._force, strict=True) if not force]
        shared = functools.reduce(np.intersect1d, blocks) if blocks else np.empty(0, np.int64)
        extra = [
            tokens if force else np.setdiff1d(tokens, shared, assume_unique=True)
            for tokens, force in zip(self._tokens, self._force, strict=True)
        ]
        forced_rows: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        values: list[np.ndarray] = []
        for kinds, forced in zip(self._kinds, np.asarray(self._force)[self._kinds], strict=True):
            forced_rows.append(np.flatnonzero(forced))
            entries = [row * self._width + extra[kind] for row, kind in enumerate(kinds.tolist())]
            targets.append(np.concatenate(entries))
            values.append(np.repeat(np.where(forced, np.float32(0.0), np.float32(-math.inf)), list(map(len, entries))))
        self._shared = torch.from_numpy(shared).to(target.device)
        self._rows = _sliced(forced_rows, target.device)
        self._targets, self._values = _sliced(targets, target.device), _sliced(values, target.device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        position = self._position(input_ids)
        scores = scores.contiguous()
        rows, targets = self._rows[position], self._targets[position]
        if len(rows) < self._size:
            scores.index_fill_(1, self._shared, -math.inf)
        if len(rows):
            scores.index_fill_(0, rows, -math.inf)
        if len(targets):
            scores.view(-1).index_copy_(0, targets, self._values[position])
        return scores
