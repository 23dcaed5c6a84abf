"""The sections of drift and disagreement in a report."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.drift.model import Agreement, Disagreement, Drift
from molprof.analysis.figures.run_model import Run
from molprof.common.document import Column, Section
from molprof.common.values import count_text, counted, number_text, percent_text

_AGREEMENT = tuple(map(Column, ("tokens", "mean p", "median p", "first choice", "forbidden", "surprisal")))


def drift_sections(run: Run) -> Iterator[Section]:
    """Junk by counting rule, examples of it, and disagreement; what the run did not record is left out."""
    if run.drift is not None and run.drift.junk_rules:
        yield _rules(run.drift)
    if run.drift is not None and run.drift.junk_examples:
        yield _examples(run.drift)
    if run.disagreement is not None:
        yield _groups(run.disagreement)
        yield _bins(run.disagreement)
        yield _worst(run.disagreement)


def drift_note(drift: Drift | None) -> list[str]:
    """Signed drift in one line; none where no block's drift is known."""
    if drift is None or not drift.known_blocks:
        return []
    return [
        f"drift (positions given minus tokens needed): mean {number_text(drift.mean_drift_tokens)}; "
        f"{counted(drift.too_short_blocks, 'block')} too short, {count_text(drift.exact_blocks)} exact, "
        f"{count_text(drift.too_long_blocks)} too long"
    ]


def _rules(drift: Drift) -> Section:
    columns = (Column("rule", "left"), *map(Column, ("blocks", "share", "molecules", "share")), Column("", "left"))
    rows = tuple(
        (
            rule.rule,
            count_text(rule.blocks),
            percent_text(rule.block_ratio),
            count_text(rule.molecules),
            percent_text(rule.molecule_ratio),
            rule.meaning,
        )
        for rule in drift.junk_rules
    )
    return Section("Junk coordinates by counting rule", columns, rows)


def _examples(drift: Drift) -> Section:
    columns = (Column("#"), Column("block"), Column("token"), Column("blocks"), Column("text", "left"))
    rows = tuple(
        (*map(str, (item.sequence, item.block, item.position)), count_text(item.blocks), item.text)
        for item in drift.junk_examples
    )
    notes = ("junk and filler stand between bars; blocks: how many have the same; the most frequent first",)
    return Section("Junk", columns, rows, notes)


def _groups(found: Disagreement) -> Section:
    columns = (Column("choice", "left"), Column("text", "left"), *_AGREEMENT)
    rows = (
        ("all", "all", *_agreement(found.all)),
        *((item.choice, item.text or "all", *_agreement(item.agreement)) for item in found.groups),
    )
    notes = (
        "p: probability that the model gave what was written, before any token was forbidden.",
        "first choice: what was written was the model's own. forbidden: the model's first choice was not allowed.",
        "copy: one token was allowed; free: some were; open: all were. surprisal: mean of -log2 p, in bits.",
    )
    return Section("Disagreement between model and constraint", columns, rows, notes)


def _bins(found: Disagreement) -> Section:
    columns = (Column("from"), Column("to"), *_AGREEMENT)
    rows = tuple(
        (f"{100 * item.from_ratio:.0f} %", f"{100 * item.to_ratio:.0f} %", *_agreement(item.agreement))
        for item in found.bins
    )
    return Section("Disagreement along the sequence", columns, rows)


def _worst(found: Disagreement) -> Section:
    columns = (
        Column("#"),
        Column("token"),
        Column("choice", "left"),
        Column("p"),
        Column("rank"),
        Column("forbidden", "left"),
        Column("text", "left"),
    )
    rows = tuple(
        (
            str(item.sequence),
            str(item.position),
            item.choice,
            f"{item.probability:.3g}",
            count_text(item.rank),
            "yes" if item.forbidden else "no",
            f"{item.before}|{item.text}|{item.after}",
        )
        for item in found.worst
    )
    return Section("Where the model disagreed most", columns, rows, ("the token stands between bars",))


def _agreement(item: Agreement) -> tuple[str, ...]:
    return (
        count_text(item.tokens),
        f"{item.mean_probability:.3f}",
        f"{item.median_probability:.3f}",
        percent_text(item.first_choice_ratio),
        percent_text(item.forbidden_ratio),
        f"{item.mean_surprisal_bits:.2f}",
    )
