"""Who asks for launches, copies and host syncs: by module, Python function and operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from molprof.analysis.origin.read import BACKWARD, NO_CALL, WITHOUT, Origins, StackFrame, path_of, sums
from molprof.common.values import class_names, short_source

COPY_CLASSES = ("copy", "cat")
NOWHERE = frozenset({BACKWARD, *WITHOUT.values()})


@dataclass
class Place:
    """A module, Python function and operator, and what they ask for. Modules of one class count together."""

    module: str  # classes from the outermost to the innermost, with / between them
    source: str  # file(line): name of the innermost function
    operator: str  # the innermost, behind the outermost where that is another
    modules: set[str] = field(default_factory=set)  # the same with their numbers
    count: int = 0
    time_ns: int = 0
    step_count: int = 0  # inside recorded steps

    @property
    def known(self) -> bool:
        """The call is recorded."""
        return self.operator != NO_CALL

    @property
    def text(self) -> str:
        if not self.known:
            return "whose launch is not recorded"
        names = [item for item in (self.operator, short_source(self.source)) if item not in NOWHERE]
        inside = "" if self.module in NOWHERE else f" in {len(self.modules)} x {self.module}"
        return (", ".join(names) or "without an operator or function") + inside


def launch_places(origins: Origins) -> list[Place]:
    """Launches, those of graphs included, most first; time_ns: of the GPU work that they started."""
    calls = origins.calls.where(origins.calls.known("kind"))
    in_steps = (calls["kind"] == "launch") & calls.known("step_id")
    return sorted(_places(origins, calls["frame_id"].tolist(), calls["gpu_ns"], in_steps), key=_by_count, reverse=True)


def copy_places(origins: Origins) -> list[Place]:
    """Kernels that copy, cast or concatenate, and memory copies, longest GPU time first."""
    work = origins.work.where(np.isin(origins.work["class"], COPY_CLASSES) | (origins.work["category"] == "gpu_memcpy"))
    around = [
        NO_CALL if call is None else origins.captured.get(number, frame)
        for number, call, frame in work.select("id", "call_id", "frame_id").rows()
    ]
    return sorted(_places(origins, around, work["dur"]), key=_by_time, reverse=True)


def operator_places(origins: Origins) -> list[Place]:
    """Operators, longest self time first: without the operators that they call."""
    operators = origins.operators
    return sorted(_places(origins, operators["id"].tolist(), operators["own_ns"]), key=_by_time, reverse=True)


def sync_places(origins: Origins) -> list[Place]:
    """Host syncs, longest time first."""
    syncs = origins.calls.where(origins.calls["is_sync"] == 1)
    return sorted(_places(origins, syncs["frame_id"].tolist(), syncs["dur"]), key=_by_time, reverse=True)


def _by_count(place: Place) -> tuple[int, int]:
    return place.count, place.time_ns


def _by_time(place: Place) -> tuple[int, int]:
    return place.time_ns, place.count


def _places(
    origins: Origins, around: Iterable[Any], times_ns: np.ndarray, in_steps: np.ndarray | None = None
) -> Iterable[Place]:
    """around: of each piece of work its frame, what was captured for it, which says more than what launched the graph,
    or NO_CALL.
    """
    ones = np.ones(len(times_ns))
    found: dict[tuple[str, ...], Place] = {}
    for item, amounts in sums(around, ones, times_ns, 0 * ones if in_steps is None else in_steps).items():
        module, source, operator, whole = [NO_CALL] * 4 if item == NO_CALL else _names(origins, item)
        place = found.setdefault((module, source, operator), Place(module, source, operator))
        place.modules.add(whole)
        place.count += amounts[0]
        place.time_ns += amounts[1]
        place.step_count += amounts[2]
    return found.values()


def _names(origins: Origins, item: int | tuple[StackFrame, ...] | None) -> list[str]:
    """Classes of the modules, the function, the operators, and the modules with their numbers."""
    chain = item if isinstance(item, tuple) else origins.chain(item)
    modules, functions, operators = (path_of(by, chain) for by in WITHOUT)
    plain = "/".join(class_names(name) if kind == "module" else name for kind, name in modules)
    asked = " > ".join(dict.fromkeys((operators[0][1], operators[-1][1])))
    return [plain, functions[-1][1], asked, "/".join(name for _, name in modules)]


PLACES = {"launches": launch_places, "copies": copy_places, "syncs": sync_places}
