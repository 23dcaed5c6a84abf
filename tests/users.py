"""Processors as users write them, right and wrong, for `--processor users:NAME`."""

from __future__ import annotations

import json
import math
import re
from typing import ClassVar

import torch
from torch import Tensor
from transformers import LogitsProcessor


class Wrong(LogitsProcessor):
    """Does `what` in row 1 at the fifth step of a batch."""

    def __init__(self, what: str, batch_size: int = 0) -> None:
        self._what, self._seen = what, 0

    def __call__(self, input_ids: Tensor, scores: Tensor):
        self._seen += 1
        if self._seen < 5:
            return scores
        match self._what:
            case "raises":
                raise ValueError("no more ideas")
            case "nothing":
                return None
            case "shape":
                return scores[:, :-1]
            case "dtype":
                return scores.double()
            case "device":
                return scores.to("meta")
            case "masks":
                scores[1] = -math.inf
            case "nan":
                scores[1, 7] = math.nan
        return scores


class Late:
    """Raises when it is started for the fourth time: with one batch, in the recorded pass of a capture that makes one
    pass to look, which warms up, one timed with marks, and one without."""

    name = "late"
    started = 0

    def start(self, rows) -> LogitsProcessor:
        self.started += 1
        return Wrong("raises" if self.started == 4 else "fine")


class NoStart:
    """Fails before the first step, and does not tell how long its answers may get."""

    def start(self, rows):
        raise KeyError("templates")

    def longest(self, template) -> int:
        return len(template.ids) if template else int("no")


class Sevens(LogitsProcessor):
    """Allows one token."""

    made: ClassVar[list[int]] = []

    def __init__(self, tokenizer) -> None:
        self._token = tokenizer("7", add_special_tokens=False)["input_ids"][0]
        self.made.append(self._token)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        out = torch.full_like(scores, -math.inf)
        out[:, self._token] = scores[:, self._token]
        return out


class Tires:
    """Allows nothing from a number of calls on, over all passes."""

    fixed_length = False
    calls = 4

    def __init__(self) -> None:
        self._left = self.calls

    def start(self, rows):
        def masked(input_ids: Tensor, scores: Tensor) -> Tensor:
            self._left -= 1
            return scores if self._left >= 0 else torch.full_like(scores, -math.inf)

        return masked


class Changes:
    """Allows one token, another one in each batch that it is started for."""

    started = 0

    def start(self, rows):
        self.started += 1
        token = self.started

        def only(input_ids: Tensor, scores: Tensor) -> Tensor:
            out = torch.full_like(scores, -math.inf)
            out[:, token] = 0.0
            return out

        return only


class Listed(LogitsProcessor):
    """Keeps what it was made of, and changes nothing."""

    made: ClassVar[list[dict]] = []

    def __init__(self, templates, smiles, prompts, prompt_lengths, batch_size, pad_token_id, **others) -> None:
        given = {"smiles": smiles, "prompts": prompts, "lengths": prompt_lengths, "size": batch_size}
        self.made.append({"templates": [template.text for template in templates], **given, **others})

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores


class OnlyLengths(LogitsProcessor):
    """Of prompts of any kind: ends every answer after `most` tokens."""

    def __init__(self, most: int, eos_token_id: int, prompt_length: int, vocab_size: int, device=None) -> None:
        self.most, self.width = most, prompt_length
        self.only = torch.full((vocab_size,), -math.inf, device=device)
        self.only[eos_token_id] = 0.0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + self.only if input_ids.shape[1] - self.width >= self.most else scores


class Skeleton(LogitsProcessor):
    """Of a project that knows nothing of molprof: forces the text around the numbers."""

    def __init__(self, texts, tokenizer) -> None:
        self.rows = [tokenizer(text, return_offsets_mapping=True, add_special_tokens=False) for text in texts]
        self.inside = [[match.span(1) for match in re.finditer(r"<([^>]*)>", text)] for text in texts]
        self.eos, self.width = tokenizer.eos_token_id, None
        words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        bad = [token for token, word in enumerate(words) if set("<>[]") & set(word)]
        self.bad = torch.tensor([*bad, self.eos])

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.width = self.width or input_ids.shape[1]
        place = input_ids.shape[1] - self.width
        for row, (encoded, spans) in enumerate(zip(self.rows, self.inside, strict=True)):
            ids = encoded["input_ids"]
            start, end = encoded["offset_mapping"][place] if place < len(ids) else (0, 0)
            if any(first <= start and end <= last and end for first, last in spans):
                scores[row, self.bad] = -math.inf
                continue
            token = ids[place] if place < len(ids) else self.eos
            kept = scores[row, token].clone()
            scores[row] = -math.inf
            scores[row, token] = kept
        return scores


def skeleton(tokenizer, smiles, prompt_length, zeros="0.0000,0.0000,0.0000"):
    atoms = r"(\[[^\]]+\]|Br|Cl|[BCNOPSFIbcnops])"
    texts = [re.sub(atoms, lambda atom: f"[{atom[0].strip('[]')}]<{zeros}>", text) for text in smiles]
    return Skeleton([f"[CONFORMER]{text}[/CONFORMER]" for text in texts], tokenizer)


def needs(model_config, tokenizer, beams) -> None:
    raise AssertionError("never made")


def number(target) -> int:
    return 3


def leaves(target) -> None:
    raise SystemExit(7)


def interrupts(target) -> None:
    raise KeyboardInterrupt


def misuses() -> None:
    json.loads("")


class Sums(LogitsProcessor):
    """Allows one token, which all tokens of the batch decide, those of finished rows too."""

    def __init__(self, eos_token_id: int) -> None:
        self.eos = eos_token_id

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        token = (input_ids.sum() + input_ids.sum(-1)) % 1000
        token = torch.where(token % 5 == 0, self.eos, token)
        return torch.full_like(scores, -math.inf).scatter(1, token[:, None], 0.0)
