"""Constraints in arguments of `generate` are found: their time, their names, and their part in comparisons."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from molprof import api
from molprof.analysis.compare.parts import MACHINE, group_of
from molprof.analysis.documents.comparison import comparison_document
from molprof.analysis.render import render
from molprof.profiler.recording.arguments import constraints_of
from molprof.profiler.recording.marks import GenerateCall
from molprof.profiler.recording.record import record
from molprof.profiler.recording.recording import summary_lines
from molprof.profiler.recording.script import _nothing

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SLEEP_S, STEPS = 0.02, 8


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, eos_token_id=2, pad_token_id=0, **SIZES)).eval()


def allowed(batch: int, ids: torch.Tensor) -> list[int]:
    time.sleep(SLEEP_S)
    return list(range(3, 60))


def recorded(path: Path, model: Any, **arguments: Any) -> Path:
    with record(path, window="auto"):
        for _ in range(4):
            model.generate(
                torch.tensor([[3, 11]]), max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False, **arguments
            )
    return path


def test_a_function_that_allows_tokens_is_the_phase_of_processors(model: Any, tmp_path: Path) -> None:
    free = recorded(tmp_path / "free.json.gz", model)
    bound = recorded(tmp_path / "bound.json.gz", model, prefix_allowed_tokens_fn=allowed)
    run = api.report(bound).run
    assert run is not None
    phases = {name: figures.wall_ns or 0 for name, figures in run.phases.items()}
    assert phases["processor"] >= 0.8 * 4 * STEPS * SLEEP_S * 1e9
    assert phases["forward"] + phases["prefill"] < phases["processor"]
    assert "PrefixConstrainedLogitsProcessor" in str(run.setup.processor)
    timed = [item for item in run.program.processors if item.name == "PrefixConstrainedLogitsProcessor"]
    assert [(item.own, item.batches) for item in timed] == [(False, 4)]
    assert timed[0].time_ns is not None
    assert timed[0].time_ns <= phases["processor"]

    found = api.compare(free, bound)
    (difference,) = found.differences
    assert difference is not None
    parts = {part: ns for part, ns in difference.parts.items() if group_of(part) != MACHINE}
    assert max(parts, key=lambda part: parts[part]).startswith("processor.")
    text = " ".join(render(comparison_document(found), whole=False).split())
    assert "arguments that constrain" in text
    assert "prefix_allowed_tokens_fn test_generate_arguments.allowed" in text


def test_other_arguments_are_told_by_name_and_value(model: Any) -> None:
    call = GenerateCall(model, {
        "guidance_scale": 1.5, "bad_words_ids": [[5], [6, 7]], "suppress_tokens": list(range(3, 60)), "num_beams": 1,
        "stop_strings": ["###"], "repetition_penalty": 1.0, "typical_p": 0.5, "stopping_criteria": [Enough()],
        "max_new_tokens": 9,
    })  # fmt: skip
    told = constraints_of(call)
    assert told.pop("suppress_tokens").startswith("57 values, SHA-256 ")
    assert told == {
        "bad_words_ids": "[[5], [6, 7]]", "guidance_scale": "1.5", "stop_strings": '["###"]',
        "stopping_criteria": "test_generate_arguments.Enough",
    }  # fmt: skip


class Enough:
    """A stopping criterion of the user's own."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool)


def test_two_short_calls_are_told_what_helps(model: Any, tmp_path: Path) -> None:
    """Both calls run under the profiler but for their first steps: a third one is timed, or the end of a longer one."""
    notes: dict[int, list[str]] = {}
    for calls, steps in ((2, STEPS), (3, STEPS), (1, 3 * STEPS)):
        with record(tmp_path / f"{calls}.json.gz", window="auto") as recording:
            for _ in range(calls):
                model.generate(torch.tensor([[3, 11]]), max_new_tokens=steps, min_new_tokens=steps, do_sample=False)
        notes[calls] = summary_lines([steps] * calls, calls * steps, recording.marks, None)
    assert any("call generate once more" in line for line in notes[2])
    assert not any("no times without the profiler" in line for line in (*notes[3], *notes[1]))


def test_generation_in_child_processes_is_said_with_how_to_record_it() -> None:
    assert "record all: molprof run --full" in _nothing(0.1)
    assert "child processes took 12.3 s of CPU time" in _nothing(12.34)
    assert "molprof.record(" in _nothing(12.34)
