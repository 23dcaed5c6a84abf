"""A model's own generation config is followed, refused by name, or reported as not followed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from captures import captured, settings
from transformers import GenerationConfig

from molprof import api
from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.engines.generation import followed, note, otherwise
from molprof.profiler.molecules.prompts import read_texts

SAMPLED = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.2, "eos_token_id": [1, 2]}

# What the config declares, what was asked for, and what comes of it: sampling, its parameters, those of generate, what
# is not followed.
FOLLOWED: list[tuple[dict[str, Any], dict[str, Any], tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]]] = [
    ({}, {}, ("greedy", {}, (), {})),
    (SAMPLED, {}, ("sample", {"temperature": 0.6, "top_k": 50, "top_p": 0.9}, ("repetition_penalty=1.2",), {})),
    (SAMPLED, {"sampling": "greedy"}, ("greedy", {}, ("repetition_penalty=1.2",), {"do_sample": True})),
    (SAMPLED, {"sampling": "sample", "temperature": 2.0, "generate_args": ("repetition_penalty=1.0", "min_length=3")},
     ("sample", {"temperature": 2.0}, ("min_length=3",),
      {"repetition_penalty": 1.2, "temperature": 0.6, "top_p": 0.9})),
    ({"do_sample": True, "top_k": 0, "top_p": 1.0}, {}, ("sample", {"temperature": 1.0}, (), {})),
    ({"temperature": 0.6, "top_p": 0.9}, {}, ("greedy", {}, (), {})),
    ({"num_beams": 4, "length_penalty": 2.0}, {"generate_args": ("num_beams=1",)},
     ("greedy", {}, (), {"num_beams": 4})),
    ({"typical_p": 0.9}, {}, ("greedy", {}, (), {})),
    ({"use_cache": False, "num_return_sequences": 3}, {},
     ("greedy", {}, (), {"num_return_sequences": 3, "use_cache": False})),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "asked", "expected"), FOLLOWED)
def test_what_is_followed(declared: dict[str, Any], asked: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = followed(CaptureSettings("m", **asked), declared)
    assert (found.sampling, found.sampling_parameters, found.generate_args, otherwise(found, declared)) == expected


REFUSED = [
    ({"num_beams": 4}, {}, "the model's generation_config: num_beams 4 is not supported", "--generate-arg num_beams=1"),
    ({"penalty_alpha": 0.6}, {"generate_args": ("num_beams=1",)}, "penalty_alpha 0.6 is not", "penalty_alpha=0.0"),
    ({}, {"generate_args": ("num_beams=4",)}, "num_beams 4 is not supported", "leave num_beams out; record()"),
    ({}, {"generate_args": ("streamer=x",)}, 'streamer "x" is not supported', "leave streamer out"),
    ({}, {"generate_args": ("assistant_model=x",)}, 'assistant_model "x" is not', "leave assistant_model out"),
    ({}, {"generate_args": ("temperature=1",)}, "an option of its own decides that", "--temperature"),
    ({}, {"generate_args": ("beams=4",)}, "--generate-arg beams: a capture passes no such", "repetition_penalty"),
    ({}, {"generate_args": ("min_length=x",)}, "'x' is not JSON", "repetition_penalty=1.2"),
    ({}, {"generate_args": ("min_length=1", "min_length=2")}, "min_length is given twice", "KEY=[1,2]"),
    ({"repetition_penalty": 1.2}, {"drop_finished": True}, "does not apply repetition_penalty 1.2",
     "--generate-arg repetition_penalty=1.0"),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "asked", "message", "hint"), REFUSED)
def test_what_is_refused(declared: dict[str, Any], asked: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        followed(CaptureSettings("m", **asked), declared)
    assert message in str(caught.value)
    assert hint in str(caught.value.hint)


def test_tokens_are_those_of_a_bare_generate(tmp_path: Path) -> None:
    """As the config says, in a capture and in a script that says nothing; and the report has it all."""
    loaded = dataclasses.replace(tiny.loaded("llama"), generation=SAMPLED)
    (tmp_path / "in.txt").write_text("How many?\n")
    asked = settings(prompts="in.txt", max_new_tokens=8, repeats=1, warmup=0, seed=5)
    result = captured(tmp_path / "out.json", asked, read_texts(tmp_path / "in.txt", 1), loaded)
    config = GenerationConfig(**{**SAMPLED, "eos_token_id": loaded.target.eos}, pad_token_id=loaded.target.pad)
    torch.manual_seed(5 * 1_000_003)
    inputs = loaded.tokenizer("How many?", return_tensors="pt")
    answer: Any = loaded.model.generate(  # type: ignore[operator]
        inputs["input_ids"], attention_mask=inputs["attention_mask"], generation_config=config, max_new_tokens=8
    )
    report = api.report(result.path)
    assert report.run is not None
    assert result.manifest.molecules[0].token_ids == answer[0, inputs["input_ids"].shape[1] :].tolist()
    assert report.run.setup.generate_args == ("repetition_penalty=1.2",)


def test_the_note() -> None:
    found = followed(CaptureSettings("m"), SAMPLED)
    told = "as the model's generation_config says: sampling, temperature 0.6, top_k 50, top_p 0.9, "
    assert note(found, SAMPLED) == told + "repetition_penalty 1.2 (--sampling and --generate-arg replace it)"
    assert note(found, {}) == ""
