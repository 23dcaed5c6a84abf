"""A model as logits processors see it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from molprof.profiler.models.vocabulary import TokenBytes


@dataclass(frozen=True)
class Target:
    """What a processor is made for."""

    tokenizer: PreTrainedTokenizerFast
    table: TokenBytes
    logits_width: int  # columns of the logits, padding included
    eos: int  # the id that ends a sequence
    pad: int  # the id that fills finished rows
    device: torch.device  # of the logits

    def padding_columns(self) -> list[int]:
        """Columns of the logits that stand for no token: between the vocabulary and the padded width."""
        vocabulary = self.tokenizer.get_vocab().values()
        return sorted(set(range(self.logits_width)).difference(vocabulary))
