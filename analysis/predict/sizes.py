"""A run at several batch sizes on a GPU: time of a step, tokens per second, what limits it, and memory."""

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
    """A batch size. Times: ns of a step.

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
    """A run at several batch sizes.

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
    """Sizes of a text such as `1,8,32`, or `1:256` for powers of two. Raises UsageError."""
    first, colon, last = text.partition(":")
    try:
        given = [int(first), int(last)] if colon else [int(item) for item in text.split(",")]
    except ValueError:
        given = []
    if not given or not all(0 < item <= _MOST_ROWS for item in given) or (colon and given[0] > given[1]):
        raise UsageError(f"--batches {text}: no batch sizes", hint=_HINT)
    if not colon:
        return tuple(sorted(set(given)))
    found = [given[0]]
    while 2 * found[-1] <= given[1]:
        found.append(2 * found[-1])
    return tuple(found)


def sizes(
    run: CallSequence,
    table: CostTable,
    checks: Sequence[HeldOutCheck],
    asked: Sequence[int],
    rows: int | None,
    other: CallSequence | None = None,
) -> Sizes:
    """rows: of the run, where it does not tell them. Raises TraceError where the rows of too much are not known."""
    own = _own_rows(run, rows)
    manifest = run.info.manifest or {}
    needs, tokens = needs_of(manifest.get("resolved", {})), _tokens(manifest)
    capacity = table.device.capacity_gb
    found: list[Size] = []
    too_large: tuple[int, PredictedFigure] | None = None
    unknown: Mapping[str, int] = {}
    for target in asked:
        memory = None
        if needs and tokens and (needed := needs.of(target, tokens)) is not None:
            count = float(needed)
            memory = PredictedFigure(count, count, count * (1 + MEMORY_ERROR))
            if capacity is not None and count > capacity * 1e9:
                too_large = too_large or (target, memory)
                continue
        scaled = at_rows(run, own, target)
        unknown = scaled.unknown
        made = predict(scaled.run, table, checks)
        others = sum(share.gpu_ns for share in made.shares if share.operator in unknown) / made.gpu_ns.value
        if others > MOST_UNKNOWN:
            raise TraceError(
                f"{percent_text(others)} of GPU time may be in operators of which the shapes do not tell the rows:"
                f" {', '.join(sorted(unknown)[:6])}",
                hint="record the run with a batch of the size that is asked for",
            )
        steps = max(run.steps, 1)
        step, gpu, graph = (_times(each, 1 / steps) for each in (made.length_ns, made.gpu_ns, made.graph_ns))
        speed = PredictedFigure(*(target * _SECOND_NS / value for value in (step.value, step.high, step.low)))
        found.append(Size(target, step, speed, graph, gpu, made.busy_ratio, made.limit, memory, others))
    agreed = None
    if other is not None:
        beside = rows_of(other)
        agreed = beside, agreement(at_rows(run, own, beside).run, other)
    return Sizes(own, tokens, tuple(found), too_large, unknown, agreed)


def _own_rows(run: CallSequence, given: int | None) -> int:
    try:
        found = rows_of(run)
    except TraceError:
        if given is None:
            raise
        return given
    if given not in (None, found):
        raise UsageError(f"--rows says {given:,}, and {run.info.path} has steps of {counted(found, 'row')}")
    return found


def _tokens(manifest: Mapping[str, object]) -> int | None:
    """Return the most tokens of a sequence: its prompt, padded to the longest, and what it could get."""
    resolved, sequences = manifest.get("resolved"), manifest.get("molecules")
    if not isinstance(resolved, dict) or not isinstance(sequences, list) or not resolved.get("max_new_tokens"):
        return None
    return int(max(item["prompt_tokens"] for item in sequences) + resolved["max_new_tokens"])


def _times(figure: PredictedFigure, factor: float) -> PredictedFigure:
    return PredictedFigure(*(value * factor for value in (figure.value, figure.low, figure.high)))
