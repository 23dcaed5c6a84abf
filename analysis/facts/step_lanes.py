"""The time of each step, in lanes: processes, or threads of them, whose steps do not overlap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from molprof.analysis.facts.source import Lane, Lanes


def lanes_of(steps: Iterable[Lane]) -> Lanes:
    """Return the steps, each up to its end or the start of the next in its lane, in order of lane and start.

    A lane is a process, whose thread is None, where all its steps are on one thread; else a thread. Steps of no process
    are left out.
    """
    processes: dict[int, list[Lane]] = defaultdict(list)
    for step in steps:
        if step[3] is not None:
            processes[step[3]].append(step)
    found: Lanes = []
    for process, mine in sorted(processes.items()):
        lanes: dict[int | None, list[Lane]] = defaultdict(list)
        threads = {step[4] for step in mine if step[4] is not None}
        for step in mine:
            lanes[step[4] if len(threads) > 1 else None].append(step)
        for thread, one in lanes.items():
            one.sort(key=lambda step: (step[1], step[2], step[0]))
            nexts = [*(step[1] for step in one[1:]), one[-1][2]]
            found += [
                (number, ts, min(ts_end, next_ts), process, thread)
                for (number, ts, ts_end, *_), next_ts in zip(one, nexts, strict=True)
            ]
    return found
