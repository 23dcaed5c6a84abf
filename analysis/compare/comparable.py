"""Whether runs are comparable: same molecules, same sampling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from molprof.analysis.figures.catalog import FIGURES
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run
from molprof.common.errors import NotComparableError
from molprof.common.values import by_unit, counted


def check_comparable(labels: Sequence[str], reports: Sequence[Report], anyway: bool) -> tuple[str, ...]:
    """Notes on what differs and what is missing. Raises NotComparableError if a run did other work, unless `anyway`."""
    named = list(zip(labels, reports, strict=True))
    runs = [(label, report, report.run) for label, report in named if report.run is not None]
    notes = []
    for label, report, run in runs[1:]:
        first_label, first, first_run = runs[0]
        for problem in [*_unlike(first, report, "work"), *_other_molecules(first_run, run)]:
            line = f"{label} and {first_label} are not comparable: {problem}"
            if not anyway:
                raise NotComparableError(line, hint="compare them with --anyway")
            notes.append(line)
        if differences := [*_unlike(first, report, "setting"), *_differences(first_run, run)]:
            notes.append(f"{label} differs from {first_label} in {'; '.join(differences)}")
    for label, _, run in runs:
        if run.cut_answers:
            notes.append(
                f"{run.cut_answers} of {counted(run.molecules, run.noun)} of {label} stopped at the token limit, so "
                "its tokens and times are not of whole answers"
            )
    for place, (label, report) in enumerate(named):
        if same := next((other for other, earlier in named[:place] if one_file(earlier, report)), None):
            notes.append(f"{same} and {label} are one file, or copies of one: nothing differs")
    if random := [label for label, _, run in runs if run.setup.random]:
        notes.append(f"random weights, so tokens, junk and drift are not meaningful: {', '.join(random)}")
    foreign = [label for label, report in named if report.run is None]
    if foreign and runs:
        notes.append(
            f"not captured by molprof: {', '.join(foreign)}. Unprofiled times and drift are not recorded there; "
            "--tokens and --molecules say how many it generated"
        )
    return tuple(notes)


def one_file(first: Report, other: Report) -> bool:
    """Whether both reports are of one trace file, or of copies. A path alone does not tell: files are replaced."""
    return (replace(first.trace, path=""), first.counts, first.run) == (
        replace(other.trace, path=""),
        other.counts,
        other.run,
    )


def _unlike(first: Report, other: Report, role: str) -> list[str]:
    """The figures of a role in which the reports differ, with both values."""
    return [
        f"{figure.label} ({by_unit(figure.unit, value)}, not {by_unit(figure.unit, before)})"
        for figure in FIGURES
        if figure.role == role
        and (value := figure.value(other)) != (before := figure.value(first))
        and (role == "work" or None not in (value, before))  # older traces lack some settings
    ]


def _other_molecules(first: Run, other: Run) -> list[str]:
    """A line where runs of as many molecules have others."""
    missing = list((_smiles(first) - _smiles(other)).elements())
    if other.molecules != first.molecules or not missing:
        return []
    extra = list((_smiles(other) - _smiles(first)).elements())
    instead = f"{extra[0]} instead of {missing[0]}" if extra else f"nothing instead of {missing[0]}"
    return [f"other molecules, as {instead} ({len(missing)} of {first.molecules})"]


def _smiles(run: Run) -> Counter[str]:
    return Counter(item.smiles or "a plain-text prompt" for item in run.sequences)


def _differences(first: Run, other: Run) -> list[str]:
    """Differences besides settings that do not prevent a comparison."""
    found = []
    same_molecules = _smiles(first) == _smiles(other)
    if same_molecules and [item.smiles for item in first.sequences] != [item.smiles for item in other.sequences]:
        found.append("the order of the molecules")
    if first.setup.sampling != "greedy" and other.setup.seed != first.setup.seed:
        found.append(f"seed ({other.setup.seed}, not {first.setup.seed})")
    # With other templates, another token limit is no difference of its own.
    alike = all(
        getattr(first.setup, name) == getattr(other.setup, name) for name in ("tokenizer", "processor", "placeholder")
    )
    if alike and other.setup.max_new_tokens != first.setup.max_new_tokens:
        found.append(f"max_new_tokens ({other.setup.max_new_tokens}, not {first.setup.max_new_tokens})")
    return found
