"""Unprofiled times: of a whole pass, per molecule and token, and by phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from molprof.analysis.figures.figure import Figure, of_run
from molprof.analysis.figures.run_model import RepeatFigures, Run
from molprof.common.manifest import SETUP_PHASES
from molprof.common.values import Unit, per

_GROUP = "Unprofiled time"
# From the wall time of a pass, and the times of its phases.
_Value = Callable[[Run, "int | None", Mapping[str, "int | None"]], "float | None"]


def _timed(name: str, label: str, value: _Value, unit: Unit = "ns") -> Figure:
    """Of the median pass, and of each timed pass."""

    def median(run: Run) -> float | None:
        return value(run, run.wall_ns.median, {phase: figures.wall_ns for phase, figures in run.phases.items()})

    def of_repeat(run: Run, repeat: RepeatFigures) -> float | None:
        return value(run, repeat.wall_ns, repeat.phases_ns)

    return Figure(name, _GROUP, label, unit, of_run(median), repeat=of_repeat)


def _total(name: str, label: str, divisor: Callable[[Run], int]) -> Figure:
    """Time of a pass over a number of the run."""
    return _timed(name, label, lambda run, wall_ns, phases_ns: per(wall_ns, divisor(run)))


def _phase(name: str, label: str, steps: Callable[[Run], int]) -> Figure:
    """Time of a phase per step that has it."""
    return _timed(f"{name}_ns", label, lambda run, wall_ns, phases_ns: per(phases_ns.get(name), steps(run)))


def _once(name: str, label: str, value: Callable[[Run], float | None], unit: Unit = "ns") -> Figure:
    return Figure(name, _GROUP, label, unit, of_run(value), once=True)


def _setup_ns(run: Run, wall_ns: int | None, phases_ns: Mapping[str, int | None]) -> int | None:
    known = [phase_ns for name in SETUP_PHASES if (phase_ns := phases_ns.get(name)) is not None]
    return sum(known) if known else None


TIMES = (
    _timed("wall_ns", "total time (median)", lambda run, wall_ns, phases_ns: wall_ns),
    _once("wall_low_ns", "total time, lowest", lambda run: run.wall_ns.low),
    _once("wall_high_ns", "total time, highest", lambda run: run.wall_ns.high),
    _total("ns_per_molecule", "time per molecule", lambda run: run.molecules),
    _total("ns_per_token", "time per generated token", lambda run: run.generated_tokens),
    _timed("tokens_per_s", "generated tokens per s", lambda run, ns, _: per(run.generated_tokens * 1e9, ns), "number"),
    _timed("setup_ns", "set-up time", _setup_ns),
    _phase("prefill", "prefill time per batch", lambda run: run.batches),
    _phase("forward", "forward time per decode step", lambda run: run.decode_steps),
    _phase("processor", "processor time per step", lambda run: run.steps),
    _phase("sampling", "sampling time per step", lambda run: run.steps),
    _phase("bookkeeping", "bookkeeping time per step", lambda run: run.steps),
    _once("peak_memory_bytes", "peak memory in timed passes", lambda run: run.peak_memory_bytes, "bytes"),
    _once("profiled_ratio", "profiled / unprofiled step time", lambda run: run.profiled_ratio, "number"),
)
