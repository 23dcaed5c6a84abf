"""The pass that records the capture of CUDA graphs, on a CPU; then what it records as if a GPU had captured it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from captures import captured, events, of, settings
from test_graph_capture import opened, replayed
from tiny_trace import slice_

from molprof.common.settings import CaptureSettings
from molprof.profiler.capture import graph_pass
from molprof.profiler.capture.graph_pass import captures_graphs, graphs_path
from molprof.profiler.capture.passes import Progress

STATIC = CaptureSettings("tiny", kv_cache="static")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"compile": "max-autotune"}, True),
        ({"compile": "off"}, False),
        ({"compile": "default"}, False),
        ({"kv_cache": "dynamic"}, False),
    ],
)
def test_settings_with_graphs(changes: dict[str, Any], expected: bool) -> None:
    asked = dataclasses.replace(STATIC, **changes)
    assert captures_graphs(asked, True) is expected
    assert not captures_graphs(asked, False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Progress]]:
    """The trace of the pass, of a CPU that is taken for a GPU."""
    folder = tmp_path_factory.mktemp("graphs")
    seen: list[Progress] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_pass, "captures_graphs", lambda asked, gpu: True)
        asked = settings(kv_cache="static", compile="eager", repeats=1, count=1, max_new_tokens=6)
        result = captured(folder / "run.json.gz", asked, report=seen.append)
    return graphs_path(result.path), seen


def test_the_pass_records_the_second_and_third_call_with_stacks_and_shapes(
    recorded: tuple[Path, list[Progress]],
) -> None:
    path, seen = recorded
    assert path.name == "run.graphs.json.gz"
    document, trace = events(path)
    assert document[graph_pass.GRAPHS_KEY]["replay"] == "run.json.gz"
    steps = [event["name"] for event in of(trace, "user_annotation") if event["name"].startswith("molprof.step")]
    assert sorted(steps) == ["molprof.step batch=0 step=2", "molprof.step batch=0 step=3"]
    assert of(trace, "python_function")
    assert any(event["args"].get("Input Dims") for event in of(trace, "cpu_op"))
    last = [progress for progress in seen if progress.stage == "graphs"][-1]
    assert last.notes[0].endswith(f"--graph-capture {path}")


def test_what_a_gpu_would_have_captured_opens_its_replays(
    recorded: tuple[Path, list[Progress]], tmp_path: Path
) -> None:
    _, trace = events(recorded[0])
    forward = next(event for event in trace if event.get("name") == "molprof.forward batch=0 step=2")
    begin, end = forward["ts"], forward["ts"] + forward["dur"]
    inside = [event for event in of(trace, "cpu_op") if begin < event["ts"] and event["ts"] + event["dur"] < end]
    leaves = [
        leaf
        for leaf in inside
        if leaf["name"].startswith("aten::")
        and leaf["dur"] > 0.1
        and not any(_within(other, leaf) for other in inside if other is not leaf)
    ]
    leaves.sort(key=lambda event: event["ts"])
    place: dict[str, Any] = {"pid": forward["pid"], "tid": forward["tid"]}
    calls = [slice_("cuda_runtime", "cudaStreamBeginCapture", begin + 0.001, 0.001, **place)]
    calls += [
        slice_(
            "cuda_runtime",
            "cudaLaunchKernel",
            round(leaf["ts"] + leaf["dur"] / 2, 3),
            0.001,
            correlation=number,
            **place,
        )
        for number, leaf in enumerate(leaves, 1)
    ]
    calls.append(slice_("cuda_runtime", "cudaStreamEndCapture", end - 0.002, 0.001, **place))
    names = [f"kernel of {leaf['name']}" for leaf in leaves]
    replay = [event for number in range(3) for event in replayed(10_000 * number, number + 1, names)]
    _, found = opened(tmp_path, replay, [*trace, *calls])
    assert len(leaves) > 20
    assert [(graph.replays, graph.unused, graph.consistent_ratio) for graph in found.graphs] == [(3, (), 1)]
    operators = [found.places[work.id].operator for work in found.graphs[0].work if work.replay == 2]
    assert operators == [leaf["name"] for leaf in leaves]
    assert {place.certainty for place in found.places.values()} == {"likely"}
    assert all(place.source for place in found.places.values())


def _within(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return bool(outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"])
