"""Drift without a model: tokens that placeholders give and that real coordinates need, per tokenizer."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from molprof.common.errors import UsageError
from molprof.common.manifest import Skipped
from molprof.common.text import shortened
from molprof.common.text_format import TextFormat
from molprof.profiler.molecules.conformers import Conformer, Conformers
from molprof.profiler.molecules.placeholders import (
    Placeholder,
    best_placeholder,
    closest_placeholder,
    fit,
    free_positions,
    needed_tokens,
    offsets,
)
from molprof.profiler.molecules.smiles import COORDINATE_DECIMALS, block
from molprof.profiler.molecules.template import PLACEHOLDER, free_flags

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SCHEMA = 1
# Those of `generic` and `qwen`.
PLACEHOLDERS = (PLACEHOLDER, "0.000,0.000,0.000")
# Texts and tokens in which tokenizers differ.
EXAMPLES = (
    "<0.0000,0.0000,0.0000>",
    "<0.5,1.2,0.3>",
    "<-1.0,2.5,-0.7>",
    "<1.234,-2.345,0.987>",
    "<-3.14,2.71,-1.61>",
    "<12.345,-23.456,34.567>",
    "<-1.2345,0.9876,-5.4321>",
    "[C]<0.0000,0.0000,0.0000>=[O]<0.0000,0.0000,0.0000>",
)
SINGLES = ("0", "9", ".", ",", "-", ",-", "-.", ">[", "]<")
_DIGITS = "0123456789"
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_PLACEHOLDER = re.compile(rf"{_NUMBER},{_NUMBER},{_NUMBER}")


@dataclass(frozen=True)
class Distribution:
    """Whole numbers, one per coordinate block: quartiles by nearest rank, `histogram` with how many of each."""

    count: int
    minimum: int
    quartile_1: int
    median: int
    quartile_3: int
    maximum: int
    mean: float
    histogram: dict[int, int]


@dataclass(frozen=True)
class ExampleTokens:
    """Tokens of a text without special ones, and how many of them are FREE."""

    text: str
    tokens: int
    free: int


@dataclass(frozen=True)
class PlaceholderDrift:
    """A placeholder over all coordinates."""

    text: str  # what a template writes in a block
    tokens: int | None  # FREE positions that it gives a block; None, as all others, if it merges with its brackets
    drift_tokens: Distribution | None  # FREE positions minus tokens needed; below 0 a coordinate does not fit
    too_short_ratio: float | None  # too_short_ratio, exact_ratio, too_long_ratio: of the blocks
    exact_ratio: float | None
    too_long_ratio: float | None
    # tokens_per_molecule, tokens_per_atom: of whole templates, tags included, without an end token; None if the texts
    # are unknown (XYZ)
    tokens_per_molecule: float | None
    tokens_per_atom: float | None


@dataclass(frozen=True)
class AnswerTokens:
    """Tokens of the conformers' own texts, tags included, without an end token: means over molecules and atoms."""

    per_molecule: float
    per_atom: float
    free_per_atom: float  # tokens inside the brackets
    copy_per_atom: float  # all others


@dataclass(frozen=True)
class TokenizerDrift:
    name: str
    vocabulary: int  # ordinary tokens
    with_added: int  # added and special ones too
    digits_per_token: int  # digits of the longest piece of `0123456789`
    token_ids: dict[str, int | None]  # id of each of `SINGLES`, None where it takes several tokens
    examples: tuple[ExampleTokens, ...]
    needed_tokens: Distribution  # per block, between forced brackets
    placeholders: tuple[PlaceholderDrift, ...]
    best: Placeholder  # cuts none of these coordinates, fewest tokens
    closest: Placeholder  # least mean |drift|
    answers: AnswerTokens | None  # None if the texts are unknown (XYZ)


