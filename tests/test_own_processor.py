"""Users' own processors are built from their parameters; a failing one is named, and its steps are kept."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import page_data
import pytest
import torch
import users
from captures import captured, settings
from constrained import target
from goldens import called
from torch import Tensor

from molprof import api
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import ProcessorError, UsageError
from molprof.common.settings import CaptureSettings
from molprof.common.text_format import DEFAULT
from molprof.profiler.capture.capture import CaptureResult, capture
from molprof.profiler.constraints import check_processor, make_processor
from molprof.profiler.constraints.base import FORCED_RUNS, RowPositions, Rows, has
from molprof.profiler.constraints.own import UserProcessor
from molprof.profiler.molecules.prompts import Prompt, read_prompts, read_texts
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.recording.tracefile import OutputFile, is_incomplete

WIDTH, END = 8, 7
TARGET: Any = SimpleNamespace(logits_width=WIDTH, eos=END, pad=6, form=DEFAULT, device=torch.device("cpu"))
ROWS = Rows([Prompt(1, "", "a", None), Prompt(2, "", "b", None)], 3)


def run(folder: Path, name: str, text: str = "CC=O\nC\nOC=C\n", plain: bool = False, **changes: Any) -> CaptureResult:
    """A capture in batches of two, or of all molecules, of the tiny llama."""
    (folder / "in.txt").write_text(text)
    found = read_texts(folder / "in.txt", 3) if plain else read_prompts(folder / "in.txt", 3)
    asked = settings(processor=f"users:{name}", **{"repeats": 1, "warmup": 0, **changes})
    return captured(folder / "out.json", asked, found)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "in.txt")


# How it is built


def test_a_builder_is_called_once_per_run_unless_it_asks_for_a_batch(tmp_path: Path) -> None:
    users.Sevens.made.clear()
    users.Listed.made.clear()
    runs = run(tmp_path, "Sevens", max_new_tokens=2).manifest.molecules
    assert [item.text for item in runs] == ["77"] * 3
    assert len(users.Sevens.made) == 1
    given = ('mode={"a": [1]}', "top=1e-3", "word=plain text", "gap=a=b", "none=")
    manifest = run(tmp_path, "Listed", processor_args=given, max_new_tokens=2, sort=True).manifest
    first, second = users.Listed.made[:2]
    values = {"mode": {"a": [1]}, "top": 1e-3, "word": "plain text", "gap": "a=b", "none": ""}
    assert manifest.resolved.processor_parameters == values
    assert (first["smiles"], first["size"]) == (["CC=O", "C=CO"], 2)
    assert first["prompts"] == ["[SMILES]CC=O[/SMILES]", "[SMILES]C=CO[/SMILES]"]
    longest = max(len(target("llama").tokenizer(text)["input_ids"]) for text in first["prompts"])
    assert first["lengths"] == [longest] * 2
    assert second == {
        "templates": ["[CONFORMER][C]<0.0000,0.0000,0.0000>[/CONFORMER]"], "smiles": ["C"], "size": 1,
        "prompts": ["[SMILES]C[/SMILES]"], "lengths": second["lengths"], **values,
    }  # fmt: skip


def test_a_class_of_another_project(tmp_path: Path) -> None:
    manifest = run(tmp_path, "skeleton", "C\nO\nN\n", disagreement=True).manifest
    for found in manifest.molecules:
        read = molecule(found.smiles or "")
        atoms = "".join(piece + atom for piece, atom in zip(read.pieces, (*read.atoms, ""), strict=True))
        assert DEFAULT.without_blocks(found.text) == DEFAULT.answer_of(atoms)
        assert found.kinds.endswith("e")
        assert found.disagreement is not None


def test_plain_text(tmp_path: Path) -> None:
    found = run(tmp_path, "Sevens", "How many?\n\n# text  \nAnd?\n", plain=True, prompts="in.txt", max_new_tokens=5)
    for item, prompt in zip(found.manifest.molecules, ["How many?", "# text  ", "And?"], strict=True):
        assert (item.prompt, item.text, item.kinds, item.blocks) == (prompt, "77777", "fffff", [-1] * 5)
        assert (item.smiles, item.valid, item.template) == (None, None, None)
        # It does not count itself.
        assert item.masked is not None
        assert (item.masked.own, item.masked_logits) == (None, 5 * (128_256 - 1))
    plain = {"plain": True, "prompts": "in.txt", "max_new_tokens": 9}
    found = run(tmp_path, "OnlyLengths", "How many?\nWhy?\n", processor_args=("most=3",), **plain)
    assert [len(item.token_ids) for item in found.manifest.molecules] == [4, 4]
    for name in ("users:Listed", "generic"):
        with pytest.raises(UsageError, match=f"'{name}' needs molecules: plain text has no skeleton"):
            captured(tmp_path / "b.json", settings(processor=name, prompts="in.txt", max_new_tokens=9),
                     read_texts(tmp_path / "in.txt", 2))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given", "pattern"),
    [
        ("digits:make", (), r"\[\d(,\d)*(\]|,)?"),
        ("choices:build", ('texts=["yes","no","maybe"]',), "yes|no|maybe"),
        ("hf_json:Json", ('schema={"enum":["yes","no"]}',), '"(yes|no)"'),
    ],
)
def test_the_documented_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, given: tuple[str, ...], pattern: str
) -> None:
    if name.startswith("hf_"):
        pytest.importorskip("xgrammar")
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "docs/recipes"))
    (tmp_path / "in.txt").write_text("How many?\nAnd now?\nWhy?\n")
    asked = settings(
        processor=name, processor_args=given, prompts="in.txt", max_new_tokens=24, sampling="sample", seed=3, repeats=1
    )
    result = captured(tmp_path / "out.json", asked, read_texts(tmp_path / "in.txt", 3))
    for item in result.manifest.molecules:
        assert re.fullmatch(pattern, item.text)
        assert item.masked is None or item.masked.own in (None, item.masked.total)
    assert result.notes == ()


SUPPLIED = (
    "target, tokenizer, eos_token_id, pad_token_id, bos_token_id, vocab_size, device, templates, prompt_lengths, "
    "prompt_length, prompts, smiles, batch_size"
)
HINT = (
    "use one of generic, qwen, vectorized, placeholder, truncate, grammar, xgrammar, llguidance, outlines, "
    "lm-format-enforcer, table, or "
)
REFUSED: list[tuple[str, tuple[str, ...], str, str | None]] = [
    ("users:needs", (), "users:needs requires model_config, beams, which molprof cannot supply",
     f"--processor-arg model_config=VALUE; molprof supplies {SUPPLIED}"),
    ("users:OnlyLengths", ("top=3",), "users:OnlyLengths has no parameter 'top'",
     "its parameters: most, eos_token_id, prompt_length, vocab_size, device"),
    ("users:number", ("target",), "--processor-arg 'target' is not KEY=VALUE", "e.g. --processor-arg top=5"),
    ("users:number", ("a=1", "a=2"), "--processor-arg a is given twice", "a list is JSON: KEY=[1,2]"),
    ("users:calls", (), "no processor 'users:calls': module 'users' has no attribute 'calls'",
     f"{HINT}package.module:builder"),
    ("no.such:thing", (), "no processor 'no.such:thing': No module named 'no'",
     f"{HINT}package.module:builder; set PYTHONPATH to the folder of no.py or of the package no"),
    *((name, (), f"no processor {name!r}", f"{HINT}package.module:builder") for name in ("nope", ":", ":make", "a:")),
    ("users:number", (), "users:number made a int",
     "a builder returns a transformers LogitsProcessor, or an object with start(rows)"),
    ("users:WIDTH", (), "users:WIDTH does not name its parameters: 3 is not a callable object",
     "a Python function or class"),
    ("users:leaves", (), "users:leaves cannot make a processor: SystemExit: 7 (users.py line 181)",
     "what a builder gets and returns: docs/constraints.md"),
    ("users:misuses", (), "users:misuses cannot make a processor: JSONDecodeError: Expecting value: line 1 column 1 "
     "(char 0) (users.py line 189)", "what a builder gets and returns: docs/constraints.md"),
    ("broken:x", (), "the module of 'broken:x' cannot be imported: ZeroDivisionError: division by zero (broken.py line "
     "2)", None),
    ("quits:x", (), "the module of 'quits:x' cannot be imported: SystemExit: no licence (quits.py line 1)", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "message", "hint"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_cannot_be_made(
    name: str, given: tuple[str, ...], message: str, hint: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ny = x / 0\n")
    (tmp_path / "quits.py").write_text("raise SystemExit('no licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(users, "WIDTH", 3, raising=False)
    with pytest.raises(UsageError) as caught:
        make_processor(name, TARGET, given)
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_an_interrupt_and_the_settings_of_arguments() -> None:
    with pytest.raises(KeyboardInterrupt):
        make_processor("users:interrupts", TARGET)
    with pytest.raises(UsageError, match="string:Formatter has no parameter 'a'"):
        check_processor("string:Formatter", ("a=1",))  # what a command checks before it loads a model


# What it says of itself, and what its batches return


class Batch(SimpleNamespace):
    """Lets everything through, and forces `run`."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Any:
        return self.out(scores) if hasattr(self, "out") else scores

    def forced(self, row: int, position: int, chosen: int | None) -> Any:
        return self.run

    def mask(self, scores: Tensor, places: RowPositions) -> Any:
        return self(torch.empty(0), scores)


