"""Which layers and functions launch, copy and wait: found in a report by module, source, operator or kernel."""

from __future__ import annotations

from collections.abc import Iterable

from molprof.analysis.findings.known import Known
from molprof.analysis.findings.rule import Found, rule
from molprof.analysis.origin.read import NOWHERE, Origins, Place
from molprof.common.values import count_text, counted, number_text, percent_text, short_source, time_text

# Share of GPU time.
LEAST_COPIES = 0.01
# Share of launches in layers that are alike.
LEAST_IN_LAYERS = 0.5
# Share of launches of one function.
LEAST_IN_FUNCTION = 0.05


@rule(
    id="layer_launches",
    title="Identical layers make most launches",
    fix="Compile the layer (torch.compile), capture the step in a graph, or fuse the operators that launch most.",
    explanation="What is saved in one layer is saved in each of them.",
    query="SELECT module, COUNT() AS count, SUM(dur) AS gpu_ns FROM molprof_origin GROUP BY module ORDER BY 2 DESC",
    needs=("origins",),
    rests_on=("launches",),
)
def layer_launches(known: Known) -> Found | None:
    """The outermost modules that repeat and hold most launches."""
    modules = known.tree("module")
    layers = [tree for _, tree in modules.walk() if tree.kind == "module" and tree.count > 1 and tree.children]
    layer = max(layers, key=lambda tree: tree.amount("launches"), default=None)
    total = modules.amount("launches")
    if layer is None or not total or layer.amount("launches") < LEAST_IN_LAYERS * total:
        return None
    launches = layer.amount("launches")
    rates = _rates(known.origins, layer.amount("step_launches"))
    parts = sorted(layer.children, key=lambda tree: -tree.amount("launches"))
    most = ", ".join(f"{tree.name} {count_text(tree.amount('launches'))}" for tree in parts[:3])
    return Found(
        f"{layer.count} x {layer.name} make {count_text(launches)} of {counted(total, 'launch', 'es')} "
        f"({percent_text(launches / total)}), {number_text(launches / layer.count)} per layer{rates}; of them {most}",
        {"layers": layer.count, "launches": launches, "launches_ratio": launches / total},
    )


@rule(
    id="launches_by_function",
    title="Functions that launch kernel after kernel",
    fix="Fuse the operators of such a function: compile it (torch.compile), or call one kernel that does it all.",
    explanation="Each launch costs CPU time, and each kernel reads and writes what the next one reads again.",
    query="SELECT source, module, operator, COUNT() AS count, SUM(dur) AS gpu_ns FROM molprof_origin"
    " GROUP BY source, module, operator ORDER BY count DESC",
    needs=("origins",),
    rests_on=("launches",),
)
def launches_by_function(known: Known) -> Found | None:
    """The functions that launch several kernels for each of their modules, where one kernel would pay."""
    places = known.places("launches")
    total = _count(places)
    functions: dict[tuple[str, str], list[Place]] = {}
    for place in places:
        if place.source not in NOWHERE:
            functions.setdefault((place.source, place.module), []).append(place)
    several = [found for found in functions.values() if len(found) > 1 and _count(found) >= LEAST_IN_FUNCTION * total]
    several.sort(key=_count, reverse=True)
    if not several:
        return None
    launches = sum(map(_count, several))
    return Found(
        f"{counted(len(several), 'function')} {'makes' if len(several) == 1 else 'make'} {count_text(launches)} "
        f"of {counted(total, 'launch', 'es')}: " + "; ".join(_function(known, found, total) for found in several[:3]),
        {"functions": len(several), "launches": launches, "launches_ratio": launches / total},
    )


def _function(known: Known, found: list[Place], total: int) -> str:
    """Launches of a function, by operator."""
    first, count = found[0], _count(found)
    modules = set().union(*(place.modules for place in found))
    inside = "" if first.module in NOWHERE else f" in {len(modules)} x {first.module}"
    rates = _rates(known.origins, sum(place.step_count for place in found))
    operators = ", ".join(f"{count_text(place.count)} {place.operator}" for place in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    share = percent_text(count / total)
    return f"{short_source(first.source)}{inside}: {count_text(count)} ({share}){rates}, {operators}{more}"


@rule(
    id="copies_by_place",
    title="Copies and casts",
    fix="Keep one dtype and layout between the operators on both sides, or write into the target at once.",
    explanation="Such a kernel computes nothing: it moves data that another operator wants in another form.",
    query="origin",
    needs=("origins",),
    rests_on=("gpu_work", "gpu_time", "links"),
)
def copies_by_place(known: Known) -> Found | None:
    gpu_ns = known.origins.totals["gpu_ns"]
    places = known.places("copies")
    copies_ns, count = sum(place.time_ns for place in places), _count(places)
    if not gpu_ns or copies_ns < LEAST_COPIES * gpu_ns:
        return None
    return Found(
        f"copies, casts and concatenations take {time_text(copies_ns)} of {time_text(gpu_ns)} GPU time "
        f"({percent_text(copies_ns / gpu_ns)}), {count_text(count)} in all: {_most(places)}",
        {"copies": count, "gpu_ns": copies_ns, "gpu_time_ratio": copies_ns / gpu_ns},
    )


@rule(
    id="syncs_by_place",
    title="Host syncs",
    fix="Keep the value on the device, or read it later or less often.",
    explanation="The CPU waits until the GPU has caught up, and launches nothing meanwhile.",
    query="host_syncs",
    needs=("origins",),
    rests_on=("launches", "host_time"),
)
def syncs_by_place(known: Known) -> Found | None:
    if not (places := known.places("syncs")):
        return None
    count, time_ns = _count(places), sum(place.time_ns for place in places)
    return Found(
        f"{counted(count, 'host sync')}, {time_text(time_ns)} in all: {_most(places)}",
        {"syncs": count, "time_ns": time_ns},
    )


def _count(places: Iterable[Place]) -> int:
    return sum(place.count for place in places)


def _rates(origins: Origins, step_launches: int) -> str:
    """Launches per recorded step and generated token, where these are known."""
    found = f", {number_text(step_launches / origins.steps)} per step" if origins.steps else ""
    return f"{found}, {number_text(step_launches / origins.tokens)} per token" if origins.tokens else found


def _most(places: list[Place]) -> str:
    """The first three, in words."""
    return "; ".join(f"{count_text(place.count)} ({time_text(place.time_ns)}) {place.text}" for place in places[:3])
