"""`molprof run` and recordings with a window leave the program as it is, and report its calls and loops."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import events, of
from conftest import TIMEOUT_S
from transformers import GenerationMixin, LlamaConfig, LlamaForCausalLM, LogitsProcessor, TextIteratorStreamer

import molprof
from molprof import api
from molprof.analysis.documents.figures import Reports
from molprof.analysis.documents.report import warnings
from molprof.common.errors import UsageError
from molprof.common.manifest import MachineSpan
from molprof.profiler.machine import Watch

EOS, PAD = 2, 0
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
PROMPT = torch.tensor([[3, 11], [4, 5]])
# A program that generates three times, and fails in a call.
SCRIPT = f"""
import os, sys
os.mkdir("elsewhere")
os.chdir("elsewhere")
print(__name__, sys.argv[1:])
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, eos_token_id=2, pad_token_id=0, **{SIZES!r})).eval()

class Mine(LogitsProcessor):
    def __call__(self, input_ids, scores):
        if fails:
            raise ValueError("of the program")
        return scores

for fails in (False, False, False, True):
    given = {{"max_new_tokens": 30, "min_new_tokens": 30, "logits_processor": [Mine()]}}
    print(model.generate(torch.tensor([[3, 11]]), **given)[0, 2:].tolist())
"""


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    gc.collect()  # a tokenizer of other tests, whose vocabulary is as large
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, eos_token_id=EOS, pad_token_id=PAD, **SIZES)).eval()


class Same(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


class Other(Same):
    pass


def run_of(path: Path) -> Any:
    """The run of a trace whose checks hold."""
    report = api.report(path)
    assert [check.text for check in report.checks if not check.holds] == []
    assert report.run is not None
    return report.run


def written(path: Path) -> list[list[int]]:
    _, trace = events(path)
    return [event["args"]["token_id"] for event in of(trace, "molprof.sequence")]


def test_every_kind_of_call_is_timed_and_a_window_of_one_recorded(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "end", lambda self: MachineSpan(1, gpu_others=2))
    asked: list[dict[str, Any]] = [
        {"max_new_tokens": 30, "min_new_tokens": 30, "logits_processor": [Same(), Other()]},
        {"max_new_tokens": 30, "min_new_tokens": 30, "do_sample": True, "repetition_penalty": 1.1},
        {"max_new_tokens": 4, "num_beams": 3, "num_return_sequences": 2},
        {"max_new_tokens": 4, "cache_implementation": "static", "disable_compile": True},
        {"max_new_tokens": 4, "num_return_sequences": 2, "do_sample": True},
        {"max_new_tokens": 4, "custom_generate": own_decoding},
        {"max_new_tokens": 9, "assistant_model": model},
    ]
    expected: list[list[int]] = []
    with molprof.record(tmp_path / "run.json.gz", window="auto") as recording:
        for arguments in asked:
            prompt = PROMPT[:1] if "assistant_model" in arguments else PROMPT
            expected += model.generate(prompt, **arguments)[:, 2:].tolist()
    assert recording.path == tmp_path / "run.json.gz"
    run = run_of(recording.path)
    assert written(recording.path) == [[*row[: row.index(EOS) + 1]] if EOS in row else row for row in expected]
    assert (run.batches, run.window.batch, run.window.first_step, run.window.last_step) == (7, 1, 10, 29)
    assert (run.setup.batch_size, run.setup.max_new_tokens) == (6, None)  # the rows of its beams; several limits
    assert {(item.prompt, item.text) for item in run.sequences} == {(None, None)}  # without a tokenizer
    # 20 decode steps of each of the first two calls ran under the profiler; all others were timed.
    assert run.program.estimated_steps == 20 + 20
    said = warnings(Reports(("x",), (api.report(recording.path),)))
    assert said[0].startswith("times are not reliable: while the program ran, 2 other processes on the GPU")
    (made, *_) = recording.summary()
    assert "; steps 10 to 29 of batch 1 are recorded; 20 more ran under the profiler, and " in made
    assert run.wall_ns.median == sum(phase.wall_ns or 0 for phase in run.phases.values())
    assert run.phases["between"].wall_ns > 0
    named = [(item.place, item.name, item.own, item.batches) for item in run.program.processors]
    assert [item for item in named if item[2]] == [(2, "Same", True, 1), (3, "Other", True, 1)]
    assert (0, "RepetitionPenaltyLogitsProcessor", False, 1) in named
    assert GenerationMixin.generate.__module__ == "transformers.generation.utils"


def own_decoding(model: Any, input_ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """A loop that asks neither for inputs nor whether it is to stop."""
    for _ in range(4):
        input_ids = torch.cat([input_ids, model(input_ids).logits[:, -1:].argmax(-1)], dim=1)
    return input_ids


def test_one_call_gives_its_later_steps_and_another_choice_is_said_to_be_missing(model: Any, tmp_path: Path) -> None:
    with molprof.record(tmp_path / "one.json", window="auto"):
        model.generate(PROMPT, max_new_tokens=50, min_new_tokens=50)
    run = run_of(tmp_path / "one.json")
    assert (run.window.first_step, run.window.last_step, run.program.estimated_steps) == (21, 40, 40)
    with molprof.record(tmp_path / "none.json", call=5) as recording:
        model.generate(PROMPT, max_new_tokens=3, min_new_tokens=3)
    assert recording.notes == [
        "of 1 call, number 5 has no step of the window: steps of call 0 are recorded",
        "no tokenizer of the model was found, so that texts are not recorded",
    ]


def test_a_loop_of_ones_own(model: Any, tmp_path: Path) -> None:
    processor = molprof.watch(Same())
    chosen: list[list[int]] = [[], []]

    def loop() -> None:
        cache, given = None, PROMPT
        for step in range(6):
            with molprof.step(PROMPT if step == 0 else None, model):
                out = model(given, past_key_values=cache, use_cache=True)
                cache, logits = out.past_key_values, processor(given, out.logits[:, -1])
                with molprof.phase("sampling"):
                    given = logits.argmax(-1, keepdim=True)
                molprof.tokens(given)
            for row, token in enumerate(given[:, 0].tolist()):
                chosen[row].append(token)

    loop()  # nothing happens without a recording
    expected, chosen = chosen, [[], []]
    with molprof.record(tmp_path / "all.json"):
        loop()
    run = run_of(tmp_path / "all.json")
    assert (written(tmp_path / "all.json"), run.steps) == (chosen, 6) == (expected, 6)
    assert (run.setup.model, run.setup.processor, run.molecules) == ("LlamaForCausalLM", "Same", 2)
    counts = "SELECT phase, COUNT() FROM molprof_phase GROUP BY phase"
    assert dict(api.query(tmp_path / "all.json", counts).frame.rows()) == {
        "prefill": 1, "forward": 5, "processor": 6, "sampling": 6, "bookkeeping": 6, "setup": 1, "between": 1,
    }  # fmt: skip
    with molprof.record(tmp_path / "window.json", window=(2, 3)):
        for _ in range(2):
            loop()
    run = run_of(tmp_path / "window.json")
    assert (run.batches, run.window.batch, run.window.steps, run.program.estimated_steps) == (2, 1, 2, 4)
    (named,) = run.program.processors
    assert (named.name, named.steps, 0 < named.time_ns <= run.phases["processor"].wall_ns) == ("Same", 8, True)
    with pytest.raises(UsageError, match="no phase 'procesor'"):
        molprof.phase("procesor")


def test_threads_and_nesting(model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Text:
        def decode(self, ids: Any, **options: Any) -> str:
            return " ".join(map(str, ids))

    streamer = TextIteratorStreamer(Text(), skip_prompt=True)  # type: ignore[arg-type]
    with molprof.record(tmp_path / "run.json") as outer, molprof.record(tmp_path / "inner.json") as inner:
        asked = {"max_new_tokens": 5, "min_new_tokens": 5, "streamer": streamer}
        thread = threading.Thread(target=model.generate, args=(PROMPT[:1],), kwargs=asked)
        thread.start()
        streamed = "".join(streamer)
        thread.join()
    assert (inner.path, outer.path) == (None, tmp_path / "run.json")
    assert f"a recording already runs: {tmp_path / 'inner.json'} is not written" in caplog.text
    run = run_of(tmp_path / "run.json")
    assert (run.steps, run.window.leaf_operators > 0) == (5, True)
    assert " ".join(map(str, written(tmp_path / "run.json")[0])) == streamed.strip()


def test_a_profiler_of_the_programs_own(model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def profiled() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
            torch.ones(3).add_(1)
        assert own.events()

    class Profiled(Same):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            profiled()
            return scores

    asked: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4}
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities), molprof.record(tmp_path / "inside.json"):
        model.generate(PROMPT, **asked)
    with molprof.record(tmp_path / "around.json") as around:
        profiled()
    with molprof.record(tmp_path / "window.json", window="auto"):
        model.generate(PROMPT, **asked, logits_processor=[Profiled()])
    assert [line.partition(": ")[0] for line in caplog.messages] == [
        "the program's own profiler runs",
        *["the program's own profiler took the place of molprof's"] * 2,
    ]
    assert (around.path, list(tmp_path.iterdir())) == (None, [])
    with molprof.record(tmp_path / "after.json"):
        model.generate(PROMPT, **asked)
    run_of(tmp_path / "after.json")


def test_a_handler_of_torchs_own_profiler(tmp_path: Path) -> None:
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    activities = [torch.profiler.ProfilerActivity.CPU]
    handler = molprof.trace_handler(tmp_path / "traces", "mine")
    with torch.profiler.profile(activities=activities, schedule=schedule, on_trace_ready=handler) as profile:
        for _ in range(8):
            torch.ones(3).add_(1)
            profile.step()
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["mine-2.json.gz", "mine.json.gz"]
    assert len(api.load(tmp_path / "traces/mine.json.gz").steps) == 2


def ran(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "molprof", "run", "-o", "run.json.gz", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=folder)


def test_a_script_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    seen = ran(tmp_path, "mine.py", "--its", "own")
    told, _, after = seen.stderr.rpartition("ValueError: of the program\n")
    assert (seen.returncode, "molprof/profiler" in told, told.count("Traceback")) == (1, False, 1)
    assert "molprof: wrote run.json.gz (" in after
    printed = [[int(item) for item in line[1:-1].split(",")] for line in seen.stdout.splitlines()[1:]]
    assert (seen.stdout.splitlines()[0], len(printed)) == ("__main__ ['--its', 'own']", 3)
    assert written(tmp_path / "run.json.gz") == printed
    assert run_of(tmp_path / "run.json.gz").setup.processor.startswith("Mine, MinLength")


@pytest.mark.parametrize(
    ("program", "arguments", "code"),
    [
        ("import sys; print(__name__, sys.argv, sys.path[0]); sys.exit(7)", ("mine.py", "-x", "--its", "own"), 7),
        ("import sys; print(__name__, sys.argv, sys.path[0]); sys.exit('no')", ("-m", "mine", "--its", "2"), 1),
        ("import os; print(os.getpid() > 1); raise KeyboardInterrupt", ("mine.py",), -signal.SIGINT),
        ("import sys; print(sorted({'torch', 'numpy'} & {*sys.modules}))", ("mine.py",), 0),
    ],
)
def test_a_program_without_torch_ends_as_with_python(
    tmp_path: Path, program: str, arguments: tuple[str, ...], code: int
) -> None:
    (tmp_path / "mine.py").write_text(program)
    seen = ran(tmp_path, *arguments)
    bare = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=tmp_path
    )
    assert (seen.returncode, seen.stdout) == (code, bare.stdout) == (bare.returncode, seen.stdout)
    said = seen.stderr.replace(bare.stderr, "")
    assert said == (
        "molprof: nothing is recorded: the program called neither transformers' generate nor molprof.step(); put"
        " `with molprof.step():` around each step of a loop of your own, or record all: molprof run --full\n"
    )
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["mine.py"]
