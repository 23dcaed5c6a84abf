"""`qwen`: the position template with an allow-list, for tokenizers that split every digit."""

from __future__ import annotations

from molprof.common.errors import UsageError
from molprof.profiler.models.target import Target
from molprof.profiler.processors.rows import Action, Allow, TemplateProcessor

COMMAS = (",", ",-")
SEPARATORS = (*COMMAS, "-", "-.")
ALLOWED = (*"0123456789", ".", *SEPARATORS)
# The last positions of a block hold decimals, so no separator may stand there.
TAIL_POSITIONS = 2


class Qwen(TemplateProcessor):
    """FREE allows digits, `.`, `,`, `-`, `,-` and `-.` only.

    No comma at a block's first position, and neither comma nor minus at its last two. The placeholder has three
    decimals, so a coordinate gets 17 tokens.
    """

    name = "qwen"
    placeholder = "0.000,0.000,0.000"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        vocabulary = target.tokenizer.get_vocab()
        missing = [text for text in ALLOWED if text not in vocabulary]
        if missing:
            raise UsageError(
                f"the processor 'qwen' needs single tokens for {', '.join(map(repr, missing))}",
                hint="--processor generic works with any tokenizer",
            )
        self._first, self._middle, self._tail = (
            Allow(*self._on_device([vocabulary[text] for text in ALLOWED if text not in without]))
            for without in (COMMAS, (), SEPARATORS)
        )
        self.parameters = {"allowed_tokens": list(ALLOWED), "tail_positions": TAIL_POSITIONS}

    def free(self, place: int, left: int, following: int) -> Action:
        if left < TAIL_POSITIONS:
            return self._tail
        return self._middle if place else self._first