def user(verify: bool = True, **attributes: Any) -> UserProcessor:
    def build() -> Any:
        return SimpleNamespace(start=lambda rows: attributes.get("batch"), **attributes)

    made = UserProcessor("mine:make", build, TARGET)
    made.verify = verify
    return made


def failure(call: Any, *arguments: Any) -> str:
    with pytest.raises(ProcessorError) as caught:
        call(*arguments)
    return str(caught.value).removeprefix("the processor 'mine:make' ")


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"bias": torch.zeros(2)}, "Object of type Tensor is not JSON serializable"),
        ({"words": {"a"}}, "Object of type set is not JSON serializable"),
        ({"share": math.nan}, "Out of range float values are not JSON compliant"),
    ],
)
def test_parameters_that_no_trace_can_hold(parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        user(parameters=parameters)
    assert str(caught.value).startswith(f"the parameters of mine:make cannot be written into a trace: {problem}")


def test_what_it_says_of_itself() -> None:
    made = user(parameters={"words": ("a", "b"), 3: None}, name="mine", longest=lambda template: 0)
    assert (made.name, made.parameters) == ("mine", {"words": ["a", "b"], "3": None})
    assert failure(made.longest, None) == "the processor 'mine' says that its longest answer has 0 tokens"
    assert user().longest(SimpleNamespace(ids=[1, 2])) == 3  # type: ignore[arg-type]
    assert failure(make_processor("users:NoStart", TARGET).longest, None).endswith(  # type: ignore[attr-defined]
        "failed to give its longest answer: ValueError: invalid literal for int() with base 10: 'no' (users.py line 62)"
    )
    assert failure(user(batch=3).start, ROWS) == (
        "failed: its start returned a int, which cannot be called with input_ids and scores"
    )


@pytest.mark.parametrize(
    ("counted", "problem"),
    [
        ([], "has masked_logits [], not one count for each of 2 rows"),
        ([3, -1], "has masked_logits [3, -1], not one count for each of 2 rows"),
        (7, "failed to give its masked logits: TypeError: 'int' object is not iterable"),
        (torch.tensor([3, 4]), None),
    ],
)
def test_masked_logits(counted: Any, problem: str | None) -> None:
    batch = user(batch=Batch(masked_logits=counted)).start(ROWS)
    batch(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, WIDTH))
    if problem is None:
        assert batch.masked_logits == [3, 4]
    else:
        assert failure(lambda: batch.masked_logits) == problem


