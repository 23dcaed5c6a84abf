"""In a captured run with the engine's own functions, the time of masks is separated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from synthetic import Spec, captured
from tiny_trace import slice_

from molprof import api

MINE = "vllm/v1/structured_output/"
FILL, ROW = f"{MINE}__init__.py(1): grammar_bitmask", f"{MINE}backend_xgrammar.py(2): fill_bitmask"
APPLY, ACCEPT = f"{MINE}utils.py(3): apply_grammar_bitmask", f"{MINE}backend_xgrammar.py(4): accept_tokens"


def masked(content: dict[str, Any], *parts: tuple[str, float, float]) -> dict[str, Any]:
    """With functions in each processor phase: name, and where in it they begin and how long they take, as shares."""
    phases = [
        event for event in content["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"].startswith("molprof.processor ")
    ]  # fmt: skip
    assert phases
    for phase in phases:
        content["traceEvents"] += [
            slice_("python_function", name, phase["ts"] + begin * phase["dur"], share * phase["dur"], tid=phase["tid"])
            for name, begin, share in parts
        ]
    return content


def constraint(folder: Path, *parts: tuple[str, float, float]) -> Any:
    content = captured(Spec(gpu=False))
    path = tiny_trace.write(folder / "t.json", masked(content, *parts))
    (found,) = [item for item in api.report(path).findings if item.id == "constraint"]
    return found


def test_filling_and_applying_are_apart(tmp_path: Path) -> None:
    found = constraint(tmp_path, (FILL, 0.1, 0.5), (ROW, 0.2, 0.3), (APPLY, 0.7, 0.25), (ACCEPT, 0.96, 0.02))
    fill, apply, accept = (found.figures[f"recorded_{kind}_ns"] for kind in ("fill", "apply", "accept"))
    assert (apply / fill, accept / fill) == pytest.approx((0.5, 0.04), rel=0.01)  # rows are inside of filling
    assert "per recorded step of the engine" in found.evidence
    assert "to fill masks" in found.evidence


def test_nothing_is_said_of_what_is_not_recorded(tmp_path: Path) -> None:
    found = constraint(tmp_path, ("x.py(1): f", 0.1, 0.5))
    assert not [name for name in found.figures if name.startswith("recorded_") and name.endswith("_ns")]
    assert "of the engine" not in found.evidence
