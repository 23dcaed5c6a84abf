"""GPU times of single operators that `molprof replay` measured on the device, for predictions of that device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import DecodeError, Struct, json

from molprof.analysis.predict.run import CallSequence, named
from molprof.analysis.roofline.peaks import Peaks, peaks_of
from molprof.analysis.roofline.products import LeastWork
from molprof.common.errors import UsageError
from molprof.common.text import shortened

_HINT = "a file of molprof replay RUN --op N --format json -o FILE, on the device"


class _Here(Struct):
    device: str
    gpu_ns: float | None


class _MeasuredReplay(Struct):
    operator: str
    work: LeastWork | None
    measured: _Here


def read_measured(
    paths: Sequence[Path], device: Peaks, runs: Sequence[CallSequence]
) -> dict[tuple[str, LeastWork], float]:
    """Return the measured GPU time of a call by operator and least work, ns.

    Raises UsageError for another file, one of another device or without a GPU, and one that no call matches.
    """
    times: dict[tuple[str, LeastWork], float] = {}
    for path in paths:
        try:
            one = json.decode(path.read_bytes(), type=_MeasuredReplay)
        except (OSError, DecodeError) as problem:
            raise UsageError(f"{path}: {shortened(str(problem), 120)}", hint=_HINT) from None
        here = one.measured
        if here.gpu_ns is None or peaks_of(here.device).source != device.source:
            what = f"on {here.device!r}" if here.gpu_ns is not None else "without a GPU"
            raise UsageError(f"{path} was measured {what}, and the prediction is for {device.source}", hint=_HINT)
        if not any(
            one.work is not None and named(call) == (one.operator, one.work) for run in runs for call in run.calls
        ):
            raise UsageError(f"{path}: no call of the run is {one.operator} of this size", hint=_HINT)
        assert one.work is not None
        times[one.operator, one.work] = here.gpu_ns
    return times
