"""Comparing reports: side by side, where the time difference lies, and what was predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from molprof.analysis.compare.base import base_of
from molprof.analysis.compare.difference import Difference, difference
from molprof.analysis.compare.recorded import PhaseDifference, TraceDifference, phase_difference, trace_difference
from molprof.analysis.compare.rows import ComparedRow, by_rounds, compared_rows
from molprof.analysis.compare.statistics import ENOUGH_REPEATS, LEAST_REPEATS, LEVEL, best_level
from molprof.analysis.figures.catalog import FIGURES
from molprof.analysis.figures.labels import run_labels
from molprof.analysis.figures.model import Report, ServedTimes
from molprof.analysis.figures.requests import window_text
from molprof.analysis.figures.run_model import Run
from molprof.common.errors import NotComparableError, UsageError
from molprof.common.notebook import as_text, in_frame
from molprof.common.values import by_unit, counted, plain

if TYPE_CHECKING:
    from molprof.analysis.compare.thresholds import Expectation, ExpectationVerdict

SCHEMA = 1

# What decides how long requests to a server take, beside their constraint.
_OF_REQUESTS = ("server", "version", "model", "requests", "concurrency", "rate")
_OF_TEMPLATES = ("tokenizer", "processor", "placeholder")


class Comparison(Struct, frozen=True):
    """Two or more runs, each against the first."""

    schema: int
    labels: tuple[str, ...]
    runs: tuple[Report, ...]
    rows: tuple[ComparedRow, ...]
    differences: tuple[Difference | None, ...]
    trace_differences: tuple[TraceDifference | None, ...]  # where a run has no unprofiled time
    phase_differences: tuple[PhaseDifference | None, ...]  # of engines
    predictions: tuple[ExpectationVerdict, ...]
    notes: tuple[str, ...]
    surroundings: tuple[dict[str, str], ...]  # hardware and software of each run
    timed: tuple[Report, ...]  # the runs with the times that are compared
    base: str = ""  # why the first run is the first; empty: as given

    def __repr__(self) -> str:
        return as_text(self, f"<Comparison of {', '.join(self.labels)}>")

    def _repr_html_(self) -> str | None:
        return in_frame(self)

    @property
    def wall(self) -> ComparedRow:
        """The row of the unprofiled wall times."""
        return next(row for row in self.rows if row.figure.id == "wall_ns")

    @property
    def tokens(self) -> ComparedRow:
        """The row of the unprofiled times per generated token."""
        return next(row for row in self.rows if row.figure.id == "ns_per_token")

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready dicts and lists; each kind of difference is one object for two runs, else a list."""
        return {
            "schema": self.schema,
            "labels": list(self.labels),
            "base": self.base,
            "runs": [run.to_json() for run in self.runs],
            "rows": [row.to_json() for row in self.rows],
            "difference": _one_or_all(self.differences),
            "trace_difference": _one_or_all(self.trace_differences),
            "phase_difference": _one_or_all(self.phase_differences),
            "predictions": [to_builtins(prediction) for prediction in self.predictions],
            "notes": list(self.notes),
        }


def _one_or_all(items: Sequence[Difference | TraceDifference | PhaseDifference | None]) -> Any:
    documents = [None if item is None else plain(to_builtins(item)) for item in items]
    return documents[0] if len(documents) == 1 else documents


def compare(reports: Sequence[Report], *, anyway: bool = False, expectations: Sequence[Expectation] = ()) -> Comparison:
    """Compare each report with the first. Raises NotComparableError for other work, unless `anyway`: then a note."""
    from molprof.analysis.compare.thresholds import predictions  # a report needs none

    if len(reports) < 2:
        raise UsageError(f"compare needs at least two traces, got {len(reports)}")
    labels = run_labels(reports)
    notes = tuple(check_comparable(labels, reports, anyway))
    paired = by_rounds(reports)
    timed = paired or tuple(reports)
    rows = _worded(compared_rows(timed, paired is not None), reports)
    wall = next(row for row in rows if row.figure.id == "wall_ns")
    differences = tuple(
        difference(timed[0].run, report.run, wall, index) for index, report in enumerate(timed[1:], start=1)
    )
    return Comparison(
        schema=SCHEMA,
        labels=labels,
        runs=tuple(reports),
        rows=rows,
        differences=differences,
        trace_differences=tuple(
            trace_difference(reports[0], report) if breakdown is None else None
            for breakdown, report in zip(differences, reports[1:], strict=True)
        ),
        phase_differences=tuple(phase_difference(reports[0], report) for report in reports[1:]),
        predictions=predictions(labels, timed, rows, expectations),
        notes=(
            *notes,
            *pairing_notes(labels, differences),
            *served_notes(labels, timed, paired is not None),
            *repeat_notes(labels, reports, paired is not None),
        ),
        surroundings=tuple(
            surroundings(report.trace.device_names, report.trace.software, report.run) for report in reports
        ),
        timed=timed,
    )


