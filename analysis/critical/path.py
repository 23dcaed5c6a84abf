"""The critical path of a trace, the most that each part could gain, and the time after changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from molprof.analysis.critical.changes import CALLS, HOST, LAUNCHES, OPERATORS, SYNCS, WORDS, WhatIfChange
from molprof.analysis.critical.recorded import NONE, read_named, read_recorded
from molprof.analysis.critical.replay import ON_GPU, Replay, Replayed, needs_names
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import TraceError, UsageError
from molprof.common.values import time_text

# Classes of GPU work, and phases, that are tried without their time: those that take most of the path.
_MOST = 8
# A gain below this share of the length is not shown.
LEAST_RATIO = 0.005
# A first work that waits longer for nothing that is recorded is told.
_LATE_RATIO = 0.05


@dataclass(frozen=True)
class CriticalPath:
    """The critical path of a trace, with bounds of gains.

    Attributes:
        steps: marked ones; 0 where the whole trace is meant.
        without: single changes by which it would be shorter, the largest gain first.
        changes, changed: what the user asks for, and the trace with that; None without.
        launches: what remains of the calls with `launches=graph`.
    """

    info: TraceInfo
    steps: int
    recorded: Replayed
    without: tuple[tuple[WhatIfChange, Replayed], ...]
    changes: tuple[WhatIfChange, ...]
    changed: Replayed | None
    launches: int
    notes: tuple[str, ...]


def read_critical_path(engine: TraceProcessor, info: TraceInfo, changes: Sequence[WhatIfChange] = ()) -> CriticalPath:
    """Return the path of all marked steps, or of the whole trace.

    The trace must be loaded with Python stacks. Raises TraceError where it records nothing of the host or takes no
    time, UsageError where a change selects nothing.
    """
    recorded = read_recorded(engine, info)
    replay = Replay(recorded)
    if needs_names(replay, changes):
        recorded = replace(recorded, named=read_named(engine))
        replay = Replay(recorded)
    if not len(recorded.call_start) and any(change.name in WORDS for change in changes):
        raise UsageError(
            "no calls of CUDA or HIP are recorded, so there are no launches and syncs to change",
            hint="phases, operators and functions can be",
        )
    replayed = replay.run()
    if not replayed.length_ns:
        raise TraceError(f"all that {info.path} records takes 0 ns", hint="a path goes over time: record some steps")
    least = LEAST_RATIO * replayed.length_ns
    tried = [(change, replay.run([change])) for change in _single(replay, replayed)]
    shorter = [(change, one) for change, one in tried if one.length_ns < replayed.length_ns - least]
    notes = list(recorded.notes)
    late = (recorded.previous == NONE) & (recorded.call_of != NONE)
    delays = recorded.work_start[late] - recorded.call_start[recorded.call_of[late]]
    if (longest := int(delays.max(initial=0))) > _LATE_RATIO * replayed.length_ns:
        notes.append(
            f"the first work of a stream starts {time_text(longest)} after its launch: the GPU may have been busy with "
            "work that is not recorded"
        )
    return CriticalPath(
        info,
        recorded.steps,
        replayed,
        tuple(sorted(shorter, key=lambda item: (item[1].length_ns, str(item[0])))),
        tuple(changes),
        replay.run(changes) if changes else None,
        int(recorded.segment[-1]) + 1 if len(recorded.segment) else 0,
        tuple(notes),
    )


def _single(replay: Replay, replayed: Replayed) -> list[WhatIfChange]:
    """Return the changes that are tried one by one."""
    recorded = replay.recorded
    classes = Counter({piece.what: ns for piece, ns in replayed.path.items() if piece.where == ON_GPU})
    phases = Counter(
        {name: sum(one.length_ns for one in by_thread.values()) for name, by_thread in replay.named_phases.items()}
    )
    names = [name for each in (classes, phases) for name, _ in each.most_common(_MOST)]
    whole = []
    if len(recorded.call_start):
        whole = [WhatIfChange(LAUNCHES, None), WhatIfChange(CALLS, 0.0)]
        if (recorded.target != NONE).any():
            whole.append(WhatIfChange(SYNCS, None))
    if recorded.operators:
        whole.append(WhatIfChange(OPERATORS, 0.0))
    if len(recorded.work_start):
        whole.append(WhatIfChange(HOST, 0.0))
    return [*(WhatIfChange(name, 0.0) for name in names), *whole]
