"""Tables of drift and disagreement of captured runs."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.documents.rows import Reports, Row
from molprof.analysis.drift.model import Agreement, Disagreement, Drift
from molprof.analysis.figures import Report
from molprof.common.document import Column, Section
from molprof.common.values import Unit

_AGREEMENT = (
    Column("tokens", "count"), Column("mean p", "probability"), Column("median p", "probability"),
    Column("first choice", "ratio"), Column("forbidden", "ratio"), Column("surprisal", "number"),
)  # fmt: skip


def drift_sections(reports: Reports) -> Iterator[Section]:
    """Junk by counting rule, examples of it, and disagreement."""
    yield _rules(reports)
    yield _examples(reports)
    yield _groups(reports)
    yield _bins(reports)
    yield _worst(reports)


def _drift(report: Report) -> Drift | None:
    return None if report.run is None or report.run.setup.random else report.run.drift


def _disagreement(report: Report) -> Disagreement | None:
    return None if report.run is None or report.run.setup.random else report.run.disagreement


def _rules(reports: Reports) -> Section:
    units: tuple[tuple[str, Unit], ...] = (
        ("blocks", "count"), ("share", "ratio"), ("molecules", "count"), ("share", "ratio"),
    )  # fmt: skip
    columns = (Column("rule"), *(Column(title, unit) for title, unit in units), Column("counts"))

    def rows(report: Report) -> Iterator[Row]:
        for rule in drift.junk_rules if (drift := _drift(report)) is not None else ():
            yield rule.rule, rule.blocks, rule.block_ratio, rule.molecules, rule.molecule_ratio, rule.meaning

    return Section("Junk blocks by counting rule", table=reports.table(columns, rows))


def _examples(reports: Reports) -> Section:
    titles = ("#", "block", "token", "blocks")
    columns = (*(Column(title, "index") for title in titles), Column("junk"), Column("text"))

    def rows(report: Report) -> Iterator[Row]:
        for item in drift.junk_examples if (drift := _drift(report)) is not None else ():
            yield item.sequence, item.block, item.position, item.blocks, item.surplus, item.text

    notes = ("most frequent first; in the text, bars enclose junk and filler; blocks: number with the same junk",)
    table = reports.table(columns, rows)
    return Section("Junk in coordinate blocks", notes if table.rows else (), table)


def _groups(reports: Reports) -> Section:
    def rows(report: Report) -> Iterator[Row]:
        if (found := _disagreement(report)) is not None:
            yield "all", "all", *_agreement(found.all)
            for item in found.groups:
                yield item.choice, item.text or "all", *_agreement(item.agreement)

    table = reports.table((Column("choice"), Column("text"), *_AGREEMENT), rows)
    notes = (
        "p: probability that the model gave to the token that was written, before any token was forbidden",
        "first choice: the written token was the model's own; forbidden: the model's first choice was not allowed",
        "copy: one token was allowed; free: some were; open: all were; surprisal: mean of -log2 p, in bits",
    )
    return Section("Disagreement between model and constraint", notes if table.rows else (), table)


def _bins(reports: Reports) -> Section:
    columns = (Column("from", "ratio"), Column("to", "ratio"), *_AGREEMENT)

    def rows(report: Report) -> Iterator[Row]:
        for item in found.bins if (found := _disagreement(report)) is not None else ():
            yield item.from_ratio, item.to_ratio, *_agreement(item.agreement)

    return Section("Disagreement along the sequence", table=reports.table(columns, rows))


def _worst(reports: Reports) -> Section:
    columns = (
        Column("#", "index"), Column("token", "index"), Column("choice"), Column("p", "probability"),
        Column("rank", "count"), Column("forbidden"), Column("text"),
    )  # fmt: skip

    def rows(report: Report) -> Iterator[Row]:
        for item in found.worst if (found := _disagreement(report)) is not None else ():
            text = f"{item.before}|{item.text}|{item.after}"
            yield item.sequence, item.position, item.choice, item.probability, item.rank, item.forbidden, text

    table = reports.table(columns, rows)
    return Section("Largest disagreement", ("bars enclose the token",) if table.rows else (), table)


def _agreement(item: Agreement) -> Row:
    return (
        item.tokens, item.mean_probability, item.median_probability, item.first_choice_ratio, item.forbidden_ratio,
        item.mean_surprisal_bits,
    )  # fmt: skip
