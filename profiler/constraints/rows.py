"""`generic` and `qwen`: position templates, applied by a Python loop and a few kernels per row and step.

The processors under study were first written like this, and its cost is what they show: it stays plain on purpose.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.common.errors import UsageError
from molprof.common.text_format import TextFormat
from molprof.profiler.constraints.base import BatchProcessor, RowPositions, Rows
from molprof.profiler.models.target import ProcessorTarget
from molprof.profiler.molecules.template import PLACEHOLDER, Template

# The last positions of a block hold decimals, so no separator may stand there.
TAIL_POSITIONS = 2


def number_tokens(form: TextFormat) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the texts of the tokens of numbers.

    Those that separate numbers; these and those of a minus.
    """
    commas = (form.separator, f"{form.separator}-")
    separators = (*commas, "-", "-.")
    return (*"0123456789", ".", *separators), commas, separators


@dataclass(frozen=True)
class Force:
    """Only this token can follow."""

    token: int


@dataclass(frozen=True, eq=False)
class Forbid:
    """These tokens cannot follow; `ids` is int64 (k,) on the logits' device."""

    ids: Tensor


@dataclass(frozen=True, eq=False)
class Allow:
    """Only these tokens can follow; `ids` is int64 (k,) on the logits' device."""

    ids: Tensor


Action = Force | Forbid | Allow


class TemplateProcessor(ABC):
    """A processor that forces the template's token at COPY positions."""

    name: str
    placeholder: str
    needs_templates = True
    parameters: dict[str, Any]

    def __init__(self, target: ProcessorTarget) -> None:
        self._target = target
        self.placeholder = target.form.numbers(self.placeholder)

    @abstractmethod
    def free(self, index: int, left: int, following: int) -> Action:
        """Return the action at a FREE position.

        Args:
            place, left: FREE positions before and after it in its block.
            following: the template's next token.
        """

    def actions(self, template: Template) -> list[Action]:
        """Return the action at each answer position of a row."""
        ids, sizes = template.ids.tolist(), template.free_per_block.tolist()
        counts = [0] * len(sizes)
        actions: list[Action] = []
        for position, (token, block) in enumerate(zip(ids, template.blocks.tolist(), strict=True)):
            if block < 0:
                actions.append(Force(token))
            else:
                index = counts[block]
                actions.append(self.free(index, sizes[block] - index - 1, ids[position + 1]))
                counts[block] += 1
        return actions

    def start(self, rows: Rows) -> BatchProcessor:
        """Start a batch with a template for each row."""
        actions = [self.actions(template) for template in rows.templates]
        return RowProcessor(actions, rows.prompt_width, self._target.eos)

    def _on_device(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self._target.device)


class Generic(TemplateProcessor):
    """At FREE positions blocks tokens with `<` or `>` (a block's brackets), the tags, BOS, EOS and PAD.

    Right before a COPY token that begins with `>`, tokens of only `,` and `-` are blocked too. Everything else may be
    written in a coordinate, letters included, and a coordinate takes as many tokens as the placeholder: hence junk.
    """

    name = "generic"
    placeholder = PLACEHOLDER

    def __init__(self, target: ProcessorTarget) -> None:
        super().__init__(target)
        tokenizer, table, form = target.tokenizer, target.table, target.form
        vocabulary = target.vocabulary
        blocked = {
            target.eos,
            target.pad,
            *table.special,
            *table.containing(form.marks.encode()),
            *target.padding_columns(),
        }
        blocked.update(index for index in (tokenizer.bos_token_id,) if index is not None)
        blocked.update(vocabulary[tag] for tag in form.tags if tag in vocabulary)
        close = form.block_close[:1].encode()
        self._closing = {index for index in table.containing(close) if table.of(index).startswith(close)}
        self._free = self._block(blocked)
        self._last = self._block(blocked.union(table.made_of(f"{form.separator}-".encode())))
        self.parameters = {
            "blocked_tokens": len(self._free.ids),
            "blocked_tokens_before_close": len(self._last.ids),
        }

    def free(self, index: int, left: int, following: int) -> Action:
        """Return the action at a FREE position."""
        return self._last if left == 0 and following in self._closing else self._free

    def _block(self, ids: set[int]) -> Forbid:
        return Forbid(self._on_device(sorted(index for index in ids if index < self._target.logits_width)))


class Qwen(TemplateProcessor):
    """At FREE positions allows only digits, `.`, `,`, `-`, `,-` and `-.`.

    No comma at a block's first position, and neither comma nor minus at its last two.
    """

    name = "qwen"
    placeholder = PLACEHOLDER

    def __init__(self, target: ProcessorTarget) -> None:
        super().__init__(target)
        vocabulary = target.vocabulary
        allowed, commas, separators = number_tokens(target.form)
        missing = [text for text in allowed if text not in vocabulary]
        if missing:
            raise UsageError(
                f"the processor 'qwen' needs single tokens for {', '.join(map(repr, missing))}",
                hint="--processor generic works with any tokenizer",
            )
        self._first, self._middle, self._tail = (
            Allow(self._on_device([vocabulary[text] for text in allowed if text not in without]))
            for without in (commas, (), separators)
        )
        self.parameters = {"allowed_tokens": list(allowed), "tail_positions": TAIL_POSITIONS}

    def free(self, index: int, left: int, following: int) -> Action:
        """Return the action at a FREE position."""
        if left < TAIL_POSITIONS:
            return self._tail
        return self._middle if index else self._first


class RowProcessor(LogitsProcessor):
    """Applies one action per row and answer position; past a row's end it forces the end token."""

    reads_tokens = False  # positions alone decide what is forced

    def __init__(self, actions: Sequence[Sequence[Action]], prompt_width: int, eos: int) -> None:
        self._actions, self._prompt_width, self._end = actions, prompt_width, Force(eos)
        self._masked = np.zeros(len(actions), dtype=np.int64)

    @property
    def masked_logits(self) -> list[int]:
        """The masked logits of each row."""
        return [int(count) for count in self._masked]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        # Prompts are padded on the left, so every row stands at the same answer position.
        """Mask the scores of a step."""
        position = input_ids.shape[1] - self._prompt_width
        return self._mask(scores, range(len(self._actions)), itertools.repeat(position))

    def mask(self, scores: Tensor, at: RowPositions) -> Tensor:
        """Mask the scores at the positions of rows."""
        return self._mask(scores, at.rows, at.positions)

    def forced(self, row: int, position: int, chosen: int | None) -> list[int]:
        """Return the tokens that are forced from a position on."""
        run: list[int] = []
        for action in itertools.islice(self._actions[row], position, None):
            if not isinstance(action, Force):
                return run
            run.append(action.token)
        return [*run, self._end.token]

    def _mask(self, scores: Tensor, rows: Iterable[int], positions: Iterable[int]) -> Tensor:
        width = scores.shape[1]
        for row_scores, row, position in zip(scores, rows, positions, strict=False):
            actions = self._actions[row]
            action = actions[position] if position < len(actions) else self._end
            match action:
                case Force(token):
                    row_scores.fill_(-math.inf)
                    row_scores[token].fill_(0.0)
                    self._masked[row] += width - 1
                case Forbid(ids):
                    row_scores.index_fill_(0, ids, -math.inf)
                    self._masked[row] += len(ids)
                case Allow(ids):
                    kept = row_scores.index_select(0, ids)
                    row_scores.fill_(-math.inf)
                    row_scores.index_copy_(0, ids, kept)
                    self._masked[row] += width - len(ids)
        return scores
