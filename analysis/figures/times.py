"""Unprofiled times: of a whole pass, per molecule and token, and by phase."""

from __future__ import annotations

from molprof.analysis.figures.figure import Figure, of_run, per_molecule
from molprof.analysis.figures.run_model import SETUP_PHASES, RepeatFigures, Run
from molprof.common.values import per

_GROUP = "Time, not profiled"


def _phase(name: str, label: str) -> Figure:
    """Time of a phase per step that has it."""

    def steps(run: Run) -> int:
        return {"prefill": run.batches, "forward": run.decode_steps}.get(name, run.steps)

    return Figure(
        f"{name}_ns",
        _GROUP,
        label,
        "ns",
        of_run(lambda run: per(run.phases[name].wall_ns, steps(run))),
        repeat=lambda run, repeat: per(repeat.phases_ns.get(name), steps(run)),
    )


def _setup_ns(run: Run) -> int | None:
    known = [wall_ns for name in SETUP_PHASES if (wall_ns := run.phases[name].wall_ns) is not None]
    return sum(known) if known else None


def _setup_of_repeat(run: Run, repeat: RepeatFigures) -> int | None:
    known = [repeat.phases_ns[name] for name in SETUP_PHASES if name in repeat.phases_ns]
    return sum(known) if known else None


TIMES = (
    Figure(
        "wall_ns",
        _GROUP,
        "total time (median)",
        "ns",
        of_run(lambda run: run.wall_ns.median),
        repeat=lambda run, repeat: repeat.wall_ns,
    ),
    Figure("wall_low_ns", _GROUP, "  lowest", "ns", of_run(lambda run: run.wall_ns.low), once=True),
    Figure("wall_high_ns", _GROUP, "  highest", "ns", of_run(lambda run: run.wall_ns.high), once=True),
    Figure(
        "ns_per_molecule",
        _GROUP,
        "per molecule",
        "ns",
        per_molecule(lambda run: run.wall_ns.median),
        repeat=lambda run, repeat: per(repeat.wall_ns, run.molecules),
    ),
    Figure(
        "ns_per_token",
        _GROUP,
        "per generated token",
        "ns",
        of_run(lambda run: per(run.wall_ns.median, run.generated_tokens)),
        repeat=lambda run, repeat: per(repeat.wall_ns, run.generated_tokens),
    ),
    Figure("setup_ns", _GROUP, "set-up, total", "ns", of_run(_setup_ns), repeat=_setup_of_repeat),
    _phase("prefill", "prefill per batch"),
    _phase("forward", "forward per decode step"),
    _phase("processor", "processor per step"),
    _phase("sampling", "sampling per step"),
    _phase("bookkeeping", "bookkeeping per step"),
    Figure(
        "profiled_ratio",
        _GROUP,
        "profiled over unprofiled",
        "number",
        of_run(lambda run: run.profiled_ratio),
        once=True,
    ),
    Figure(
        "mark_ratio",
        _GROUP,
        "share of phase timestamps",
        "ratio",
        of_run(lambda run: run.marks.time_ratio),
        compared=False,
    ),
    Figure(
        "unmarked_wall_ns",
        _GROUP,
        "pass without phase timestamps",
        "ns",
        of_run(lambda run: run.marks.unmarked_wall_ns),
        compared=False,
    ),
)
