"""What a manifest holds of each molecule."""

from __future__ import annotations

from msgspec import Struct

CHOICE_LETTERS = {"copy": "c", "free": "f", "open": "o"}
KIND_LETTERS = {"free": "f", "copy": "c", "junk": "j", "filler": "l", "eos": "e"}


class TemplateCounts(Struct, frozen=True):
    """Sizes of one molecule's position template: tokens, FREE ones, blocks, FREE positions of each block."""

    tokens: int
    free: int
    blocks: int
    free_per_block: list[int]


class Disagreement(Struct, frozen=True):
    """What the model would have chosen instead of each generated token, from an untimed pass."""

    # of the written token, in the softmax over all logits that reach the processor, with six digits
    probabilities: list[float]
    ranks: list[int]  # how many tokens the model preferred to it; 0 is its first choice
    choices: str  # one letter per token: c(opy), all other tokens were forbidden; f(ree), some were; o(pen), none was
    forbidden: str  # one digit per token: 1 if the model's first choice was forbidden, else 0


class MaskedLogits(Struct, frozen=True):
    """Logits set to -inf for one prompt, counted by molprof in an untimed pass, by where the row stood."""

    free: int  # at choices that left more than one token
    copy: int  # at choices that left one, but the end token
    end: int  # at the choice of the end token, if nothing else was left
    idle: int  # after the row's end
    free_choices: int  # choices that left more than one token
    own: int | None  # what the processor counted itself in this pass; None if it does not count

    @property
    def total(self) -> int:
        return self.free + self.copy + self.end + self.idle


class MoleculeRun(Struct, frozen=True):
    """One prompt and what came of it."""

    sequence: int  # number in the run, from 0, in the order of the input; `batch` and `row` say where it ran
    batch: int
    row: int
    smiles: str | None  # canonical SMILES; None for a plain-text prompt
    prompt: str
    prompt_tokens: int  # tokens of the prompt, padding excluded
    token_ids: list[int]  # generated tokens, with the end token, without padding
    kinds: str  # one letter per token: f(ree) c(opy) j(unk) l(filler) e(os)
    blocks: list[int]  # coordinate block of each token, -1 outside
    text: str  # the generated text without special end tokens
    valid: bool | None  # None if there is nothing to check against, or if it was not checked (`unchecked`)
    problem: str | None  # why it is not valid, None if it is or if `valid` is None
    malformed_blocks: int  # blocks that do not begin with three decimal numbers
    masked_logits: int | None  # logits set to -inf for this row, over all steps; None without a processor
    template: TemplateCounts | None  # None without a processor, or if it does not fix the length of the answer
    # malformed blocks, 0 or 1, that the bound on new tokens cut short; None if not recorded
    cut_blocks: int | None = None
    # tokens that the coordinates of each block need; the least, of a malformed block that can become `x,y,z`; None of
    # other malformed blocks and of one that was never closed. None if not recorded
    needed_per_block: list[int | None] | None = None
    disagreement: Disagreement | None = None  # None if not recorded
    # tokens that each step of its batch appended, until the row ended; None: one in each
    step_tokens: list[int] | None = None
    masked: MaskedLogits | None = None  # `masked_logits` by kind; None without a processor, or if not recorded

    @property
    def unchecked(self) -> bool:
        """Whether recording lacked RDKit, without which another skeleton than the prompt's cannot be judged."""
        return self.smiles is not None and self.valid is None

    @property
    def busy_steps(self) -> int:
        """Steps until it ended."""
        return len(self.token_ids if self.step_tokens is None else self.step_tokens)


class Skipped(Struct, frozen=True):
    """A part of the input that gave no prompt."""

    line: int
    text: str
    problem: str
    place: str = "line"  # what `line` counts: line, row or entry
