"""molprof's own decoding loop against transformers' `generate`: the same text, logits, phases and distribution."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from test_marks import Log
from tiny import Script, loaded, plan
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM

from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.common.text_format import DEFAULT
from molprof.profiler.constraints import make_processor
from molprof.profiler.constraints.base import BatchProcessor, ForcedRuns, Places, Processor
from molprof.profiler.constraints.rows import RowProcessor
from molprof.profiler.engines import BatchResult
from molprof.profiler.engines.forced import check_model, chooser
from molprof.profiler.engines.runner import Runner
from molprof.profiler.models.load import LoadedModel, load
from molprof.profiler.models.target import Target
from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.molecules.template import Template

SMILES = ("O", "C1CC1", "CO", "CC=O", "C")
GENERATE = CaptureSettings("tiny", sort=False)
JUMP = dataclasses.replace(GENERATE, forced_runs=True)
DROP = dataclasses.replace(GENERATE, drop_finished=True)
BOTH = dataclasses.replace(JUMP, drop_finished=True)


def prompts(*smiles: str) -> list[Prompt]:
    return [Prompt(line, "", DEFAULT.prompt_of(text), molecule(text)) for line, text in enumerate(smiles, start=1)]


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


@functools.cache
def preset(name: str) -> LoadedModel:
    return load(CaptureSettings(name, dtype="float32", device="cpu"))


def made(processor: str, name: str, model: LoadedModel | None) -> Processor:
    """Of a model of its own made anew, else once."""
    return _made(processor, name) if model is None else make_processor(processor, model.target)


@functools.cache
def _made(processor: str, name: str) -> Processor:
    return make_processor(processor, lively(name).target)


def runner(
    loop: CaptureSettings,
    name: str = "llama",
    processor: str | None = "generic",
    model: LoadedModel | None = None,
    **more: Any,
) -> Runner:
    used = model or lively(name)
    studied = None if processor is None else made(processor, name, model)
    return Runner(used, studied, dataclasses.replace(loop, **more))


def batches(run: Runner, *smiles: str, size: int = 3, bound: int | None = None) -> tuple[BatchResult, ...]:
    return run.run(plan(run, prompts(*smiles), size, bound), None).batches


def rows(results: Sequence[BatchResult]) -> list[tuple[int, ...]]:
    return [row for batch in results for row in batch.rows]


@functools.cache
def reference(name: str, processor: str) -> list[tuple[int, ...]]:
    return rows(batches(runner(GENERATE, name, processor), *SMILES))


@pytest.mark.parametrize(
    ("name", "processor", "loop", "cache"),
    [
        *(("llama", "generic", loop, cache) for loop in (JUMP, DROP, BOTH) for cache in ("dynamic", "static")),
        ("qwen", "generic", JUMP, "dynamic"),
        ("qwen", "qwen", BOTH, "dynamic"),
        ("qwen", "vectorized", BOTH, "static"),
        ("llama", "vectorized", DROP, "dynamic"),
        ("llama", "placeholder", JUMP, "static"),
    ],
)
def test_the_text_is_that_of_generate(name: str, processor: str, loop: CaptureSettings, cache: str) -> None:
    run = runner(loop, name, processor, kv_cache=cache)
    if loop is JUMP and cache == "static":
        batches(run, *SMILES)  # the next pass finds what this one left in the cache
    found = batches(run, *SMILES)
    assert rows(found) == reference(name, processor)
    for batch in found:
        assert batch.host_reads == 0
        assert batch.appended is not None
        assert [sum(counts) for counts in batch.appended] == [len(row) for row in batch.rows]
        assert all(min(counts) > 0 for counts in batch.appended)


@pytest.mark.parametrize(("name", "processor"), [("llama", "generic"), ("qwen", "qwen")])
def test_the_text_of_the_presets(name: str, processor: str) -> None:
    model = preset(name)
    expected = batches(runner(GENERATE, processor=processor, model=model), "CO", "C")
    assert rows(batches(runner(BOTH, processor=processor, model=model), "CO", "C")) == rows(expected)


@pytest.mark.parametrize("attention", ["eager", "sdpa-math"])
def test_other_attentions(attention: str) -> None:
    model = lively("qwen")
    before = model.model.config._attn_implementation
    model.model.set_attn_implementation("eager" if attention == "eager" else "sdpa")
    try:
        found = batches(runner(JUMP, "qwen", "qwen", attention=attention), *SMILES)
    finally:
        model.model.set_attn_implementation(before)
    assert rows(found) == reference("qwen", "qwen")


def test_a_step_per_choice() -> None:
    """14 FREE tokens per atom, so the longest molecule of a batch gives its steps."""
    found = batches(runner(JUMP), *SMILES)
    assert [batch.steps for batch in found] == [14 * 3, 14 * 3]
    assert [batch.rows_per_step for batch in found] == [(3,) * 42, (2,) * 42]
    assert [batch.busy_steps(0) for batch in found] == [14, 42]
    dropped = batches(runner(BOTH), *SMILES)
    assert dropped[0].rows_per_step == (3,) * 14 + (2,) * 14 + (1,) * 14
    assert dropped[1].rows_per_step == (2,) * 14 + (1,) * 28
    stepwise = batches(runner(DROP), *SMILES)
    assert [batch.steps for batch in stepwise] == [batch.steps for batch in batches(runner(GENERATE), *SMILES)]
    assert sum(stepwise[0].rows_per_step) == sum(map(len, stepwise[0].rows))


def test_no_logits_are_masked_where_tokens_are_forced() -> None:
    (batch,) = batches(runner(JUMP), "C")
    assert batch.masked_logits == (13 * 1399 + 1433,)


class Heard(RowProcessor):
    """Keeps the scores of every choice by (row, position), as the model gave them."""

    seen: ClassVar[dict[tuple[int, int], Tensor]] = {}

    def _mask(self, scores: Tensor, rows: Any, positions: Any) -> Tensor:
        rows = list(rows)
        positions = [position for _, position in zip(rows, positions, strict=False)]
        for place, key in enumerate(zip(rows, positions, strict=True)):
            self.seen[key] = scores[place].clone()
        return super()._mask(scores, rows, positions)


def test_the_logits_are_those_of_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("molprof.profiler.constraints.rows.RowProcessor", Heard)
    model = preset("llama")
    seen = {}
    for each in (GENERATE, BOTH):
        monkeypatch.setattr(Heard, "seen", {})
        batches(runner(each, model=model), "CO", "C")
        seen[each] = Heard.seen
    assert len(seen[BOTH]) == 14 * (2 + 1)
    for key, scores in seen[BOTH].items():
        torch.testing.assert_close(scores, seen[GENERATE][key], rtol=1e-4, atol=1e-4)


class Reading(RowProcessor):
    """Asks for the chosen tokens, and keeps them."""

    reads_tokens = True
    told: ClassVar[list[tuple[int, int, int | None]]] = []

    def forced(self, row: int, position: int, chosen: int | None) -> list[int]:
        self.told.append((row, position, chosen))
        return super().forced(row, position, chosen)


@pytest.mark.parametrize("loop", [JUMP, DROP, BOTH])
def test_a_processor_that_reads_tokens_costs_one_read_per_step(
    monkeypatch: pytest.MonkeyPatch, loop: CaptureSettings
) -> None:
    monkeypatch.setattr("molprof.profiler.constraints.rows.RowProcessor", Reading)
    monkeypatch.setattr(Reading, "told", [])
    found = batches(runner(loop), *SMILES[:3])
    assert rows(found) == reference("llama", "generic")[:3]
    assert [batch.host_reads for batch in found] == [found[0].steps]
    assert Reading.told[:3] == [(row, 0, None) for row in range(3)]
    for row, position, chosen in Reading.told[3:]:
        assert found[0].rows[row][position - 1] == chosen


@pytest.mark.parametrize("name", ["llama", "qwen"])
def test_unconstrained_rows_leave_when_they_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every seventh token ends a row, so that rows end."""
    model = dataclasses.replace(lively(name), eos=frozenset(range(0, 150_000, 7)))
    made = {
        loop: batches(runner(loop, processor=None, model=model), *SMILES, size=5, bound=12) for loop in (GENERATE, DROP)
    }
    assert rows(made[DROP]) == rows(made[GENERATE])
    (batch,) = made[DROP]
    assert sum(batch.rows_per_step) == sum(map(len, batch.rows)) < 5 * batch.steps
    assert batch.host_reads == batch.steps == made[GENERATE][0].steps


