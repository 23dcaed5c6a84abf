"""Processors as users write them, right and wrong, for `--processor users:NAME`."""

from __future__ import annotations

import json
import math

import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.profiler.models.target import Target

calls = 0


class Wrong(LogitsProcessor):
    """Does `what` in row 1 at the fifth step it sees."""

    def __init__(self, what: str) -> None:
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


def raises(target: Target) -> Wrong:
    return Wrong("raises")


def nothing(target: Target) -> Wrong:
    return Wrong("nothing")


def shape(target: Target) -> Wrong:
    return Wrong("shape")


def dtype(target: Target) -> Wrong:
    return Wrong("dtype")


def device(target: Target) -> Wrong:
    return Wrong("device")


def masks(target: Target) -> Wrong:
    return Wrong("masks")


def nan(target: Target) -> Wrong:
    return Wrong("nan")


class Late:
    """Raises when it is started for the fourth time: with one batch, in the recorded pass of a capture that makes one
    pass to look, which warms up, one timed with marks, and one without."""

    name = "late"

    def __init__(self, target: Target) -> None:
        self._started = 0

    def start(self, templates, prompt_width: int) -> LogitsProcessor:
        self._started += 1
        return Wrong("raises" if self._started == 4 else "fine")


class NoStart:
    """Fails before the first step."""

    def __init__(self, target: Target) -> None:
        pass

    def start(self, templates, prompt_width: int):
        raise KeyError("templates")


def number(target: Target) -> int:
    return 3


class Sevens(LogitsProcessor):
    """Allows one token."""

    def __init__(self, target: Target) -> None:
        self._token = target.tokenizer("7", add_special_tokens=False)["input_ids"][0]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        out = torch.full_like(scores, -math.inf)
        out[:, self._token] = scores[:, self._token]
        return out


def leaves(target: Target) -> None:
    raise SystemExit(7)


def interrupts(target: Target) -> None:
    raise KeyboardInterrupt


def misuses(target: Target) -> None:
    json.loads("")


class NoLongest:
    """Does not tell how long its answers may get."""

    def __init__(self, target: Target) -> None:
        pass

    def longest(self, template) -> int:
        raise RuntimeError

    def start(self, templates, prompt_width: int):
        return Wrong("fine")


class Changes:
    """Allows one token, another one in each batch that it is started for."""

    def __init__(self, target: Target) -> None:
        self._started = 0

    def start(self, templates, prompt_width: int):
        self._started += 1
        token = self._started

        def only(input_ids: Tensor, scores: Tensor) -> Tensor:
            out = torch.full_like(scores, -math.inf)
            out[:, token] = 0.0
            return out

        return only


class Tires:
    """Allows nothing from a number of calls on, over all passes."""

    fixed_length = False
    calls = 4

    def __init__(self, target: Target) -> None:
        self._left = self.calls

    def start(self, templates, prompt_width: int):
        def masked(input_ids: Tensor, scores: Tensor) -> Tensor:
            self._left -= 1
            return scores if self._left >= 0 else torch.full_like(scores, -math.inf)

        return masked
