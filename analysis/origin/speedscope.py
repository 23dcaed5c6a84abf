"""Trees as a file of speedscope (https://www.speedscope.app), a viewer of flame graphs.

Format: https://www.speedscope.app/file-format-schema.json. A stack is a path of the tree, then the operator and the
kernel. Profiles: GPU work in order of start, one sample each, with the layers of one class together and each alone;
launches, and time of CPU operators, with layers together.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from molprof.analysis.origin.read import Key, Origins, Paths
from molprof.common.values import class_names, short_name

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_PLACE = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<name>.+)$")

Stack = tuple[str, ...]


def speedscope_text(origins: Origins, by: str, exporter: str) -> str:
    """The file of a trace whose stacks begin with the tree by module, source, operator or kernel; as JSON."""
    frames: dict[str, int] = {}
    profiles: list[dict[str, Any]] = []

    def profile(name: str, unit: str, stacks: Iterable[Stack], weights: list[int]) -> None:
        if weights:
            profiles.append(
                {
                    "type": "sampled",
                    "name": name,
                    "unit": unit,
                    "startValue": 0,
                    "endValue": sum(weights),
                    "samples": [[frames.setdefault(item, len(frames)) for item in stack] for stack in stacks],
                    "weights": weights,
                }
            )

    paths = Paths(origins, by, deep=True)
    work, calls, operators = origins.work, origins.calls, origins.operators

    def stacks(keys: Iterable[Key], fold: bool = True) -> Iterator[Stack]:
        """With `fold`, modules without their numbers."""
        known: dict[Key, Stack] = {}
        for key in keys:
            if key not in known:
                known[key] = tuple(_shown(kind, name, fold) for kind, name in paths.path(key))
            yield known[key]

    for fold in (True, False):
        title = "layers together" if fold else "each layer"
        profile(f"GPU time, {title}", "nanoseconds", stacks(paths.of_work(), fold), work["dur"].tolist())
    launches = itertools.compress(paths.of_calls(), calls.known("kind"))
    profile("launches", "none", stacks(launches), [1] * int(calls.known("kind").sum()))
    if by != "kernel":
        profile("CPU time of operators", "nanoseconds", stacks(paths.of_operators()), operators["own_ns"].tolist())
    content = {
        "$schema": SCHEMA,
        "name": f"{origins.info.path} by {by}",
        "exporter": exporter,
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(name) for name in frames]},
        "profiles": profiles,
    }
    return json.dumps(content, separators=(",", ":"), ensure_ascii=True)


def _frame(name: str) -> dict[str, Any]:
    """A frame with its file and line, where its name has them."""
    found = _PLACE.match(name)
    if found is None:
        return {"name": name}
    return {"name": name, "file": found["file"], "line": int(found["line"])}


def _shown(kind: str, name: str, fold: bool) -> str:
    return short_name(name) if kind == "kernel" else class_names(name) if fold and kind == "module" else name
