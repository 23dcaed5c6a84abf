"""`molprof drift`: FREE positions that placeholders give and coordinates need, by tokenizer, without a model."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from molprof.common.document import Cell, Column, Document, Field, Row, Section, Table, pairs, table_of
from molprof.common.errors import UsageError
from molprof.common.manifest import Skipped
from molprof.common.text import shortened
from molprof.common.text_format import TextFormat
from molprof.common.values import number_text
from molprof.profiler.molecules.conformers import Conformer, Conformers
from molprof.profiler.molecules.placeholders import (
    Placeholder,
    best,
    closest,
    fit,
    fits,
    free_positions,
    needed_tokens,
    offsets,
)
from molprof.profiler.molecules.smiles import COORDINATE_DECIMALS, block
from molprof.profiler.molecules.template import PLACEHOLDER, free_flags

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SCHEMA = 1
# Those of `generic` and `qwen`.
PLACEHOLDERS = (PLACEHOLDER, "0.000,0.000,0.000")
# Texts and tokens in which tokenizers differ.
_EXAMPLES = (
    "<0.0000,0.0000,0.0000>",
    "<0.5,1.2,0.3>",
    "<-1.0,2.5,-0.7>",
    "<1.234,-2.345,0.987>",
    "<-3.14,2.71,-1.61>",
    "<12.345,-23.456,34.567>",
    "<-1.2345,0.9876,-5.4321>",
    "[C]<0.0000,0.0000,0.0000>=[O]<0.0000,0.0000,0.0000>",
)
_SINGLES = ("0", "9", ".", ",", "-", ",-", "-.", ">[", "]<")
_DIGITS = "0123456789"
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_THREE_NUMBERS = re.compile(rf"{_NUMBER},{_NUMBER},{_NUMBER}")


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
    """Tokens of coordinates with one tokenizer, and the drift of each placeholder."""

    name: str
    vocabulary: int  # ordinary tokens
    with_added: int  # added and special ones too
    digits_per_token: int  # digits of the longest piece of `0123456789`
    token_ids: dict[str, int | None]  # id of each of `_SINGLES`, None where it takes several tokens
    examples: tuple[ExampleTokens, ...]
    needed_tokens: Distribution  # per block, between forced brackets
    placeholders: tuple[PlaceholderDrift, ...]
    best: Placeholder  # cuts none of these coordinates, fewest tokens
    closest: Placeholder  # least mean |drift|
    answers: AnswerTokens | None  # None if the texts are unknown (XYZ)


@dataclass(frozen=True)
class TokenizerSurvey:
    """All tokenizers over the same coordinates, by the names of the JSON of `drift`."""

    schema: int
    source: str
    molecules: int
    blocks: int
    decimals: int
    skipped: tuple[Skipped, ...]
    tokenizers: tuple[TokenizerDrift, ...]


def survey(
    tokenizers: Sequence[tuple[str, Tokenizer, TextFormat]],
    surveyed: Conformers,
    placeholders: Sequence[str] = PLACEHOLDERS,
    decimals: int = COORDINATE_DECIMALS,
) -> TokenizerSurvey:
    """Return the drift of every tokenizer and placeholder over all conformers; placeholders are written with commas.

    Args:
        tokenizers: name, tokenizer, and how its model's texts are written.
    """
    conformers = surveyed.conformers
    return TokenizerSurvey(
        _SCHEMA,
        surveyed.source,
        len(conformers),
        sum(len(item.positions) for item in conformers),
        decimals,
        surveyed.skipped,
        tuple(
            _tokenizer(name, tokenizer, conformers, list(map(form.numbers, placeholders)), decimals, form)
            for name, tokenizer, form in tokenizers
        ),
    )


def check_placeholders(texts: Sequence[str]) -> None:
    """Check that each text is three numbers with commas between them."""
    for text in texts:
        if not _THREE_NUMBERS.fullmatch(text):
            raise UsageError(
                f"{shortened(text)!r} is no placeholder: expected three numbers with commas between them",
                hint="use the text between < and >, such as 0.0000,0.0000,0.0000",
            )


def distribution(values: Sequence[int]) -> Distribution:
    """Return least, quartiles and largest of values."""
    ordered = sorted(values)
    ranks = (max(0, math.ceil(share * len(ordered)) - 1) for share in (0, 0.25, 0.5, 0.75, 1))
    least, first, median, third, most = (ordered[rank] for rank in ranks)
    histogram = dict(sorted(Counter(ordered).items()))
    return Distribution(len(ordered), least, first, median, third, most, statistics.fmean(ordered), histogram)


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
    fitting = fits(tokenizer, positions, decimals, form)
    singles = {text: tokenizer.encode(text, add_special_tokens=False).ids for text in _SINGLES}
    return TokenizerDrift(
        name,
        tokenizer.get_vocab_size(with_added_tokens=False),
        tokenizer.get_vocab_size(with_added_tokens=True),
        max((end - begin for begin, end in offsets(tokenizer, [_DIGITS])[0]), default=0),
        {text: ids[0] if len(ids) == 1 else None for text, ids in singles.items()},
        tuple(
            ExampleTokens(text, len(spans), int(free_flags(text, spans).sum()))
            for text, spans in zip(_EXAMPLES, offsets(tokenizer, _EXAMPLES), strict=True)
        ),
        distribution(needed),
        tuple(_placeholder(tokenizer, text, needed, conformers, form) for text in dict.fromkeys(placeholders)),
        best(fitting),
        closest(fitting),
        _answers(tokenizer, conformers, decimals, form),
    )


def _placeholder(
    tokenizer: Tokenizer, text: str, needed: Sequence[int], conformers: Sequence[Conformer], form: TextFormat
) -> PlaceholderDrift:
    (tokens,) = free_positions(tokenizer, [text], form)
    if tokens is None:
        return PlaceholderDrift(text, *[None] * 7)
    one = fit(text, tokens, needed)
    exact = sum(need == tokens for need in needed)
    molecules = [item.molecule for item in conformers if item.molecule is not None]
    skeletons = [form.answer_of(molecule.skeleton(text, form)) for molecule in molecules]
    total = sum(map(len, offsets(tokenizer, skeletons))) if len(skeletons) == len(conformers) else None
    return PlaceholderDrift(
        text,
        tokens,
        distribution([tokens - need for need in needed]),
        one.too_short / len(needed),
        exact / len(needed),
        (len(needed) - exact - one.too_short) / len(needed),
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
    free = sum(int(free_flags(text, of_text, form).sum()) for text, of_text in zip(texts, spans, strict=True))
    atoms = sum(len(item.positions) for item in conformers)
    return AnswerTokens(tokens / len(texts), tokens / atoms, free / atoms, (tokens - free) / atoms)


_TOKENIZER: Field = ("tokenizer", "text", "name")


def _range(of: str) -> tuple[Field, ...]:
    """Return columns of the `Distribution` that `of` returns."""
    names = {"min": "minimum", "p25": "quartile_1", "median": "median", "p75": "quartile_3", "max": "maximum"}
    return *((title, "count", f"{of}.{name}") for title, name in names.items()), ("mean", "number", f"{of}.mean")


def drift_document(survey: TokenizerSurvey) -> Document:
    """Return the drift of all tokenizers as a document."""
    tokenizers = survey.tokenizers
    coordinates: list[Row] = [
        ("source", survey.source),
        ("molecules", Cell(survey.molecules, "count")),
        ("blocks", Cell(survey.blocks, "count")),
        ("decimals", f"up to {survey.decimals}"),
        *(("skipped", f"line {item.line}: {item.problem}") for item in survey.skipped),
    ]
    needed = table_of(tokenizers, _TOKENIZER, *_range("needed_tokens"))
    sections = (
        Section("Coordinates", table=pairs(coordinates)),
        _placeholders(tokenizers),
        _best(tokenizers),
        *_histograms(tokenizers),
        Section("Tokens that the coordinates of a block need", table=needed),
        _molecules(tokenizers),
        _examples(tokenizers),
        _vocabularies(tokenizers),
    )
    return Document("molprof drift", sections, lambda: survey)


def _placeholders(tokenizers: Sequence[TokenizerDrift]) -> Section:
    table = table_of(
        [(item.name, placeholder) for item in tokenizers for placeholder in item.placeholders],
        ("tokenizer", "text", "0"), ("placeholder", "text", "1.text"),
        ("FREE", "count", lambda row: "merges with its brackets" if row[1].tokens is None else row[1].tokens),
        *_range("1.drift_tokens"),
        *((title, "ratio", f"1.{title.replace(' ', '_')}_ratio") for title in ("too short", "exact", "too long")),
        keys=2, missing="",
    )  # fmt: skip
    notes = (
        "FREE: positions that the placeholder gives a block; drift: those minus the tokens that its coordinates need",
        "too short: blocks that a template with this placeholder cuts; too long: blocks that it leaves room in",
    )
    return Section("Drift of placeholders", notes, table)


def _best(tokenizers: Sequence[TokenizerDrift]) -> Section:
    rows = [
        (item.name, criterion, placeholder)
        for item in tokenizers
        for criterion, placeholder in (("cuts none, fewest tokens", item.best), ("least |drift|", item.closest))
    ]
    table = table_of(
        rows, ("tokenizer", "text", "0"), ("criterion", "text", "1"), ("placeholder", "text", "2.text"),
        ("FREE", "count", "2.tokens"), ("too short", "count", "2.too_short"), ("of", "count", "2.coordinates"),
        ("mean drift", "number", "2.mean_drift_tokens"), ("mean |drift|", "number", "2.mean_absolute_drift_tokens"),
    )  # fmt: skip
    return Section("Best placeholders for these coordinates", table=table)


def _histograms(tokenizers: Sequence[TokenizerDrift]) -> Iterator[Section]:
    for item in tokenizers:
        pairs = [(entry.text, entry.drift_tokens.histogram) for entry in item.placeholders if entry.drift_tokens]
        values = sorted({value for _, histogram in pairs for value in histogram})
        if not values:
            continue
        rows = [
            (value, *(histogram.get(value, 0) for _, histogram in pairs)) for value in range(values[0], values[-1] + 1)
        ]
        columns = (Column("drift", "index"), *(Column(text, "count") for text, _ in pairs))
        yield Section(f"Blocks by drift: {item.name}", table=Table(columns, rows))


def _molecules(tokenizers: Sequence[TokenizerDrift]) -> Section:
    title = "Tokens per molecule"
    notes: list[str] = []
    rows: list[Row] = []
    for item in tokenizers:
        answers = item.answers
        if answers is None:
            return Section(title, ("not recorded: the file holds no bonds, so no texts",))
        notes.append(
            f"{item.name}: per atom {number_text(answers.free_per_atom)} in coordinates, "
            f"{number_text(answers.copy_per_atom)} in brackets, atoms, bonds and tags"
        )
        rows.append((item.name, "real coordinates", answers.per_molecule, answers.per_atom))
        rows += [
            (item.name, f"template of {entry.text}", entry.tokens_per_molecule, entry.tokens_per_atom)
            for entry in item.placeholders
            if entry.tokens is not None
        ]
    heads = (Column("tokenizer"), Column("text"), Column("tokens per molecule", "number"), Column("per atom", "number"))
    return Section(title, tuple(notes), Table(heads, rows))


def _examples(tokenizers: Sequence[TokenizerDrift]) -> Section:
    columns = [Column("text")]
    for item in tokenizers:
        columns += [Column(item.name, "count"), Column("FREE", "count", joined=True)]
    rows = [
        (same[0].text, *(value for example in same for value in (example.tokens, example.free)))
        for same in zip(*(item.examples for item in tokenizers), strict=True)
    ]
    return Section("Tokens of example texts", table=Table(tuple(columns), rows))


def _vocabularies(tokenizers: Sequence[TokenizerDrift]) -> Section:
    def id_of(text: str) -> Field:
        return text, "index", lambda item: item.token_ids[text]

    table = table_of(
        tokenizers, _TOKENIZER, ("tokens", "count", "vocabulary"), ("with added", "count"),
        ("digits per token", "count"), *map(id_of, _SINGLES), missing="-",
    )  # fmt: skip
    return Section("Vocabularies", ("last columns: ids of single tokens; -: several tokens",), table)
