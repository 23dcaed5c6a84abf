"""`vectorized`: the masks of `generic` or `qwen` for the whole batch at once, prepared before the first step.

A template fixes what happens at every position of every row, so all index lists are made in `start` and a step
only slices them by its position: no Python per row, no host sync, and two kernels where FREE allows a few tokens
(three where it blocks a few). Rows times length times vocabulary is never built: 32 x 2,000 x 152,000 would be
9.7 GB.

In molprof's own decoding loop rows stand at unlike positions, so that no list holds a step. There the mask of each
kind of action is looked up: a kind per position and row, and a mask over the vocabulary per kind, of which a batch
has as many as its skeletons have different tokens, and two or three: some ten megabytes. That makes three kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.profiler.models.target import Target
from molprof.profiler.molecules.template import Template
from molprof.profiler.processors import default_processor
from molprof.profiler.processors.base import BatchProcessor, Places
from molprof.profiler.processors.generic import Generic
from molprof.profiler.processors.qwen import Qwen
from molprof.profiler.processors.rows import Action, Allow, Block, Force

_MASKS: dict[str, type[Generic] | type[Qwen]] = {"generic": Generic, "qwen": Qwen}
# A copied entry (overwritten at each step), a forced one, and one that is allowed no longer.
_CONSTANTS = np.array([math.nan, 0.0, -math.inf], dtype=np.float32)


class Vectorized:
    """The scores that `generic` or `qwen` would return, bit by bit.

    Args:
        masks: `generic` or `qwen`; None: whichever `--lp` takes for the tokenizer.
    """

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


class _Plan:
    """Every row's action at every position, as numbers.

    Attributes:
        tokens: per kind of action, the ids it names, ascending, int64.
        force, allow: per kind of action, whether it forces its one token, or allows its tokens.
        kinds: kind of action by position and row, int64 (length + 2, rows): the first position past the longest
            row and the one after it, which stands for all later ones, force the end token.
        masked: logits set to -inf by position and row, int64 of the same shape.
        lengths: answer positions of each row before the end token, which is `end`.
    """

    def __init__(self, rows: Sequence[Sequence[Action]], target: Target) -> None:
        end = Force(target.eos)
        numbers: dict[Any, int] = {}
        self.tokens: list[np.ndarray] = []
        self.force: list[bool] = []
        self.allow: list[bool] = []
        counts: list[int] = []

        def number(action: Action) -> int:
            key = action.token if isinstance(action, Force) else (id(action),)
            if key not in numbers:
                numbers[key] = len(numbers)
                ids = [action.token] if isinstance(action, Force) else sorted(action.ids.tolist())
                self.tokens.append(np.asarray(ids, dtype=np.int64))
                self.force.append(isinstance(action, Force))
                self.allow.append(isinstance(action, Allow))
                counts.append(len(ids) if isinstance(action, Block) else target.logits_width - len(ids))
            return numbers[key]

        self.end = target.eos
        self.lengths = list(map(len, rows))
        length = max(self.lengths, default=0) + 2
        self.kinds = np.full((length, len(rows)), number(end), dtype=np.int64)
        for row, actions in enumerate(rows):
            self.kinds[: len(actions), row] = [number(action) for action in actions]
        self.masked = np.asarray(counts, dtype=np.int64)[self.kinds]
        self.width = target.logits_width

    def blocked(self) -> np.ndarray:
        """Tokens that cannot follow, by kind of action: bool (kinds, logits width)."""
        found = np.zeros((len(self.tokens), self.width), dtype=np.bool_)
        for kind, (tokens, force, allow) in enumerate(zip(self.tokens, self.force, self.allow, strict=True)):
            found[kind] = force or allow
            found[kind, tokens] = not (force or allow)
        return found


class _PlannedBatch(LogitsProcessor):
    """Where a batch stands, what is forced there, and what it has masked so far."""

    reads_tokens = False  # positions alone tell what is forced

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
        """Logits set to -inf so far, by row, idle row-steps included."""
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

    That tensor is kept and returned at every step, so that a step writes only the few entries that change:
    what this step allows, and -inf where the step before had allowed something else. It is valid until the next
    call.
    """

    def __init__(self, plan: _Plan, prompt_width: int, device: torch.device) -> None:
        super().__init__(plan, prompt_width, device)
        self._out = torch.full((plan.kinds.shape[1], plan.width), -math.inf, device=device)
        self._at = -1
        sources: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        values: list[np.ndarray] = []
        self._spans: list[tuple[int, int, int]] = []  # where a position's entries begin, its copies and all end
        begin = 0
        none = np.full(plan.kinds.shape[1], -1)
        for before, kinds in zip([none, *plan.kinds[:-1]], plan.kinds, strict=True):
            kept: list[np.ndarray] = []
            zero: list[np.ndarray] = []
            gone: list[np.ndarray] = []
            for row, (had, kind) in enumerate(zip(before.tolist(), kinds.tolist(), strict=True)):
                (zero if plan.force[kind] else kept).append(row * plan.width + plan.tokens[kind])
                if had >= 0 and had != kind:
                    left = np.setdiff1d(plan.tokens[had], plan.tokens[kind], assume_unique=True)
                    gone.append(row * plan.width + left)
            parts = [np.concatenate([np.empty(0, np.int64), *lists]) for lists in (kept, zero, gone)]
            copied, forced, reset = map(len, parts)
            sources.append(parts[0])
            targets.extend(parts)
            values.append(np.repeat(_CONSTANTS, (copied, forced, reset)))
            end = begin + copied + forced + reset
            self._spans.append((begin, begin + copied, end))
            begin = end
        self._targets = torch.from_numpy(np.concatenate(targets)).to(device)
        self._values = torch.from_numpy(np.concatenate(values)).to(device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        position = self._position(input_ids)
        if position not in (self._at, self._at + 1):  # steps were left out: what they would have reset is unknown
            self._out.fill_(-math.inf)
        self._at = position
        begin, copied, end = self._spans[position]
        if copied > begin:
            flat = scores.reshape(-1)
            torch.index_select(flat, 0, self._targets[begin:copied], out=self._values[begin:copied])
        self._out.view(-1).index_copy_(0, self._targets[begin:end], self._values[begin:end])
        return self._out


class _BlockBatch(_PlannedBatch):
    """Few tokens are blocked: whole columns, then whole forced rows, then single entries, in place."""

    def __init__(self, plan: _Plan, prompt_width: int, device: torch.device) -> None:
        super().__init__(plan, prompt_width, device)
        blocks = [place for place in range(len(plan.tokens)) if not plan.force[place]]
        shared = plan.tokens[blocks[0]] if blocks else np.empty(0, np.int64)
        for place in blocks[1:]:
            shared = np.intersect1d(shared, plan.tokens[place], assume_unique=True)
        extra = [
            tokens if force else np.setdiff1d(tokens, shared, assume_unique=True)
            for tokens, force in zip(plan.tokens, plan.force, strict=True)
        ]
        forced = np.asarray(plan.force)[plan.kinds]
        rows: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        values: list[np.ndarray] = []
        self._free: list[bool] = []
        self._row_spans: list[tuple[int, int]] = []
        self._spans: list[tuple[int, int]] = []
        row_begin = begin = 0
        for kinds, flags in zip(plan.kinds, forced, strict=True):
            rows.append(np.flatnonzero(flags))
            entries = [row * plan.width + extra[kind] for row, kind in enumerate(kinds.tolist())]
            sizes = list(map(len, entries))
            targets.extend(entries)
            values.append(np.repeat(np.where(flags, np.float32(0.0), np.float32(-math.inf)), sizes))
            self._free.append(not flags.all())
            self._row_spans.append((row_begin, row_begin + len(rows[-1])))
            self._spans.append((begin, begin + sum(sizes)))
            row_begin, begin = self._row_spans[-1][1], self._spans[-1][1]
        self._shared = torch.from_numpy(shared).to(device)
        self._rows = torch.from_numpy(np.concatenate(rows)).to(device)
        self._targets = torch.from_numpy(np.concatenate(targets)).to(device)
        self._values = torch.from_numpy(np.concatenate(values)).to(device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        position = self._position(input_ids)
        scores = scores.contiguous()
        if self._free[position]:
            scores.index_fill_(1, self._shared, -math.inf)
        begin, end = self._row_spans[position]
        if end > begin:
            scores.index_fill_(0, self._rows[begin:end], -math.inf)
        begin, end = self._spans[position]
        if end > begin:
            scores.view(-1).index_copy_(0, self._targets[begin:end], self._values[begin:end])
        return scores
