"""`generic`: the position template with a block-list, for any tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from molprof.profiler.models.target import Target
from molprof.profiler.models.tokenizers import TAGS
from molprof.profiler.molecules.template import PLACEHOLDER, Template
from molprof.profiler.processors.base import BatchProcessor
from molprof.profiler.processors.rows import Action, Block, Force, RowProcessor


class Generic:
    """COPY forces the template's token; FREE blocks every token with `<` or `>`, the tags, BOS, EOS and PAD.

    Look-ahead: right before a COPY token that begins with `>`, no token of only `,` and `-` either.
    Everything else may be written in a coordinate, letters included, and a coordinate takes exactly as many
    tokens as the placeholder: that is what makes junk.
    """

    name = "generic"
    needs_templates = True
    placeholder = PLACEHOLDER

    def __init__(self, target: Target) -> None:
        self._target = target
        tokenizer, table = target.tokenizer, target.table
        controls = {target.eos, target.pad, *table.special}
        controls.update(index for index in (tokenizer.bos_token_id,) if index is not None)
        vocabulary = tokenizer.get_vocab()
        controls.update(vocabulary[tag] for tag in TAGS if tag in vocabulary)
        blocked = {*table.containing(b"<>"), *controls, *target.padding_columns()}
        marks = table.made_of(b",-")
        self._closing = {index for index, piece in enumerate(table.pieces) if piece.startswith(b">")}
        self._free = _block(blocked, target)
        self._last = _block(blocked.union(marks), target)
        self.parameters: dict[str, Any] = {
            "blocked_tokens": self._free.count,
            "blocked_tokens_before_close": self._last.count,
        }

    def start(self, templates: Sequence[Template], prompt_width: int) -> BatchProcessor:
        return RowProcessor([self.actions(template) for template in templates], prompt_width, self._target.eos)

    def actions(self, template: Template) -> list[Action]:
        """What is done at each answer position of a row."""
        ids, free = template.ids.tolist(), template.free.tolist()
        actions: list[Action] = []
        for position, token in enumerate(ids):
            if not free[position]:
                actions.append(Force(token))
            elif position + 1 < len(ids) and not free[position + 1] and ids[position + 1] in self._closing:
                actions.append(self._last)
            else:
                actions.append(self._free)
        return actions


def _block(ids: set[int], target: Target) -> Block:
    inside = sorted(index for index in ids if index < target.logits_width)
    return Block(torch.tensor(inside, dtype=torch.int64, device=target.device), len(inside))
