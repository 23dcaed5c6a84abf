"""A constraint as another project would have it, which knows nothing of molprof: its own templates, its own class."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from transformers import LogitsProcessor, PreTrainedTokenizerBase

ZEROS = "0.0000,0.0000,0.0000"


@dataclass
class Skeleton:
    """Token ids of one expected answer, and which of them are numbers."""

    expected: torch.Tensor
    numeric: torch.Tensor

    def __len__(self) -> int:
        return len(self.expected)


def skeleton_of(smiles: str, tokenizer: PreTrainedTokenizerBase, zeros: str = ZEROS) -> Skeleton:
    atoms = re.sub(r"(\[[^\]]+\]|Br|Cl|[BCNOPSFIbcnops])", lambda atom: f"[{atom[0].strip('[]')}]<{zeros}>", smiles)
    text = f"[CONFORMER]{atoms}[/CONFORMER]"
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = [match.span(1) for match in re.finditer(r"<([^>]*)>", text)]
    numeric = [any(first <= begin and end <= last for first, last in spans) for begin, end in encoded["offset_mapping"]]
    return Skeleton(torch.tensor(encoded["input_ids"]), torch.tensor(numeric))


class SkeletonConstraint(LogitsProcessor):
    """Forces the skeleton, and leaves the numbers to the model."""

    def __init__(
        self,
        templates: Sequence[Skeleton],
        prompt_lengths: Sequence[int],
        *,
        tokenizer: PreTrainedTokenizerBase,
        eos_token_id: int | None = None,
        forbidden: str = "<>",
    ) -> None:
        if len(templates) != len(prompt_lengths):
            raise ValueError("as many templates as prompts, please")
        self.templates, self.prompt_lengths = templates, prompt_lengths
        self.eos = tokenizer.eos_token_id if eos_token_id is None else eos_token_id
        words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        bad = [i for i, word in enumerate(words) if word is None or set(forbidden) & set(word)]
        self.bad = torch.tensor([*bad, *tokenizer.all_special_ids])

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        for row, template in enumerate(self.templates):
            place = input_ids.shape[1] - self.prompt_lengths[row]
            if place < len(template) and template.numeric[place]:
                scores[row, self.bad] = float("-inf")
            else:
                token = int(template.expected[place]) if place < len(template) else self.eos
                kept = scores[row, token].clone()
                scores[row] = float("-inf")
                scores[row, token] = kept
        return scores


class OnlyLengths(LogitsProcessor):
    """Of prompts of any kind: ends every answer after `most` tokens."""

    def __init__(self, most: int, eos_token_id: int, prompt_length: int, vocab_size: int, device=None) -> None:
        self.most, self.width = most, prompt_length
        self.only = torch.full((vocab_size,), float("-inf"), device=device)
        self.only[eos_token_id] = 0.0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        return scores + self.only if input_ids.shape[1] - self.width >= self.most else scores


class Listed(LogitsProcessor):
    """Keeps what it was made of, and changes nothing."""

    made: ClassVar[list[dict]] = []

    def __init__(self, templates, smiles, prompts, prompt_lengths, batch_size, pad_token_id, **others) -> None:
        ids = [template.ids.tolist() for template in templates]
        self.made.append(
            {"ids": ids, "smiles": smiles, "prompts": prompts, "lengths": prompt_lengths, "size": batch_size, **others}
        )

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        return scores


class Needs(LogitsProcessor):
    def __init__(self, model_config, tokenizer, beams) -> None:
        raise AssertionError("never made")


def numbers(n: int, sizes: Sequence[int] = (1,)):
    return lambda input_ids, scores: scores
