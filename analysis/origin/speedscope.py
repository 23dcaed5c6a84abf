"""Trees as a file of speedscope (https://www.speedscope.app), a viewer of flame graphs.

Format: https://www.speedscope.app/file-format-schema.json. A stack is a path of the tree, then the operator and the
kernel. Profiles: GPU work in order of start, one sample each, with the layers of one class together and each alone;
launches, and time of CPU operators, with layers together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from molprof.analysis.origin.read import GRAPH, NO_CALL, NO_WORK, Call, Origins, Work
from molprof.analysis.origin.tree import class_name
from molprof.common.values import short_name

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_PLACE = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<name>.+)$")

Stack = tuple[str, ...]


def speedscope_text(origins: Origins, by: str, exporter: str) -> str:
    """The file of a trace whose stacks begin with the tree by module, source, operator or kernel; as JSON."""
    frames: dict[str, int] = {}
    profiles: list[dict[str, Any]] = []

    def profile(name: str, unit: str, samples: Iterable[tuple[Stack, int]]) -> None:
        samples_of, weights = [], []
        for stack, weight in samples:
            samples_of.append([frames.setdefault(item, len(frames)) for item in stack])
            weights.append(weight)
        if weights:
            profiles.append(
                {
                    "type": "sampled",
                    "name": name,
                    "unit": unit,
                    "startValue": 0,
                    "endValue": sum(weights),
                    "samples": samples_of,
                    "weights": weights,
                }
            )

    for fold in (True, False):
        stacks = _Stacks(origins, by, fold)
        title = "layers together" if fold else "each layer"
        profile(f"GPU time, {title}", "nanoseconds", ((stacks.of_work(item), item.dur) for item in origins.work))
    stacks = _Stacks(origins, by, True)
    started = {item.call_id: item for item in reversed(origins.work) if item.call_id is not None}
    launches = [call for call in origins.calls if call.launches or call.graph_launches]
    profile("launches", "none", ((stacks.of_call(call, started.get(call.id)), 1) for call in launches))
    if by != "kernel":
        own = ((stacks.around(frame.id, frame.phase), own_ns) for frame, own_ns in origins.operators)
        profile("CPU time of operators", "nanoseconds", own)
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


class _Stacks:
    """Stacks of work, calls and operators; with `fold`, modules without their numbers."""

    def __init__(self, origins: Origins, by: str, fold: bool) -> None:
        self._origins, self._by, self._fold = origins, by, fold
        self._around: dict[tuple[int | None, str | None], Stack] = {}

    def of_work(self, work: Work) -> Stack:
        last = short_name(work.name)
        if self._by == "kernel":
            return (*_phase(work.phase), work.cls, last)
        if work.call_id is None:
            return (NO_CALL, last)
        return (*self.around(work.frame_id, work.phase), *(self._in_graph(work) if work.in_graph else ()), last)

    def _in_graph(self, work: Work) -> Stack:
        path = self._origins.captured_path(self._by, work)
        if self._by != "operator":
            path += self._origins.captured_path("operator", work)[-1:]
        return (GRAPH, *self._names(path))

    def of_call(self, call: Call, work: Work | None) -> Stack:
        """work: the first that the call started."""
        if self._by == "kernel":
            return (*_phase(call.phase), NO_WORK) if work is None else self.of_work(work)
        return (*self.around(call.frame_id, call.phase), *(() if work is None else (short_name(work.name),)))

    def around(self, frame_id: int | None, phase: str | None) -> Stack:
        """The path of a frame, then its innermost operator where the path shows no operators."""
        key = frame_id, phase
        if key not in self._around:
            path = self._origins.path(self._by, frame_id)
            if self._by != "operator":
                path += tuple(item for item in self._origins.path("operator", frame_id)[-1:] if item[0] == "operator")
            self._around[key] = (*_phase(phase), *self._names(path))
        return self._around[key]

    def _names(self, path: Iterable[tuple[str, str]]) -> Stack:
        return tuple(class_name(name) if self._fold and kind == "module" else name for kind, name in path)


def _phase(phase: str | None) -> Stack:
    return () if phase is None else (phase,)
