"""`generic`: the position template with a block-list, for any tokenizer."""

from __future__ import annotations

from molprof.profiler.models.target import Target
from molprof.profiler.models.tokenizers import TAGS
from molprof.profiler.molecules.template import PLACEHOLDER
from molprof.profiler.processors.rows import Action, Block, TemplateProcessor


class Generic(TemplateProcessor):
    """FREE blocks every token with `<` or `>`, the tags, BOS, EOS and PAD.

    Right before a COPY token that begins with `>`, tokens of only `,` and `-` are blocked too. Everything else may be
    written in a coordinate, letters included, and a coordinate takes as many tokens as the placeholder: hence junk.
    """

    name = "generic"
    placeholder = PLACEHOLDER

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        tokenizer, table = target.tokenizer, target.table
        vocabulary = tokenizer.get_vocab()
        blocked = {target.eos, target.pad, *table.special, *table.containing(b"<>"), *target.padding_columns()}
        blocked.update(index for index in (tokenizer.bos_token_id,) if index is not None)
        blocked.update(vocabulary[tag] for tag in TAGS if tag in vocabulary)
        self._closing = {index for index, piece in enumerate(table.pieces) if piece.startswith(b">")}
        self._free = self._block(blocked)
        self._last = self._block(blocked.union(table.made_of(b",-")))
        self.parameters = {
            "blocked_tokens": self._free.count,
            "blocked_tokens_before_close": self._last.count,
        }

    def free(self, place: int, left: int, following: int) -> Action:
        return self._last if left == 0 and following in self._closing else self._free

    def _block(self, ids: set[int]) -> Block:
        return Block(*self._on_device(sorted(index for index in ids if index < self._target.logits_width)))
