"""Choice of the part of two traces to compare kernel by kernel, or by module, function or phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from molprof.analysis.compare.kernels.by import KERNEL, OPERATOR, BySteps, by_steps
from molprof.analysis.compare.kernels.host import MODULE, PHASE, SOURCE
from molprof.analysis.compare.kernels.read import STEP, STEPS, TRACE, RecordedRows, Selection, cut
from molprof.analysis.compare.kernels.sums import Summed, summed
from molprof.common.errors import NotComparableError

_WHAT = {
    MODULE: ("modules", "molprof run --stacks or molprof capture --stacks"),
    SOURCE: ("Python functions", "molprof run --stacks or molprof capture --stacks"),
    PHASE: ("phases", "molprof run, molprof capture, or molprof.phase() in the program"),
    OPERATOR: ("operators", "torch.profiler with ProfilerActivity.CPU"),
}
_PROFILER = {
    MODULE: ", or with torch.profiler.profile(with_stack=True)",
    SOURCE: ", or with torch.profiler.profile(with_stack=True)",
}


@dataclass(frozen=True)
class Kernels:
    """Two traces by one of BYS.

    Attributes:
        region: of `pairs`, or else of `steps`.
        steps: what each row takes in the steps, by kind of step; empty where the pairs of one step or of the whole
            traces are all there is, or were asked for.
        pairs: by KERNEL, their work in order, pair by pair.
        notes: about the traces.
    """

    region: str
    steps: tuple[BySteps, ...]
    pairs: Summed | None
    notes: tuple[str, ...]

    @property
    def sides(self) -> tuple[Selection, Selection]:
        """The compared selections of both traces."""
        pairs = self.pairs or self.steps[0]
        return pairs.first, pairs.other

    @property
    def problems(self) -> tuple[str, ...]:
        """Sums that do not hold, in words."""
        pairs = () if self.pairs is None else self.pairs.problems
        return (*pairs, *(problem for item in self.steps for problem in item.problems))


def region_of(traces: Sequence[RecordedRows], region: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the region to compare of two traces and notes: STEPS where both mark steps. Raises NotComparableError."""
    with_gpu = [str(trace.info.path) for trace in traces if trace.has_gpu]
    if len(with_gpu) == 1:
        other = next(str(trace.info.path) for trace in traces if not trace.has_gpu)
        what = f"{with_gpu[0]} records GPU work and {other} does not"
        raise NotComparableError(what, hint="compare without --by")
    without = [str(trace.info.path) for trace in traces if not trace.steps]
    if region is None and without:
        some = 0 < len(without) < len(traces)
        return TRACE, (f"no steps are marked in {without[0]}: the whole traces are compared",) * some
    if region is not None and region != TRACE and without:
        raise NotComparableError(f"no steps are marked in {' and '.join(without)}", hint=f"--of {TRACE}")
    return region or STEPS, ()


def compared(traces: Sequence[RecordedRows], region_asked: str | None, by: str, notes: tuple[str, ...] = ()) -> Kernels:
    """Return two traces by one of BYS. asked: a region; None: all steps if both mark steps, else the whole traces."""
    check_recorded(traces, by)
    region, more = region_of(traces, region_asked)
    first, other = picked(traces, region)
    differences = by_steps(first, other, by)
    if by != KERNEL:
        return Kernels(region, differences, None, (*notes, *more))
    one_step = all(len(trace.steps) == 1 for trace in traces)
    if region_asked is not None or region == TRACE or one_step:
        region = STEP if region_asked is None and one_step and region == STEPS else region
        return Kernels(region, (), summed(*picked(traces, region)), (*notes, *more))
    return Kernels(STEP, differences, summed(*picked(traces, STEP)), (*notes, *more))


def picked(traces: Sequence[RecordedRows], region: str) -> list[Selection]:
    """Return the region of each trace. Raises NotComparableError where neither has work in it."""
    cuts = [cut(trace, region) for trace in traces]
    if not any(lane.items for one in cuts for lane in one.lanes):
        raise NotComparableError(f"no work is recorded in the {region} of either", hint=f"--of {TRACE}")
    return cuts


def check_recorded(traces: Sequence[RecordedRows], by: str) -> None:
    """Raise NotComparableError where a trace lacks the records that the comparison is by."""
    if by not in _WHAT:
        return
    without = [str(trace.info.path) for trace in traces if not _records(trace, by)]
    if without:
        what, how = _WHAT[by]
        raise NotComparableError(
            f"{' and '.join(dict.fromkeys(without))} records no {what}"
            if len(set(without)) == 1
            else f"{' and '.join(without)} record no {what}",
            hint=f"record them with {how}{_PROFILER.get(by, '')}",
        )


def _records(trace: RecordedRows, by: str) -> bool:
    host = trace.host.get(by)
    return any(getattr(row, by) for row in trace.rows) or (host is not None and any(host.places))
