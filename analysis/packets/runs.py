"""Whether a trace holds one run: in each, a correlation number stands for one call and its GPU work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from molprof.analysis.packets.recording import Linked
from molprof.analysis.packets.tracks import Place
from molprof.common.errors import TraceError

_HINT = "export each run or process into a file of its own, and compare the files: molprof compare"


def check_one_run(name: str, linked: Sequence[Linked], places: Sequence[Place]) -> None:
    """Refuses a trace in which calls of several processes, or work of several runs, share a number.

    places: of each of `linked`. Its work would be attributed to the wrong call. Raises TraceError.
    """
    calls: defaultdict[int, set[int | str]] = defaultdict(set)
    devices: defaultdict[int, set[tuple[int | str, object]]] = defaultdict(set)
    graphs: set[int] = set()
    for event, place in zip(linked, places, strict=True):
        if event.is_work:
            devices[event.number].add((place.pid, event.device))
        else:
            calls[event.number].add(place.pid)
            if event.is_graph:
                graphs.add(event.number)
    for number, pids in calls.items():
        if len(pids) > 1:
            raise _refusal(name, "calls", number, pids)
    for number, found in devices.items():
        pids = {pid for pid, _ in found}
        # One graph launch may start work on several devices.
        if len(pids) > 1 and (number not in graphs or len({device for _, device in found}) < len(pids)):
            raise _refusal(name, "GPU work", number, pids)


def _refusal(name: str, what: str, number: int, pids: set[int | str]) -> TraceError:
    first, second = sorted(map(str, pids))[:2]
    shared = f"{what} of process {first} and process {second} have the same correlation number, {number}"
    return TraceError(f"{name} holds several runs, whose calls and kernels cannot be told apart: {shared}", _HINT)
