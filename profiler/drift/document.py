"""The survey of `molprof drift` as a document: placeholders first, then how their drift comes about."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.common.document import Cell, Column, Document, Row, Section, Table, pairs
from molprof.common.values import number_text
from molprof.profiler.drift.survey import Distribution, Survey, TokenizerDrift

_TOKENIZER = Column("tokenizer")
_PLACEHOLDER = Column("placeholder")
_RANGE = (*(Column(title, "count") for title in ("min", "p25", "median", "p75", "max")), Column("mean", "number"))
_Tokenizers = tuple[TokenizerDrift, ...]


def drift_document(survey: Survey) -> Document:
    tokenizers = survey.tokenizers
    needed = [(item.name, *_range(item.needed_tokens)) for item in tokenizers]
    sections = (
        _coordinates(survey),
        _placeholders(tokenizers),
        _best(tokenizers),
        *_histograms(tokenizers),
        Section("Tokens that the coordinates of a block need", table=Table((_TOKENIZER, *_RANGE), needed)),
        _molecules(tokenizers),
        _examples(tokenizers),
        _vocabularies(tokenizers),
    )
    return Document("molprof drift", sections, survey.to_json)


def _coordinates(survey: Survey) -> Section:
    rows: list[Row] = [
        ("source", survey.source),
        ("molecules", Cell(survey.molecules, "count")),
        ("blocks", Cell(survey.blocks, "count")),
        ("decimals", f"up to {survey.decimals}"),
        *(("skipped", f"line {item.line}: {item.problem}") for item in survey.skipped),
    ]
    return Section("Coordinates", table=pairs(rows))


def _placeholders(tokenizers: _Tokenizers) -> Section:
    rows: list[Row] = []
    for item in tokenizers:
        for placeholder in item.placeholders:
            drift = placeholder.drift_tokens
            found: Row = ("merges with its brackets", *[""] * 9)
            if placeholder.tokens is not None and drift is not None:
                shares = (placeholder.too_short_ratio, placeholder.exact_ratio, placeholder.too_long_ratio)
                found = (placeholder.tokens, *_range(drift), *shares)
            rows.append((item.name, placeholder.text, *found))
    notes = (
        "FREE: positions that the placeholder gives a block; drift: those minus the tokens that its coordinates need",
        "too short: blocks that a template with this placeholder cuts; too long: blocks that it leaves room in",
    )
    heads = (Column(title, "ratio") for title in ("too short", "exact", "too long"))
    columns = (_TOKENIZER, _PLACEHOLDER, Column("FREE", "count"), *_RANGE, *heads)
    return Section("Drift of placeholders", notes, Table(columns, rows, keys=2))


def _range(item: Distribution) -> Row:
    return item.minimum, item.quartile_1, item.median, item.quartile_3, item.maximum, item.mean


def _best(tokenizers: _Tokenizers) -> Section:
    rows = [
        (
            item.name, criterion, found.text, found.tokens, found.too_short, found.coordinates,
            found.mean_drift_tokens, found.mean_absolute_drift_tokens,
        )
        for item in tokenizers
        for criterion, found in (("cuts none, fewest tokens", item.best), ("least |drift|", item.closest))
    ]  # fmt: skip
    columns = (
        _TOKENIZER, Column("criterion"), _PLACEHOLDER,
        *(Column(title, "count") for title in ("FREE", "too short", "of")),
        *(Column(title, "number") for title in ("mean drift", "mean |drift|")),
    )  # fmt: skip
    return Section("Best placeholders for these coordinates", table=Table(columns, rows))


def _histograms(tokenizers: _Tokenizers) -> Iterator[Section]:
    for item in tokenizers:
        known = [(entry.text, entry.drift_tokens.histogram) for entry in item.placeholders if entry.drift_tokens]
        values = sorted({value for _, histogram in known for value in histogram})
        if not values:
            continue
        rows = [
            (value, *(histogram.get(value, 0) for _, histogram in known)) for value in range(values[0], values[-1] + 1)
        ]
        columns = (Column("drift", "index"), *(Column(text, "count") for text, _ in known))
        yield Section(f"Blocks by drift: {item.name}", table=Table(columns, rows))


def _molecules(tokenizers: _Tokenizers) -> Section:
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
    columns = (_TOKENIZER, Column("text"), Column("tokens per molecule", "number"), Column("per atom", "number"))
    return Section(title, tuple(notes), Table(columns, rows))


def _examples(tokenizers: _Tokenizers) -> Section:
    columns = [Column("text")]
    for item in tokenizers:
        columns += [Column(item.name, "count"), Column("FREE", "count", joined=True)]
    rows = []
    for same in zip(*(item.examples for item in tokenizers), strict=True):
        rows.append((same[0].text, *(value for example in same for value in (example.tokens, example.free))))
    return Section("Tokens of example texts", table=Table(tuple(columns), rows))


def _vocabularies(tokenizers: _Tokenizers) -> Section:
    singles = list(tokenizers[0].token_ids)
    columns = (
        _TOKENIZER, *(Column(title, "count") for title in ("tokens", "with added", "digits per token")),
        *(Column(text, "index") for text in singles),
    )  # fmt: skip
    rows = [
        (item.name, item.vocabulary, item.with_added, item.digits_per_token, *map(item.token_ids.get, singles))
        for item in tokenizers
    ]
    notes = ("last columns: ids of single tokens; -: several tokens",)
    return Section("Vocabularies", notes, Table(columns, rows, missing="-"))
