"""A run at several batch sizes on a GPU: time of a step, tokens per second, limits, and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from molprof.analysis.predict.batch import BatchAgreement, agreement, at_rows, rows_of
from molprof.analysis.predict.predict import MOST_UNKNOWN, PredictedFigure, predict
from molprof.analysis.predict.run import CallSequence
from molprof.analysis.predict.table import CostTable, HeldOutCheck
from molprof.analysis.roofline.memory import needs_of
from molprof.common.errors import TraceError, UsageError
from molprof.common.values import counted, percent_text

# What torch held at most in six runs of 32 and 64 rows on an H100 (traces/) is 1 to 4 % more than the sum of the parts.
MEMORY_ERROR = 0.06
_SECOND_NS = 1e9
_MOST_ROWS = 1 << 16
_HINT = f"1,8,32 or 1:256, which doubles from 1 to 256; {_MOST_ROWS:,} at most"


class Size(Struct, frozen=True):
    """The prediction for one batch size. Times: ns of a step.

    Attributes:
        per_s: rows of all steps in a second, which are tokens in decoding.
        graph_ns: with the launches between two host syncs in one graph.
        memory_bytes: None where the run does not tell the model's sizes.
        other_ratio: of GPU time, in calls whose rows are not known, which stay as recorded.
    """

    rows: int
    step_ns: PredictedFigure
    per_s: PredictedFigure
    graph_ns: PredictedFigure
    gpu_ns: PredictedFigure
    busy_ratio: PredictedFigure
    limit: str
    memory_bytes: PredictedFigure | None
    other_ratio: float


@dataclass(frozen=True)
class Sizes:
    """Predictions of a run for several batch sizes.

    Attributes:
        rows: of the recorded steps.
        tokens: of a sequence, for which memory is counted; None where it is not.
        too_large: the smallest size that was left out, as it does not fit the GPU, and its bytes.
        unknown: calls of the run by operator whose rows are not known.
        other: rows of another recorded run and how far its shapes are as predicted.
    """

    rows: int
    tokens: int | None
    each: tuple[Size, ...]
    too_large: tuple[int, PredictedFigure] | None
    unknown: Mapping[str, int]
    other: tuple[int, BatchAgreement] | None


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in a text such as `1,8,32`, or `1:256` for powers of two. Raises UsageError."""
    first, colon, last = text.partition(":")
    try:
        numbers = [int(first), int(last)] if colon else [int(item) for item in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < item <= _MOST_ROWS for item in numbers) or (colon and numbers[0] > numbers[1]):
        raise UsageError(f"--batches {text}: no batch sizes", hint=_HINT)
    if not colon:
        return tuple(sorted(set(numbers)))
    powers = [numbers[0]]
    while 2 * powers[-1] <= numbers[1]:
        powers.append(2 * powers[-1])
    return tuple(powers)


def sizes(
    run: CallSequence,
    table: CostTable,
    checks: Sequence[HeldOutCheck],
    targets: Sequence[int],
    rows: int | None,
    other: CallSequence | None = None,
) -> Sizes:
    """Return predictions for batch sizes. rows: those of the run, where it does not record them.

    Raises TraceError where the rows of too much work are not known.
    """
    run_rows = _own_rows(run, rows)
    manifest = run.info.manifest or {}
    needs, tokens = needs_of(manifest.get("resolved", {})), _tokens(manifest)
    capacity = table.device.capacity_gb
    results: list[Size] = []
    too_large: tuple[int, PredictedFigure] | None = None
    unknown: Mapping[str, int] = {}
    for target in targets:
        memory = None
        if needs and tokens and (needed := needs.of(target, tokens)) is not None:
            count = float(needed)
            memory = PredictedFigure(count, count, count * (1 + MEMORY_ERROR))
            if capacity is not None and count > capacity * 1e9:
                too_large = too_large or (target, memory)
                continue
        scaled = at_rows(run, run_rows, target)
        unknown = scaled.unknown
        predicted = predict(scaled.run, table, checks)
        others = sum(share.gpu_ns for share in predicted.shares if share.operator in unknown) / predicted.gpu_ns.value
        if others > MOST_UNKNOWN:
            raise TraceError(
                f"{percent_text(others)} of GPU time may be in operators whose shapes do not show the rows:"
                f" {', '.join(sorted(unknown)[:6])}",
                hint="record the run with a batch of that size",
            )
        steps = max(run.steps, 1)
        step, gpu, graph = (
            _times(each, 1 / steps) for each in (predicted.length_ns, predicted.gpu_ns, predicted.graph_ns)
        )
        speed = PredictedFigure(*(target * _SECOND_NS / value for value in (step.value, step.high, step.low)))
        results.append(Size(target, step, speed, graph, gpu, predicted.busy_ratio, predicted.limit, memory, others))
    agreed = None
    if other is not None:
        beside = rows_of(other)
        agreed = beside, agreement(at_rows(run, run_rows, beside).run, other)
    return Sizes(run_rows, tokens, tuple(results), too_large, unknown, agreed)


def _own_rows(run: CallSequence, rows: int | None) -> int:
    try:
        recorded = rows_of(run)
    except TraceError:
        if rows is None:
            raise
        return rows
    if rows not in (None, recorded):
        raise UsageError(f"--rows says {rows:,}, and {run.info.path} has steps of {counted(recorded, 'row')}")
    return recorded


def _tokens(manifest: Mapping[str, object]) -> int | None:
    """Return the most tokens of a sequence: its prompt, padded to the longest, and its token limit."""
    resolved, sequences = manifest.get("resolved"), manifest.get("molecules")
    if not isinstance(resolved, dict) or not isinstance(sequences, list) or not resolved.get("max_new_tokens"):
        return None
    return int(max(item["prompt_tokens"] for item in sequences) + resolved["max_new_tokens"])


def _times(figure: PredictedFigure, factor: float) -> PredictedFigure:
    return PredictedFigure(*(value * factor for value in (figure.value, figure.low, figure.high)))