def compare_with(base: int | None, reports: Sequence[Report], **how: Any) -> Comparison:
    """Compare each report with the one at `base`; None: with the only unconstrained run, else the first.

    how: as for `compare`. Raises UsageError and NotComparableError.
    """
    chosen = base_of(reports) if base is None and len(reports) > 1 else base
    index = chosen or 0
    compared = compare([reports[index], *reports[:index], *reports[index + 1 :]], **how)
    if chosen is None or (base is None and not index and len(reports) == 2):
        return compared
    why = "as asked (--base)" if base is not None else "the only run without a constraint (--base takes another)"
    return replace(compared, base=f"ratios are to {compared.labels[0]}, {why}")


def _worded(rows: Sequence[ComparedRow], reports: Sequence[Report]) -> tuple[ComparedRow, ...]:
    """Return the rows, with `prompt` or `request` for `molecule` where no run generated molecules."""
    run_nouns = [report.run.noun if report.run else "request" for report in reports if report.run or report.served]
    if not run_nouns or "molecule" in run_nouns:
        return tuple(rows)
    nouns = [(row, row.figure.label.replace("molecule", run_nouns[0])) for row in rows]
    return tuple(replace(row, figure=replace(row.figure, label=label)) for row, label in nouns)


def pairing_notes(labels: Sequence[str], differences: Sequence[Difference | None]) -> Iterator[str]:
    """Yield notes on the runs that were compared round by round, and on those that were captured apart."""
    differing = [(label, item) for label, item in zip(labels[1:], differences, strict=True) if item is not None]
    if paired := [f"{label} ({counted(item.rounds, 'round')})" for label, item in differing if item.paired]:
        yield (
            f"paired with {labels[0]}, compared round by round: {', '.join(paired)}; times are means of the "
            "rounds, ratios and differences are theirs; intervals by Student's t"
        )
    if few := [label for label, item in differing if item.paired and item.rounds < LEAST_REPEATS]:
        yield f"no intervals with fewer than {LEAST_REPEATS} rounds: {', '.join(few)}"
    if apart := [label for label, item in differing if not item.paired]:
        yield (
            f"not paired with {labels[0]}: {', '.join(apart)}. The machine may have changed its speed between the "
            "captures, which their intervals do not show. molprof capture with several models or processors pairs runs"
        )


def served_notes(labels: Sequence[str], reports: Sequence[Report], paired: bool) -> Iterator[str]:
    """Yield notes on how runs of requests to servers were compared."""
    served = [report.served for report in reports if isinstance(report.served, ServedTimes)]
    if len(served) < len(reports):
        return
    first = served[0]
    for label, item in zip(labels[1:], served[1:], strict=True):
        unlike = [name for name in _OF_REQUESTS if getattr(item, name) != getattr(first, name)]
        if each := [f"{name} ({getattr(item, name)}, not {getattr(first, name)})" for name in unlike]:
            yield f"{label} differs from {labels[0]} in {'; '.join(each)}"
    for label, report in zip(labels, reports, strict=True):
        if (window := window_text(report)) is not None:
            yield f"{label}: {window}"
    if paired:
        yield f"requests of {', '.join(labels)} took turns, compared round by round; intervals by Student's t"
    else:
        yield "not paired: the machine may have changed its speed between runs, which their intervals do not show"
    if (least := min(len(item.passes) for item in served)) < LEAST_REPEATS:
        yield f"too few timed passes to tell differences in time from noise: {least}, not {LEAST_REPEATS} (--repeats)"


def repeat_notes(labels: Sequence[str], reports: Sequence[Report], paired: bool) -> Iterator[str]:
    """Yield a line on runs with too few timed passes to tell times apart, and one if intervals stay below LEVEL."""
    runs = [(label, report.run) for label, report in zip(labels, reports, strict=True)]
    counts = [(label, len(run.repeats)) for label, run in runs if run is not None]
    if len(counts) < 2:
        return
    if few := [f"{label} ({count})" for label, count in counts if count < LEAST_REPEATS]:
        yield (
            f"too few timed passes to tell differences in time from noise: {', '.join(few)}. Capture at least "
            f"{LEAST_REPEATS} of each run, {ENOUGH_REPEATS} for intervals of {100 * LEVEL:.0f} % (--repeats)"
        )
    if paired:
        return  # Student's intervals always reach it
    least = min((count for _, count in counts if count >= LEAST_REPEATS), default=ENOUGH_REPEATS)
    if (level := best_level(least, least)) < LEVEL:
        yield (
            f"{least} timed passes: intervals of ratios reach {100 * level:.0f} %, not {100 * LEVEL:.0f} %. "
            f"{ENOUGH_REPEATS} of each run reach it"
        )