def raising(scores: Tensor) -> Tensor:
    raise ValueError("not these:\n" + "tensor([1, 2])\n" * 100)


def changed(row: int, value: float) -> Any:
    return lambda scores: scores.index_fill(0, torch.tensor([row]), value)


AT = ", at step 1, rows 0 to 1"


@pytest.mark.parametrize(
    ("out", "problem"),
    [
        (lambda scores: None, f"returned a NoneType, not a tensor of scores{AT}"),
        (lambda scores: scores[:, :4], f"returned scores of shape (2, 4), not (2, 8){AT}"),
        (lambda scores: scores.double(), f"returned scores of dtype torch.float64, not torch.float32{AT}"),
        (lambda scores: scores.to("meta"), f"returned scores of device meta, not cpu{AT}"),
        (changed(1, math.nan), "returned NaN or +inf among the scores, at step 1, row 1"),
        (changed(0, math.inf), "returned NaN or +inf among the scores, at step 1, row 0"),
        (changed(1, -math.inf), "masked all 8 tokens, at step 1, row 1"),
        (changed(0, -math.inf), "masked all 8 tokens, at step 1, row 0, which had ended: leave it the end token"),
    ],
)  # fmt: skip
def test_what_its_batches_return(out: Any, problem: str) -> None:
    answer, scores = torch.tensor([[1, 2, 3, END], [1, 2, 3, 4]]), torch.zeros(2, WIDTH)
    studied = Batch(out=lambda given: given if len(given) == 1 else out(given), reads_tokens=True)
    steps, runs = (user(batch=studied).start(ROWS) for _ in range(2))
    steps(answer[:1], scores[:1])
    assert failure(steps, answer, scores) == problem
    at = [RowPositions(rows, (4,) * len(rows), torch.tensor(rows), torch.tensor(rows)) for rows in ((1,), (0, 1))]
    assert runs.mask(scores[:1], at[0]) is not None
    assert failure(runs.mask, scores, at[1]) == problem.partition(", which")[0]
    if problem.startswith(("masked", "returned NaN")):  # requires a host sync
        assert user(verify=False, batch=Batch(out=out)).start(ROWS)(answer, scores) is not None


