"""Figures of a running server that `molprof attach` measured at the client, without the profiler."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

from msgspec.structs import replace

from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.latency import percentiles
from molprof.analysis.figures.model import Report, Served, ServedPass
from molprof.common.attached import Attached, Pass
from molprof.common.values import Value, per


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
