"""`molprof capture --stacks`: a recorded pass with modules and Python functions, and its trees."""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import captured, events, of, settings
from origin_trace import origins_in

from molprof import api
from molprof.analysis.origin.read import Origins, places_of
from molprof.analysis.origin.tree import Tree, build_tree


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stacks") / "run.json.gz"
    captured(path, settings(processor="generic", repeats=1, warmup=0, window=(1, 2), stacks=True))
    return path


@pytest.fixture(scope="module")
def origins(trace: Path) -> Origins:
    return origins_in(trace)


def named(tree: Tree, name: str) -> Tree:
    return next(node for _, node in tree.walk() if node.name == name)


def test_modules_are_recorded_and_the_report_is_whole(trace: Path) -> None:
    names = {event["name"] for event in of(events(trace)[1], "python_function")}
    assert "nn.Module: LlamaForCausalLM_0" in names
    report = api.report(trace)
    assert all(check.holds for check in report.checks)
    assert report.trace.lost_events == 0
    assert report.run is not None
    assert report.run.phases["forward"].host_ns


def test_phases_then_modules(origins: Origins) -> None:
    tree = build_tree(origins, "module")
    forward = named(tree, "forward")
    layer = named(forward, "LlamaDecoderLayer_0")  # the tiny model has one
    assert {node.name for node in layer.children} == {"LlamaRMSNorm", "LlamaAttention_0", "LlamaMLP_0"}
    model = named(forward, "LlamaForCausalLM_0")
    assert model.amount("operators") > 0.8 * forward.amount("operators")
    assert {node.name for node in tree.children} >= {"forward", "processor", "sampling"}
    # Modules run in forward alone.
    assert all(node.kind != "module" for _, node in named(tree, "processor").walk())


def test_functions_of_the_processor_are_named(origins: Origins) -> None:
    processor = named(build_tree(origins, "source"), "processor")
    functions = [node.name for _, node in processor.walk() if node.kind == "function"]
    assert any("processors/" in name for name in functions)
    places = places_of(origins, "operators")
    assert any("processors/" in place.source for place in places)
    assert sum(place.time_ns for place in places) == build_tree(origins, "operator").amount("operator_ns")


def test_modules_alone(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "modules.json"
    result = captured(path, settings(repeats=1, warmup=0, window=(1, 2), modules=True))
    names = {event["name"] for event in of(events(path)[1], "python_function")}
    assert "nn.Module: LlamaForCausalLM_0" in names
    assert all(name.startswith("nn.Module: ") for name in names)
    assert all(check.holds for check in api.report(path).checks)
    forward = named(build_tree(origins_in(path), "module"), "forward")
    assert named(forward, "LlamaAttention_0").amount("operators") > 0
    assert [note for note in result.notes if note.startswith("with modules, the recorded steps took")]