def test_state_of_an_earlier_batch_is_a_hint() -> None:
    class Once:
        used = False

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            assert not self.used
            self.used = True
            return scores

    user = UserProcessor("users:Once", Once, TARGET)
    given = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, WIDTH)
    user.start(ROWS)(*given)
    with pytest.raises(ProcessorError, match="raised AssertionError") as caught:
        user.start(ROWS)(*given)
    assert "it needs start(rows)" in (caught.value.hint or "")


def test_an_error_with_a_long_text_is_told_in_one_short_line() -> None:
    text = failure(user(batch=Batch(out=raising)).start(ROWS), torch.zeros(2, 4), torch.zeros(2, WIDTH))
    assert text.startswith("raised ValueError: not these: tensor([1, 2]) tensor(")
    assert re.search(r"\.\.\. \(1,510 characters\) \(test_own_processor\.py line \d+\), at step 0, rows 0 to 1$", text)


@pytest.mark.parametrize(
    ("forced", "problem"),
    [
        ([8], "forces 8 at position 5 of row 1, which is no token's id"),
        ([-1], "forces -1 at position 5 of row 1, which is no token's id"),
        (["x"], "failed to give what is forced at position 5 of row 1: TypeError: 'str' object cannot be interpreted "
         "as an integer"),
        ([3, torch.tensor(4)], None),
    ],
)  # fmt: skip
def test_forced_runs(forced: Any, problem: str | None) -> None:
    batch = user(batch=Batch(run=forced, reads_tokens=True)).start(ROWS)
    assert has(batch, FORCED_RUNS)
    assert batch.reads_tokens is True
    if problem is None:
        assert batch.forced(0, 0, None) == [3, 4]
    else:
        assert failure(batch.forced, 1, 5, 2) == problem
    assert not has(user(batch=lambda ids, scores: scores).start(ROWS), FORCED_RUNS)


def test_states() -> None:
    """Those of continuous batching and of drafts."""
    batch = user(batch=Batch(state=lambda row, *at: [3, "x"][row], allow=lambda scores, states: scores[:, :4])).start(
        ROWS
    )
    assert batch.state(0, 0, None) == 3
    assert failure(batch.allow, torch.zeros(1, WIDTH), torch.tensor([3])).startswith("returned scores of shape (1, 4)")
    why = "TypeError: 'str' object cannot be interpreted as an integer"
    assert failure(batch.state, 1, 5, 2) == f"failed to give the state at position 5 of row 1: {why}"


# What is kept of a capture that fails


def test_what_is_wrong_is_said_and_the_steps_before_it_are_kept(tmp_path: Path, engine: TraceProcessor) -> None:
    with pytest.raises(ProcessorError) as caught:
        run(tmp_path, "Wrong", processor_args=("what=raises",), batch_size=3)
    message = "the processor 'users:Wrong' raised ValueError: no more ideas (users.py line 27), at step 4, rows 0 to 2"
    assert (str(caught.value), caught.value.exit_code) == (f"{message}, batch 0", 3)
    kept = tmp_path / "out.incomplete.json"
    assert caught.value.hint == f"the steps before the failure are kept, marked incomplete: {kept}"
    assert left(tmp_path) == [kept.name]
    trace = json.loads(kept.read_text())
    assert "molprof" not in trace
    assert trace["molprof_incomplete"] == {
        "problem": f"{message}, batch 0", "processor": "users:Wrong", "command": ["molprof", "capture"],
    }  # fmt: skip
    info = load_trace(kept, engine)
    assert (info.complete, info.problem, info.manifest) == (False, f"its capture failed: {message}, batch 0", None)
    rows = engine.query("SELECT name FROM slice WHERE name GLOB 'molprof.step *' ORDER BY ts")
    assert rows["name"].tolist() == [f"molprof.step batch=0 step={step}" for step in range(5)]