@dataclass(frozen=True)
class Survey:
    """All tokenizers over the same coordinates; `to_json()` is what `drift --format json` prints."""

    schema: int
    source: str
    molecules: int
    blocks: int
    decimals: int
    skipped: tuple[Skipped, ...]
    tokenizers: tuple[TokenizerDrift, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready dicts and lists; a histogram's keys become text."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]


def survey(
    tokenizers: Sequence[tuple[str, Tokenizer, TextFormat]],
    found: Conformers,
    placeholders: Sequence[str] = PLACEHOLDERS,
    decimals: int = COORDINATE_DECIMALS,
) -> Survey:
    """The drift of every tokenizer and placeholder over all conformers; placeholders are written with commas.

    Args:
        tokenizers: name, tokenizer, and how its model's texts are written.
    """
    conformers = found.conformers
    return Survey(
        SCHEMA,
        found.source,
        len(conformers),
        sum(len(item.positions) for item in conformers),
        decimals,
        found.skipped,
        tuple(
            _tokenizer(name, tokenizer, conformers, list(map(form.numbers, placeholders)), decimals, form)
            for name, tokenizer, form in tokenizers
        ),
    )


def check_placeholders(texts: Sequence[str]) -> None:
    """Check that each text is three numbers with commas between them."""
    for text in texts:
        if not _PLACEHOLDER.fullmatch(text):
            raise UsageError(
                f"{shortened(text)!r} is no placeholder: expected three numbers with commas between them",
                hint="use the text between < and >, such as 0.0000,0.0000,0.0000",
            )


def distribution(values: Sequence[int]) -> Distribution:
    ordered = sorted(values)

    def rank(share: float) -> int:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Distribution(
        len(ordered),
        ordered[0],
        rank(0.25),
        rank(0.5),
        rank(0.75),
        ordered[-1],
        statistics.fmean(ordered),
        dict(sorted(Counter(ordered).items())),
    )


def _tokenizer(
    name: str,
    tokenizer: Tokenizer,
    conformers: Sequence[Conformer],
    placeholders: Sequence[str],
    decimals: int,
    form: TextFormat,
) -> TokenizerDrift:
    positions = [position for item in conformers for position in item.positions]
    needed = needed_tokens(tokenizer, [block(position, decimals, form) for position in positions], form)
    singles = {text: tokenizer.encode(text, add_special_tokens=False).ids for text in SINGLES}
    return TokenizerDrift(
        name,
        tokenizer.get_vocab_size(with_added_tokens=False),
        tokenizer.get_vocab_size(with_added_tokens=True),
        max((end - begin for begin, end in offsets(tokenizer, [_DIGITS])[0]), default=0),
        {text: ids[0] if len(ids) == 1 else None for text, ids in singles.items()},
        tuple(
            ExampleTokens(text, len(spans), int(free_flags(text, spans).sum()))
            for text, spans in zip(EXAMPLES, offsets(tokenizer, EXAMPLES), strict=True)
        ),
        distribution(needed),
        tuple(_placeholder(tokenizer, text, needed, conformers, form) for text in dict.fromkeys(placeholders)),
        best_placeholder(tokenizer, positions, decimals, form),
        closest_placeholder(tokenizer, positions, decimals, form),
        _answers(tokenizer, conformers, decimals, form),
    )


def _placeholder(
    tokenizer: Tokenizer, text: str, needed: Sequence[int], conformers: Sequence[Conformer], form: TextFormat
) -> PlaceholderDrift:
    (tokens,) = free_positions(tokenizer, [text], form)
    if tokens is None:
        return PlaceholderDrift(text, *[None] * 7)
    fits = fit(text, tokens, needed)
    exact = sum(need == tokens for need in needed)
    molecules = [item.molecule for item in conformers if item.molecule is not None]
    skeletons = [form.answer_of(molecule.skeleton(text, form)) for molecule in molecules]
    total = sum(map(len, offsets(tokenizer, skeletons))) if len(skeletons) == len(conformers) else None
    return PlaceholderDrift(
        text,
        tokens,
        distribution([tokens - need for need in needed]),
        fits.too_short / len(needed),
        exact / len(needed),
        (len(needed) - exact - fits.too_short) / len(needed),
        None if total is None else total / len(conformers),
        None if total is None else total / len(needed),
    )


def _answers(
    tokenizer: Tokenizer, conformers: Sequence[Conformer], decimals: int, form: TextFormat
) -> AnswerTokens | None:
    texts = [
        form.answer_of(item.molecule.skeleton([block(position, decimals, form) for position in item.positions], form))
        for item in conformers
        if item.molecule is not None
    ]
    if len(texts) < len(conformers):
        return None
    spans = offsets(tokenizer, texts)
    tokens = sum(map(len, spans))
    free = sum(int(free_flags(text, places, form).sum()) for text, places in zip(texts, spans, strict=True))
    atoms = sum(len(item.positions) for item in conformers)
    return AnswerTokens(tokens / len(texts), tokens / atoms, free / atoms, (tokens - free) / atoms)
