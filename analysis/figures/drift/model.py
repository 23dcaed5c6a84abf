"""What a report holds of drift and disagreement: `run.drift` and `run.disagreement` in its JSON."""

from __future__ import annotations

from msgspec import Struct


class RuleCount(Struct, frozen=True):
    """Coordinate blocks that one counting rule calls junk."""

    rule: str
    meaning: str  # what the rule counts
    blocks: int
    block_ratio: float  # of all blocks
    molecules: int  # sequences with at least one such block
    molecule_ratio: float  # of all sequences with blocks


class JunkExample(Struct, frozen=True):
    """A block with junk."""

    sequence: int
    block: int
    position: int  # of the first junk token
    text: str  # the block, every run of junk and filler tokens between bars
    surplus: str  # text of those tokens alone
    blocks: int  # blocks of the run with this surplus, of which this is the first


class Drift(Struct, frozen=True):
    """Drift of a run's coordinate blocks: FREE positions given minus tokens needed."""

    known_blocks: int  # blocks whose drift is known; 0 without a template
    too_short_blocks: int  # drift below 0
    exact_blocks: int
    too_long_blocks: int  # drift above 0
    mean_drift_tokens: float | None  # None: no drift is known
    mean_needed_tokens: float | None  # over blocks where it is known
    junk_rules: tuple[RuleCount, ...]
    junk_examples: tuple[JunkExample, ...]  # at most ten, the most frequent junk first
    states: dict[str, int] | None = None  # blocks by `STATES`; None in a report that was stored without

    @property
    def drift_blocks(self) -> int | None:
        """Blocks that are not good."""
        return None if self.states is None else sum(self.states.values()) - self.states.get("good", 0)


class Agreement(Struct, frozen=True):
    """How the model rated some tokens before the masks."""

    tokens: int
    mean_probability: float
    median_probability: float
    first_choice_ratio: float  # tokens that were the model's first choice
    forbidden_ratio: float  # tokens where the model's first choice was forbidden
    mean_surprisal_bits: float  # -log2 of the probability; 0 counts as the smallest float64, 1,074 bits


class AgreementGroup(Struct, frozen=True):
    choice: str  # copy, free, open
    text: str | None  # kind of text; None: all kinds
    agreement: Agreement


class AgreementBin(Struct, frozen=True):
    from_ratio: float  # of the position over the sequence's length
    to_ratio: float  # not in it
    agreement: Agreement


class WorstPlace(Struct, frozen=True):
    """A token that the model rated low."""

    sequence: int
    position: int
    choice: str
    before: str  # the text before it
    text: str
    after: str
    probability: float
    rank: int
    forbidden: bool


class Disagreement(Struct, frozen=True):
    """What an untimed pass recorded of the model's own choices."""

    molecules: int  # sequences with a record; none where the pass wrote other text
    all: Agreement
    groups: tuple[AgreementGroup, ...]  # by choice, all kinds of text first
    bins: tuple[AgreementBin, ...]  # 20 of relative position, without empty ones
    worst: tuple[WorstPlace, ...]  # lowest probability first
