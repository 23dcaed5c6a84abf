"""molprof's own decoding loop equals transformers' `generate`: text, logits, phases and distribution."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from test_marks import Log
from tiny import loaded, plan
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM

from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.common.text_format import DEFAULT
from molprof.profiler.constraints import make_processor
from molprof.profiler.constraints.base import BatchProcessor
from molprof.profiler.engines import BatchResult
from molprof.profiler.engines.forced import check_model
from molprof.profiler.engines.runner import Runner
from molprof.profiler.models.load import LoadedModel, load
from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.smiles import molecule

SMILES = ("O", "C1CC1", "CO", "CC=O", "C")
GENERATE = CaptureSettings("tiny", sort=False)
JUMP = dataclasses.replace(GENERATE, forced_runs=True)
DROP = dataclasses.replace(GENERATE, drop_finished=True)
BOTH = dataclasses.replace(JUMP, drop_finished=True)


@functools.cache
def lively(name: str) -> LoadedModel:
    """A tiny model whose choices depend on what came before: fresh weights say the same whatever they read."""
    quiet = loaded(name)
    model = copy.deepcopy(quiet.model)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(15)
    return dataclasses.replace(quiet, model=model)


made = functools.cache(lambda processor, name: make_processor(processor, lively(name).target))


def runner(
    loop: CaptureSettings,
    name: str = "llama",
    processor: str | None = "generic",
    model: LoadedModel | None = None,
    **more: Any,
) -> Runner:
    studied = None if processor is None else made(processor, name)
    return Runner(model or lively(name), studied, dataclasses.replace(loop, **more))


def batches(run: Runner, *smiles: str, size: int = 3, bound: int | None = None, **more: Any) -> tuple[BatchResult, ...]:
    asked = [Prompt(line, "", DEFAULT.prompt_of(text), molecule(text)) for line, text in enumerate(smiles, start=1)]
    return run.run(plan(run, asked, size, bound), more.pop("marks", None), **more).batches


def rows(results: Sequence[BatchResult]) -> list[tuple[int, ...]]:
    return [row for batch in results for row in batch.rows]


@functools.cache
def reference(name: str, processor: str) -> list[tuple[int, ...]]:
    return rows(batches(runner(GENERATE, name, processor), *SMILES))


@pytest.mark.parametrize(
    ("name", "processor", "loop", "cache"),
    [
        ("llama", "generic", JUMP, "static"),
        ("llama", "generic", DROP, "dynamic"),
        ("llama", "generic", BOTH, "dynamic"),
        ("qwen", "qwen", BOTH, "dynamic"),
        ("qwen", "vectorized", BOTH, "static"),
        ("llama", "vectorized", DROP, "dynamic"),
        ("llama", "grammar", BOTH, "dynamic"),
    ],
)
def test_the_text_is_that_of_generate(name: str, processor: str, loop: CaptureSettings, cache: str) -> None:
    run, reads = runner(loop, name, processor, kv_cache=cache), processor == "grammar"
    if loop is JUMP and cache == "static":
        batches(run, *SMILES)  # the next pass finds what this one left in the cache
    found = batches(run, *SMILES)
    # `vectorized` writes what the loop over rows writes.
    like = {"llama": "generic", "qwen": "qwen"}[name] if processor == "vectorized" else processor
    assert rows(found) == reference(name, like)
    for batch in found:
        assert batch.host_reads == (batch.steps if reads else 0)
        assert batch.appended is not None
        assert [sum(counts) for counts in batch.appended] == [len(row) for row in batch.rows]
        assert all(min(counts) > 0 for counts in batch.appended)


def test_rows_are_dropped_for_a_processor_that_knows_nothing_of_it() -> None:
    """It sees what it sees in `generate`: ended rows with their end token and padding."""
    asked = [Prompt(line, "", "a" * line, None) for line in range(1, 6)]
    runs = [runner(loop, processor="users:Sums") for loop in (GENERATE, DROP)]
    expected, found = (run.run(plan(run, asked, 5, 30), None).batches for run in runs)
    assert rows(found) == rows(expected)
    assert len({len(row) for row in rows(found)}) > 1
    assert sum(found[0].rows_per_step) < sum(expected[0].rows_per_step)


def test_the_text_and_the_logits_of_a_preset() -> None:
    model = load(CaptureSettings("llama", dtype="float32", device="cpu"))
    seen: list[dict[tuple[int, int], Tensor]] = []

    class Heard:
        """Keeps the scores of every choice by (row, position), as the model gave them."""

        reads_tokens = False

        def __init__(self, studied: Any) -> None:
            self._studied, self.forced = studied, studied.forced
            seen.append({})

        def __getattr__(self, name: str) -> Any:
            return getattr(self._studied, name)

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            position = len(seen[-1]) // 2
            seen[-1].update({(row, position): scores[row].clone() for row in range(2)})
            return self._studied(input_ids, scores)

        def mask(self, scores: Tensor, places: Any) -> Tensor:
            keys = zip(places.rows, places.positions, strict=True)
            seen[-1].update({key: scores[place].clone() for place, key in enumerate(keys)})
            return self._studied.mask(scores, places)

    def heard(studied: BatchProcessor) -> BatchProcessor:
        return Heard(studied)  # type: ignore[return-value]

    found = [rows(batches(runner(each, model=model), "CO", "C", bound=20, wrap=heard)) for each in (GENERATE, BOTH)]
    assert found[0] == found[1]
    assert len(seen[1]) == 14 * 2
    for key, scores in seen[1].items():
        torch.testing.assert_close(scores, seen[0][key], rtol=1e-4, atol=1e-4)


def test_an_attention_with_additive_masks() -> None:
    model = lively("qwen").model
    model.set_attn_implementation("eager")
    try:
        assert rows(batches(runner(JUMP, "qwen", "qwen", attention="eager"), *SMILES)) == reference("qwen", "qwen")
    finally:
        model.set_attn_implementation("sdpa")


def test_a_step_per_choice() -> None:
    """14 FREE tokens per atom, so the longest molecule of a batch gives its steps."""
    found = batches(runner(JUMP), *SMILES)
    assert [batch.steps for batch in found] == [14 * 3, 14 * 3]
    assert [batch.rows_per_step for batch in found] == [(3,) * 42, (2,) * 42]
    assert [batch.busy_steps(0) for batch in found] == [14, 42]
    # No logits are masked where tokens are forced.
    assert (found[1].masked_logits or ())[1] == 13 * 1399 + 1433 + 28 * (128_256 - 1)
    dropped = batches(runner(BOTH), *SMILES)
    assert dropped[0].rows_per_step == (3,) * 14 + (2,) * 14 + (1,) * 14
    assert dropped[1].rows_per_step == (2,) * 14 + (1,) * 28
    stepwise = batches(runner(DROP), *SMILES)
    assert [batch.steps for batch in stepwise] == [max(map(len, batch.rows)) for batch in stepwise]
    assert sum(stepwise[0].rows_per_step) == sum(map(len, stepwise[0].rows))


def test_unconstrained_rows_leave_when_they_end() -> None:
    """Every seventh token ends a row, so that rows end."""
    model = dataclasses.replace(lively("llama"), eos=frozenset(range(0, 150_000, 7)))
    every, (batch,) = (
        batches(runner(loop, processor=None, model=model), *SMILES, size=5, bound=12) for loop in (GENERATE, DROP)
    )
    assert rows(every) == rows([batch])
    assert sum(batch.rows_per_step) == sum(map(len, batch.rows)) < 5 * batch.steps
    assert batch.host_reads == batch.steps == every[0].steps


def test_phases_come_in_the_order_of_generate_and_a_run_may_end_early() -> None:
    log = Log()
    batches(runner(JUMP), "C", marks=log)
    steps = ["F", "P1", "P2", "S"] * 14
    assert log.heard == ["template 0", "tokenize 0", "begin 0", *steps, "end", "text 0"]

    class Early(Log):
        def enough(self) -> bool:
            return self.heard.count("F") == 3

    (batch,) = batches(runner(JUMP), "CCO", "C", marks=Early())
    (whole,) = batches(runner(JUMP), "CCO", "C")
    assert (batch.steps, batch.rows) == (3, tuple(whole.written(row, 3) for row in (0, 1)))


@pytest.mark.parametrize("sampling", ["sample", "top_k", "top_p"])
def test_tokens_are_sampled_from_the_same_distribution(sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What both hand to torch.multinomial for the first token."""
    original = torch.multinomial
    handed: list[Tensor] = []

    def multinomial(weights: Tensor, num_samples: int) -> Tensor:
        handed.append(weights.clone())
        return original(weights, num_samples)

    monkeypatch.setattr(torch, "multinomial", multinomial)
    asked = {"sampling": sampling, "temperature": 0.7, "top_p": 0.6, "top_k": 9, "min_p": 0.02, "seed": 3}
    for loop in (GENERATE, DROP):
        batches(runner(loop, processor=None, **asked), *SMILES[:2], bound=1)
    torch.testing.assert_close(handed[1], handed[0], rtol=1e-4, atol=1e-7)


def test_sampled_passes_repeat_themselves() -> None:
    run = runner(JUMP, sampling="sample", seed=5)
    first = batches(run, "CO", "C")
    assert batches(run, "CO", "C") == first
    assert rows(batches(runner(JUMP, sampling="sample", seed=6), "CO", "C")) != rows(first)


def test_what_cannot_be_done_is_refused() -> None:
    def plain(studied: BatchProcessor) -> Any:
        return lambda input_ids, scores: scores

    with pytest.raises(UsageError, match=r"the processor .* does not say which tokens are forced"):
        batches(runner(JUMP), "C", wrap=plain)
    with pytest.raises(UsageError, match="without a processor no token is forced"):
        batches(runner(JUMP, processor=None), "C")
    with pytest.raises(UsageError, match="need an attention that takes a mask"):
        check_model(loaded("llama"), "flash_attention_2")
    sliding = MistralForCausalLM(MistralConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                               num_attention_heads=1, num_key_value_heads=1))  # fmt: skip
    with pytest.raises(UsageError, match="'mistral' is none"):
        check_model(dataclasses.replace(loaded("llama"), model=sliding), "sdpa")
    with pytest.raises(UsageError, match="rows that leave the batch change the shape"):
        dataclasses.replace(DROP, compile="default")