@pytest.mark.parametrize(
    ("name", "changes", "problem", "kept"),
    [
        # In the recorded pass, whose recording is kept.
        ("Late", {"window": (2, 9), "warmup": 1, "max_new_tokens": 12},
         r"'late' raised ValueError: no more ideas \(users\.py line 27\), at "
         "step 4", ["out.incomplete.json"]),
        # Two calls in each of three passes, then one.
        ("Tires", {"max_new_tokens": 2, "warmup": 1, "sampling": "sample"}, "no token can be sampled: the scores of a "
         "row contain NaN", ["out.incomplete.json"]),
        ("NoStart", {}, r"'users:NoStart' failed to start: KeyError: 'templates' \(users\.py line 59\), batch 0", []),
    ],
)  # fmt: skip
def test_a_failure_later_or_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, Any], problem: str, kept: list[str]
) -> None:
    monkeypatch.setattr(users.Tires, "calls", 7)
    with pytest.raises(ProcessorError, match=problem):
        run(tmp_path, name, batch_size=3, **changes)
    assert left(tmp_path) == kept


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_what_an_earlier_failure_left_is_replaced_and_no_other_file(tmp_path: Path, ending: str) -> None:
    words = f"capture --model llama -n 2 --warmup 0 --repeats 1 --max-new-tokens 6 -o out.{ending}".split()
    wrong = ["--processor", "users:Wrong", "--processor-arg", "what=raises"]
    kept = tmp_path / f"out.incomplete.{ending}"
    for content in (b"mine", b'{"molprof_incomplete": {}}', b'{\n"molprof": {"molprof_incomplete": {}}\n}\n'):
        kept.write_bytes(gzip.compress(content) if ending == "json.gz" else content)
        assert not is_incomplete(kept)
        asked = CaptureSettings("llama", processor="users:Wrong", processor_args=("what=raises",))
        with pytest.raises(UsageError, match=r"out\.incomplete\.json(\.gz)? already exists"):
            capture(asked, OutputFile(tmp_path / f"out.{ending}"))
    kept.unlink()
    code, _, errors = called([*words, *wrong], tmp_path)
    assert (code, "no more ideas" in errors, is_incomplete(kept)) == (3, True, True)
    if ending == "json":
        os.utime(kept, ns=(0, 0))
        assert called([*words, *wrong], tmp_path)[0] == 3
        assert kept.stat().st_mtime_ns > 0
        assert called(words, tmp_path)[0] == 0
        assert left(tmp_path) == [f"out.{ending}"]  # that run stands in for it


UNLIKE = "the timed passes did not all write the same text (3 of 3 answers differ): their times measure different work"
CHECK = "the timed passes wrote another text than the checking pass: nothing checked that the processor left every row a token there"  # fmt: skip  # noqa: E501


@pytest.mark.parametrize(
    ("calls", "problem"),
    [
        (2, CHECK),
        (4, UNLIKE),
        (6, "the recorded pass wrote another text than the timed passes, whose tokens the trace shows"),
        (9, None),
    ],
)
def test_a_processor_that_goes_wrong_after_its_check_is_told_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, problem: str | None
) -> None:
    """Of two calls in each pass: the checking, the timed, the unmarked and the recorded one."""
    monkeypatch.setattr(users.Tires, "calls", calls)
    result = run(tmp_path, "Tires", batch_size=3, max_new_tokens=2, warmup=1)
    report = api.report(tmp_path / "out.json")
    assert report.certificate is not None
    reasons = [doubt.reason for doubt in report.certificate.doubts if doubt.check == "passes"]
    assert reasons == result.manifest.problems == list(result.notes)
    if problem is None:
        assert reasons == []
        return
    masked = "the processor 'users:Tires' masked all 128,256 tokens, at step 0, row 0, batch 0"
    assert reasons[-1] == f"checked once more after the recorded pass: {masked}"
    assert problem in reasons
    assert (report.certificate.verdict, report.certificate.uncertain[0].group) == ("bounded", "steps")
    warning = f"WARNING: the passes of the capture contradict each other: {reasons[0]}; "
    assert warning in " ".join(page_data.render(report).split())
