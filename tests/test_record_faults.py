"""A recorded program survives faults of recording: a warning, and the trace so far."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import molprof
from molprof import api
from molprof.analysis.figures import Report

IDS = torch.tensor([[3, 11, 12], [4, 5, 6]])


class Linear(torch.nn.Module):
    """No model of transformers: neither a device nor a config."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Odd:
    """Answers every question about it wrongly."""

    device, config, name_or_path, parameters = "cuda:7", {"model_type": 5}, 3, None


def loop(*steps: dict[str, Any], tokens: Any = (7, 8)) -> None:
    for given in steps:
        with molprof.step(**given):
            torch.ones(2).add_(1)
            molprof.tokens(tokens)


def recorded(folder: Path, program: Callable[[], None], **how: Any) -> Report:
    with molprof.record(folder / "run.json", **how) as recording:
        program()
    assert recording.path == folder / "run.json"
    return api.report(folder / "run.json")


@pytest.mark.parametrize("how", [{}, {"window": (0, 1)}], ids=["all", "window"])
@pytest.mark.parametrize("model", [Linear(), torch.nn.DataParallel(Linear()), Odd(), "name", 5, torch.nn.Identity()])
def test_a_model_of_any_kind(model: Any, how: dict[str, Any], tmp_path: Path) -> None:
    report = recorded(tmp_path, lambda: loop({"prompts": IDS, "model": model}, {}, {}), **how)
    assert report.run is not None
    assert (report.run.steps, report.run.generated_tokens) == (3, 6)
    if isinstance(model, Linear):
        assert (report.run.setup.model, report.run.setup.parameters) == ("Linear", 20)


@pytest.mark.parametrize(
    "prompts", [{"input_ids": IDS}, "text", b"text", 5, [], ["text"], [1, 2], [[{}]], object(), IDS[0]]
)
def test_prompts_that_are_no_ids_are_not_recorded(
    prompts: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = recorded(tmp_path, lambda: loop({"prompts": prompts}, {}))
    assert report.run is not None
    assert (report.run.steps, report.run.generated_tokens) == (2, 4)
    (line,) = caplog.messages
    assert line.startswith("the prompts given to molprof.step() are not recorded: ")


@pytest.mark.parametrize("tokens", ["text", {"a": 1}, object(), [[[]]], [None]])
def test_tokens_that_are_no_ids_are_not_recorded(tokens: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    report = recorded(tmp_path, lambda: loop({"prompts": IDS}, {}, tokens=tokens))
    assert report.run is not None
    assert (report.run.steps, report.run.generated_tokens) == (2, 0)
    (line,) = caplog.messages
    assert line.startswith("the tokens of a loop are not recorded: ")


def nested() -> None:
    with molprof.step(IDS), molprof.step(IDS), molprof.step():
        molprof.tokens([7, 8])


def never_left() -> None:
    molprof.step(IDS).__enter__()
    molprof.tokens([7, 8])


def left_twice() -> None:
    block = molprof.step(IDS)
    with block:
        molprof.tokens([7, 8])
    block.__exit__(None, None, None)


def entered_again() -> None:
    block = molprof.step(IDS)
    with block, block:
        molprof.tokens([7, 8])


def left_after_the_end() -> None:
    def generator() -> Any:
        with molprof.step(IDS):
            molprof.tokens([7, 8])
            yield

    KEPT.append(generator())
    next(KEPT[-1])


def phases_alone() -> None:
    with molprof.phase("processor"), molprof.phase("forward"):
        molprof.tokens([1])
    nested()


KEPT: list[Any] = []


@pytest.mark.parametrize("how", [{}, {"window": (0, 1)}], ids=["all", "window"])
@pytest.mark.parametrize("program", [nested, never_left, left_twice, entered_again, left_after_the_end, phases_alone])
def test_steps_that_are_misused(program: Callable[[], None], how: dict[str, Any], tmp_path: Path) -> None:
    report = recorded(tmp_path, program, **how)
    assert report.run is not None
    assert (report.run.steps, report.run.generated_tokens) == (1, 2)
    while KEPT:
        list(KEPT.pop())
    nested()


def test_a_function_of_c_is_watched() -> None:
    assert molprof.watch(max)(1, 2) == 2


PROGRAM = """
import sys
import torch, transformers
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=1, pad_token_id=0))
def generate():
    return model.generate(torch.tensor([[3, 11]]), max_new_tokens=3, min_new_tokens=3, do_sample=False).shape
"""
DELETED = "for name in [name for name in sys.modules if name.startswith(PREFIX)]: del sys.modules[name]\n"


@pytest.mark.usefixtures("anew")
def test_modules_that_are_deleted(tmp_path: Path) -> None:
    prefixes = ("transformers.generation.utils", "molprof")
    text = PROGRAM + DELETED.replace("PREFIX", repr(prefixes)) + "print(generate())\nprint('done')\n"
    (tmp_path / "program.py").write_text(text)
    line = [sys.executable, "-m", "molprof", "run", "-o", "run.json", "program.py"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (0, ["torch.Size([1, 5])", "done"])
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "run.json").read_text())["molprof"]["steps_per_batch"] == [3]
