"""Answers are JSON lists of digits, such as [3,1,4]."""

import math

import torch
from transformers import LogitsProcessor


class Digits(LogitsProcessor):
    def __init__(self, target):
        def tokens(text):
            return [target.tokenizer(item, add_special_tokens=False)["input_ids"][0] for item in text]

        self.after = torch.zeros(4, target.logits_width, dtype=torch.bool, device=target.device)
        for state, text in enumerate(("[", "0123456789", ",]")):  # what may follow in each state
            self.after[state, tokens(text)] = True
        self.after[3, target.eos] = True
        self.next = torch.zeros(target.logits_width, dtype=torch.int64, device=target.device)
        for state, text in enumerate(("", "[,", "0123456789", "]")):  # which state a token leads to
            self.next[tokens(text)] = state
        self.next[[target.eos, target.pad]] = 3
        self.begun = False

    def __call__(self, input_ids, scores):
        state = self.next[input_ids[:, -1]] if self.begun else torch.zeros_like(input_ids[:, -1])
        self.begun = True
        return scores.masked_fill_(~self.after[state], -math.inf)


def make(target, batch_size):  # anew for each batch, since it names something of a batch
    return Digits(target)
