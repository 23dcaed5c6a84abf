"""Disagreement: where the constraint forbade the model's first choice, and what it wrote there."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from molprof.analysis.figures.drift.model import Agreement, AgreementBin, AgreementGroup, Disagreement, WorstPlace
from molprof.common.text_format import DEFAULT, TextFormat

BINS = 20
WORST = 10
CHOICES = ("copy", "free", "open")

# The smallest float64 above 0: the most that a recorded 0 can have been.
_LEAST = math.ulp(0.0)
# A token of several characters is of the first kind here that it holds: `=[` is a bond, `>=[` is `close`, for it ends a
# coordinate. `mark` is a comma, point or minus of a coordinate; `ring` a ring digit or a parenthesis.
TEXTS = ("tag", "close", "element", "bond", "ring", "digit", "mark", "other", "bracket")

_SPECIAL = re.compile(r"<\|[^<>]*\|>|</?s>")
# Characters outside brackets, and inside a coordinate.
_OUTSIDE = dict.fromkeys("-=#:$/\\.~", "bond") | dict.fromkeys("0123456789%()", "ring")
_COORDINATE = dict.fromkeys("0123456789", "digit") | dict.fromkeys(".-", "mark")


class Token(Struct, frozen=True):
    """A row of molprof_token_disagreement; `kind` is eos or by the text, `forbidden` 1 or 0."""

    sequence: int
    position: int
    text: str
    kind: str
    choice: str
    probability: float
    rank: int
    forbidden: int


def disagreement_figures(tokens: Sequence[Token], form: TextFormat = DEFAULT) -> Disagreement | None:
    """The figures of tokens that are sorted by sequence and position; None without any."""
    if not tokens:
        return None
    sequences = [list(group) for _, group in itertools.groupby(tokens, key=lambda token: token.sequence)]
    kinds: list[str] = []
    bins: defaultdict[int, list[Token]] = defaultdict(list)
    for group in sequences:
        for place, (token, kind) in enumerate(
            zip(group, text_kinds([token.text for token in group], form), strict=True)
        ):
            kinds.append("tag" if token.kind == "eos" else kind)
            bins[place * BINS // len(group)].append(token)
    return Disagreement(
        molecules=len(sequences),
        all=agreement(tokens),
        groups=tuple(_groups(tokens, kinds)),
        bins=tuple(AgreementBin(place / BINS, (place + 1) / BINS, agreement(bins[place])) for place in sorted(bins)),
        worst=tuple(_worst(tokens, sequences)),
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


def _groups(tokens: Sequence[Token], kinds: Sequence[str]) -> Iterator[AgreementGroup]:
    inside: defaultdict[tuple[str, str | None], list[Token]] = defaultdict(list)
    for token, kind in zip(tokens, kinds, strict=True):
        inside[token.choice, None].append(token)
        inside[token.choice, kind].append(token)
    for choice, text in itertools.product(CHOICES, (None, *TEXTS)):
        if found := inside.get((choice, text)):
            yield AgreementGroup(choice, text, agreement(found))


def _worst(tokens: Sequence[Token], sequences: Sequence[Sequence[Token]]) -> Iterator[WorstPlace]:
    words = {group[0].sequence: (group[0].position, [token.text for token in group]) for group in sequences}
    for token in sorted(tokens, key=lambda token: (token.probability, token.sequence, token.position))[:WORST]:
        first, texts = words[token.sequence]
        place = token.position - first
        before = "".join(texts[:place])[-24:]
        after = "".join(texts[place + 1 :])[:8]
        yield WorstPlace(
            token.sequence, token.position, token.choice, before, token.text, after, token.probability, token.rank,
            bool(token.forbidden),
        )  # fmt: skip


def text_kinds(words: Sequence[str], form: TextFormat = DEFAULT) -> list[str]:
    """One of `TEXTS` for each token of a sequence, by its context.

    A minus is a bond between atoms, part of the element in `[O-]`, and a mark in a coordinate. words: the tokens' texts
    in order; special tokens read `<|...|>`.
    """
    text = "".join(words)
    kinds = _characters(words, form)
    for match in re.finditer("|".join(map(re.escape, form.tags)), text) if form.tags else ():
        kinds[match.start() : match.end()] = ["tag"] * len(match.group())
    found, begin = [], 0
    for word in words:
        held = set(kinds[begin : begin + len(word)])
        found.append(next((kind for kind in TEXTS if kind in held), "other"))
        begin += len(word)
    return found


def _characters(words: Sequence[str], form: TextFormat) -> list[str]:
    """The kind of each character, without tags."""
    # A special token is no text: neither opens a block nor continues one.
    around = form.block_open, form.block_close
    special = [_SPECIAL.fullmatch(word) is not None and word not in around for word in words]
    text = "".join("\0" * len(word) if skipped else word for word, skipped in zip(words, special, strict=True))
    coordinate = _COORDINATE | dict.fromkeys(form.separator, "mark")
    kinds: list[str] = []
    inside = ""  # what is open: a block, a bracket or nothing
    while len(kinds) < len(text):
        place = len(kinds)
        character = text[place]
        if text.startswith(form.block_close, place) and (inside == "block" or form.block_close[:1] not in "[]"):
            kinds.extend(["close"] * len(form.block_close))
            inside = ""
        elif text.startswith(form.block_open, place):
            kinds.extend(["bracket"] * len(form.block_open))
            inside = "block"
        elif character == "\0":
            kinds.append("tag")
        elif character in "[]" and (inside != "block" or character in form.marks):
            kinds.append("bracket")
            inside = "atom" if character == "[" else ""
        elif inside == "block":
            kinds.append(coordinate.get(character, "other"))
        elif inside == "atom":
            kinds.append("element")
        else:
            kinds.append(_OUTSIDE.get(character, "element" if character.isalpha() else "other"))
    return kinds
