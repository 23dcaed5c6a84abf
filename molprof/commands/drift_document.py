"""The tables that `molprof drift` prints."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.common.document import PAIR, Column, Document, Section
from molprof.common.values import NOT_RECORDED, count_text, number_text, percent_text
from molprof.profiler.drift.survey import Distribution, PlaceholderDrift, Survey, TokenizerDrift

_TOKENIZER = Column("tokenizer", "left")
_PLACEHOLDER = Column("placeholder", "left")
_RANGE = tuple(map(Column, ("min", "p25", "median", "p75", "max", "mean")))


def drift_document(survey: Survey) -> Document:
    """What there is to say first comes first: the placeholders, then how they come about."""
    tokenizers = survey.tokenizers
    sections = [
        _coordinates(survey),
        _placeholders(tokenizers),
        _best(tokenizers),
        *_histograms(tokenizers),
        _needed(tokenizers),
        _molecules(tokenizers),
        _examples(tokenizers),
        _vocabularies(tokenizers),
    ]
    return Document("molprof drift", tuple(sections))


def _coordinates(survey: Survey) -> Section:
    rows = [
        ("source", survey.source),
        ("molecules", count_text(survey.molecules)),
        ("blocks", f"{count_text(survey.blocks)} of three numbers with up to {survey.decimals} decimals"),
    ]
    rows.extend(("skipped", f"line {item.line}: {item.problem}") for item in survey.skipped)
    return Section("Coordinates", PAIR, tuple(rows))


def _placeholders(tokenizers: tuple[TokenizerDrift, ...]) -> Section:
    shares = map(Column, ("too short", "exact", "too long"))
    rows = tuple(
        (item.name, placeholder.text, *_placeholder(placeholder))
        for item in tokenizers
        for placeholder in item.placeholders
    )
    notes = (
        "FREE: positions that it gives a block. drift: those minus tokens that the block's coordinates need.",
        "too short: coordinates that a constraint with this placeholder cuts; too long: those it fills up.",
    )
    columns = (_TOKENIZER, _PLACEHOLDER, Column("FREE"), *_RANGE, *shares)
    return Section("Drift of placeholders", columns, rows, notes)


def _placeholder(item: PlaceholderDrift) -> tuple[str, ...]:
    if item.tokens is None or item.drift_tokens is None:
        return ("merges with its brackets", *[""] * 9)
    ratios = (item.too_short_ratio, item.exact_ratio, item.too_long_ratio)
    return (count_text(item.tokens), *_range(item.drift_tokens), *map(percent_text, ratios))


def _range(item: Distribution) -> tuple[str, ...]:
    whole = (item.minimum, item.quartile_1, item.median, item.quartile_3, item.maximum)
    return (*map(count_text, whole), number_text(item.mean))


def _best(tokenizers: tuple[TokenizerDrift, ...]) -> Section:
    numbers = map(Column, ("FREE", "too short", "mean drift", "mean |drift|"))
    rows = tuple(
        (
            item.name,
            criterion,
            found.text,
            count_text(found.tokens),
            f"{count_text(found.too_short)} of {count_text(found.coordinates)}",
            number_text(found.mean_drift_tokens),
            number_text(found.mean_absolute_drift_tokens),
        )
        for item in tokenizers
        for criterion, found in (("cuts none, fewest tokens", item.best), ("least |drift|", item.closest))
    )
    columns = (_TOKENIZER, Column("criterion", "left"), _PLACEHOLDER, *numbers)
    return Section("Best placeholders for these coordinates", columns, rows)


def _histograms(tokenizers: tuple[TokenizerDrift, ...]) -> Iterator[Section]:
    for item in tokenizers:
        known = [(entry.text, entry.drift_tokens.histogram) for entry in item.placeholders if entry.drift_tokens]
        if not known:
            continue
        values = sorted({value for _, histogram in known for value in histogram})
        rows = tuple(
            (str(value), *(count_text(histogram.get(value, 0)) for _, histogram in known))
            for value in range(values[0], values[-1] + 1)
        )
        yield Section(f"Blocks by drift: {item.name}", (Column("drift"), *(Column(text) for text, _ in known)), rows)


def _needed(tokenizers: tuple[TokenizerDrift, ...]) -> Section:
    rows = tuple((item.name, *_range(item.needed_tokens)) for item in tokenizers)
    return Section("Tokens that a block's coordinates need", (_TOKENIZER, *_RANGE), rows)


def _molecules(tokenizers: tuple[TokenizerDrift, ...]) -> Section:
    rows: list[tuple[str, ...]] = []
    for item in tokenizers:
        if item.answers is None:
            return Section("Tokens per molecule", notes=(f"{NOT_RECORDED}: the file holds no bonds, so no texts",))
        answers = item.answers
        texts: list[tuple[str, float | None, float | None]]
        texts = [("real coordinates", answers.per_molecule, answers.per_atom)]
        texts.extend(
            (f"template of {entry.text}", entry.tokens_per_molecule, entry.tokens_per_atom)
            for entry in item.placeholders
            if entry.tokens is not None
        )
        rows.extend((item.name, text, number_text(molecule), number_text(atom)) for text, molecule, atom in texts)
    columns = (_TOKENIZER, Column("text", "left"), Column("tokens per molecule"), Column("per atom"))
    notes = tuple(
        f"{item.name}: per atom {number_text(item.answers.free_per_atom)} in coordinates, "
        f"{number_text(item.answers.copy_per_atom)} in brackets, atoms, bonds and tags"
        for item in tokenizers
        if item.answers is not None
    )
    return Section("Tokens per molecule", columns, tuple(rows), notes)


def _examples(tokenizers: tuple[TokenizerDrift, ...]) -> Section:
    texts = [example.text for example in tokenizers[0].examples]
    rows = tuple(
        (text, *(f"{item.examples[place].tokens} ({item.examples[place].free})" for item in tokenizers))
        for place, text in enumerate(texts)
    )
    columns = (Column("text", "left"), *(Column(item.name) for item in tokenizers))
    return Section("Tokens of texts (in parentheses: FREE ones)", columns, rows)


def _vocabularies(tokenizers: tuple[TokenizerDrift, ...]) -> Section:
    singles = list(tokenizers[0].token_ids)
    columns = (
        _TOKENIZER,
        *map(Column, ("tokens", "with added", "digits a token")),
        *(Column(text) for text in singles),
    )
    rows = tuple(
        (
            item.name,
            count_text(item.vocabulary),
            count_text(item.with_added),
            count_text(item.digits_per_token),
            *("-" if item.token_ids[text] is None else str(item.token_ids[text]) for text in singles),
        )
        for item in tokenizers
    )
    return Section("Vocabularies, and ids of single tokens (-: several tokens)", columns, rows)
