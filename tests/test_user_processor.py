"""Users' own processors: what they need, what is said of one that fails, and what is kept then."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import page_data
import pytest
import users
from captures import captured
from tiny import loaded

from molprof import api
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import ProcessorError, UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.capture import capture as capture_module
from molprof.profiler.capture.capture import capture
from molprof.profiler.constraints import find_factory, make_processor
from molprof.profiler.molecules.prompts import Prompts, read_prompts, read_texts
from molprof.profiler.recording.tracefile import OutputFile, is_incomplete

WIDTH = 128_256


def molecules(folder: Path) -> Prompts:
    path = folder / "in.smi"
    path.write_text("CC=O\nC\nOC=C\n")
    return read_prompts(path, 3)


def texts(folder: Path) -> Prompts:
    path = folder / "ask.txt"
    path.write_text("How many?\n\n# not a comment: text  \nAnd now?\n")
    return read_texts(path, 8)


def settings(processor: str, **changes: Any) -> CaptureSettings:
    return CaptureSettings("llama", processor=processor, **{"batch_size": 3, "repeats": 1, "count": 3, **changes})


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raises", "raised ValueError: no more ideas (users.py line 29), at step 4, rows 0 to 2, batch 0"),
        ("nothing", "returned a NoneType, not a tensor of scores, at step 4, rows 0 to 2, batch 0"),
        (
            "shape",
            f"returned scores of shape (3, {WIDTH - 1}), not (3, {WIDTH}), at step 4, rows 0 to 2, batch 0",
        ),
        ("dtype", "returned scores of dtype torch.float64, not torch.float32, at step 4, rows 0 to 2, batch 0"),
        ("device", "returned scores of device meta, not cpu, at step 4, rows 0 to 2, batch 0"),
        ("masks", f"masked all {WIDTH:,} tokens, at step 4, row 1, batch 0"),
        ("nan", "returned NaN or +inf among the scores, at step 4, row 1, batch 0"),
    ],
)
def test_what_is_wrong_is_said_and_the_steps_before_it_are_kept(
    tmp_path: Path, engine: TraceProcessor, what: str, message: str
) -> None:
    asked = settings(f"users:{what}")
    with pytest.raises(ProcessorError) as caught:
        captured(tmp_path / "out.json", asked, molecules(tmp_path))
    message = f"the processor 'users:{what}' {message}"
    assert str(caught.value) == message
    assert caught.value.exit_code == 3
    kept = tmp_path / "out.incomplete.json"
    assert caught.value.hint == f"the steps before the failure are kept, marked incomplete: {kept}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.smi", "out.incomplete.json"]
    trace = json.loads(kept.read_text())
    assert "molprof" not in trace
    assert trace["molprof_incomplete"] == {
        "problem": message,
        "processor": f"users:{what}",
        "command": ["molprof", "capture"],
    }
    info = load_trace(kept, engine)
    assert (info.complete, info.problem, info.manifest) == (False, f"its capture failed: {message}", None)
    rows = engine.query("SELECT name FROM slice WHERE name GLOB 'molprof.step *' ORDER BY ts")
    assert rows["name"].tolist() == [f"molprof.step batch=0 step={step}" for step in range(5)]


def test_a_failure_in_the_recorded_pass_keeps_that_recording(tmp_path: Path) -> None:
    asked = settings("users:Late", window=(2, 9), warmup=1)
    message = r"the processor 'late' raised ValueError: no more ideas \(users\.py line 29\), at step 4"
    with pytest.raises(ProcessorError, match=message):
        captured(tmp_path / "out.json.gz", asked, molecules(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.smi", "out.incomplete.json.gz"]


def test_a_failure_to_sample_keeps_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users.Tires, "calls", 7)  # two in each of three passes, then one
    asked = settings("users:Tires", max_new_tokens=2, warmup=1, sampling="sample")
    with pytest.raises(ProcessorError, match="no token can be sampled: the scores of a row contain NaN"):
        captured(tmp_path / "out.json", asked, molecules(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.smi", "out.incomplete.json"]


def test_a_failure_before_the_first_step_leaves_nothing_to_keep(tmp_path: Path) -> None:
    with pytest.raises(ProcessorError) as caught:
        captured(tmp_path / "out.json", settings("users:NoStart"), molecules(tmp_path))
    problem = "KeyError: 'templates' (users.py line 94)"
    assert str(caught.value) == f"the processor 'users:NoStart' failed to start: {problem}, batch 0"
    assert caught.value.hint is None
    assert [path.name for path in tmp_path.iterdir()] == ["in.smi"]


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_what_an_earlier_failure_left_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setattr(capture_module, "load", lambda *arguments: loaded("llama"))
    smiles = tmp_path / "in.smi"
    smiles.write_text("C\nO\n")
    asked = settings("users:raises", smiles=str(smiles), count=2)
    output = OutputFile(tmp_path / f"out.{ending}")
    kept = tmp_path / f"out.incomplete.{ending}"
    for _ in range(2):
        with pytest.raises(ProcessorError, match="no more ideas"):
            capture(asked, output)
        assert is_incomplete(kept)
        os.utime(kept, ns=(0, 0))
    with pytest.raises(ProcessorError, match="no more ideas"):
        capture(asked, output)
    assert kept.stat().st_mtime_ns > 0
    capture(dataclasses.replace(asked, processor=None), output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.smi", f"out.{ending}"]  # that run stands in for it


@pytest.mark.parametrize("ending", ["json", "json.gz"])
@pytest.mark.parametrize(
    "content", [b"mine", b'{"molprof_incomplete": {}}', b'{\n"molprof": {"molprof_incomplete": {}}\n}\n']
)
def test_a_file_of_anothers_making_is_not_replaced(tmp_path: Path, ending: str, content: bytes) -> None:
    kept = tmp_path / f"out.incomplete.{ending}"
    kept.write_bytes(gzip.compress(content) if ending == "json.gz" else content)
    assert not is_incomplete(kept)
    with pytest.raises(UsageError, match=r"out\.incomplete\.json(\.gz)? already exists"):
        capture(settings("users:raises"), OutputFile(tmp_path / f"out.{ending}"))
    kept.write_bytes(b"mine")  # no gzip at all
    assert not is_incomplete(kept)


def test_a_factory_that_ends_the_process_is_an_error_and_an_interrupt_is_none() -> None:
    target = loaded("llama").target
    with pytest.raises(UsageError) as caught:
        make_processor("users:leaves", target)
    assert str(caught.value) == "users:leaves cannot make a processor: SystemExit: 7 (users.py line 114)"
    with pytest.raises(KeyboardInterrupt):
        make_processor("users:interrupts", target)


def test_the_place_is_in_the_users_code_where_a_library_raises() -> None:
    with pytest.raises(UsageError) as caught:
        make_processor("users:misuses", loaded("llama").target)
    message = str(caught.value)
    assert message.startswith("users:misuses cannot make a processor: JSONDecodeError: Expecting value: ")
    assert message.endswith(" (users.py line 122)")


def test_a_longest_that_fails() -> None:
    processor = make_processor("users:NoLongest", loaded("llama").target)
    with pytest.raises(ProcessorError) as caught:
        processor.longest(None)  # type: ignore[attr-defined]
    assert str(caught.value) == (
        "the processor 'users:NoLongest' failed to give its longest answer: RuntimeError (users.py line 132)"
    )


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import sys\nsys.exit('no licence')\n", "SystemExit: no licence (broken_module.py line 2)"),
        ("x = 1\ny = x / 0\n", "ZeroDivisionError: division by zero (broken_module.py line 2)"),
        ("def make(:\n", "SyntaxError: "),
    ],
    ids=["exits", "raises", "syntax"],
)
def test_a_module_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    (tmp_path / "broken_module.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError) as caught:
        find_factory("broken_module:make")
    assert str(caught.value).startswith(f"the module of 'broken_module:make' cannot be imported: {problem}")


def test_a_module_that_is_not_on_the_path_is_looked_for_where_the_hint_says() -> None:
    with pytest.raises(UsageError) as caught:
        find_factory("my_rules:make")
    assert str(caught.value) == "no processor 'my_rules:make': No module named 'my_rules'"
    assert caught.value.hint is not None
    assert caught.value.hint.endswith("; set PYTHONPATH to the folder of my_rules.py or of the package my_rules")


@pytest.mark.parametrize("name", [":", ":make", "users:", "Grammar"])
def test_names_of_nothing(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_factory(name)
    assert str(caught.value) == f"no processor {name!r}"


def test_a_processor_that_does_otherwise_in_each_pass_is_told(tmp_path: Path) -> None:
    asked = settings("users:Changes", max_new_tokens=3, warmup=0)
    result = captured(tmp_path / "out.json", asked, molecules(tmp_path))
    assert result.notes[0] == ("the timed passes did not all write the same text: their times measure different work")
    assert result.notes[-1] == (
        "the timed passes wrote another text than the checking pass: nothing checked that the processor left every row "
        "a token there"
    )


@pytest.mark.parametrize(
    ("calls", "problem"),
    [
        (2, "the timed passes wrote another text than the checking pass: nothing checked that the processor left every "
         "row a token there"),
        (4, "the timed passes did not all write the same text: their times measure different work"),
        (6, "the recorded pass wrote another text than the timed passes, whose tokens the trace shows"),
        (9, None),
    ],
)  # fmt: skip
def test_a_processor_that_goes_wrong_after_its_check_is_told_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, problem: str | None
) -> None:
    """Of two calls in each pass: the checking, the timed, the unmarked and the recorded one."""
    monkeypatch.setattr(users.Tires, "calls", calls)
    asked = settings("users:Tires", max_new_tokens=2, warmup=1)
    result = captured(tmp_path / "out.json", asked, molecules(tmp_path))
    report = api.report(tmp_path / "out.json")
    assert report.certificate is not None
    reasons = [doubt.reason for doubt in report.certificate.doubts if doubt.check == "passes"]
    assert reasons == result.manifest.problems == list(result.notes)
    if problem is None:
        assert reasons == []
        return
    masked = f"the processor 'users:Tires' masked all {WIDTH:,} tokens, at step 0, row 0, batch 0"
    assert reasons[-1] == f"checked once more after the recorded pass: {masked}"
    assert problem in reasons
    assert (report.certificate.verdict, report.certificate.uncertain[0].group) == ("bounded", "steps")
    warning = f"WARNING: the passes of the capture contradict each other: {reasons[0]}; "
    assert warning in " ".join(page_data.render(report).split())


def test_a_capture_whose_passes_contradict_each_other_exits_with_3(tmp_path: Path) -> None:
    words = "capture --model llama --processor users:Tires -n 1 --max-new-tokens 2 --repeats 1 -o out.json"
    done = subprocess.run(
        [sys.executable, "-m", "molprof", *words.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.splitlines()[-2:] == [
        "molprof: error: the passes contradict each other: out.json: the timed passes did not all write the same text: "
        "their times measure different work",
        "  the trace is written, and its certificate says so",
    ]
    assert json.loads((tmp_path / "out.json").read_text())["molprof"]["problems"]


def test_a_factory_that_makes_no_processor(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="users:number made a int"):
        make_processor("users:number", loaded("llama").target)


def test_plain_prompts_and_a_plain_logits_processor(tmp_path: Path) -> None:
    asked = settings("users:Sevens", prompts=str(tmp_path / "ask.txt"), max_new_tokens=5, generations=1)
    result = captured(tmp_path / "out.json", asked, texts(tmp_path))
    runs = result.manifest.molecules
    assert [run.prompt for run in runs] == ["How many?", "# not a comment: text  ", "And now?"]
    for run in runs:
        assert (run.text, run.kinds, run.blocks) == ("77777", "fffff", [-1] * 5)
        assert (run.smiles, run.valid, run.template) == (None, None, None)
        # It does not count itself.
        assert run.masked is not None
        assert (run.masked.own, run.masked_logits) == (None, 5 * (result.manifest.resolved.logits_width - 1))
    resolved = result.manifest.resolved
    assert (resolved.processor, resolved.max_new_tokens) == ("users:Sevens", 5)


@pytest.mark.parametrize("name", ["generic", "grammar"])
def test_processors_for_molecules_refuse_plain_prompts(tmp_path: Path, name: str) -> None:
    asked = settings(name, prompts=str(tmp_path / "ask.txt"), max_new_tokens=5)
    with pytest.raises(UsageError, match=f"the processor '{name}' needs molecules: plain text has no skeleton"):
        captured(tmp_path / "out.json", asked, texts(tmp_path), loaded("qwen"))


def test_plain_prompts_need_a_bound_and_exclude_molecules(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no template to bound"):
        settings("users:Sevens", prompts="ask.txt")
    with pytest.raises(UsageError, match="exclude each other"):
        settings("users:Sevens", prompts="a", smiles="b", max_new_tokens=3)
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(UsageError, match=r"empty\.txt has no prompts"):
        read_texts(tmp_path / "empty.txt", 3)


def test_the_documented_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parent.parent / "docs" / "constraints.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "digits.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = settings("digits:make", prompts=str(tmp_path / "ask.txt"), max_new_tokens=24, sampling="sample", seed=3)
    result = captured(tmp_path / "out.json", asked, texts(tmp_path))
    for run in result.manifest.molecules:
        assert re.fullmatch(r"\[\d(,\d)*(\]|,)?", run.text)
    assert any(run.text.endswith("]") for run in result.manifest.molecules)
