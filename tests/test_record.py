"""`record()` around any program records its steps, tokens and constraints, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import captured, events, of, settings
from forks import forked
from tiny import tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    GenerationMixin,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
)

from molprof import api
from molprof.common.errors import UsageError
from molprof.profiler.engines import ENGINES
from molprof.profiler.recording.record import record
from molprof.profiler.recording.sequences import DecodedStep, generated
from molprof.profiler.recording.tracefile import StepSpan, token_events

EOS, PAD = 2, 0
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, eos_token_id=EOS, pad_token_id=PAD, **SIZES)).eval()


class Countdown(LogitsProcessor):
    """The user's own: writes 9, 8, 7, ... and the end token once it has written 5."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for row, last in enumerate(input_ids[:, -1].tolist()):
            scores[row] = -torch.inf
            scores[row, EOS if last == 5 else last - 1] = 0
        return scores


class Enough(StoppingCriteria):
    """The user's own: a row ends behind an 8."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids[:, -1] == 8


def test_processors_that_a_paged_cache_drops_are_named(
    model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {"logits_processor": [Countdown()], "stopping_criteria": [Enough()], "cache_implementation": "paged"}
    with pytest.raises(NotImplementedError), record(tmp_path / "mine.json.gz"):  # paged with criteria
        model.generate(torch.tensor([[3, 11]]), **asked)
    assert [line for line in caplog.messages if "leaves out the logits processors that it is given: Countdown" in line]


def test_a_program_of_ones_own(model: Any, tmp_path: Path) -> None:
    prompts = torch.tensor([[3, 11], [PAD, 8], [3, 30]])
    asked = {
        "attention_mask": (prompts != PAD).long(),
        "logits_processor": [Countdown()],
        "stopping_criteria": [Enough()],
        "max_new_tokens": 6,
    }
    before = GenerationMixin.generate, StoppingCriteriaList.__call__
    path = tmp_path / "mine.json.gz"
    with record(path):
        recorded = model.generate(prompts, **asked)
        alone = model.generate(prompts[:1], max_new_tokens=2, min_new_tokens=2, do_sample=True)
    assert (GenerationMixin.generate, StoppingCriteriaList.__call__) == before
    assert "prepare_inputs_for_generation" not in vars(model)
    assert torch.equal(recorded, model.generate(prompts, **asked))

    report = api.report(path)
    run = report.run
    assert run is not None
    assert all(check.holds for check in report.checks)
    assert (run.batches, run.steps, run.window.steps) == (2, 8, 8)
    assert (run.setup.processor, run.setup.model, run.setup.seed) == (
        "Countdown, MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor",
        "LlamaForCausalLM",
        None,
    )
    assert (run.setup.batch_size, run.setup.max_new_tokens) == (3, None)
    assert (run.wall_ns.median, run.profiled_ratio) == (None, None)
    assert run.phases["processor"].leaf_operators > run.steps  # type: ignore[operator]
    _, trace = events(path)
    by_row = {event["args"]["sequence"]: event["args"] for event in of(trace, "molprof.sequence")}
    assert [by_row[row]["token_id"] for row in range(3)] == [[10, 9, 8], [7, 6, 5, EOS], [29, 28, 27, 26, 25, 24]]
    assert by_row[1]["kind"] == ["free", "free", "free", "eos"]
    assert by_row[3]["token_id"] == alone[0, 2:].tolist()
    tokens = [event for event in of(trace, "molprof.token") if event["args"]["sequence"] == 1]
    assert [(event["name"], event["args"]["step"]) for event in tokens] == [("7", 0), ("6", 1), ("5", 2), ("2", 3)]
    counted = "INCLUDE PERFETTO MODULE molprof.tokens; SELECT COUNT() FROM molprof_token"
    assert api.query(path, counted).frame.rows() == [(15,)]


def test_texts_are_the_tokenizers(tmp_path: Path) -> None:
    text = tokenizer("llama")
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(text), **SIZES)).eval()
    with record(tmp_path / "run.json", text):
        written = model.generate(text("C and O", return_tensors="pt")["input_ids"], max_new_tokens=2, eos_token_id=None)
    _, trace = events(tmp_path / "run.json")
    assert of(trace, "molprof.sequence")[0]["name"] == "sequence 0: C and O"
    made = [text.decode([token]) for token in written[0, -2:].tolist()]
    assert [event["name"] for event in of(trace, "molprof.token")] == made


def words() -> Any:
    own = Tokenizer(WordLevel({f"w{number}": number for number in range(64)}))
    return PreTrainedTokenizerFast(tokenizer_object=own, name_or_path="mine")


def test_a_tokenizer_that_an_earlier_program_left_is_not_this_ones(model: Any, tmp_path: Path) -> None:
    gc.disable()
    left = words()
    left.itself = left  # garbage that only a collection of cycles removes
    del left
    try:
        with record(tmp_path / "run.json"):
            model.generate(torch.tensor([[3, 11]]), max_new_tokens=2, min_new_tokens=2)
    finally:
        gc.enable()
    run = api.report(tmp_path / "run.json").run
    assert run is not None
    assert run.setup.vocabulary is None


def test_a_tokenizer_that_the_program_drops(tmp_path: Path) -> None:
    def program() -> list[str]:
        text = words()
        model = LlamaForCausalLM(LlamaConfig(vocab_size=64, eos_token_id=EOS, pad_token_id=PAD, **SIZES)).eval()
        model.name_or_path = "mine"
        written = model.generate(torch.tensor([[3, 11]]), max_length=4, min_new_tokens=2)
        return text.convert_ids_to_tokens(written[0])  # type: ignore[no-any-return]

    with record(tmp_path / "run.json", window="auto"):
        expected = program()
    run = api.report(tmp_path / "run.json").run
    assert run is not None
    assert (run.setup.vocabulary, run.setup.max_new_tokens) == (64, 2)
    assert [f"{item.prompt}{item.text}" for item in run.sequences] == ["".join(expected)]


def test_the_tokenizer_that_generate_is_given(model: Any, tmp_path: Path) -> None:
    text, other = words(), words()  # of neither the model tells that it is its own
    with record(tmp_path / "run.json"):
        model.generate(torch.tensor([[3, 11]]), max_new_tokens=2, min_new_tokens=2, tokenizer=text)
    run = api.report(tmp_path / "run.json").run
    assert run is not None
    assert run.setup.vocabulary == len(other)


def test_the_name_of_a_thread_that_linux_cuts_within_a_character(tmp_path: Path) -> None:
    trace = tmp_path / "thread.json"
    forked(record_named, trace)
    assert "(потокпо\N{REPLACEMENT CHARACTER})" in trace.read_text()
    assert api.report(trace).trace.lost_events == 0


def record_named(trace: Path) -> None:
    """In a process of its own: torch writes the names of threads that have ended into every later trace."""

    def named() -> None:
        ctypes.CDLL(None).prctl(15, "потокпоток".encode(), 0, 0, 0)  # PR_SET_NAME, of which 15 bytes are kept
        torch.ones(2).add_(1)

    with record(trace):
        thread = threading.Thread(target=named)
        thread.start()
        thread.join()


def test_beams_and_several_answers_to_a_prompt(model: Any, tmp_path: Path) -> None:
    with record(tmp_path / "run.json"):
        written = model.generate(
            torch.tensor([[5, 6], [7, 8]]), num_beams=3, num_return_sequences=2, max_new_tokens=4, min_new_tokens=4
        )
    report = api.report(tmp_path / "run.json")
    assert all(check.holds for check in report.checks)
    _, trace = events(tmp_path / "run.json")
    assert [event["args"]["token_id"] for event in of(trace, "molprof.sequence")] == written[:, 2:].tolist()


def test_an_assistant_model_makes_several_tokens_in_a_step(model: Any, tmp_path: Path) -> None:
    processor = Countdown()
    with record(tmp_path / "run.json"):
        written = model.generate(
            torch.tensor([[3, 40]]), assistant_model=model, logits_processor=[processor], max_new_tokens=12
        )
    report = api.report(tmp_path / "run.json")
    assert all(check.holds for check in report.checks)
    assert report.run is not None
    assert (report.run.generated_tokens, report.run.steps < 12) == (12, True)
    _, trace = events(tmp_path / "run.json")
    (sequence,) = (event["args"] for event in of(trace, "molprof.sequence"))
    assert sequence["token_id"] == written[0, 2:].tolist() == list(range(39, 27, -1))
    assert len(sequence["step"]) == 12


def test_what_fails_leaves_what_is_known_and_what_cannot_be_written_is_refused(model: Any, tmp_path: Path) -> None:
    class Wrong(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if input_ids.shape[1] > 4:
                raise ZeroDivisionError("mine")
            return scores

    prompt = torch.tensor([[3, 11]])

    def fail(name: str, *before: LogitsProcessor, **how: Any) -> None:
        with record(tmp_path / name, **how):
            for processor in (*before, Wrong()):
                model.generate(prompt, max_new_tokens=5, min_new_tokens=5, logits_processor=[processor])

    for name, *how in (("all.json",), ("window.json", Countdown())):
        with pytest.raises(ZeroDivisionError, match="mine"):
            fail(name, *how, **({"window": "auto"} if how else {}))
    # The steps of a call that did not return have no tokens; the window of an earlier call is whole.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.incomplete.json", "window.json"]
    problem = api.report(tmp_path / "all.incomplete.json").trace.problem
    assert problem is not None
    assert "ZeroDivisionError: mine" in problem
    report = api.report(tmp_path / "window.json")
    assert report.run is not None
    assert (report.run.batches, [check.text for check in report.checks if not check.holds]) == (1, [])
    (tmp_path / "run.json").write_text("mine")
    with pytest.raises(UsageError, match="already exists"), record(tmp_path / "run.json"):
        raise AssertionError


def test_code_without_generate_gives_a_trace_without_a_run(tmp_path: Path) -> None:
    with record(tmp_path / "run.json", modules=True):
        torch.ones(2, 2).add_(1)
    report = api.report(tmp_path / "run.json")
    assert report.run is None
    assert report.trace.events_by_category["cpu_op"] > 0


def test_a_window_of_steps_leaves_the_program_as_it_is(model: Any, tmp_path: Path) -> None:
    prompt = torch.tensor([[3, 11]])
    with record(tmp_path / "run.json", call=1, window=(2, 3)):
        for _ in range(2):
            written = model.generate(prompt, max_new_tokens=6, min_new_tokens=6)
    assert written.shape == (1, 8)
    report = api.report(tmp_path / "run.json")
    assert report.run is not None
    assert (report.run.steps, report.run.window.first_step, report.run.window.last_step) == (12, 2, 3)
    assert [check.text for check in report.checks if not check.holds] == []
    _, trace = events(tmp_path / "run.json")
    shown = [(event["args"]["batch"], event["args"]["step"]) for event in of(trace, "molprof.token")]
    assert shown == [(1, 2), (1, 3)]
    with record(tmp_path / "no.json", call=2, window=(5, 6)) as recording:
        model.generate(prompt, max_new_tokens=2)
    assert recording.path is None
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_an_engine_of_ones_own_writes_what_generate_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "toy", "toy_engine:Toy")
    asked = settings(processor="generic", max_new_tokens=7, repeats=1, warmup=0)
    runs = [captured(tmp_path / f"{name}.json", dataclasses.replace(asked, engine=name)) for name in ("auto", "toy")]
    texts = [[run.token_ids for run in result.manifest.molecules] for result in runs]
    assert texts[0] == texts[1]
    assert [result.manifest.problems for result in runs] == [[], []]
    report = api.report(runs[1].path)
    assert report.run is not None
    assert (report.run.setup.engine, report.run.setup.own_loop) == ("toy", True)
    assert {check.id for check in report.checks if not check.holds} <= {"wall_time"}  # of so short a run


def test_steps_need_no_batch() -> None:
    """Sequences join and leave, and a step may give one several tokens."""
    steps = [
        DecodedStep({0: [5]}, 1),
        DecodedStep({0: [6], 1: [7, 8]}, 2),
        DecodedStep({1: [9, EOS]}, 1),
        DecodedStep({2: [4]}, 1),
    ]
    found = generated(steps, {0: [1], 1: [1, 1]}, None, frozenset([EOS]))
    runs = found.sequences
    assert [(run.batch, run.row, run.token_ids, run.step_tokens) for run in runs] == [
        (0, 0, [5, 6], None),
        (0, 1, [7, 8, 9, EOS], [0, 2, 2]),
        (0, 2, [4], [0, 0, 0, 1]),
    ]
    assert ([run.busy_steps for run in runs], found.rows_per_step) == ([2, 2, 1], [[1, 2, 1, 1]])
    spans = {(0, step): StepSpan(1000 * step, 1000) for step in range(4)}
    lines = [text for text in token_events(runs, found.texts, spans) if "molprof.token" in text]
    assert [text.partition('"ts":')[2].partition(',"dur"')[0] for text in lines] == [
        *("0.000", "1.000"),
        *("1.000", "1.500", "2.000", "2.500"),
        "3.000",
    ]
