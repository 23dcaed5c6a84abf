"""Phase marks come in order, with exact times on a fake clock, are recorded, and leave nothing behind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import events, of
from tiny import loaded, plan
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, StoppingCriteriaList, TopPLogitsWarper

from molprof.common.errors import ProcessorError
from molprof.common.settings import CaptureSettings
from molprof.common.text_format import DEFAULT
from molprof.profiler.constraints import make_processor
from molprof.profiler.engines.runner import Runner
from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.recording.clock import Clock, StepPlan, recording
from molprof.profiler.recording.manifest import mark_cost_ns, signature_cost_ns
from molprof.profiler.recording.marks import Marks, before_forward, marked

PHASES = ("step", "forward", "processor", "sampling", "bookkeeping")


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

    def end(self) -> None:
        self.heard.append("end")


def prompts(*smiles: str) -> list[Prompt]:
    return [Prompt(1, "", DEFAULT.prompt_of(text), molecule(text)) for text in smiles]


def runner(processor: str | None = None, **settings: Any) -> Runner:
    model = loaded("llama")
    made = None if processor is None else make_processor(processor, model.target)
    return Runner(model, made, CaptureSettings("tiny", **settings))


@pytest.mark.parametrize(
    ("processor", "settings", "setup"),
    [
        (None, {}, ["tokenize"]),
        ("generic", {"kv_cache": "static"}, ["template", "tokenize"]),
        ("generic", {"engine": "forced"}, ["template", "tokenize"]),
    ],
)
def test_order_of_marks(processor: str | None, settings: dict[str, Any], setup: list[str]) -> None:
    run, log = runner(processor, **settings), Log()
    result = run.run(plan(run, prompts("C", "CC", "O"), 2, 3), log)
    assert [batch.steps for batch in result.batches] == [3, 3]
    expected: list[str] = []
    for batch in (0, 1):
        expected += [f"{name} {batch}" for name in setup] + [f"begin {batch}"]
        expected += ["F", "P1", "P2", "S"] * 3 + ["end", f"text {batch}"]
    assert log.heard == expected


def test_warpers_of_generate_come_after_the_last_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    log, original = Log(), TopPLogitsWarper.__call__

    def heard(self: Any, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        log.heard.append("top_p")
        return original(self, input_ids, scores)

    monkeypatch.setattr(TopPLogitsWarper, "__call__", heard)
    run = runner("generic", sampling="top_p")
    run.run(plan(run, prompts("C"), 1, 1), log)
    assert log.heard[2:] == ["begin 0", "F", "P1", "P2", "top_p", "S", "end", "text 0"]


def test_phases_and_steps_on_a_fake_clock() -> None:
    steps: list[tuple[int, int]] = []
    marks = Clock(on_step=lambda batch, step: steps.append((batch, step)), now=itertools.count().__next__)
    with marks.setup("tokenize", 0):
        pass
    marks.begin(0)
    for _ in range(3):
        marks.forward()
        marks.processor()
        marks.sampling()
        marks.bookkeeping()
    marks.end()
    repeat = marks.repeat(20)
    assert repeat is not None
    assert (repeat.wall_ns, repeat.steps_ns, steps) == (20, [[4, 4, 4]], [(0, 0), (0, 1), (0, 2)])
    assert marks.phases_ns() == {
        "tokenize": 1, "setup": 1, "prefill": 1, "processor": 3, "sampling": 3, "bookkeeping": 3, "forward": 2,
    }  # fmt: skip
    assert min(mark_cost_ns(), signature_cost_ns()) > 0


def test_marks_of_a_real_pass_add_up_and_do_not_change_the_text() -> None:
    run, marks = runner("generic", sampling="sample", seed=4), Clock()
    plans = plan(run, prompts("C", "CO"), 2)
    result = run.run(plans, marks)
    assert sum(marks.phases_ns().values()) <= result.wall_ns
    repeat = marks.repeat(result.wall_ns)
    assert repeat is not None
    assert [len(steps) for steps in repeat.steps_ns] == [result.batches[0].steps]
    assert result.batches == run.run(plans, None).batches


def test_the_shadow_is_gone_after_an_error_and_a_users_own_is_kept() -> None:
    model = loaded("llama").model

    class Interrupting(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            assert "prepare_inputs_for_generation" in model.__dict__
            raise KeyboardInterrupt

    before = GenerationMixin.generate, StoppingCriteriaList.__call__
    with pytest.raises(KeyboardInterrupt), marked(Log()):
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


def annotations(raw: Path) -> list[str]:
    _, trace = events(raw)
    return [item["name"] for item in sorted(of(trace, "user_annotation"), key=lambda item: (item["ts"], -item["dur"]))]


@pytest.mark.parametrize(("ends", "steps"), [(True, 3), (False, 5)])
def test_a_window_records_its_steps_and_may_end_its_batch(tmp_path: Path, ends: bool, steps: int) -> None:
    run = runner("generic")
    with recording(tmp_path / "raw.json", torch.device("cpu"), StepPlan(0, (1, 2), ends=ends)) as marks:
        result = run.run(plan(run, prompts("C", "CO"), 1, 5), marks)
    assert [batch.steps for batch in result.batches] == [steps, 5]
    assert annotations(tmp_path / "raw.json") == [
        f"molprof.{phase} batch=0 step={step}" for step in (1, 2) for phase in PHASES
    ]


def test_a_whole_recording_has_set_up_and_every_batch_also_where_a_processor_failed(tmp_path: Path) -> None:
    run = runner("generic")

    def fail() -> None:
        with recording(tmp_path / "raw.json", torch.device("cpu")) as marks:
            run.run(plan(run, prompts("C", "CO"), 1, 2), marks)
            raise ProcessorError("no more")

    with pytest.raises(ProcessorError, match="no more"):
        fail()
    expected = []
    for batch in (0, 1):
        expected += [f"molprof.{phase} batch={batch}" for phase in ("template", "tokenize", "setup")]
        expected += [f"molprof.{phase} batch={batch} step=0" for phase in ("step", "prefill", *PHASES[2:])]
        expected += [f"molprof.{phase} batch={batch} step=1" for phase in PHASES] + [f"molprof.text batch={batch}"]
    assert annotations(tmp_path / "raw.json") == expected
