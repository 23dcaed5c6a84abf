"""Traces of transformers' own loops by torch.profiler alone show steps, phases and logits processors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from goldens import called
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

from molprof import api

STEPS = 3
PROMPT = torch.arange(2, 8)[None].repeat(2, 1)


class Own(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, torch.tensor([5]), -torch.inf)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "eos_token_id": None, "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval()


def generate(model: LlamaForCausalLM) -> None:
    model.generate(PROMPT, max_new_tokens=STEPS, do_sample=False, logits_processor=LogitsProcessorList([Own()]))


def loop(model: LlamaForCausalLM) -> None:
    cache, ids = DynamicCache(), PROMPT
    with torch.no_grad():
        for step in range(STEPS):
            with record_function(f"molprof.step batch=0 step={step}"):
                with record_function(f"molprof.{'forward' if step else 'prefill'} batch=0 step={step}"):
                    logits = model(ids, past_key_values=cache).logits[:, -1]
                with record_function(f"molprof.processor batch=0 step={step}"):
                    ids = Own()(ids, logits).argmax(-1, keepdim=True)


@pytest.fixture
def recorded(model: LlamaForCausalLM, tmp_path: Path) -> Callable[..., Path]:
    def record(run: Callable[..., None], with_stack: bool) -> Path:
        with profile(activities=[ProfilerActivity.CPU], with_stack=with_stack, record_shapes=True) as profiler:
            run(model)
        profiler.export_chrome_trace(str(tmp_path / "a.json"))
        return tmp_path / "a.json"

    return record


def of(path: Path, table: str) -> list[dict[str, Any]]:
    return api.report(path).table(table).to_json()


def test_generate_with_stacks(recorded: Callable[..., Path], tmp_path: Path) -> None:
    path = recorded(generate, True)
    counts = {row["phase"]: row["count"] for row in of(path, "engine_phases")}
    each = dict.fromkeys(("prepare", "forward", "processor", "sampling", "bookkeeping"), STEPS)
    assert counts == {**each, "setup": 1, "generate": 1, "draft": 0}
    # The phases hold each other without a gap or an overlap.
    times = {row["phase"]: row for row in of(path, "engine_phases")}
    assert sum(row["own_ns"] for row in times.values()) == times["generate"]["time_ns"]
    (processor,) = of(path, "logits_processors")
    assert "test_generate_traces.py(" in processor["source"]
    assert processor["count"] == STEPS
    assert processor["time_ns"] <= times["processor"]["time_ns"]
    steps = [(row["source"], row["kind"], row["steps"], row["tokens"]) for row in of(path, "steps") if row["steps"]]
    rows = len(PROMPT)
    assert steps == [("transformers", "decode", STEPS - 1, rows * (STEPS - 1)), ("transformers", "prefill", 1, rows)]
    # The tree holds Python's time too: of a phase all of it, down to the processor.
    _, out, _ = called(["report", "by", "source", str(path), "--format", "json"], tmp_path)
    found = {node["name"]: node for node in json.loads(out)["tree"]["children"] if node["kind"] == "phase"}
    for name in ("processor", "forward", "setup"):
        amounts = found[name]["inclusive"]
        assert amounts["operator_ns"] + amounts["python_ns"] == times[name]["own_ns"]
    assert "test_generate_traces.py(" in json.dumps(found["processor"])


def test_a_loop_that_writes_the_annotations(recorded: Callable[..., Path], tmp_path: Path) -> None:
    path = recorded(loop, False)
    counts = {row["phase"]: row["count"] for row in of(path, "engine_phases")}
    assert counts == {"prefill": 1, "forward": STEPS - 1, "processor": STEPS}
    _, out, _ = called(["report", str(path)], tmp_path)
    assert "Phases of molprof on the host" in out
    assert "2 decode steps" in out


def test_without_stacks_what_is_missing_is_said(recorded: Callable[..., Path], tmp_path: Path) -> None:
    _, out, _ = called(["report", str(recorded(generate, False))], tmp_path)
    assert "record Python" in out
    assert "with_stack=True" in out
    assert "every recorded figure" not in out
