"""Disagreement: where the constraint forbade the model's first choice, and what it wrote there."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from molprof.analysis.drift.model import Agreement, AgreementBin, AgreementGroup, Disagreement, WorstPlace
from molprof.analysis.drift.texts import TEXTS, text_kinds

BINS = 20
WORST = 10
CHOICES = ("copy", "free", "open")

_BEFORE_CHARACTERS, _AFTER_CHARACTERS = 24, 8
# The smallest float64 above 0: the most that a recorded 0 can have been.
_LEAST = math.ulp(0.0)


@dataclass(frozen=True)
class Token:
    """A row of molprof_token_disagreement; `kind` is eos or by the text, `forbidden` 1 or 0."""

    sequence: int
    position: int
    text: str
    kind: str
    choice: str
    probability: float
    rank: int
    forbidden: int


def disagreement_figures(tokens: Sequence[Token]) -> Disagreement | None:
    """The figures of tokens that are sorted by sequence and position; None without any."""
    if not tokens:
        return None
    sequences = [list(group) for _, group in itertools.groupby(tokens, key=lambda token: token.sequence)]
    kinds: list[str] = []
    places: list[int] = []
    for group in sequences:
        kinds.extend(
            "tag" if token.kind == "eos" else kind
            for token, kind in zip(group, text_kinds([token.text for token in group]), strict=True)
        )
        places.extend(place * BINS // len(group) for place in range(len(group)))
    bins = []
    for number in range(BINS):
        inside = [token for token, place in zip(tokens, places, strict=True) if place == number]
        if inside:
            bins.append(AgreementBin(number / BINS, (number + 1) / BINS, agreement(inside)))
    return Disagreement(
        molecules=len(sequences),
        all=agreement(tokens),
        groups=tuple(_groups(tokens, kinds)),
        bins=tuple(bins),
        worst=_worst(tokens, sequences),
    )


def agreement(tokens: Sequence[Token]) -> Agreement:
    """The figures of at least one token."""
    probabilities = [token.probability for token in tokens]
    return Agreement(
        tokens=len(tokens),
        mean_probability=statistics.fmean(probabilities),
        median_probability=statistics.median(probabilities),
        first_choice_ratio=sum(token.rank == 0 for token in tokens) / len(tokens),
        forbidden_ratio=sum(token.forbidden for token in tokens) / len(tokens),
        # + 0.0: the surprisal of certainty is 0, not -0.
        mean_surprisal_bits=-statistics.fmean(math.log2(max(value, _LEAST)) for value in probabilities) + 0.0,
    )


def _groups(tokens: Sequence[Token], kinds: Sequence[str]) -> Iterable[AgreementGroup]:
    for choice in CHOICES:
        mine = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if token.choice == choice]
        if not mine:
            continue
        yield AgreementGroup(choice, None, agreement([token for token, _ in mine]))
        for text in TEXTS:
            inside = [token for token, kind in mine if kind == text]
            if inside:
                yield AgreementGroup(choice, text, agreement(inside))


def _worst(tokens: Sequence[Token], sequences: Sequence[Sequence[Token]]) -> tuple[WorstPlace, ...]:
    lines = {group[0].sequence: [token.text for token in group] for group in sequences}
    starts = {group[0].sequence: group[0].position for group in sequences}
    chosen = sorted(tokens, key=lambda token: (token.probability, token.sequence, token.position))[:WORST]
    places = []
    for token in chosen:
        place = token.position - starts[token.sequence]
        words = lines[token.sequence]
        places.append(
            WorstPlace(
                token.sequence,
                token.position,
                token.choice,
                "".join(words[:place])[-_BEFORE_CHARACTERS:],
                token.text,
                "".join(words[place + 1 :])[:_AFTER_CHARACTERS],
                token.probability,
                token.rank,
                bool(token.forbidden),
            )
        )
    return tuple(places)
