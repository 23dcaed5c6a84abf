"""Which passes of two runs were made together: rounds of a capture of several runs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from molprof.analysis.compare.statistics import Interval, paired_ratio_interval, ratio_interval
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import RepeatFigures, Run, Spread

Pair = tuple[int, int]


def are_paired(first: Run | None, other: Run | None) -> bool:
    """Whether one capture made both runs, their timed passes interleaved."""
    if first is None or other is None or first.session is None or other.session is None:
        return False
    return first.session.id == other.session.id and first.session.run != other.session.run


def rounds(first: Run, other: Run) -> tuple[Pair, ...]:
    """The timed passes of paired runs by round: that of the first, and that of the other."""
    assert first.session is not None
    assert other.session is not None
    mine = dict(zip(other.session.rounds, range(len(other.repeats)), strict=False))
    pairs = zip(first.session.rounds, range(len(first.repeats)), strict=False)
    return tuple((place, mine[number]) for number, place in pairs if number in mine)


def in_rounds(figure: Figure, first: Report, other: Report) -> tuple[list[float], list[float]] | None:
    """A figure of each timed pass, of the first report and of the other, by round; None where they are not paired."""
    if first.run is None or other.run is None or not are_paired(first.run, other.run):
        return None
    before, after = figure.samples(first), figure.samples(other)
    if not before or not after:
        return [], []
    pairs = rounds(first.run, other.run)
    return [before[place] for place, _ in pairs], [after[place] for _, place in pairs]


def interval_of_ratio(figure: Figure, first: Report, other: Report) -> Interval | None:
    """Of the factor from the first report to the other: by round where they are paired. None with too few passes."""
    pairs = in_rounds(figure, first, other)
    if pairs is None:
        return ratio_interval(figure.samples(other), figure.samples(first))
    return paired_ratio_interval(pairs[1], pairs[0])


def of_pass(run: Run, repeat: RepeatFigures) -> Run:
    """The run as if it had this timed pass alone."""
    phases = {name: replace(figures, wall_ns=repeat.phases_ns.get(name)) for name, figures in run.phases.items()}
    return replace(run, wall_ns=Spread(repeat.wall_ns, repeat.wall_ns, repeat.wall_ns, 1), phases=phases)


def passes(first: Run, other: Run, pairs: Sequence[Pair]) -> list[tuple[Run, Run]]:
    """Both runs, pass by pass of the pairs."""
    return [(of_pass(first, first.repeats[one]), of_pass(other, other.repeats[two])) for one, two in pairs]
