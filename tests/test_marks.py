"""Phase marks: their order, their times on a fake clock, and that they leave nothing behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import loaded, plan
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, StoppingCriteriaList, TopPLogitsWarper

from molprof.common.settings import CaptureSettings
from molprof.common.text_format import DEFAULT
from molprof.profiler.constraints import make_processor
from molprof.profiler.engines.runner import Runner
from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.recording.generate import before_forward, marked, signature_cost_ns
from molprof.profiler.recording.marks import HostMarks, Marks, mark_cost_ns
from molprof.profiler.recording.window import ProfilerMarks


class Log(Marks):
    """Hears every mark."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    @contextmanager
    def setup(self, name: str, batch: int) -> Iterator[None]:
        self.heard.append(f"{name} {batch}")
        yield

    def begin(self, batch: int) -> None:
        self.heard.append(f"begin {batch}")

    def forward(self) -> None:
        self.heard.append("F")

    def processor(self) -> None:
        self.heard.append("P1")

    def sampling(self) -> None:
        self.heard.append("P2")

    def bookkeeping(self) -> None:
        self.heard.append("S")

    def enough(self) -> bool:
        return False

    def end(self) -> None:
        self.heard.append("end")


class Clock:
    """Each reading is one later than the last."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


def prompts(*smiles: str) -> list[Prompt]:
    return [Prompt(1, "", DEFAULT.prompt_of(text), molecule(text)) for text in smiles]


def runner(processor: str | None = None, **settings: Any) -> Runner:
    model = loaded("llama")
    made = None if processor is None else make_processor(processor, model.target)
    return Runner(model, made, CaptureSettings("tiny", **settings))


@pytest.mark.parametrize("processor", [None, "generic"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_order_of_marks(processor: str | None, cache: str) -> None:
    run, log = runner(processor, kv_cache=cache), Log()
    plans = plan(run, prompts("C", "CC", "O"), 2, 3)
    result = run.run(plans, log)
    assert [batch.steps for batch in result.batches] == [3, 3]
    setup = ["tokenize"] if processor is None else ["template", "tokenize"]
    expected: list[str] = []
    for batch in (0, 1):
        expected += [f"{name} {batch}" for name in setup] + [f"begin {batch}"]
        expected += ["F", "P1", "P2", "S"] * 3 + ["end", f"text {batch}"]
    assert log.heard == expected
    assert "prepare_inputs_for_generation" not in run.loaded.model.__dict__


def test_warpers_of_generate_come_after_the_last_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    original = TopPLogitsWarper.__call__

    def heard(self: Any, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        log.heard.append("top_p")
        return original(self, input_ids, scores)

    monkeypatch.setattr(TopPLogitsWarper, "__call__", heard)
    run = runner("generic", sampling="top_p")
    run.run(plan(run, prompts("C"), 1, 1), log)
    assert log.heard[2:] == ["begin 0", "F", "P1", "P2", "top_p", "S", "end", "text 0"]


def test_phases_and_steps_on_a_fake_clock() -> None:
    steps: list[tuple[int, int]] = []
    marks = HostMarks(now=Clock())
    timed = HostMarks(lambda batch, step: steps.append((batch, step)), Clock())
    for each in (marks, timed):
        with each.setup("tokenize", 0):
            pass
        each.begin(0)
        for _ in range(3):
            each.forward()
            each.processor()
            each.sampling()
            each.bookkeeping()
        each.end()
    assert marks.steps_ns() == timed.steps_ns() == [[4, 4, 4]]
    phases = {
        "tokenize": 1,
        "setup": 1,
        "prefill": 1,
        "processor": 3,
        "sampling": 3,
        "bookkeeping": 3,
        "forward": 2,
    }
    assert marks.phases_ns() == phases
    assert sum(phases.values()) == sum(map(sum, marks.steps_ns())) + phases["tokenize"] + phases["setup"]
    assert steps == [(0, 0), (0, 1), (0, 2)]


def test_host_marks_of_a_real_pass_add_up() -> None:
    run, marks = runner("generic"), HostMarks()
    result = run.run(plan(run, prompts("C", "CO"), 2), marks)
    phases = marks.phases_ns()
    assert sorted(phases) == sorted(
        [
            "template",
            "tokenize",
            "setup",
            "prefill",
            "forward",
            "processor",
            "sampling",
            "bookkeeping",
            "text",
        ]
    )
    assert sum(phases.values()) <= result.wall_ns
    assert [len(steps) for steps in marks.steps_ns()] == [result.batches[0].steps]


def test_the_shadow_is_gone_after_an_error_and_a_users_own_is_kept() -> None:
    model, log = loaded("llama").model, Log()

    class Interrupting(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            assert "prepare_inputs_for_generation" in model.__dict__
            raise KeyboardInterrupt

    before = GenerationMixin.generate, StoppingCriteriaList.__call__
    with pytest.raises(KeyboardInterrupt), marked(log):
        model.generate(torch.ones(1, 3, dtype=torch.int64), logits_processor=[Interrupting()], max_new_tokens=2)
    assert "prepare_inputs_for_generation" not in model.__dict__
    assert (GenerationMixin.generate, StoppingCriteriaList.__call__) == before
    own = model.prepare_inputs_for_generation
    model.__dict__["prepare_inputs_for_generation"] = own
    try:
        with before_forward(model, lambda inputs: None):
            assert model.__dict__["prepare_inputs_for_generation"] is not own
        assert model.__dict__["prepare_inputs_for_generation"] is own
    finally:
        del model.__dict__["prepare_inputs_for_generation"]


def test_a_prefill_in_chunks_is_one_step() -> None:
    model, log = loaded("llama").model, Log()
    config = GenerationConfig(max_new_tokens=2, prefill_chunk_size=2, eos_token_id=None)
    with marked(log):
        model.generate(torch.ones(1, 5, dtype=torch.int64), generation_config=config)
    assert log.heard == ["begin 0", *["F", "P1", "P2", "S"] * 2, "end"]


def test_marks_do_not_change_the_text() -> None:
    run = runner("generic", sampling="sample", seed=4)
    plans = plan(run, prompts("C", "CO"), 2)
    assert run.run(plans, HostMarks()).batches == run.run(plans, None).batches


def annotations(profiler: torch.profiler.profile, folder: Path) -> list[str]:
    path = folder / "raw.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    marks = [event for event in events if event.get("cat") == "user_annotation"]
    return [event["name"] for event in sorted(marks, key=lambda event: (event["ts"], -event["dur"]))]


def make_profile() -> torch.profiler.profile:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


def test_window_records_its_steps_and_ends_the_pass(tmp_path: Path) -> None:
    run, synchronized = runner("generic"), []
    marks = ProfilerMarks(make_profile, (0, 1, 2), lambda: synchronized.append("sync"))
    result = run.run(plan(run, prompts("C", "CO"), 1), marks, only=0)
    assert [batch.steps for batch in result.batches] == [3]
    assert synchronized == ["sync", "sync"]
    assert marks.profiler is not None
    assert annotations(marks.profiler, tmp_path) == [
        f"molprof.{phase} batch=0 step={step}"
        for step in (1, 2)
        for phase in ("step", "forward", "processor", "sampling", "bookkeeping")
    ]


def test_full_records_set_up_and_every_batch(tmp_path: Path) -> None:
    run = runner("generic")
    marks = ProfilerMarks(make_profile, None, lambda: None)
    run.run(plan(run, prompts("C", "CO"), 1, 2), marks)
    marks.finish()
    assert marks.profiler is not None
    expected = []
    for batch in (0, 1):
        expected += [f"molprof.{phase} batch={batch}" for phase in ("template", "tokenize", "setup")]
        for step, first in ((0, "prefill"), (1, "forward")):
            expected += [
                f"molprof.{phase} batch={batch} step={step}"
                for phase in ("step", first, "processor", "sampling", "bookkeeping")
            ]
        expected.append(f"molprof.text batch={batch}")
    assert annotations(marks.profiler, tmp_path) == expected


def test_costs_are_measured() -> None:
    assert mark_cost_ns() > 0
    assert signature_cost_ns() > 0
