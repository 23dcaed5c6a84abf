"""Paths of modules: the modules and ranges that enclose frames, and which of them are layers of a model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from molprof.analysis.facts.gaps import NONE

# Deeper modules, functions and operators count for the one at this depth.
MOST_DEPTH = 300
# Name, class and number of a module; a range has no class.
Module = tuple[str, str | None, int]


class ModulePaths(Struct, frozen=True):
    """Distinct paths of modules and ranges by index, each after its parent."""

    of_path: list[int]  # of each path of frames, the modules around it, those in it included; NONE
    outer: list[int]  # NONE for an outermost one
    text: list[str]  # names from the outermost, with / between them
    own_layer: list[int | None]  # of those that are layers
    layer: list[int | None]  # of the outermost one around it, itself included, that is a layer


def module_paths(outer: Sequence[int], modules: Sequence[Module | None]) -> ModulePaths:
    """Return, for each path of frames, its path of modules.

    outer: of each path of frames the one around it, which stands before it; NONE. modules: the innermost frame of each,
    where it is a module or range.
    """
    of_path: list[int] = []
    numbers: dict[tuple[int, str, bool], int] = {}
    outers, depths = list[int](), list[int]()
    texts, path_modules = list[str](), list[Module]()
    for around, module in zip(outer, modules, strict=True):
        inside = NONE if around == NONE else of_path[around]
        if module is None:
            of_path.append(inside)
            continue
        name, module_class, _ = module
        number = numbers.setdefault((inside, name, module_class is None), len(outers))
        of_path.append(number)
        if number == len(outers):
            depth = 1 if inside == NONE else depths[inside] + 1
            outers.append(inside)
            path_modules.append(module)
            depths.append(depth)
            texts.append(name if inside == NONE else texts[inside] if depth > MOST_DEPTH else f"{texts[inside]}/{name}")
    own_layers = layers(outers, path_modules)
    layer: list[int | None] = []
    for index, inside in enumerate(outers):
        inherited = None if inside == NONE else layer[inside]
        layer.append(own_layers[index] if inherited is None else inherited)
    return ModulePaths(of_path, outers, texts, own_layers, layer)


def layers(outer: Sequence[int], modules: Sequence[Module]) -> list[int | None]:
    """Return the number of each module that is a layer, from 0; None for others.

    Layers are modules of one class in the same modules, of which any has modules inside, in order of their number.
    """
    beside: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for index, (_, module_class, _) in enumerate(modules):
        if module_class is not None:
            beside[outer[index], module_class].append(index)
    holders = {around for around, (_, module_class, _) in zip(outer, modules, strict=True) if module_class is not None}
    numbers: list[int | None] = [None] * len(modules)
    for siblings in beside.values():
        if len(siblings) > 1 and not holders.isdisjoint(siblings):
            for layer, index in enumerate(sorted(siblings, key=lambda row: (modules[row][2], modules[row][0]))):
                numbers[index] = layer
    return numbers
