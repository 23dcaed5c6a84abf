"""The compiled forward with a static cache: one shape, compiled once, with a processor and without."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import captured, settings
from test_jump import prompts, rows
from tiny import loaded, plan
from torch._dynamo.utils import counters

from molprof.common.errors import UsageError
from molprof.common.settings import COMPILE, CaptureSettings
from molprof.profiler.constraints import make_processor
from molprof.profiler.engines.batches import PassResult
from molprof.profiler.engines.compilation import compile_config
from molprof.profiler.engines.runner import Runner
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.molecules.prompts import Prompts
from molprof.profiler.recording.marks import HostMarks

SMILES = ("CO", "C", "O")
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
    plans = plan(run, prompts(*SMILES), 2, bound)
    assert [(each.rows, len(each.prompts)) for each in plans] == [(2, 2), (2, 1)] or asked.compile == "off"
    return [run.run(plans, HostMarks() if number else None) for number in range(count)]


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
    plans = [dataclasses.replace(each, spare_rows=0) for each in plan(run, prompts(*SMILES), 2, 3)]
    assert [run.run(plans, None).compiles for _ in range(2)] == [2, 0]


def test_forced_runs_compile_once_per_width(model: LoadedModel) -> None:
    found = passes(model, "generic", dataclasses.replace(EAGER, forced_runs=True), 2, None)
    # Widths 1, and 4 between blocks: a choice and >[O]<.
    assert [result.compiles for result in found] == [2, 0]
    assert dict(counters["graph_break"]) == {}
    plain = passes(model, "generic", dataclasses.replace(OFF, forced_runs=True), 1, None)
    assert rows(found[1].batches) == rows(plain[0].batches)


def test_a_capture_says_what_was_compiled_when(model: LoadedModel, tmp_path: Path) -> None:
    asked = settings(processor="generic", max_new_tokens=4, kv_cache="static", compile="eager", sort=None)
    given = Prompts(tuple(prompts(*SMILES)), (), "here", 3)
    manifest = captured(tmp_path / "out.json", asked, given, model).manifest
    timings = manifest.timings
    assert (timings.warmup_compiles, [repeat.compiles for repeat in timings.repeats]) == ([1], [0, 0])
    assert timings.warmup_compile_ns is not None
    assert 0 < timings.warmup_compile_ns[0] < timings.warmup_ns[0]
    assert manifest.settings.compile == "eager"
    assert [len(run.token_ids) for run in manifest.molecules] == [4, 4, 4]
    assert manifest.rows_per_step == [[2] * 4, [2] * 4]  # the spare row is computed, and no molecule


@pytest.mark.parametrize("mode", COMPILE)
def test_modes(mode: str) -> None:
    config: Any = compile_config(mode)
    if mode in ("auto", "off"):
        assert config is None
        return
    assert (config.backend, config.mode, config.dynamic) == (
        ("eager", "default", False) if mode == "eager" else ("inductor", mode, False)
    )


def test_what_is_compiled() -> None:
    def compiled(cache: str, **more: Any) -> bool:
        return Runner(loaded("llama"), None, CaptureSettings("tiny", kv_cache=cache, **more)).compiled

    assert compiled("static", compile="default") is True
    assert [compiled("static", compile=mode) for mode in ("auto", "off")] == [False, False]  # auto: this is a CPU
    assert compiled("dynamic", compile="auto") is False
    assert compiled("static", drop_finished=True) is False


@pytest.mark.parametrize(
    ("cache", "mode", "message"),
    [
        ("dynamic", "default", "compile 'default' needs a cache of fixed shape, not 'dynamic'"),
        ("static", "fast", "no compile 'fast'"),
    ],
)
def test_bad_settings(cache: str, mode: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        CaptureSettings("llama", kv_cache=cache, compile=mode)
    assert str(caught.value) == message
