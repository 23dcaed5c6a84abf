"""A regular expression beyond Python's re is passed to the engine, and judged if a package can read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import captured, settings

from molprof import api
from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.capture.answers import checks_of, not_judged, problem_of
from molprof.profiler.capture.capture import capture
from molprof.profiler.constraints.json_schema import compiled
from molprof.profiler.constraints.regular import NotRegular
from molprof.profiler.molecules.prompts import Constraint, read_texts
from molprof.profiler.recording.tracefile import OutputFile

NEITHER_READS = "(?<=a"


def of_pattern(pattern: str, answer: str) -> str | None:
    asked = CaptureSettings("llama", prompts="-", max_new_tokens=3)
    return problem_of(checks_of(asked, Constraint("regex", pattern)), answer, "", cut=False)


def test_classes_of_unicode_are_judged() -> None:
    assert of_pattern(r"\p{L}+", "aé\u4e2d") is None
    assert of_pattern(r"\p{L}+", "a1") == "another text than the regular expression"
    assert of_pattern("[0-9]+", "12") is None
    assert not_judged([Constraint("regex", r"\p{L}+"), Constraint("choices", "("), None]) == []


def test_what_nothing_reads_is_not_judged_and_said_so() -> None:
    assert of_pattern(NEITHER_READS, "a") is None
    (line,) = not_judged([Constraint("regex", NEITHER_READS)])
    assert line.startswith(f"no answer is judged by the regular expression {NEITHER_READS!r}: neither Python's re nor")


def test_no_automaton_is_made_of_what_python_does_not_read() -> None:
    with pytest.raises(NotRegular, match=r"Python does not read it: bad escape \\p"):
        compiled(Constraint("regex", r"\p{L}+"))


def test_without_an_engine_it_is_refused_before_anything_is_timed(tmp_path: Path) -> None:
    (tmp_path / "ask.txt").write_text("a")
    asked = CaptureSettings("llama", prompts=str(tmp_path / "ask.txt"), max_new_tokens=3, regex=NEITHER_READS)
    with pytest.raises(UsageError, match="no answer is judged by the regular expression"):
        capture(asked, OutputFile(tmp_path / "out.json"))


@pytest.mark.parametrize("processor", ["llguidance", "table"])
def test_an_engine_takes_it(tmp_path: Path, processor: str) -> None:
    pytest.importorskip("llguidance")
    (tmp_path / "ask.txt").write_text("a")
    given = settings(processor=processor, regex=r"\p{L}{2}", prompts="ask.txt", max_new_tokens=8, repeats=1, warmup=0)
    run = api.report(captured(tmp_path / "out.json", given, read_texts(tmp_path / "ask.txt", 1)).path).run
    assert run is not None
    (answer,) = run.sequences
    assert (len(answer.text), answer.text.isalpha(), answer.valid) == (2, True, True)
