"""How the figures of a comparison are got from a report: of its run, of a phase, per molecule or step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import PhaseFigures, RepeatFigures, Run
from molprof.common.phases import SETUP_PHASES
from molprof.common.values import Cell


def of_run(value: Callable[[Run], Cell]) -> Callable[[Report], Cell]:
    """A figure of the run; not recorded in a trace of other origin."""
    return lambda report: None if report.run is None else value(report.run)


def per(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def per_molecule(value: Callable[[Run], float | None]) -> Callable[[Report], Cell]:
    return of_run(lambda run: per(value(run), run.molecules))


def _steps_of(run: Run, phase: str) -> int:
    """Steps that have the phase."""
    return {"prefill": run.batches, "forward": run.decode_steps}.get(phase, run.steps)


def phase_ns(name: str) -> Callable[[Report], Cell]:
    """Unprofiled time of a phase per step that has it."""
    return of_run(lambda run: per(run.phases[name].wall_ns, _steps_of(run, name)))


def phase_of_repeat(name: str) -> Callable[[Run, RepeatFigures], float | None]:
    return lambda run, repeat: per(repeat.phases_ns.get(name), _steps_of(run, name))


def setup_of_repeat(run: Run, repeat: RepeatFigures) -> float | None:
    known = [repeat.phases_ns[name] for name in SETUP_PHASES if name in repeat.phases_ns]
    return sum(known) if known else None


def window_phase(name: str, figure: Callable[[PhaseFigures], float | None]) -> Callable[[Report], Cell]:
    """A figure of a phase per recorded step."""
    return of_run(lambda run: per(figure(run.phases[name]), run.window.steps))


def class_count(run: Run, *names: str) -> int | None:
    """Kernels of these classes in the recorded steps; None where no GPU work is recorded."""
    classes = run.window.classes
    return None if classes is None else sum(classes[name].count for name in names if name in classes)


def elementwise_to_attention(run: Run) -> float | None:
    """Kernels of class elementwise per kernel of class attention, in the recorded steps."""
    return per(class_count(run, "elementwise"), class_count(run, "attention"))


def setup_ns(run: Run) -> int | None:
    parts = [run.phases[name].wall_ns for name in SETUP_PHASES]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def device_ratio(report: Report) -> float | None:
    span_ns = sum(device.span_ns for device in report.devices.values())
    return per(sum(device.busy_ns for device in report.devices.values()), span_ns)


def of_gpu(value: Callable[[Report], Cell]) -> Callable[[Report], Cell]:
    """A figure of the trace's GPU calls or work; not recorded where the trace has neither."""
    return lambda report: value(report) if report.trace.gpu_recorded else None


def launches_per(figure: Callable[[Run], float | None], column: str) -> Callable[[Report], Cell]:
    """Launches by steps or tokens: of the run, else of the steps that the engine of a trace marked, all together."""

    def value(report: Report) -> Cell:
        if report.run is not None:
            return figure(report.run)
        marked = [row for row in report.table("steps").to_json() if row["steps"]]
        if len({row["source"] for row in marked}) > 1:
            return None  # marks of two programs may lie in each other
        launches, parts = _column(marked, "launches"), _column(marked, column)
        return None if launches is None else per(launches, parts)

    return value


def _column(rows: Sequence[dict[str, Cell]], column: str) -> int | None:
    """The sum; None where a row does not know its own."""
    values = [value for row in rows if isinstance(value := row[column], int)]
    return sum(values) if len(values) == len(rows) else None
