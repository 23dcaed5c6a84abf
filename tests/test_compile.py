"""The compiled forward with a static cache compiles one shape once, with a processor and without."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_jump import rows
from tiny import loaded, plan
from torch._dynamo.utils import counters

from molprof.common.settings import COMPILE, CaptureSettings
from molprof.common.text_format import DEFAULT
from molprof.profiler.constraints import make_processor
from molprof.profiler.engines.backends import Compiles, compile_config
from molprof.profiler.engines.runner import PassResult, Runner
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.recording.clock import Clock

SMILES = ("CO", "C", "O")
PROMPTS = [Prompt(line, "", DEFAULT.prompt_of(text), molecule(text)) for line, text in enumerate(SMILES, start=1)]
EAGER = CaptureSettings("tiny", kv_cache="static", compile="eager")
OFF = dataclasses.replace(EAGER, compile="off")


@pytest.fixture
def model() -> Iterator[LoadedModel]:
    """A model that nothing is compiled for yet."""
    torch._dynamo.reset()
    counters.clear()
    found = loaded("llama")
    yield dataclasses.replace(found, model=copy.deepcopy(found.model))
    torch._dynamo.reset()


def passes(
    model: LoadedModel, processor: str | None, asked: CaptureSettings, count: int, bound: int | None
) -> list[PassResult]:
    made = None if processor is None else make_processor(processor, model.target)
    run = Runner(model, made, asked)
    plans = plan(run, PROMPTS, 2, bound)
    assert [(each.rows, len(each.prompts)) for each in plans] == [(2, 2), (2, 1)] or asked.compile == "off"
    return [run.run(plans, Clock() if number else None) for number in range(count)]


def test_the_processor_is_no_part_of_what_is_compiled(model: LoadedModel) -> None:
    without = passes(model, None, EAGER, 2, 6)
    assert [result.compiles for result in without] == [1, 0]
    assert without[0].compile_ns > 0 == without[1].compile_ns
    constrained = passes(model, "generic", EAGER, 2, 6)
    assert [result.compiles for result in constrained] == [0, 0]
    assert dict(counters["graph_break"]) == {}
    plain = passes(model, "generic", OFF, 1, 6)
    assert rows(constrained[1].batches) == rows(plain[0].batches)
    assert [batch.masked_logits for batch in constrained[1].batches] == [
        batch.masked_logits for batch in plain[0].batches
    ]


def test_a_batch_of_another_shape_is_compiled_again(model: LoadedModel) -> None:
    run = Runner(model, None, EAGER)
    plans = [dataclasses.replace(each, spare_rows=0) for each in plan(run, PROMPTS, 2, 3)]
    assert [run.run(plans, None).compiles for _ in range(2)] == [2, 0]


def test_forced_runs_compile_once_per_width(model: LoadedModel) -> None:
    found = passes(model, "generic", dataclasses.replace(EAGER, forced_runs=True), 2, None)
    # Widths 1, and 4 between blocks: a choice and >[O]<.
    assert [result.compiles for result in found] == [2, 0]
    assert dict(counters["graph_break"]) == {}
    plain = passes(model, "generic", dataclasses.replace(OFF, forced_runs=True), 1, None)
    assert rows(found[1].batches) == rows(plain[0].batches)


@pytest.mark.parametrize("mode", COMPILE)
def test_modes(mode: str) -> None:
    config: Any = compile_config(mode)
    if mode in ("auto", "off"):
        assert config is None
        return
    assert (config.backend, config.mode, config.dynamic) == (
        ("eager", "default", False) if mode == "eager" else ("inductor", mode, False)
    )


def test_what_torch_does_not_tell_is_not_recorded() -> None:
    assert Compiles(None, None).since(Compiles(3, 5)) == Compiles(None, None)
    assert Compiles(3, 5).since(Compiles(None, None)) == Compiles(None, None)
    assert Compiles(0, 0).since(Compiles(3, 5)) == Compiles(None, None)  # its book was emptied in between
    assert Compiles(4, 9).since(Compiles(3, 5)) == Compiles(1, 4)
