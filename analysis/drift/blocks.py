"""Drift of a run's coordinate blocks: counts by rule, signed drift, examples of junk."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from molprof.analysis.drift.model import Drift, JunkExample, RuleCount
from molprof.analysis.drift.rules import RULES, BlockText

EXAMPLES = 10


@dataclass(frozen=True)
class Block:
    """A row of molprof_block."""

    sequence: int
    block: int
    text: str
    junk: int
    filler: int
    needed: int | None
    drift: int | None
    junk_position: int | None
    marked_text: str
    surplus_text: str


def drift_figures(blocks: list[Block]) -> Drift:
    """The figures of blocks that are sorted by sequence and block."""
    drifts = [block.drift for block in blocks if block.drift is not None]
    needed = [block.needed for block in blocks if block.needed is not None]
    return Drift(
        known_blocks=len(drifts),
        too_short_blocks=sum(drift < 0 for drift in drifts),
        exact_blocks=sum(drift == 0 for drift in drifts),
        too_long_blocks=sum(drift > 0 for drift in drifts),
        mean_drift_tokens=sum(drifts) / len(drifts) if drifts else None,
        mean_needed_tokens=sum(needed) / len(needed) if needed else None,
        junk_rules=_rules(blocks),
        junk_examples=_examples(blocks),
    )


def _rules(blocks: list[Block]) -> tuple[RuleCount, ...]:
    """The counts of every rule; empty without blocks."""
    if not blocks:
        return ()
    molecules = len({block.sequence for block in blocks})
    found = []
    for rule in RULES:
        counted = [block for block in blocks if rule.counts(BlockText(block.text, block.junk, block.filler))]
        touched = len({block.sequence for block in counted})
        found.append(
            RuleCount(rule.name, rule.meaning, len(counted), len(counted) / len(blocks), touched, touched / molecules)
        )
    return tuple(found)


def _examples(blocks: list[Block]) -> tuple[JunkExample, ...]:
    """The first block of each of the most frequent junk texts."""
    counts = Counter(block.surplus_text for block in blocks if block.junk_position is not None)
    first: dict[str, JunkExample] = {}
    for block in blocks:
        text = block.surplus_text
        if block.junk_position is not None and text not in first:
            place = block.sequence, block.block, block.junk_position
            first[text] = JunkExample(*place, block.marked_text, text, counts[text])
    # Stable: of equally frequent ones the earliest come first.
    return tuple(sorted(first.values(), key=lambda example: -example.blocks)[:EXAMPLES])
