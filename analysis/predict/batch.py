"""A run with another number of rows: its own shapes show which dimensions of its operators are rows.

Activations of transformers have the rows first, and products of matrices have rows times tokens there. That decides
each operand by its operator; an operator of which it does not decide one is unknown, and stays as recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from molprof.analysis.critical.recorded import ThreadInterval, union
from molprof.analysis.predict.run import (
    ATTENTION,
    PICKS,
    PROCESSOR,
    TO_GPU,
    TO_HOST,
    CallSequence,
    OperatorCall,
    called,
)
from molprof.analysis.roofline.formulas import LOOKUP, NORM, POINTWISE
from molprof.analysis.roofline.operands import Operand, Operands
from molprof.common.errors import TraceError

# Operands whose first dimension is rows, or rows times something: tokens of a product, heads of a batched one.
_TIMES = {
    "aten::mm": (0,), "aten::_int_mm": (0,), "aten::_scaled_mm": (0,), "aten::addmm": (1,), "aten::bmm": (0, 1),
    "aten::baddbmm": (0, 1, 2), "aten::embedding": (1,), "aten::convolution": (0,),
}  # fmt: skip
_UNBIND, _SELECT = PICKS[:2]


class Scaled(NamedTuple):
    """A run with other rows. unknown: numbers of calls by operator whose rows are not known."""

    run: CallSequence
    unknown: Mapping[str, int]


def rows_of(run: CallSequence) -> int:
    """Return the number of rows of every recorded step, by the manifest.

    Raises TraceError where the manifest lacks them, or they change.
    """
    manifest = run.info.manifest or {}
    window, counts = manifest.get("window"), manifest.get("rows_per_step")
    if not isinstance(window, dict) or window.get("full"):
        raise TraceError(
            f"{run.info.path} does not record how many rows its steps have",
            hint="molprof capture --shapes --window FIRST:LAST records steps of one batch; or say it with --rows",
        )
    batch = window["batch"]
    if counts:
        row_counts = set(counts[batch][window["first_step"] : window["last_step"] + 1])
    else:
        row_counts = {sum(item["batch"] == batch for item in manifest["molecules"])}
    if len(row_counts) != 1:
        raise TraceError(f"the recorded steps of {run.info.path} have {min(row_counts)} to {max(row_counts)} rows")
    return int(row_counts.pop())


def at_rows(run: CallSequence, rows: int, target: int) -> Scaled:
    """Return a forward run of `rows` rows as one of `target` rows. Raises TraceError for a training step."""
    if any("backward" in call.operator for call in run.calls):
        raise TraceError("the run has a backward pass, whose shapes do not show the rows", hint="record a forward pass")
    ratio = Fraction(target, rows)
    loops, flattened = _loops(run, rows), _flattened(run, rows)
    starts = np.array([call.start_ns for call in run.calls])
    processors = [item for item in run.phases if item.name == PROCESSOR]
    in_loop, in_flat, in_processor = (union(each).holds(starts) for each in (loops, flattened, processors))
    operator_calls: list[OperatorCall] = []
    unknown: Counter[str] = Counter()
    repeated: Counter[tuple[str, Operands]] = Counter()
    for index, call in enumerate(run.calls):
        grown = _grown(call, rows, ratio, bool(in_flat[index]))
        if grown is None:
            unknown[call.operator] += 1
        elif grown == call.operands and in_loop[index]:
            # So many copies of each call that their sum is that of all calls times the ratio.
            before = repeated[call.operator, call.operands]
            repeated[call.operator, call.operands] += 1
            call = call._replace(times=int((before + 1) * ratio) - int(before * ratio))
        elif grown == call.operands and in_processor[index] and not in_flat[index] and _is_row(call):
            unknown[call.operator] += 1
        elif grown != call.operands:
            call = called(call, grown, run.listed_bytes)
        operator_calls.append(call)
    return Scaled(replace(run, calls=tuple(operator_calls), stretched=tuple(loops), stretch=float(ratio)), unknown)


def _grown(call: OperatorCall, rows: int, ratio: Fraction, flat: bool) -> Operands | None:
    """Return the operands with other rows; None if it is not known which dimensions are rows."""
    name, operands = call.operator.partition(" (")[0], call.operands
    if call.operator in (TO_GPU, TO_HOST):
        return operands
    tensors = [item for item in operands if item.is_tensor]
    if name == "aten::embedding" and operands[1].shape[:1] == (1,) != (rows,):
        return operands  # of positions that all rows share
    if name in _TIMES:
        chosen = {index for index in _TIMES[name] if index < len(operands)}
        if name == "aten::addmm" and operands[0].shape[:1] == operands[1].shape[:1] and len(operands[0].shape) > 1:
            chosen.add(0)
        if any(not operands[index].shape or operands[index].shape[0] % rows for index in chosen):
            return None
        return tuple(_longer(item, ratio) if at in chosen else item for at, item in enumerate(operands))
    rank = max((len(item.shape) for item in tensors), default=0)
    family = call.work.family if call.work else None
    grown = []
    for index, item in enumerate(operands):
        if item.parts:
            try:
                (dim,) = operands[1].numbers()
            except (IndexError, ValueError):
                return None
            firsts = {part[0] for part in item.parts if part}
            if dim in (0, -len(item.parts[0])) or len(firsts - {0}) > 1 or firsts - {rows, 1, 0}:
                return None
            grow = ratio if rows in firsts else 1
            item = item._replace(parts=tuple((int(part[0] * grow), *part[1:]) if part else part for part in item.parts))
        elif item.is_tensor and item.shape:
            lower = len(item.shape) < rank and (family in (POINTWISE, NORM) or name == "aten::copy_")
            whole = flat and len(item.shape) == 1 and not item.shape[0] % rows
            if whole or (item.shape[0] == rows and not lower):
                item = _longer(item, ratio)
            elif not (lower or item.shape[0] == 1 or len(item.shape) == 1 or (family == LOOKUP and index == 0)):
                return None
        grown.append(item)
    if name == ATTENTION and grown[0].shape[:1] == operands[0].shape[:1] and ratio != 1:
        return None
    return tuple(grown)


def _longer(item: Operand, ratio: Fraction) -> Operand:
    """Return the operand with a longer first dimension; the later ones stay, and so their strides."""
    return item._replace(shape=(int(item.shape[0] * ratio), *item.shape[1:]))


def _is_row(call: OperatorCall) -> bool:
    """Return True if a call of a processor may be of one row: of a tensor of one dimension."""
    return bool(call.operands) and len(call.operands[0].shape) == 1


def _picked(run: CallSequence, rows: int, phase: ThreadInterval) -> list[tuple[int, str]]:
    return [
        (start, name)
        for start, name, shape in run.picks
        if phase.start_ns <= start < phase.end_ns and shape[:1] == (rows,) and len(shape) > 1
    ]


def _loops(run: CallSequence, rows: int) -> list[ThreadInterval]:
    """Return where processors loop over rows: each phase from its first pick of a row on."""
    loops = []
    for phase in run.phases:
        if phase.name == PROCESSOR and (picked := _picked(run, rows, phase)):
            selected = sum(name == _SELECT for _, name in picked)
            if any(name == _UNBIND for _, name in picked) or (rows > 1 and selected and not selected % rows):
                loops.append(phase._replace(start_ns=picked[0][0]))
    return loops


def _flattened(run: CallSequence, rows: int) -> list[ThreadInterval]:
    """Return the phases in which processors flatten rows and vocabulary into one dimension."""
    picks_of = [(phase, _picked(run, rows, phase)) for phase in run.phases if phase.name == PROCESSOR]
    return [phase for phase, picked in picks_of if any(name not in (_UNBIND, _SELECT) for _, name in picked)]


class BatchAgreement(NamedTuple):
    """Agreement of another run's calls with predicted shapes. differing: predicted and recorded texts."""

    calls: int
    equal: int
    missing: int  # recorded calls without a predicted one, or the other way round
    differing: Mapping[tuple[str, str, str], int]


def agreement(predicted: CallSequence, recorded: CallSequence) -> BatchAgreement:
    """Return how many calls of two runs agree in operator and shapes, and which differ."""
    first, second = (_shapes(run) for run in (predicted, recorded))
    equal = sum((first & second).values())
    left, right = first - second, second - first
    differing: Counter[tuple[str, str, str]] = Counter()
    for name in sorted({name for name, _ in (*left, *right)}):
        texts = [
            [shape for (operator, shape), count in side.items() if operator == name for _ in range(count)]
            for side in (left, right)
        ]
        for one, other in zip(*texts, strict=False):
            differing[name, one, other] += 1
    paired = sum(differing.values())
    whole = max(sum(first.values()), sum(second.values()))
    return BatchAgreement(whole, equal, whole - equal - paired, dict(differing))


def _shapes(run: CallSequence) -> Counter[tuple[str, str]]:
    shapes_of: Counter[tuple[str, str]] = Counter()
    for call in run.calls:
        shapes = [list(map(list, item.parts)) if item.parts else list(item.shape) for item in call.operands]
        shapes_of[call.operator.partition(" (")[0], str(shapes)] += call.times
    return shapes_of
