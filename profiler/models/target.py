"""What a logits processor is made for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from molprof.profiler.models.vocabulary import TokenBytes


@dataclass(frozen=True)
class Target:
    """What a processor is made for.

    Attributes:
        tokenizer: the model's tokenizer.
        table: bytes of each of its tokens.
        logits_width: columns of the logits, padding included.
        eos: the id that ends a sequence.
        pad: the id that fills finished rows.
        device: where the logits lie.
    """

    tokenizer: PreTrainedTokenizerFast
    table: TokenBytes
    logits_width: int
    eos: int
    pad: int
    device: torch.device

    def padding_columns(self) -> list[int]:
        """Columns of the logits that stand for no token: between the vocabulary and the padded width."""
        vocabulary = self.tokenizer.get_vocab().values()
        return sorted(set(range(self.logits_width)).difference(vocabulary))
