"""What a report holds of drift and disagreement: `run.drift` and `run.disagreement` in its JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RuleCount:
    """Coordinate blocks that one counting rule calls junk.

    Attributes:
        rule: its name; meaning: what it counts.
        block_ratio: of all blocks.
        molecules: sequences with at least one such block; molecule_ratio: of all with blocks.
    """

    rule: str
    meaning: str
    blocks: int
    block_ratio: float
    molecules: int
    molecule_ratio: float


@dataclass(frozen=True)
class JunkExample:
    """A block with junk.

    Attributes:
        sequence, block, position: where; the position is of the first junk token.
        text: the block, every run of junk and filler tokens between bars.
        surplus: text of those tokens alone.
        blocks: blocks of the run with the same surplus; this is the first of them.
    """

    sequence: int
    block: int
    position: int
    text: str
    surplus: str
    blocks: int


@dataclass(frozen=True)
class Drift:
    """Drift of a run's coordinate blocks.

    Attributes:
        known_blocks: blocks whose drift (FREE positions given minus tokens needed) is known; 0 without a template.
        too_short_blocks, exact_blocks, too_long_blocks: of those, with drift below, at and above 0.
        mean_drift_tokens: mean over them, None where none is known.
        mean_needed_tokens: mean tokens that coordinates need, over blocks where that is known; None without any.
        junk_rules: the blocks by every counting rule.
        junk_examples: at most ten, the most frequent junk first.
    """

    known_blocks: int
    too_short_blocks: int
    exact_blocks: int
    too_long_blocks: int
    mean_drift_tokens: float | None
    mean_needed_tokens: float | None
    junk_rules: tuple[RuleCount, ...]
    junk_examples: tuple[JunkExample, ...]


@dataclass(frozen=True)
class Agreement:
    """How some tokens stood with the model before the masks.

    Attributes:
        tokens: how many.
        mean_probability, median_probability: that the model gave them.
        first_choice_ratio: of them, the model's first choice.
        forbidden_ratio: of them, those where the model's first choice was forbidden.
        mean_surprisal_bits: mean of -log2 of the probability; 0 counts as the smallest float64, 1,074 bits.
    """

    tokens: int
    mean_probability: float
    median_probability: float
    first_choice_ratio: float
    forbidden_ratio: float
    mean_surprisal_bits: float


@dataclass(frozen=True)
class AgreementGroup:
    """Tokens of one choice (copy, free, open) and one kind of text; None: of all kinds."""

    choice: str
    text: str | None
    agreement: Agreement


@dataclass(frozen=True)
class AgreementBin:
    """Tokens whose position over their sequence's length lies from `from_ratio` to below `to_ratio`."""

    from_ratio: float
    to_ratio: float
    agreement: Agreement


@dataclass(frozen=True)
class WorstPlace:
    """A token that the model would hardly have written; `before` and `after` are the text around it."""

    sequence: int
    position: int
    choice: str
    before: str
    text: str
    after: str
    probability: float
    rank: int
    forbidden: bool


@dataclass(frozen=True)
class Disagreement:
    """What an untimed pass saw of the model's own choices.

    Attributes:
        molecules: sequences with a record; of one that the pass wrote otherwise there is none.
        groups: by choice, all kinds of text together first, then each.
        bins: 20 of relative position; those without tokens are left out.
        worst: places with the lowest probability, lowest first.
    """

    molecules: int
    all: Agreement
    groups: tuple[AgreementGroup, ...]
    bins: tuple[AgreementBin, ...]
    worst: tuple[WorstPlace, ...]
