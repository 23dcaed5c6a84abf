"""Latencies of requests: queueing, the first token, the next ones, the last; also as a server's client measured them.

Requests of a run that join and leave a batch, and those that `molprof attach` sent, without the profiler.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

from msgspec.structs import replace

from molprof.analysis.figures.figure import Figure, TableQuery, of_run
from molprof.analysis.figures.model import Report, ServedPass, ServedTimes
from molprof.analysis.figures.run_model import RepeatFigures, Run
from molprof.analysis.figures.stood import ServedMasks, fewest_steps, figures_of, forced_of_answers
from molprof.common.attached import Answer, Attached, Masks, Pass
from molprof.common.manifest import SETUP_PHASES, Manifest, Repeat
from molprof.common.values import Unit, Value, number_text, per, percentile

_PERCENTS = (50, 99)
# Recorded steps have fewer sequences than requests are in flight by this factor, where they are another load.
_EARLY = 1.5
_MEASURES = {
    "first_token": "time to first token",
    "between_tokens": "time between tokens",
    "queued": "time in the queue",
    "request": "time of a request, end to end",
}


def latency(manifest: Manifest, repeat: Repeat) -> dict[str, int | None] | None:
    """Return percentiles over the requests of a timed pass, ns, by figure id; None where no request joined a batch.

    A request waits from its arrival: before a step, else when the pass begins. A token is there when its step ends.
    """
    if not manifest.molecules or any(run.joined is None for run in manifest.molecules):
        return None
    if len(manifest.steps_per_batch) != 1 or list(map(len, repeat.steps_ns)) != manifest.steps_per_batch:
        return None
    before_ns = sum(repeat.phases_ns.get(name, 0) for name in SETUP_PHASES)
    begins = list(accumulate(repeat.steps_ns[0], initial=before_ns))  # of each step, and the end of the last
    times: dict[str, list[int]] = {name: [] for name in _MEASURES}
    for run in manifest.molecules:
        counts = [1] * len(run.token_ids) if run.step_tokens is None else run.step_tokens
        ends = [begins[step + 1] for step, count in enumerate(counts) if count]
        arrived_ns = begins[run.arrived] if run.arrived else 0
        times["queued"].append(begins[run.joined or 0] - arrived_ns)
        times["first_token"] += [end - arrived_ns for end in ends[:1]]
        times["request"] += [end - arrived_ns for end in ends[-1:]]
        times["between_tokens"] += [after - before for before, after in pairwise(ends)]
    return percentiles(times)


def percentiles(times_by_measure: Mapping[str, Sequence[int]]) -> dict[str, int | None]:
    """Return p50 (median) and p99 (nearest rank) of each measure's times, ns, by figure id.

    Where half of the requests wait and half do not, the nearest rank would be the longest of those that do not.
    """
    figures: dict[str, int | None] = {}
    for name, times in times_by_measure.items():
        figures[f"{name}_p50_ns"] = round(statistics.median(times)) if times else None
        figures[f"{name}_p99_ns"] = percentile(sorted(times), 99)
    return figures


def mean_latency(passes: Sequence[RepeatFigures]) -> dict[str, int | None] | None:
    """Return the means over timed passes; None where one lacks them."""
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


def _of_client(id_: str, label: str, unit: Unit) -> Figure:
    """Return a figure that only a client of a server measures."""
    return Figure(id_, "Requests", label, unit, lambda report: None, repeat=lambda run, repeat: None, stands_in=True)


_SEQUENCES = TableQuery(
    "recorded_sequences",
    "",
    "SELECT AVG(sequences) AS mean, MIN(sequences) AS least, MAX(sequences) AS most FROM (SELECT prompt_sequences"
    " + generating_sequences AS sequences FROM molprof_any_step WHERE kind IS NOT 'idle')",
    "steps",
    needs_run=None,
    optional=True,
)
_CLIENT = (
    replace(_of_client("in_flight", "requests in flight, on average", "number"), tables=(_SEQUENCES,)),
    _of_client("first_constrained_p50_ns", "time to first constrained token (p50)", "ns"),
    _of_client("between_constrained_p50_ns", "time between tokens inside the constraint (p50)", "ns"),
    _of_client("between_free_p50_ns", "time between tokens outside of it (p50)", "ns"),
    _of_client("reasoning_tokens", "reasoning tokens per request", "number"),
    _of_client("argument_tokens", "tokens of tools' arguments per request", "number"),
    _of_client("unseen_tokens", "tokens of tags and ends, in no text, per request", "number"),
    _of_client("called_ratio", "share of answers that call a tool", "ratio"),
)
LATENCY = (*_figures(), *_CLIENT)


def read_served(attached: Attached) -> ServedTimes:
    """Return the passes of a run of requests, and the median of each of their figures."""
    fields = {name: getattr(attached, name) for name in ServedTimes.__struct_fields__ if hasattr(attached, name)}
    fields |= {"passes": tuple(map(_of_pass, attached.passes)), "requests": len(attached.passes[0].answers)}
    whole = [answer for answer in attached.passes[0].answers if answer.valid is not None and not answer.cut]
    invalid = tuple(f"line {one.line}: {one.problem}" for one in whole if not one.valid)
    fields["masks"] = None if attached.masks is None else _masks(attached, attached.masks)
    return with_values(ServedTimes(**fields, invalid=invalid, judged=len(whole)), statistics.median)


def _masks(attached: Attached, masks: Masks) -> ServedMasks:
    known = [answer for answer in masks.answers if not answer.missing]
    rows, lengths = min(attached.concurrency or len(known), len(known)), [len(answer.stood) for answer in known]
    forced = forced_of_answers([answer.stood for answer in known], rows)
    tokens = sum(answer.tokens for answer in known)
    return ServedMasks(masks.engine, tuple(masks.answers), forced, tokens, fewest_steps(lengths, rows))


def with_values(served: ServedTimes, of: Callable[[Sequence[float]], float]) -> ServedTimes:
    """Return the served times with one value per figure over all passes; None where a pass lacks it."""
    values: dict[str, int | float | None] = {}
    for name in dict.fromkeys(name for item in served.passes for name in item.figures):
        each = [number for item in served.passes if (number := item.figures.get(name)) is not None]
        value = of(each) if len(each) == len(served.passes) else None
        values[name] = round(value) if value is not None and name.endswith("_ns") else value
    if (masks := served.masks) is not None and masks.forced is not None:
        values |= figures_of(masks.forced, masks.tokens)
    return replace(served, values=values)


def of_served(figure: Figure) -> Figure:
    """Return the figure from the client's measurements where the report has them."""

    def value(report: Report) -> Value:
        if isinstance(report.served, ServedTimes) and figure.id in report.served.values:
            return report.served.values[figure.id]
        return figure.value(report)

    return replace(figure, value=value)


