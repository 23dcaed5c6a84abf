"""Who asks for launches, copies and host syncs: by module, Python function and operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from molprof.analysis.origin.read import BACKWARD, NO_CALL, WITHOUT, Frame, Origins, path_of
from molprof.analysis.origin.tree import class_name
from molprof.common.values import short_source

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
    gpu_ns: dict[int, int] = {}
    for work in origins.work:
        if work.call_id is not None:
            gpu_ns[work.call_id] = gpu_ns.get(work.call_id, 0) + work.dur
    places = _Places(origins)
    for call in origins.calls:
        if call.launches or call.graph_launches:
            places.add(call.frame_id, gpu_ns.get(call.id, 0), call.step_launches)
    return places.sorted(lambda place: (place.count, place.time_ns))


def copy_places(origins: Origins) -> list[Place]:
    """Kernels that copy, cast or concatenate, and memory copies, longest GPU time first."""
    places = _Places(origins)
    for work in origins.work:
        if work.cls in COPY_CLASSES or work.category == "gpu_memcpy":
            places.add(work.frame_id, work.dur, 0, NO_CALL if work.call_id is None else None, work.captured)
    return places.sorted(lambda place: (place.time_ns, place.count))


def operator_places(origins: Origins) -> list[Place]:
    """Operators, longest self time first: without the operators that they call."""
    places = _Places(origins)
    for frame, own_ns in origins.operators:
        places.add(frame.id, own_ns, 0)
    return places.sorted(lambda place: (place.time_ns, place.count))


def sync_places(origins: Origins) -> list[Place]:
    """Host syncs, longest time first."""
    places = _Places(origins)
    for call in origins.calls:
        if call.syncs:
            places.add(call.frame_id, call.sync_ns, 0)
    return places.sorted(lambda place: (place.time_ns, place.count))


class _Places:
    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._found: dict[tuple[str, str, str], Place] = {}
        self._names: dict[tuple[int | None, tuple[Frame, ...]], tuple[str, str, str, str]] = {}

    def add(
        self,
        frame_id: int | None,
        time_ns: int,
        steps: int,
        instead: str | None = None,
        captured: tuple[Frame, ...] = (),
    ) -> None:
        """captured: of work of a graph, what was captured, which says more than what launched the graph."""
        key = frame_id, captured
        if key not in self._names:
            chain = captured or self._origins.chain(frame_id)
            paths = [[name for _, name in path_of(by, chain)] for by in WITHOUT]
            modules, functions, operators = paths
            kinds = [kind for kind, _ in path_of("module", chain)]
            plain = [class_name(name) if kind == "module" else name for kind, name in zip(kinds, modules, strict=True)]
            asked = " > ".join(dict.fromkeys((operators[0], operators[-1])))
            self._names[key] = "/".join(plain), functions[-1], asked, "/".join(modules)
        module, source, operator, whole = self._names[key] if instead is None else (instead,) * 4
        place = self._found.setdefault((module, source, operator), Place(module, source, operator))
        place.modules.add(whole)
        place.count += 1
        place.time_ns += time_ns
        place.step_count += steps

    def sorted(self, key: Callable[[Place], tuple[int, int]]) -> list[Place]:
        return sorted(self._found.values(), key=key, reverse=True)


PLACES = {"launches": launch_places, "copies": copy_places, "syncs": sync_places}