def check_comparable(labels: Sequence[str], reports: Sequence[Report], anyway: bool) -> Iterator[str]:
    """Yield notes on settings that differ or are missing. Raises NotComparableError if the work differs.

    Raises NotComparableError if a run did other work, unless `anyway`.
    """
    named = list(zip(labels, reports, strict=True))
    runs = [(label, report, report.run) for label, report in named if report.run is not None]
    for label, report, run in runs[1:]:
        first_label, first, first_run = runs[0]
        problems = _unlike(first, report, "work")
        missing, extra = (
            list((_smiles(one) - _smiles(two)).elements()) for one, two in ((first_run, run), (run, first_run))
        )
        if run.molecules == first_run.molecules and missing:
            instead = f"{extra[0] if extra else 'nothing'} instead of {missing[0]}"
            problems.append(f"other molecules, as {instead} ({len(missing)} of {run.molecules})")
        for problem in problems:
            line = f"{label} and {first_label} are not comparable: {problem}"
            if not anyway:
                raise NotComparableError(line, hint="compare them with --anyway")
            yield line
        if differences := [*_unlike(first, report, "setting"), *_differences(first_run, run)]:
            yield f"{label} differs from {first_label} in {'; '.join(differences)}"
    for label, _, run in runs:
        if run.cut_answers:
            yield (
                f"{run.cut_answers} of {counted(run.molecules, run.noun)} of {label} stopped at the token limit, so "
                "its tokens and times are not of whole answers"
            )
    for index, (label, report) in enumerate(named):
        if same := next((other for other, earlier in named[:index] if one_file(earlier, report)), None):
            yield f"{same} and {label} are one file, or copies of one: nothing differs"
    if random := [label for label, _, run in runs if run.setup.random]:
        yield f"random weights, so tokens, junk and drift are not meaningful: {', '.join(random)}"
    foreign = [label for label, report in named if report.run is None]
    if foreign and runs:
        of_molecules = any(run.of_molecules for _, _, run in runs)
        how = "--tokens and --molecules say how many it generated" if of_molecules else "--tokens says how many it made"
        yield (
            f"not captured by molprof: {', '.join(foreign)}. Unprofiled times and drift are not recorded there; {how}"
        )


def one_file(first: Report, other: Report) -> bool:
    """Return True if both reports are of one trace file, or of copies of it. Equal paths are not enough."""
    one, two = ((replace(item.trace, path=""), item.counts, item.run, item.served) for item in (first, other))
    return one == two


def unlike_surroundings(first: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return a sentence on the hardware and software in which these `surroundings` differ.

    Empty where none is known to.
    """
    unlike = {name: before for name, before in first.items() if other.get(name, before) != before}
    if not unlike:
        return ""
    (name, before), *more = unlike.items()
    others = f", and {', '.join(name for name, _ in more)}" if more else ""
    return f" Not the program alone differs: {name} ({other[name]}, not {before}){others}."


def surroundings(devices: Iterable[str], software: Mapping[str, str], run: Run | None = None) -> dict[str, str]:
    """Return hardware and software by name, as far as a trace records them; `run` is what molprof captured."""
    versions = dict(software)
    platform = [f"{name} {versions.pop(name)}" for name in ("CUDA", "HIP") if name in versions]
    named = {"device": ", ".join(sorted(set(devices))), "platform": ", ".join(platform), **versions}
    if run is not None:
        setup = run.setup
        named |= {"device": setup.gpu or setup.device or "", "torch": setup.torch, "transformers": setup.transformers}
    return {name: value for name, value in named.items() if value}


def _unlike(first: Report, other: Report, role: str) -> list[str]:
    """Return the figures of one role that differ between the reports, with both values."""
    runs = [report.run for report in (first, other) if report.run is not None]
    noun = "molecule" if any(run.of_molecules for run in runs) else "prompt"
    return [
        f"{figure.label.replace('molecule', noun)} ({by_unit(figure.unit, value)}, not {by_unit(figure.unit, before)})"
        for figure in FIGURES
        if figure.role == role
        and (value := figure.value(other)) != (before := figure.value(first))
        and (role == "work" or None not in (value, before))  # older traces lack some settings
    ]


def _smiles(run: Run) -> Counter[str]:
    return Counter(item.smiles or "a plain-text prompt" for item in run.sequences)


def _differences(first: Run, other: Run) -> Iterator[str]:
    """Yield differences besides settings that do not prevent a comparison."""
    same_molecules = _smiles(first) == _smiles(other)
    if same_molecules and [item.smiles for item in first.sequences] != [item.smiles for item in other.sequences]:
        yield "the order of the molecules"
    names = ["seed"] if first.setup.sampling != "greedy" else []
    # With other templates, another token limit is no difference of its own.
    if all(getattr(first.setup, name) == getattr(other.setup, name) for name in _OF_TEMPLATES):
        names.append("max_new_tokens")
    for name in names:
        before, value = getattr(first.setup, name), getattr(other.setup, name)
        if value != before:
            yield f"{name} ({value}, not {before})"
