"""Who asks for launches, copies and host syncs: by module, Python function and operator; and findings about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from molprof.analysis.figures.model import Finding
from molprof.analysis.origin.read import BACKWARD, NO_CALL, WITHOUT, Frame, Origins, path_of
from molprof.analysis.origin.tree import Tree, class_name
from molprof.common.values import count_text, counted, number_text, percent_text, short_source, time_text

# Share of GPU time.
LEAST_COPIES = 0.01
# Share of launches in layers that are alike.
LEAST_IN_LAYERS = 0.5
# Share of launches of one function.
LEAST_IN_FUNCTION = 0.05
COPY_CLASSES = ("copy", "cat")
_NOWHERE = frozenset({BACKWARD, *WITHOUT.values()})


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
        names = [item for item in (self.operator, short_source(self.source)) if item not in _NOWHERE]
        inside = "" if self.module in _NOWHERE else f" in {len(self.modules)} x {self.module}"
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


def find_places(origins: Origins, modules: Tree) -> tuple[Finding, ...]:
    """What the places show. modules: the tree by module, folded."""
    return (*_layers(origins, modules), *_functions(origins), *_copies(origins), *_syncs(origins))


def _layers(origins: Origins, modules: Tree) -> Iterator[Finding]:
    """The outermost modules that repeat and hold most launches."""
    layers = [tree for _, tree in modules.walk() if tree.kind == "module" and tree.count > 1 and tree.children]
    layer = max(layers, key=lambda tree: tree.amount("launches"), default=None)
    total = modules.amount("launches")
    if layer is None or not total or layer.amount("launches") < LEAST_IN_LAYERS * total:
        return
    launches = layer.amount("launches")
    runs = _rates(origins, layer.amount("step_launches"))
    parts = sorted(layer.children, key=lambda tree: -tree.amount("launches"))
    most = ", ".join(f"{tree.name} {count_text(tree.amount('launches'))}" for tree in parts[:3])
    yield Finding(
        id="layer_launches",
        title="Identical layers make most launches",
        evidence=(
            f"{layer.count} x {layer.name} make {count_text(launches)} of {counted(total, 'launch', 'es')} "
            f"({percent_text(launches / total)}), {number_text(launches / layer.count)} per layer{runs}; of them {most}"
        ),
        gain_ratio=None,
        fix="Compile the layer (torch.compile), capture the step in a graph, or fuse the operators that launch most.",
        explanation="What is saved in one layer is saved in each of them.",
        query="SELECT module, COUNT() AS count, SUM(dur) AS gpu_ns FROM molprof_origin GROUP BY module ORDER BY 2 DESC",
        figures={"layers": layer.count, "launches": launches, "launches_ratio": launches / total},
    )


def _functions(origins: Origins) -> Iterator[Finding]:
    """The functions that launch several kernels for each of their modules, where one kernel would pay."""
    places = launch_places(origins)
    total = sum(place.count for place in places)
    functions: dict[tuple[str, str], list[Place]] = {}
    for place in places:
        if place.source not in _NOWHERE:
            functions.setdefault((place.source, place.module), []).append(place)
    several = [found for found in functions.values() if len(found) > 1 and _count(found) >= LEAST_IN_FUNCTION * total]
    several.sort(key=_count, reverse=True)
    if not several:
        return
    launches = sum(map(_count, several))
    texts = []
    for found in several[:3]:
        first = found[0]
        modules = set().union(*(place.modules for place in found))
        inside = "" if first.module in _NOWHERE else f" in {len(modules)} x {first.module}"
        rates = _rates(origins, sum(place.step_count for place in found))
        operators = ", ".join(f"{count_text(place.count)} {place.operator}" for place in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        share = percent_text(_count(found) / total)
        texts.append(
            f"{short_source(first.source)}{inside}: {count_text(_count(found))} ({share}){rates}, {operators}{more}"
        )
    yield Finding(
        id="launches_by_function",
        title="Functions that launch kernel after kernel",
        evidence=(
            f"{counted(len(several), 'function')} {'makes' if len(several) == 1 else 'make'} {count_text(launches)} "
            f"of {counted(total, 'launch', 'es')}: " + "; ".join(texts)
        ),
        gain_ratio=None,
        fix="Fuse the operators of such a function: compile it (torch.compile), or call one kernel that does it all.",
        explanation="Each launch costs CPU time, and each kernel reads and writes what the next one reads again.",
        query="SELECT source, module, operator, COUNT() AS count, SUM(dur) AS gpu_ns FROM molprof_origin"
        " GROUP BY source, module, operator ORDER BY count DESC",
        figures={"functions": len(several), "launches": launches, "launches_ratio": launches / total},
    )


def _count(places: Iterable[Place]) -> int:
    return sum(place.count for place in places)


def _rates(origins: Origins, step_launches: int) -> str:
    """Launches per recorded step and generated token, where these are known."""
    found = f", {number_text(step_launches / origins.steps)} per step" if origins.steps else ""
    return f"{found}, {number_text(step_launches / origins.tokens)} per token" if origins.tokens else found


def _copies(origins: Origins) -> Iterator[Finding]:
    places = copy_places(origins)
    gpu_ns = origins.totals["gpu_ns"]
    copies_ns, count = sum(place.time_ns for place in places), sum(place.count for place in places)
    if not gpu_ns or copies_ns < LEAST_COPIES * gpu_ns:
        return
    yield Finding(
        id="copies_by_place",
        title="Copies and casts",
        evidence=(
            f"copies, casts and concatenations take {time_text(copies_ns)} of {time_text(gpu_ns)} GPU time "
            f"({percent_text(copies_ns / gpu_ns)}), {count_text(count)} in all: " + _most(places)
        ),
        gain_ratio=None,
        fix="Keep one dtype and layout between the operators on both sides, or write into the target at once.",
        explanation="Such a kernel computes nothing: it moves data that another operator wants in another form.",
        query="origin",
        figures={"copies": count, "gpu_ns": copies_ns, "gpu_time_ratio": copies_ns / gpu_ns},
    )


def _syncs(origins: Origins) -> Iterator[Finding]:
    places = sync_places(origins)
    if not places:
        return
    count, time_ns = sum(place.count for place in places), sum(place.time_ns for place in places)
    yield Finding(
        id="syncs_by_place",
        title="Host syncs",
        evidence=f"{counted(count, 'host sync')}, {time_text(time_ns)} in all: " + _most(places),
        gain_ratio=None,
        fix="Keep the value on the device, or read it later or less often.",
        explanation="The CPU waits until the GPU has caught up, and launches nothing meanwhile.",
        query="host_syncs",
        figures={"syncs": count, "time_ns": time_ns},
    )


def _most(places: Iterable[Place]) -> str:
    """The first three, in words."""
    return "; ".join(
        f"{count_text(place.count)} ({time_text(place.time_ns)}) {place.text}" for place in list(places)[:3]
    )
