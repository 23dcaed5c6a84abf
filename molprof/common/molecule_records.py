"""What a manifest holds of each molecule."""

from __future__ import annotations

from dataclasses import dataclass

CHOICE_LETTERS = {"copy": "c", "free": "f", "open": "o"}
KIND_LETTERS = {"free": "f", "copy": "c", "junk": "j", "filler": "l", "eos": "e"}


@dataclass(frozen=True)
class TemplateCounts:
    """Sizes of one molecule's position template: tokens, FREE ones, blocks, FREE positions of each block."""

    tokens: int
    free: int
    blocks: int
    free_per_block: list[int]


@dataclass(frozen=True)
class Disagreement:
    """What the model would have chosen instead of each generated token, from an untimed pass.

    Attributes:
        probabilities: of the written token, in the softmax over all logits that reach the processor, with six digits.
        ranks: how many tokens the model preferred to it; 0 is its first choice.
        choices: one letter per token: c(opy), all other tokens were forbidden; f(ree), some were; o(pen), none was.
        forbidden: one digit per token: 1 if the model's first choice was forbidden, else 0.
    """

    probabilities: list[float]
    ranks: list[int]
    choices: str
    forbidden: str


@dataclass(frozen=True)
class MoleculeRun:
    """One prompt and what came of it.

    Attributes:
        sequence: number in the run, from 0, in the order of the input; `batch` and `row` say where it ran.
        smiles: canonical SMILES; None for a plain-text prompt.
        prompt_tokens: tokens of the prompt, padding excluded.
        token_ids: generated tokens, with the end token, without padding.
        kinds: one letter per token: f(ree) c(opy) j(unk) l(filler) e(os).
        blocks: coordinate block of each token, -1 outside.
        text: the generated text without special end tokens.
        valid: None if there is nothing to check against.
        problem: why it is not valid, None if it is.
        malformed_blocks: blocks that do not begin with three decimal numbers.
        masked_logits: logits set to -inf for this row, over all steps; None without a processor.
        template: None without a processor, or if it does not fix the length of the answer.
        cut_blocks: malformed blocks, 0 or 1, that the bound on new tokens cut short; None if not recorded.
        needed_per_block: tokens that the coordinates of each block need; the least, of a malformed block that can
            become `x,y,z`; None of other malformed blocks and of one that was never closed. None if not recorded.
        disagreement: None if not recorded.
        step_tokens: tokens that each step of its batch appended, until the row ended; None: one in each.
    """

    sequence: int
    batch: int
    row: int
    smiles: str | None
    prompt: str
    prompt_tokens: int
    token_ids: list[int]
    kinds: str
    blocks: list[int]
    text: str
    valid: bool | None
    problem: str | None
    malformed_blocks: int
    masked_logits: int | None
    template: TemplateCounts | None
    cut_blocks: int | None = None
    needed_per_block: list[int | None] | None = None
    disagreement: Disagreement | None = None
    step_tokens: list[int] | None = None

    @property
    def busy_steps(self) -> int:
        """Steps until it ended."""
        return len(self.token_ids if self.step_tokens is None else self.step_tokens)


@dataclass(frozen=True)
class Skipped:
    """An input line that gave no prompt."""

    line: int
    text: str
    problem: str
