"""Whether the times of runs can be compared: only of the same work, chosen in the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import Run
from molprof.common.errors import NotComparableError

_ANYWAY = "--anyway compares them all the same"
# Differences that are experiments: what they are called, and how to get them.
_EXPERIMENTS: tuple[tuple[str, Callable[[Run], Any]], ...] = (
    ("model size", lambda run: run.setup.size or "its own"),
    ("batch size", lambda run: run.setup.batch_size),
    ("device", lambda run: run.setup.gpu or run.setup.device),
    ("dtype", lambda run: run.setup.dtype),
    ("attention", lambda run: run.setup.attention),
    ("cache", lambda run: run.setup.cache),
    ("torch", lambda run: run.setup.torch),
    ("transformers", lambda run: run.setup.transformers),
)


def check_comparable(labels: Sequence[str], reports: Sequence[Report], anyway: bool = False) -> tuple[str, ...]:
    """What to keep in mind when comparing, one line each.

    Runs of other molecules, or that chose their tokens by other rules, have times of other work. Traces of other origin
    have no run: what they do have is compared.

    Raises:
        NotComparableError: a run that cannot be compared to the first one, and not `anyway`.
    """
    runs = [(label, report.run) for label, report in zip(labels, reports, strict=True) if report.run is not None]
    notes = []
    for label, other in runs[1:]:
        first_label, first = runs[0]
        for problem in _problems(first, other):
            line = f"{label} and {first_label} are not comparable: {problem}"
            if not anyway:
                raise NotComparableError(line, hint=_ANYWAY)
            notes.append(line)
        if differences := _differences(first, other):
            notes.append(f"{label} differs from {first_label} in {'; '.join(differences)}")
    for label, run in runs:
        # Every token is of one of these kinds or the end.
        cut = sum(item.tokens == item.free + item.copy + item.junk + item.filler for item in run.sequences)
        if cut:
            notes.append(
                f"{cut} of {run.molecules} molecules of {label} were cut at their bound of tokens: its tokens and "
                "times are not of whole molecules"
            )
    if random := [label for label, run in runs if run.setup.random]:
        notes.append(f"random weights, so that tokens, junk and drift are not meaningful: {', '.join(random)}")
    foreign = [label for label, report in zip(labels, reports, strict=True) if report.run is None]
    if foreign and runs:
        notes.append(
            f"not captured by molprof: {', '.join(foreign)}. Figures of the whole trace are compared; those of runs, "
            "steps and tokens are not recorded there"
        )
    return tuple(notes)


def _problems(first: Run, other: Run) -> list[str]:
    problems = []
    if other.molecules != first.molecules:
        problems.append(f"{other.molecules} molecules, not {first.molecules}")
    elif missing := list((_smiles(first) - _smiles(other)).elements()):
        extra = list((_smiles(other) - _smiles(first)).elements())
        instead = f"{extra[0]} instead of {missing[0]}" if extra else f"nothing instead of {missing[0]}"
        problems.append(f"other molecules, as {instead} ({len(missing)} of {first.molecules})")
    if other.setup.sampling != first.setup.sampling:
        problems.append(f"sampling {other.setup.sampling}, not {first.setup.sampling}")
    elif other.setup.sampling_parameters != first.setup.sampling_parameters:
        problems.append(
            f"sampling with {_parameters(other)}, not {_parameters(first)}",
        )
    return problems


def _smiles(run: Run) -> Counter[str]:
    return Counter(item.smiles or "a plain-text prompt" for item in run.sequences)


def _parameters(run: Run) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(run.setup.sampling_parameters.items())) or "none"


def _differences(first: Run, other: Run) -> list[str]:
    """Experiments: said, and compared."""
    found = [
        f"{name} ({value(other)}, not {value(first)})" for name, value in _EXPERIMENTS if value(other) != value(first)
    ]
    same_molecules = _smiles(first) == _smiles(other)
    if same_molecules and [item.smiles for item in first.sequences] != [item.smiles for item in other.sequences]:
        found.append("the order of the molecules")
    if first.setup.sampling != "greedy" and other.setup.seed != first.setup.seed:
        found.append(f"seed ({other.setup.seed}, not {first.setup.seed})")
    # Templates bound the answers, so that other tokens or another processor mean another bound.
    alike = all(
        getattr(first.setup, name) == getattr(other.setup, name) for name in ("tokenizer", "processor", "placeholder")
    )
    if alike and other.setup.max_new_tokens != first.setup.max_new_tokens:
        found.append(f"max_new_tokens ({other.setup.max_new_tokens}, not {first.setup.max_new_tokens})")
    return found
