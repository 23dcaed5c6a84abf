"""Drift of a run's coordinate blocks: counts of junk by rule, signed drift, examples of junk.

Published junk rates of one model differ threefold by their rules. A new rule is an entry in `RULES`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from molprof.analysis.figures.drift.model import Drift, JunkExample, RuleCount
from molprof.common.text_format import DEFAULT, TextFormat

EXAMPLES = 10
GOOD = "good"
# What a block is, the first that holds. A block has drift if it is not good: junk begins after x,y,z, so text that
# never reads x,y,z has no junk, and counting junk alone would call it good.
STATES = ("junk", "cut", "malformed", "filler", GOOD)


class Block(Struct, frozen=True):
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
    cut: bool = False  # the answer ended in it, at the limit on tokens

    def malformed(self, form: TextFormat) -> bool:
        """No prefix reads x,y,z."""
        return not form.triple.match(self.text)

    def state(self, form: TextFormat) -> str:
        """What the block is: the first of `STATES` that holds."""
        holds = {"junk": self.junk, "cut": self.cut, "malformed": self.malformed(form), "filler": self.filler}
        return next((state for state in STATES if holds.get(state)), GOOD)


class Rule(Struct, frozen=True):
    """A way to count: its name, what it counts, and whether it counts a block."""

    name: str
    meaning: str
    counts: Callable[[Block, TextFormat], object]


def _not_floats(block: Block, form: TextFormat) -> bool:
    # float() also reads 1, 1e5, nan and spaces.
    try:
        return len(list(map(float, block.text.split(form.separator)))) != 3
    except ValueError:
        return True


def _nonnumeric(block: Block, form: TextFormat) -> str:
    return block.text.replace(form.separator, "").strip("-.0123456789")


RULES = (
    Rule("drift", "junk, filler, cut or malformed: not good", lambda block, form: block.state(form) != GOOD),
    Rule("strict", "a token after the numbers x,y,z", lambda block, _: block.junk),
    Rule("surplus", "junk, or digits beyond the precision", lambda block, _: block.junk + block.filler),
    Rule("letters", "a letter of any script in the block", lambda block, _: any(map(str.isalpha, block.text))),
    Rule("latin_letters", "a letter A to Z or a to z in the block", lambda block, _: re.search("[A-Za-z]", block.text)),
    Rule("any_nonnumeric", "other than digits, points, commas, minus", _nonnumeric),
    Rule("not_two_commas", "more or fewer commas than two", lambda block, form: block.text.count(form.separator) != 2),
    Rule("not_floats", "not three texts that float() reads", _not_floats),
    Rule("malformed", "no prefix reads x,y,z", lambda block, form: block.malformed(form)),
    Rule("not_exact", "anything but exactly x,y,z", lambda block, form: not form.triple.fullmatch(block.text)),
)


def drift_figures(blocks: list[Block], form: TextFormat = DEFAULT) -> Drift:
    """The figures of blocks that are sorted by sequence and block; for `commas` in a rule, the format's separator."""
    states = Counter(block.state(form) for block in blocks)
    drifts = [block.drift for block in blocks if block.drift is not None]
    needed = [block.needed for block in blocks if block.needed is not None]
    return Drift(
        known_blocks=len(drifts),
        too_short_blocks=sum(drift < 0 for drift in drifts),
        exact_blocks=sum(drift == 0 for drift in drifts),
        too_long_blocks=sum(drift > 0 for drift in drifts),
        mean_drift_tokens=sum(drifts) / len(drifts) if drifts else None,
        mean_needed_tokens=sum(needed) / len(needed) if needed else None,
        junk_rules=tuple(_counted(rule, blocks, form) for rule in RULES) if blocks else (),
        junk_examples=_examples(blocks),
        states={state: states[state] for state in STATES},
    )


def _counted(rule: Rule, blocks: list[Block], form: TextFormat) -> RuleCount:
    molecules = len({block.sequence for block in blocks})
    found = [block.sequence for block in blocks if rule.counts(block, form)]
    touched = len(set(found))
    meaning = rule.meaning if form.separator == "," else rule.meaning.replace("commas", "separators")
    return RuleCount(rule.name, meaning, len(found), len(found) / len(blocks), touched, touched / molecules)


def _examples(blocks: list[Block]) -> tuple[JunkExample, ...]:
    """The first block of each of the most frequent junk texts."""
    counts = Counter(block.surplus_text for block in blocks if block.junk_position is not None)
    first: dict[str, JunkExample] = {}
    for block in blocks:
        if block.junk_position is not None:
            place, text = (block.sequence, block.block, block.junk_position), block.surplus_text
            first.setdefault(text, JunkExample(*place, block.marked_text, text, counts[text]))
    # Stable: of equally frequent ones the earliest come first.
    return tuple(sorted(first.values(), key=lambda example: -example.blocks)[:EXAMPLES])
