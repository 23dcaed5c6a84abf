"""What a recording of a program says at its end: what was recorded, what was timed, and whether times are in doubt."""

from __future__ import annotations

from collections.abc import Sequence

from molprof.common.manifest import Machine
from molprof.common.values import counted
from molprof.profiler.recording.marks import Marks
from molprof.profiler.recording.program import ProgramMarks


def summary_lines(steps: Sequence[int], tokens: int, marks: Marks, machine: Machine | None) -> list[str]:
    """Lines for people. steps: of each batch. machine: while the program ran."""
    made = f"{counted(len(steps), 'batch', 'es')}, {counted(tokens, 'token')}"
    if not isinstance(marks, ProgramMarks) or marks.recorded is None:
        return [f"{made}; every step is recorded"]
    call, first, last = marks.recorded.steps
    profiled, recorded = marks.estimated_steps, last - first + 1
    others = ", all others were timed"
    if profiled > recorded:
        timed = counted(sum(steps) - profiled, "step")
        others = f"; {profiled - recorded:,} more ran under the profiler, and {timed} were timed"
    lines = [f"{made}; steps {first} to {last} of batch {call} are recorded{others}"]
    if marks.repeat() is None:
        lines.append(
            "no times without the profiler: no timed step is like those under it; call generate a second time, or "
            "choose --window"
        )
    elif machine is not None and (doubts := machine.doubts()):
        lines.append(f"times are in doubt: while the program ran, {'; '.join(doubts)}")
    return lines