def window_text(report: Report) -> str | None:
    """Return sequences in the recorded steps, and requests in flight of timed passes, as text; None: unknown."""
    rows = report.table(_SEQUENCES.name).to_json()
    if not isinstance(report.served, ServedTimes) or not rows or rows[0]["mean"] is None:
        return None
    in_flight, mean = report.served.values.get("in_flight"), float(rows[0]["mean"] or 0)
    if in_flight is None:
        return None
    least, most = rows[0]["least"], rows[0]["most"]
    early = in_flight >= _EARLY * mean
    return (
        f"{number_text(in_flight)} requests are in flight on average; a recorded step has {number_text(mean)} sequences"
        f" ({least} to {most})" + (": not the load of the passes (--skip-steps records later)" if early else "")
    )


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
        "in_flight": per(sum(times["request"]), item.wall_ns),
        **_of_pieces(answers),
    }
    return ServedPass(figures)


def _of_pieces(answers: Sequence[Answer]) -> dict[str, int | float | None]:
    """Return the times by kind of piece, where requests have reasoning, tools, or a constraint of some pieces.

    A piece is taken for a token, as servers stream.
    """
    figures: dict[str, int | float | None] = {}
    constrained = [answer for answer in answers if answer.inside]
    if constrained:
        firsts, inside, outside = [], list[int](), list[int]()
        for answer in constrained:
            marks = [kind in answer.inside for kind in answer.kinds]
            if True in marks:
                firsts.append(answer.pieces_ns[marks.index(True)] - answer.sent_ns)
            for (before, first), (after, second) in pairwise(zip(answer.pieces_ns, marks, strict=True)):
                if first == second:
                    (inside if first else outside).append(after - before)
        for name, times in (("first", firsts), ("between", inside)):
            figures[f"{name}_constrained_p50_ns"] = round(statistics.median(times)) if times else None
        figures["between_free_p50_ns"] = round(statistics.median(outside)) if outside else None
    if any("r" in answer.kinds or answer.reasoning_tokens for answer in answers):
        # VLLM says 0 where its parser does not count them.
        counts = [answer.reasoning_tokens or answer.kinds.count("r") for answer in answers]
        figures["reasoning_tokens"] = per(sum(counts), len(answers))
    if any("t" in answer.inside or answer.calls for answer in answers):
        figures["argument_tokens"] = per(sum(answer.kinds.count("a") for answer in answers), len(answers))
        figures["called_ratio"] = per(sum(bool(answer.calls) for answer in answers), len(answers))
    if figures.keys() & {"reasoning_tokens", "argument_tokens"}:
        unseen = sum(max(0, answer.tokens - len(answer.pieces_ns)) for answer in answers)
        unseen += sum(answer.kinds.count("t") for answer in answers)
        figures["unseen_tokens"] = per(unseen, len(answers))
    return figures
