"""What requests waited for: queueing, the first token, the next ones, the last. And what a client of a server measured.

Requests of a run that join and leave a batch, and those that `molprof attach` sent, without the profiler.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

from msgspec.structs import replace

from molprof.analysis.figures.figure import Figure, of_run
from molprof.analysis.figures.model import Report, Served, ServedPass
from molprof.analysis.figures.run_model import RepeatFigures, Run
from molprof.common.attached import Attached, Pass
from molprof.common.manifest import SETUP_PHASES, Manifest, Repeat
from molprof.common.values import Value, per, percentile

_PERCENTS = (50, 99)
_MEASURES = {
    "first_token": "time to first token",
    "between_tokens": "time between tokens",
    "queued": "time in the queue",
    "request": "time of a request, end to end",
}


def latency(manifest: Manifest, repeat: Repeat) -> dict[str, int | None] | None:
    """Percentiles over the requests of a timed pass, ns, by the figure's id; None where no request joined a batch.

    A request waits from its arrival: before a step, else when the pass begins. A token is there when its step ends.
    """
    if not manifest.molecules or any(run.joined is None for run in manifest.molecules):
        return None
    if len(manifest.steps_per_batch) != 1 or list(map(len, repeat.steps_ns)) != manifest.steps_per_batch:
        return None
    before_ns = sum(repeat.phases_ns.get(name, 0) for name in SETUP_PHASES)
    begins = list(accumulate(repeat.steps_ns[0], initial=before_ns))  # of each step, and the end of the last
    found: dict[str, list[int]] = {name: [] for name in _MEASURES}
    for run in manifest.molecules:
        counts = [1] * len(run.token_ids) if run.step_tokens is None else run.step_tokens
        ends = [begins[step + 1] for step, count in enumerate(counts) if count]
        arrived_ns = begins[run.arrived] if run.arrived else 0
        found["queued"].append(begins[run.joined or 0] - arrived_ns)
        found["first_token"] += [end - arrived_ns for end in ends[:1]]
        found["request"] += [end - arrived_ns for end in ends[-1:]]
        found["between_tokens"] += [after - before for before, after in pairwise(ends)]
    return percentiles(found)


def percentiles(found: Mapping[str, Sequence[int]]) -> dict[str, int | None]:
    """Of times of requests by measure, ns; by the figure's id."""
    return {
        f"{name}_p{percent}_ns": percentile(sorted(times), percent)
        for name, times in found.items()
        for percent in _PERCENTS
    }


def mean_latency(passes: Sequence[RepeatFigures]) -> dict[str, int | None] | None:
    """The means over timed passes; None where one lacks them."""
    each = [item.latency for item in passes if isinstance(item.latency, dict)]
    if not each or len(each) < len(passes):
        return None
    return {name: _mean([item[name] for item in each]) for name in each[0]}


def _mean(times: Sequence[int | None]) -> int | None:
    return None if None in times else round(Fraction(sum(filter(None, times)), len(times)))


def _figures() -> Iterator[Figure]:
    for name, label in _MEASURES.items():
        for percent in _PERCENTS:
            id_ = f"{name}_p{percent}_ns"

            def of(item: Run | RepeatFigures, id_: str = id_) -> int | None:
                return item.latency.get(id_) if isinstance(item.latency, dict) else None

            value, repeat = of_run(of), lambda run, repeat, of=of: of(repeat)
            yield Figure(id_, "Requests", f"{label} (p{percent})", "ns", value, repeat=repeat, stands_in=True)


LATENCY = tuple(_figures())


def read_served(attached: Attached) -> Served:
    """The passes of a run of requests, and the median of each of their figures."""
    known = {name: getattr(attached, name) for name in Served.__struct_fields__ if hasattr(attached, name)}
    known |= {"passes": tuple(map(_of_pass, attached.passes)), "requests": len(attached.passes[0].answers)}
    return with_values(Served(**known), statistics.median)


def with_values(served: Served, of: Callable[[Sequence[float]], float]) -> Served:
    """With one value for each figure of all passes, such as their mean; None where a pass lacks it."""
    values: dict[str, int | float | None] = {}
    for name in served.passes[0].figures:
        each = [number for item in served.passes if (number := item.figures[name]) is not None]
        value = of(each) if len(each) == len(served.passes) else None
        values[name] = round(value) if value is not None and name.endswith("_ns") else value
    return replace(served, values=values)


def of_served(figure: Figure) -> Figure:
    """The figure, which reads what a client measured where the report has that."""

    def value(report: Report) -> Value:
        if isinstance(report.served, Served) and figure.id in report.served.values:
            return report.served.values[figure.id]
        return figure.value(report)

    return replace(figure, value=value)


def _of_pass(item: Pass) -> ServedPass:
    answers = item.answers
    tokens = sum(answer.tokens for answer in answers)
    judged = [answer.valid for answer in answers if answer.valid is not None]
    times = {
        "first_token": [answer.pieces_ns[0] - answer.sent_ns for answer in answers if answer.pieces_ns],
        "between_tokens": [after - before for answer in answers for before, after in pairwise(answer.pieces_ns)],
        "request": [answer.ended_ns - answer.sent_ns for answer in answers],
    }
    figures: dict[str, int | float | None] = {
        "wall_ns": item.wall_ns,
        "tokens_per_s": per(tokens * 1e9, item.wall_ns),
        **percentiles(times),
        "tokens_per_molecule": per(tokens, len(answers)),
        "cut_answers": sum(answer.cut for answer in answers),
        "valid_ratio": per(sum(judged), len(judged)),
    }
    return ServedPass(figures)
