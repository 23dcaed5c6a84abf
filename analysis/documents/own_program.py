"""What a report shows of a program of one's own: its logits processors, its time, and what molprof took of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from molprof.analysis.documents.figures import Reports
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import Run
from molprof.common.document import Section
from molprof.common.manifest import ProcessorCalls, Program
from molprof.common.values import count_text, counted, per, time_text

_ORIGIN = {True: "the program", False: "the generation config"}


def processors_section(reports: Reports) -> Section:
    """The logits processors by class and place."""
    return reports.of_runs(
        "Logits processors", _processors,
        ("place", "index"), ("class", "text", "name"), ("from", "text", lambda item: _ORIGIN[item.own]),
        ("batches", "count"), ("steps", "count"), ("time", "ns", "time_ns"),
        ("per step", "ns", lambda item: per(item.time_ns, item.steps)), notes=reports.notes(_of_processors),
    )  # fmt: skip


def _processors(run: Run) -> Sequence[ProcessorCalls]:
    return run.program.processors if isinstance(run.program, Program) else ()


def _of_processors(report: Report) -> Iterator[str]:
    if report.run is not None and _processors(report.run):
        yield (
            "steps and time: unprofiled; what transformers makes of the generation config runs in the phases forward"
            " and sampling, and has no time of its own"
        )


def program_times(run: Run) -> str | None:
    """How the time of a program was measured; None of a capture."""
    if not isinstance(run.program, Program):
        return None
    return f"one run; its {counted(run.program.estimated_steps, 'profiled step')} count with the median of the others"


def program_notes(run: Run) -> Iterator[str]:
    """What no phase contains."""
    program = run.program
    if not isinstance(program, Program) or program.own_ns is None:
        return
    before, after = time_text(program.before_ns), time_text(program.after_ns)
    own = f"molprof's own work, which no time contains: {time_text(program.own_ns)}"
    yield f"not in the whole run: {before} before the first batch and {after} after the last; {own}"
    if program.missed:
        yield f"not recorded: {count_text(program.missed)} calls of generate, in other threads while one was recorded"
