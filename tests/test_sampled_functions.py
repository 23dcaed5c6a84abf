"""Functions of logits processors are sampled in recorded steps, and reported with their times."""

from __future__ import annotations

import inspect
import sys
import threading
from pathlib import Path
from typing import Any

import captures
import pytest
import torch
from test_run import Same
from test_run import model as model  # a fixture

import molprof
from molprof import api
from molprof.analysis.documents.findings import next_commands
from molprof.analysis.documents.origin import origin_document
from molprof.common.manifest import from_json
from molprof.common.sampled import SampledFunctions, SampledStack

PROMPT = torch.tensor([[3, 11], [4, 5]])


def worked(count: int) -> int:
    return sum(number * number % 7 for number in range(count))  # SLOW


class Slow(Same):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        worked(40_000)
        return scores


def recorded(path: Path, model: Any, processor: Same | None = None, **options: Any) -> Any:
    """The manifest of a recording of two calls with the slow processor between two others."""
    with molprof.record(path, window="auto", **options):
        for _ in range(2):
            model.generate(
                PROMPT, max_new_tokens=24, min_new_tokens=24, logits_processor=[Same(), processor or Slow(), Same()]
            )
    trace, _ = captures.events(path)
    return from_json(trace["molprof"])


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(text))


def test_a_recording_samples_the_functions_of_processors_alone(model: Any, tmp_path: Path) -> None:
    before = sys.getswitchinterval()
    found = recorded(tmp_path / "a.json.gz", model).functions
    assert isinstance(found, SampledFunctions)
    assert sys.getswitchinterval() == before
    assert "molprof samples" not in {thread.name for thread in threading.enumerate()}
    assert (found.steps, found.other_step_ns is None) == (10, False)  # every other one of 20
    names = [name for place, name in enumerate(found.functions) if place in found.program]
    first = inspect.getsourcelines(worked)[1]
    assert any(name.endswith(f"test_sampled_functions.py({first}): worked") for name in names)
    assert not [name for name in found.functions if "profiler/" in name or "common/" in name or "inspect.py" in name]
    ((function, line), _) = found.by_line().most_common(1)[0]
    assert (function.endswith("): worked"), line) == (True, line_of("# SLOW"))
    assert found.samples == sum(stack.samples for stack in found.stacks)


def test_what_reports_say_of_it(model: Any, tmp_path: Path) -> None:
    recorded(tmp_path / "a.json.gz", model)
    report = api.report(tmp_path / "a.json.gz")
    (item,) = [item for item in report.findings if item.id == "constraint"]
    assert f"; by line, sampled: test_sampled_functions.py:{line_of('# SLOW')} " in item.evidence
    assert item.figures["samples"] >= 20
    assert item.location is not None
    assert "test_sampled_functions.py" in item.location
    assert next_commands(report).notes[1].startswith("molprof report by source ")
    found, _, _ = api.origins(tmp_path / "a.json.gz")
    document = origin_document(found, "source")
    assert document.warnings == (
        "the trace has Python functions of processors alone, as they were sampled: record all with molprof run "
        "--stacks",
    )
    titles = [section.title for section in document.sections]
    assert titles[1:3] == ["Functions of the processor, sampled", "Lines of the processor, sampled"]
    assert document.data()["sampled"]["steps"] == 10
    assert origin_document(found, "module").warnings == (
        "the trace has no modules or Python functions: record all with molprof run --modules",
    )
    assert origin_document(found, "operator").warnings == ()


@pytest.mark.parametrize("options", [{"functions": False}, {"stacks": True}])
def test_it_is_off_where_it_is_switched_off_and_where_stacks_have_all(
    model: Any, tmp_path: Path, options: dict[str, bool]
) -> None:
    assert not recorded(tmp_path / "a.json.gz", model, Same(), **options).functions
    found, _, _ = api.origins(tmp_path / "a.json.gz")
    assert found.sampled is None
    assert bool(origin_document(found, "source").warnings) == ("stacks" not in options)


def test_a_capture_samples_its_processor(tmp_path: Path) -> None:
    result = captures.captured(tmp_path / "a.json.gz", captures.settings(processor="generic"))
    found = result.manifest.functions
    assert isinstance(found, SampledFunctions)
    steps = result.manifest.window.last_step - result.manifest.window.first_step + 1
    assert found.steps == -(-steps // 2)
    assert not [name for name in found.functions if "profiler/recording" in name or "profiler/engines" in name]
    for changes in ({"processor": "generic", "functions": False}, {}):
        assert not captures.captured(tmp_path / "b.json.gz", captures.settings(**changes)).manifest.functions


def test_a_loop_that_masks_by_itself(model: Any, tmp_path: Path) -> None:
    with molprof.record(tmp_path / "a.json.gz"):
        for step in range(6):
            with molprof.step(PROMPT if step == 0 else None, model):
                with molprof.phase("processor"):
                    sum(number * number % 7 for number in range(200_000))  # INLINE
                molprof.tokens(PROMPT[:, 0])
    trace, _ = captures.events(tmp_path / "a.json.gz")
    found = from_json(trace["molprof"]).functions
    assert isinstance(found, SampledFunctions)
    ((_, line), _) = found.by_line().most_common(1)[0]
    assert line == line_of("# INLINE")


def test_sums_by_function_and_line() -> None:
    functions = ["mine.py(1): __call__", "lib/a.py(9): apply", "mine.py(5): <listcomp>", "lib/b.py(3): other"]
    found = SampledFunctions(
        steps=2,
        phase_ns=100,
        interval_ns=10,
        samples=8,
        held_ns=1,
        step_ns=60,
        other_step_ns=40,
        other_ns=20,
        functions=functions,
        program=[0, 2],
        stacks=[
            SampledStack([0, 1], [3, 11], 4, 40),
            SampledStack([0, 2], [5, 5], 2, 20),
            SampledStack([0], [5], 1, 10),
            SampledStack([3], [4], 1, 10),
        ],
    )
    assert (found.sampled_ns, found.slowdown, found.is_enough) == (100, 1.5, False)
    assert found.by_function() == {functions[1]: 40, functions[2]: 20, functions[0]: 10, functions[3]: 10}
    assert found.inside() == {functions[0]: 70, functions[1]: 40, functions[2]: 20, functions[3]: 10}
    assert found.by_line() == {(functions[0], 3): 40, (functions[0], 5): 30, (functions[3], 4): 10}
