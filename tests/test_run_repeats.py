"""`molprof run --repeats` and `--without-processors` alternate a program with and without its processors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import captures
import pytest
import torch
from conftest import TIMEOUT_S
from test_run import SIZES, Other, Same, run_of, written
from test_run import model as model  # a fixture
from transformers import GenerationConfig, LogitsProcessorList

from molprof import api
from molprof.analysis.documents.report import report_document
from molprof.common.manifest import Manifest, from_json
from molprof.profiler.recording.arguments import without_processors

SCRIPT = f"""
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, eos_token_id=2, pad_token_id=0, **{SIZES!r})).eval()

class Short(LogitsProcessor):
    def __call__(self, input_ids, scores):
        if input_ids.shape[1] < 8:
            scores[:, 2] = float("-inf")
            return scores
        scores[:] = float("-inf")
        scores[:, 2] = 0
        return scores

for call in range(2):
    out = model.generate(torch.tensor([[3, 11]]), max_new_tokens=26, logits_processor=[Short()])
    print(out[0, 2:].tolist())
    if "--strict" in sys.argv and out.shape[1] != 9:
        raise ValueError("too long")
"""


def ran(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(SCRIPT)
    line = [sys.executable, "-m", "molprof", "run", "-o", "run.json.gz", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=folder)


def manifest_of(path: Path) -> Manifest:
    trace, _ = captures.events(path)
    return from_json(trace["molprof"])


def test_runs_in_turns_are_paired(tmp_path: Path) -> None:
    done = ran(tmp_path, "--repeats", "1", "mine.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 2  # of the first run alone
    assert "switched off: Short (logits_processor)\n" in done.stderr
    assert "run with its processors, 1 of 1: " in done.stderr
    assert "next: molprof compare run.without.json.gz run.json.gz" in done.stderr
    here, there = (manifest_of(tmp_path / name) for name in ("run.json.gz", "run.without.json.gz"))
    assert here.session is not None
    assert there.session is not None
    assert (here.session.id, here.session.rounds, there.session.rounds) == (there.session.id, [0], [0])
    assert sorted(here.session.places + there.session.places) == [0, 1]
    assert here.program
    assert there.program
    paired = here.program.paired
    assert paired
    assert (paired.other, paired.switched_off) == ("run.without.json.gz", ["Short (logits_processor)"])
    assert there.program.switched_off == paired.switched_off
    assert (paired.tokens, paired.other_tokens) == ([14], [sum(map(len, written(tmp_path / "run.without.json.gz")))])
    assert paired.wall_ns == [here.timings.repeats[0].wall_ns]
    run = run_of(tmp_path / "run.json.gz")
    assert (run.wall_ns.repeats, run.program.estimated_steps, run.setup.processor) == (1, 0, "Short")
    run_of(tmp_path / "run.without.json.gz")
    (line,) = [line for line in report_document(api.report(tmp_path / "run.json.gz")).summary if "Without" in line]
    assert line.startswith("Without Short (logits_processor): ")
    assert [part in line for part in ("; with it ", " for 14 tokens, ", "; per token ")] == [True] * 3
    said = "Its constraint is switched off: Short (logits_processor)."
    assert said in report_document(api.report(tmp_path / "run.without.json.gz")).summary
    compared = api.compare(tmp_path / "run.without.json.gz", tmp_path / "run.json.gz")
    assert [item.paired for item in compared.differences] == [True]


def test_runs_that_fail_are_told_and_not_paired(tmp_path: Path) -> None:
    done = ran(tmp_path, "--repeats", "1", "mine.py", "--strict")
    assert done.returncode == 0, done.stderr
    assert "recorded run without its processors failed: ValueError: too long\n" in done.stderr
    assert "without its processors the program made 1 of 2 calls of generate: it is not timed so\n" in done.stderr
    assert "molprof compare" not in done.stderr
    here = manifest_of(tmp_path / "run.json.gz")
    assert here.program
    assert here.program.paired
    assert (here.session, len(here.timings.repeats), here.program.paired.wall_ns) == (None, 1, [])
    summary = report_document(api.report(tmp_path / "run.json.gz")).summary
    assert any(line.startswith("No run without Short (logits_processor) is paired: ") for line in summary)


def test_a_program_runs_without_its_processors(tmp_path: Path) -> None:
    done = ran(tmp_path, "--without-processors", "mine.py")
    assert done.returncode == 0, done.stderr
    manifest = manifest_of(tmp_path / "run.json.gz")
    assert manifest.program
    assert manifest.program.switched_off == ["Short (logits_processor)"]
    assert manifest.resolved.processor is None


@pytest.mark.parametrize(
    ("asked", "off"),
    [
        ({"logits_processor": [Same(), Other()]}, ["Same (logits_processor)", "Other (logits_processor)"]),
        ({"logits_processor": LogitsProcessorList(), "min_new_tokens": 4}, []),
        ({"prefix_allowed_tokens_fn": lambda batch, ids: [5]}, ["prefix_allowed_tokens_fn"]),
        ({"bad_words_ids": [[5]], "no_repeat_ngram_size": 1}, ["bad_words_ids", "no_repeat_ngram_size"]),
        (
            {"generation_config": GenerationConfig(suppress_tokens=[4], max_new_tokens=4, pad_token_id=0)},
            ["suppress_tokens (generation_config)"],
        ),
    ],
)
def test_what_is_switched_off(model: Any, asked: dict[str, Any], off: list[str]) -> None:
    prompt, heard = torch.tensor([[3, 11]]), list[str]()
    more = {} if "generation_config" in asked else {"max_new_tokens": 4}
    plain = model.generate(prompt, **more, **({"max_new_tokens": 4} if not more else {}))
    before = asked.get("generation_config") and asked["generation_config"].to_dict()
    with without_processors(heard.append):
        out = model.generate(prompt, **more, **asked)
    assert heard == off
    if "min_new_tokens" not in asked:
        assert out.tolist() == plain.tolist()
    assert before == (asked.get("generation_config") and asked["generation_config"].to_dict())


def test_options_that_exclude_each_other(tmp_path: Path) -> None:
    for more, said in (
        (("--full",), "--full records all, and times nothing"),
        (("--without-processors",), "--repeats runs the program without its processors too"),
    ):
        done = ran(tmp_path, "--repeats", "2", *more, "mine.py")
        assert (done.returncode, said in done.stderr) == (2, True)