def test_phases_come_in_the_order_of_generate() -> None:
    log = Log()
    run = runner(JUMP)
    run.run(plan(run, prompts("C"), 1), log)
    steps = ["F", "P1", "P2", "S"] * 14
    assert log.heard == ["template 0", "tokenize 0", "begin 0", *steps, "end", "text 0"]


def test_a_run_ended_early_has_what_was_written_until_then() -> None:
    class Early(Log):
        def enough(self) -> bool:
            return self.heard.count("F") == 3

    run = runner(JUMP)
    (batch,) = run.run(plan(run, prompts("CCO", "C"), 2), Early()).batches
    assert batch.steps == 3
    whole = batches(runner(JUMP), "CCO", "C")[0]
    assert batch.rows == tuple(whole.written(row, 3) for row in (0, 1))


@pytest.mark.parametrize("sampling", ["sample", "top_k", "top_p"])
def test_tokens_are_sampled_from_the_same_distribution(sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What both hand to torch.multinomial for the first token."""
    original = torch.multinomial
    handed: list[Tensor] = []

    def multinomial(weights: Tensor, num_samples: int) -> Tensor:
        handed.append(weights.clone())
        return original(weights, num_samples)

    monkeypatch.setattr(torch, "multinomial", multinomial)
    for loop in (GENERATE, DROP):
        batches(
            runner(loop, processor=None, sampling=sampling, temperature=0.7, top_p=0.6, top_k=9, min_p=0.02, seed=3),
            *SMILES[:2],
            bound=1,
        )
    torch.testing.assert_close(handed[1], handed[0], rtol=1e-4, atol=1e-7)


def test_sampled_passes_repeat_themselves_and_keep_forced_tokens() -> None:
    run, few = runner(JUMP, sampling="sample", seed=5), SMILES[2:3] + SMILES[4:]
    first, again = (batches(run, *few) for _ in range(2))
    assert first == again
    other = batches(runner(JUMP, sampling="sample", seed=6), *few)
    assert rows(other) != rows(first)
    for smiles, row in zip(few, rows(first), strict=True):
        (template,) = run.templates.build([molecule(smiles)])
        assert [token for token, free in zip(row[:-1], template.free, strict=True) if not free] == (
            template.ids[~template.free].tolist()
        )


def test_greedy_takes_the_top() -> None:
    assert chooser(GENERATE)(torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])).tolist() == [1, 0]


class Deaf(Script):
    """A processor that only `generate` can call."""

    def start(self, templates: Sequence[Template], prompt_width: int) -> BatchProcessor:
        class Plain:
            masked_logits: ClassVar[list[int]] = [0]

            def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
                return scores

        return Plain()


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the processor .* does not say which tokens are forced"):
        batches(runner(JUMP, processor="test_jump:Deaf"), "C")
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


def test_the_protocol_is_what_the_template_processors_have() -> None:
    model = loaded("llama")
    made: Processor = make_processor("generic", model.target)
    (template,) = runner(JUMP).templates.build([molecule("C")])
    batch = made.start([template], 0)
    assert isinstance(batch, ForcedRuns)
    assert batch.forced(0, 0, None) == template.ids[:3].tolist()
    assert batch.forced(0, 3, None) == []
    assert batch.forced(0, 17, None) == [*template.ids[17:].tolist(), model.target.eos]
    assert batch.forced(0, 19, None) == [model.target.eos]
    scores = batch.mask(torch.zeros(1, 128_256), Places((0,), (1,), torch.tensor([0]), torch.tensor([1])))
    assert scores.isfinite().nonzero().tolist() == [[0, int(template.ids[1])]]
    assert isinstance(model.target, Target)
