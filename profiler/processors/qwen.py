"""`qwen`: the position template with an allow-list, for tokenizers that split every digit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from molprof.common.errors import UsageError
from molprof.profiler.models.target import Target
from molprof.profiler.molecules.template import Template
from molprof.profiler.processors.base import BatchProcessor
from molprof.profiler.processors.rows import Action, Allow, Force, RowProcessor

DIGITS = tuple("0123456789")
COMMAS = (",", ",-")
DASHES = ("-", "-.")
ALLOWED = (*DIGITS, ".", *COMMAS, *DASHES)
# The last positions of a block hold decimals, so no separator may stand there.
TAIL_POSITIONS = 2


class Qwen:
    """COPY forces the template's token; FREE allows digits, `.`, `,`, `-`, `,-` and `-.` only.

    No comma at a block's first position, and neither comma nor dash at its last two. The placeholder has
    three decimals, so a coordinate gets 17 tokens.
    """

    name = "qwen"
    needs_templates = True
    placeholder = "0.000,0.000,0.000"

    def __init__(self, target: Target) -> None:
        self._target = target
        vocabulary = target.tokenizer.get_vocab()
        missing = [text for text in ALLOWED if text not in vocabulary]
        if missing:
            raise UsageError(
                f"the processor 'qwen' needs single tokens for {', '.join(map(repr, missing))}",
                hint="--processor generic works with any tokenizer",
            )
        self._ids = {text: vocabulary[text] for text in ALLOWED}
        separators = (*COMMAS, *DASHES)
        self._first = self._allow(COMMAS)
        self._middle = self._allow(())
        self._tail = self._allow(separators)
        self.parameters: dict[str, Any] = {"allowed_tokens": list(ALLOWED), "tail_positions": TAIL_POSITIONS}

    def start(self, templates: Sequence[Template], prompt_width: int) -> BatchProcessor:
        return RowProcessor([self.actions(template) for template in templates], prompt_width, self._target.eos)

    def _allow(self, without: tuple[str, ...]) -> Allow:
        ids = [index for text, index in self._ids.items() if text not in without]
        return Allow(torch.tensor(ids, dtype=torch.int64, device=self._target.device), len(ids))

    def actions(self, template: Template) -> list[Action]:
        """What is done at each answer position of a row."""
        ids, blocks = template.ids.tolist(), template.blocks.tolist()
        sizes = template.free_per_block.tolist()
        actions: list[Action] = []
        place = 0
        for position, token in enumerate(ids):
            block = blocks[position]
            if block < 0:
                actions.append(Force(token))
                continue
            place = place + 1 if position > 0 and blocks[position - 1] == block else 0
            if place >= sizes[block] - TAIL_POSITIONS:
                actions.append(self._tail)
            else:
                actions.append(self._first if place == 0 else self._middle)
        return actions
