"""`molprof compare --by kernel`: two traces kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from molprof.commands.options import deliver, note
from molprof.common.errors import NotComparableError, UsageError

BYS = ("kernel",)


def check_by(by: str | None, region: str | None, count: int, excluded: Sequence[object]) -> None:
    """Refuse options that exclude each other. Raises UsageError."""
    if by is None:
        if region is not None:
            raise UsageError("--of says what of two traces is compared kernel by kernel", hint="--by kernel")
        return
    if count != 2:
        raise UsageError(f"--by {by} compares two traces, and {count} are given", hint="give two")
    if any(excluded):
        raise UsageError(
            f"--by {by} takes no --fail-if, --predictions, --tokens or --molecules", hint="leave these out"
        )


def compare_by(
    traces: Sequence[Path], region: str | None, reading: tuple[str | None, bool], style: str, output: Path | None
) -> int:
    """Write the comparison of two traces. The exit code is 3 if the sum does not hold.

    reading: native trace processor, partial. Raises NotComparableError where only one of them records GPU work, or the
    steps that are asked for.
    """
    from molprof.analysis.compare.kernels.cut import STEP, TRACE, cut
    from molprof.analysis.compare.kernels.pairing import pair
    from molprof.analysis.compare.kernels.read import read_recorded
    from molprof.analysis.compare.kernels.sums import summed
    from molprof.analysis.documents.kernels import kernels_document

    found = []
    for trace in traces:
        recorded, remarks = read_recorded(trace, native_path=reading[0], partial=reading[1])
        found.append(recorded)
        for remark in remarks:
            note(f"{trace}: {remark}")
    gpu = [trace for trace, recorded in zip(traces, found, strict=True) if recorded.has_gpu]
    if len(gpu) == 1:
        other = next(trace for trace in traces if trace != gpu[0])
        raise NotComparableError(f"{gpu[0]} records GPU work and {other} does not", hint="compare without --by kernel")
    without = [str(trace) for trace, recorded in zip(traces, found, strict=True) if not recorded.steps]
    if region is None:
        region = TRACE if without else STEP
        if 0 < len(without) < len(traces):
            note(f"no steps are marked in {without[0]}: the whole traces are compared")
    elif region != TRACE and without:
        raise NotComparableError(f"no steps are marked in {' and '.join(without)}", hint=f"--of {TRACE}")
    result = summed(pair(*(cut(recorded, region) for recorded in found)))
    deliver(kernels_document(result, region), style, output)
    return 3 if result.problems else 0
